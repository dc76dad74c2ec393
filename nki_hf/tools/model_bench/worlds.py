"""The machine that a run uses: CPU, native TorchNeuron or torch-neuronx (XLA). One function per world makes the call.

Nothing here measures; a world says how to compile the model, how to call it and how to wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import nki_hf
from nki_hf.backends.neuron import neuron_backend
from nki_hf.backends.neuron_lnc import resolve_lnc
from nki_hf.backends.neuron_world import Host, detect_world, imported, simulator_problem
from nki_hf.errors import BackendUnavailable
from nki_hf.tools.model_bench.device.plan import compiler_arguments
from nki_hf.tools.model_bench.device.traced import traced_key, traced_model
from nki_hf.tools.model_bench.model import LastHidden, Prompt, Subject
from nki_hf.tools.model_bench.options import BenchOptions

__all__ = ["Prepared", "choose_device", "device_notes", "prepare"]


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A model ready to be called.

    Attributes:
      call: one forward pass; returns the last hidden state `[batch, seqlen, hidden]`, where the world keeps it.
      wait: returns when the device has finished what was asked of it.
      to_host: the result as a float32 CPU tensor.
      copies_inside: True if a call also moves its inputs and outputs between host and device.
      prompt: the input, where the world keeps it.
    """

    call: Callable[[], torch.Tensor]
    wait: Callable[[], None]
    to_host: Callable[[torch.Tensor], torch.Tensor]
    copies_inside: bool
    prompt: Prompt


def choose_device(asked: str, host: Host | None = None) -> str:
    """`cpu`, `neuron` or `xla`: what `asked` means on this machine.

    Raises:
      BackendUnavailable: the device asked for is not here, its LNC is unknown or contradictory, or kernels would not run on
        it; one line that says why and what to do.
    """
    if asked == "cpu":
        return "cpu"
    host = host or Host()
    world = detect_world(host)
    if asked == "auto" and world.device is None:
        return "cpu"
    if world.device is not None and asked in ("auto", world.device):
        if wrong := simulator_problem(host):
            raise BackendUnavailable(wrong)
        resolve_lnc(world, host)
        return world.device
    found = world.problem or f"the installed torch_neuronx serves device {world.device!r}"
    raise BackendUnavailable(f"device={asked!r} is not on this machine: {found} Run with --device cpu for the simulator.")


def prepare(device: str, subject: Subject, options: BenchOptions, say: Callable[[str], None] = lambda _: None) -> Prepared:
    """The subject's model, its attention already chosen, made callable on `device`."""
    return {"cpu": _on_cpu, "neuron": _on_native_neuron, "xla": _on_xla}[device](subject, options, say)


def device_notes(device: str, host: Host | None = None) -> dict[str, str]:
    """What a time on a device depends on, and what its package says about the run that just ended, for the record."""
    if device == "cpu":
        return {}
    host, backend = host or Host(), neuron_backend()
    packages = (
        ("torch-neuronx", "torch-xla", "neuronx-cc", "nki") if device == "xla" else ("torch-neuronx", "neuronx-cc", "nki")
    )
    notes = {
        "neuron packages": ", ".join(f"{name} {_version(name, host)}" for name in packages),
        "chip": f"{backend.platform.chip or 'unknown'}, instance {backend.platform.instance or 'unknown'}, "
        f"LNC {backend.lnc.value} ({backend.lnc.source})",
        "source": _git_state(host),
    }
    if device == "neuron":
        import torch_neuronx

        notes["ops that ran on the CPU"] = ", ".join(map(str, torch_neuronx.get_fallback_ops())) or "none"
    return notes


def _version(name: str, host: Host) -> str:
    return host.version(name) or getattr(imported(name.replace("-", "_"), host)[0], "__version__", None) or "missing"


def _git_state(host: Host) -> str:
    folder = str(Path(nki_hf.__file__).parent)
    if host.run(["git", "-C", folder, "ls-files", "--error-unmatch", "__init__.py"]) is None:
        return "no git checkout"  # installed; a repository around it would be another project's
    return "git " + (host.run(["git", "-C", folder, "describe", "--always", "--dirty"]) or "unknown").strip()


def _on_cpu(subject: Subject, options: BenchOptions, say: Callable[[str], None]) -> Prepared:
    model, prompt = LastHidden(subject.model), subject.prompt

    def call() -> torch.Tensor:
        with torch.inference_mode():
            return model(prompt.input_ids, prompt.attention_mask)

    return Prepared(call=call, wait=lambda: None, to_host=lambda out: out.float(), copies_inside=False, prompt=prompt)


def _on_native_neuron(subject: Subject, options: BenchOptions, say: Callable[[str], None]) -> Prepared:
    """Native TorchNeuron: weights and inputs resident on the device, one graph compiled by its backend.

    Documented, not run by this project: nobody here has the device.
    """
    module = LastHidden(subject.model).to("neuron")
    mask = subject.prompt.attention_mask
    prompt = replace(
        subject.prompt,
        input_ids=subject.prompt.input_ids.to(torch.int32).to("neuron"),
        attention_mask=None if mask is None else mask.to(torch.int32).to("neuron"),
    )
    compiled = torch.compile(module, backend="neuron", fullgraph=True, dynamic=False)

    def call() -> torch.Tensor:
        with torch.no_grad():
            return compiled(prompt.input_ids, prompt.attention_mask)

    return Prepared(
        call=call,
        wait=torch.neuron.synchronize,  # type: ignore[attr-defined,unused-ignore]
        to_host=lambda out: out.to("cpu").float(),
        copies_inside=False,
        prompt=prompt,
    )


def _on_xla(subject: Subject, options: BenchOptions, say: Callable[[str], None]) -> Prepared:
    """torch-neuronx (XLA): traced ahead of time; a traced module takes and returns CPU tensors, so a call is synchronous.

    Documented, not run by this project: nobody here has the device.
    """
    prompt, lnc, chip = subject.prompt, neuron_backend().lnc.value, neuron_backend().platform.chip
    inputs = (prompt.input_ids,) if prompt.attention_mask is None else (prompt.input_ids, prompt.attention_mask)
    arguments = compiler_arguments("xla", lnc)
    attn = subject.model.config._attn_implementation
    key = traced_key(
        subject.fingerprint(), attn=attn, dtype=options.dtype, inputs=inputs, arguments=arguments, lnc=lnc, chip=chip
    )
    traced = traced_model(
        LastHidden(subject.model), inputs, key, folder=options.traced_dir, compiler_arguments=arguments, say=say
    )
    return Prepared(
        call=lambda: traced.module(*inputs),
        wait=lambda: None,
        to_host=lambda out: out.float(),
        copies_inside=True,
        prompt=prompt,
    )
