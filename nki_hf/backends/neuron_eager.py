"""What an untraced kernel call costs on the host, said once, and how to compile instead."""

from __future__ import annotations

import warnings

__all__ = ["EAGER_CALL_MS", "EagerCallWarning", "eager_advice", "warn_of_eager_call"]

EAGER_CALL_MS = 50
"""Host milliseconds of one kernel call outside of a graph: its Python is built again for each call, whatever the kernel takes.
Source: public reports of nki.jit calls under PyTorch/XLA on Trn2 (nki-samples, issue 72), about 53 ms; not measured here."""


class EagerCallWarning(UserWarning):
    """A kernel was launched on a device outside of a compiled graph; once per process."""


def eager_advice() -> str:
    """The sentence, for warnings and reports."""
    return (
        f"A kernel call outside of a compiled graph costs about {EAGER_CALL_MS} ms of host time on Neuron devices, whatever "
        'the kernel takes. Compile the model: torch.compile(model, backend="neuron", fullgraph=True, dynamic=False) on `neuron`'
        ", torch_neuronx.trace on `xla` (docs/trainium.md)."
    )


_warned = False


def warn_of_eager_call(layer: str) -> None:
    """Warn, the first time in this process.

    Args:
      layer: who called.
    """
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(f"{eager_advice()} The first such call came from {layer}.", EagerCallWarning, stacklevel=4)
