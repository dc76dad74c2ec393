"""What a tensor's device decides: the back end, the chip and the logical-core degree. The installation decides nothing."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor

from nki_hf.backends.neuron import neuron_backend
from nki_hf.backends.neuron_world import device_world
from nki_hf.settings import Settings, settings

__all__ = ["PLAIN_TENSORS", "Target", "backend_name", "settings_of_graph", "target"]

PLAIN_TENSORS: tuple[type, ...] = (torch.Tensor, torch.nn.Parameter, FakeTensor)
"""Tensor classes that kernels take; `torch.export` runs the adapter itself on fake ones. A stand-in for device tensors adds
its class here; nothing else may."""

Target = tuple[str, int | None, str]
"""Chip, logical-core degree (None = the chip's default), and why no kernel can run there (empty if one can)."""


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator,unused-ignore]
def settings_of_graph() -> Settings:
    """The settings in force; what is traced takes those of the moment as a constant."""
    return settings()


def backend_name(device_type: str) -> str | None:
    """The back end for tensors on a device: the settings' choice for `cpu`, `neuron` for `neuron` and `xla`; else None."""
    if device_type == "cpu":
        return str(settings_of_graph().backend)
    return None if device_world(device_type) is None else "neuron"


def target(device_type: str) -> Target:
    """Chip and degree to plan for: the device's own for Neuron tensors, the settings' for all others."""
    if device_type != "cpu" and device_world(device_type) is not None:
        return _neuron_target()
    chosen = settings_of_graph()
    return chosen.chip, chosen.lnc, ""


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator,unused-ignore]
def _neuron_target() -> Target:
    backend = neuron_backend()
    problem = backend.unavailable()
    if problem is not None or backend.platform.chip is None:
        return settings().chip, None, problem or ""
    return backend.platform.chip, backend.lnc.value, ""
