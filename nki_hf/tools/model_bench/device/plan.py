"""DevicePlan: every variable, compiler argument and command of a device run, as text, for either world on any machine."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from nki_hf.backends.neuron_lnc import find_lnc, find_platform, lnc_sources
from nki_hf.backends.neuron_world import Host, detect_world, simulator_problem
from nki_hf.errors import BackendUnavailable
from nki_hf.tools.model_bench.options import BenchOptions, WrongUse

__all__ = [
    "COMPILER_FOLDER",
    "COMPILE_ONLY",
    "DevicePlan",
    "cases",
    "check",
    "compiler_arguments",
    "environment",
    "path_with_own_programs",
    "plan",
]

COMPILER_FOLDER = "compiler"
"""Where `torch_neuronx.trace` leaves graph.neff, within the folder of a kept model."""

COMPILE_ONLY = "--compile-only"

_BOTH = {
    "NEURON_RT_NUM_CORES": "1",  # one core: what the headline of the benchmark compares
    "NKI_ENABLE_TRACE_CACHE": "0",  # a stale trace has looked like a wrong kernel
}
_NATIVE = {
    "TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS": "1",  # never hide an error behind the CPU
    "TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION": "1",  # a failed compilation raises
    "TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY": "1",  # a forgotten CPU input raises
}
_PROFILE = {
    "NEURON_RT_INSPECT_ENABLE": "1",
    "NEURON_RT_INSPECT_DEVICE_PROFILE": "session",  # everything in one file; the only mode for asynchronous execution
    "NEURON_RT_INSPECT_SYSTEM_PROFILE": "1",
}


@dataclass(frozen=True, kw_only=True)
class DevicePlan:
    """What a device run does.

    Attributes:
      world: `native` or `xla`.
      device: `neuron` or `xla`.
      environment: variables set before torch is imported, where they are not set already.
      lnc: logical-core degree, and where it comes from, in words.
      compile: the compiling call, as Python text.
      compiler_arguments: of that call.
      kept: where the compiled model is kept, in words.
      commands: (what it is for, shell command), in order.
    """

    world: str
    device: str
    environment: Mapping[str, str]
    lnc: str
    compile: str
    compiler_arguments: tuple[str, ...]
    kept: str
    commands: tuple[tuple[str, str], ...]

    def text(self) -> str:
        """The plan as lines to read or paste."""
        lines = [f"# world: {self.world} (device {self.device})", f"# LNC: {self.lnc}", "# environment"]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in self.environment.items()]
        lines += [f"# compiles with: {self.compile}"]
        lines += [f"# compiler arguments: {' '.join(self.compiler_arguments) or 'none; the back end derives them'}"]
        lines += [f"# kept in: {self.kept}"]
        for what, command in self.commands:
            lines += [f"# {what}", command]
        return "\n".join(lines)


def plan(options: BenchOptions, device: str, host: Host | None = None) -> DevicePlan:
    """The plan of a run on `device`, `neuron` or `xla`; the world need not be installed here.

    Raises:
      WrongUse: options that mean nothing on that device.
      BackendUnavailable: what this machine states is wrong or contradicts itself, in the words of a real run.
    """
    check(options, device)
    host = host or Host()
    if wrong := simulator_problem(host):
        raise BackendUnavailable(wrong)
    lnc, words = _lnc(host)
    options = replace(options, device=device)
    folder = options.json.with_suffix("") / "profile"
    commands = [("compile, in a process of its own", f"{options.command()} {COMPILE_ONLY}")]
    commands += [("time, in a fresh process with a warm cache", options.command())]
    commands += [(f"time: {what}", case.command()) for what, case in cases(options)]
    variables = {**_PROFILE, "NEURON_RT_INSPECT_OUTPUT_DIR": str(folder)}
    profile = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    quiet = replace(options, profile=False, attn=("nki",))
    commands += [("profile, in a process of its own that times nothing", f"{profile} {quiet.command()} {COMPILE_ONLY}")]
    if device == "xla":
        traced = shlex.quote(str(options.traced_dir))
        newest = f'grep -lZ \'"attn": "nki"\' {traced}/*/key.json | xargs -0 ls -t | head -n 1'
        neff = f'{traced}/"$KEY"/{COMPILER_FOLDER}/graph.neff'
        commands += [("KEY of the model that was traced last with nki", f'KEY=$(basename "$(dirname "$({newest})")")')]
        capture = f"neuron-explorer capture -n {neff} -s profile.ntff --profile-nth-exec=2"
        commands += [("or profile the compiled graph alone, with inputs of zeros; writes profile_exec_2.ntff", capture)]
        alone = f"neuron-explorer view -n {neff} -s profile_exec_2.ntff --output-format summary-text"
        commands += [("its utilisation in numbers", alone)]
    view = f"neuron-explorer view -d {shlex.quote(str(folder))} --output-format"
    commands += [("open system_profile.pftrace and device_profile_model_*.pftrace in ui.perfetto.dev", f"{view} perfetto")]
    commands += [("utilisation in numbers; prefer mfu_inst_*: a kernel is opaque to the HLO count", f"{view} summary-text")]
    return DevicePlan(
        world="native" if device == "neuron" else "xla",
        device=device,
        environment=environment(options, device),
        lnc=words,
        compile=_COMPILE[device],
        compiler_arguments=compiler_arguments(device, lnc),
        kept=_KEPT[device].format(folder=options.neff_dir if device == "neuron" else options.traced_dir),
        commands=tuple(commands),
    )


_COMPILE = {
    "neuron": 'torch.compile(model.to("neuron"), backend="neuron", fullgraph=True, dynamic=False)',
    "xla": "torch_neuronx.trace(model, example_inputs, compiler_workdir=..., compiler_args=..., inline_weights_to_neff=True)",
}
_KEPT = {
    "neuron": "{folder} (NEFF cache of torch_neuronx; there is no model file)",
    "xla": "{folder}/KEY/model.pt (torch.jit.save; the compiler's own cache does not cover trace)",
}


def environment(options: BenchOptions, device: str) -> dict[str, str]:
    """Variables that must be set before torch is imported; those of both worlds for `auto`, none for `cpu`."""
    if device == "cpu":
        return {}
    native = {**_NATIVE, "TORCH_NEURONX_NEFF_CACHE_DIR": str(options.neff_dir)} if device in ("neuron", "auto") else {}
    return {**_BOTH, **native}


def path_with_own_programs(path: str) -> str:
    """`PATH` with the folder of this Python first: there AWS's packages have the programs that they start by name, also where
    nobody activated the venv, or somebody another one.
    """
    own = os.path.dirname(sys.executable)
    return path if path.split(os.pathsep)[0] == own else os.pathsep.join(filter(None, (own, path)))


def compiler_arguments(device: str, lnc: int) -> tuple[str, ...]:
    """Arguments of the compiling call; none in the native world, whose back end derives target and LNC."""
    if device == "neuron":
        return ()
    return ("--model-type=transformer", "--auto-cast=none", "-O1", f"--lnc={lnc}")


def cases(options: BenchOptions) -> list[tuple[str, BenchOptions]]:
    """What is timed beside the headline, where sdpa's own NKI kernel does not apply."""
    odd = options.seqlen - 23 if options.seqlen > 64 else max(3, options.seqlen - 1)
    odd -= odd % 512 == 0  # at multiples of 512 sdpa's own kernel may apply
    return [
        ("left-padded batch of 2", replace(options, padded=True, batch_size=2, json=_beside(options.json, "padded"))),
        (f"odd length {odd:,}", replace(options, seqlen=odd, json=_beside(options.json, "odd"))),
        (
            f"sliding window of {max(2, options.seqlen // 8):,}",
            replace(options, window=max(2, options.seqlen // 8), json=_beside(options.json, "window")),
        ),
    ]


def check(options: BenchOptions, device: str) -> None:
    """Refuse what the device cannot do."""
    if device == "xla" and options.decode_steps:
        raise WrongUse(
            f"decode_steps={options.decode_steps} cannot be timed on xla: a traced module has no cache that grows. "
            "Use --decode-steps 0, or --device neuron."
        )


def _lnc(host: Host) -> tuple[int, str]:
    world = detect_world(host)
    sources = lnc_sources(world, host)
    lnc, problem = find_lnc(sources, find_platform(world, host).chip)
    if lnc is not None:
        return lnc.value, f"{lnc.value} ({lnc.source})"
    if sources:
        raise BackendUnavailable(problem)
    return 2, f"2 (assumed, the default of Trn2 and Trn3: {problem})"


def _beside(path: Path, word: str) -> Path:
    return path.with_name(f"{path.stem}_{word}{path.suffix}")
