"""`nki_hf env`: one report to paste into a question: versions, world, chip, LNC, devices, and combinations known to fail."""

from __future__ import annotations

import json
import os
import platform
import sys
from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

import nki_hf
from nki_hf.adapters.hub_kernel import serving
from nki_hf.backends.neuron import NeuronBackend
from nki_hf.backends.neuron_eager import eager_advice
from nki_hf.backends.neuron_lnc import find_lnc, find_platform, lnc_sources
from nki_hf.backends.neuron_world import Host, detect_nki, detect_world, imported
from nki_hf.lang import traces
from nki_hf.settings import Settings, settings
from nki_hf.tools.env_rules import Facts, findings
from nki_hf.tools.screen import Screen

__all__ = ["Report", "command", "front_end", "report"]

PACKAGES = (
    "torch",
    "torch-neuronx",
    "torch-xla",
    "libneuronxla",
    "libtorch-neuronx-lite",
    "neuronx-cc",
    "nki",
    "nki-library",
    "transformers",
    "kernels",
    "accelerate",
    "numpy",
    "islpy",
    "ml-dtypes",
)
PROGRAMS = ("neuronx-cc", "libneuronpjrt-path")
"""What torch_neuronx starts by name."""
_OURS = (*(f"NKI_HF_{item.name.upper()}" for item in fields(Settings)), "NKI_HF_TRACEBACK", "NKI_HF_PROGRESS")
PREFIXES = ("NKI_HF_", "NEURON_", "NKI_", "TORCH_NEURONX_", "XLA_", "NKILIB_", "PJRT_")


@dataclass(frozen=True, kw_only=True)
class Report:
    """What `report` found: `facts` by name in the order of printing, `problems` one sentence each."""

    facts: dict[str, Any]
    problems: tuple[str, ...]

    def lines(self) -> list[str]:
        """What there is to look at, a sentence each."""
        first = f"{len(self.problems)} to look at:" if self.problems else "nothing known to be wrong"
        return [first, *(f"- {problem}" for problem in self.problems)]


def report(host: Host | None = None) -> Report:
    """Everything that decides whether and how kernels run here. Never raises, whatever is missing or broken."""
    host = host or Host()
    versions = {name: host.version(name) for name in PACKAGES}
    world, nki = detect_world(host), detect_nki(host)
    chip = find_platform(world, host)
    sources = lnc_sources(world, host)
    lnc, lnc_problem = find_lnc(sources, chip.chip)
    devices = sorted(host.glob("/dev/neuron*"))
    registered, registration_problem = _registered(host)
    cpu_tensors, settings_problem = _settings()
    batching = serving(host.version)
    facts: dict[str, Any] = {
        "nki_hf": nki_hf.__version__,
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
        **{name: version or "missing" for name, version in versions.items()},
        "world": world.name,
        "neuron kernels": "can be launched" if NeuronBackend(host).unavailable() is None else "cannot be launched",
        "cpu tensors": cpu_tensors,
        "nki front end": front_end(nki.version, host.environ.get("NKI_COMPILER_FRONTEND")) if nki.module else "none",
        "chip": f"{chip.chip or 'unknown'} ({chip.source})",
        "instance": chip.instance or "unknown",
        "devices": ", ".join(devices) or "none",
        "lnc": f"{lnc.value} ({lnc.source})" if lnc else "unknown",
        "lnc sources": ", ".join(f"{source}={text}" for source, text in sources.items()) or "none",
        "attn_implementation": registered,
        "continuous batching": batching.name or f"no: {batching.problem}",
        "eager calls": eager_advice(),
        "variables": {name: value for name, value in sorted(host.environ.items()) if name.startswith(PREFIXES)},
    }
    if world.name == "none" and not devices and not sources:
        lnc_problem = None  # no Neuron machine at all: one sentence about the packages is enough
    found = (_without_numpy(host), world.problem, nki.problem, lnc_problem, registration_problem, settings_problem)
    problems = [problem for problem in found if problem]
    problems += [
        f"{name} is no variable of nki_hf: known are {', '.join(_OURS)}."
        for name in sorted(host.environ)
        if name.startswith("NKI_HF_") and name not in _OURS
    ]
    hidden, foreign = _programs(host)
    problems += findings(
        Facts(
            world=world.name,
            versions={**versions, "nki": nki.version, "system": _system()},
            environ=host.environ,
            devices=tuple(devices),
            chip=chip.chip,
            python=sys.version_info[:2],
            hidden_programs=hidden,
            foreign_programs=foreign,
        )
    )
    return Report(facts=facts, problems=tuple(problems))


def _without_numpy(host: Host) -> str | None:
    error = imported("numpy", host)[1]
    return f"numpy cannot be imported ({error}): nothing of nki_hf runs without it. Install it again." if error else None


def _programs(host: Host) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Programs beside this Python that PATH does not reach; and those that stand before them on PATH, with their folders."""
    own = os.path.dirname(sys.executable)
    folders = [folder for folder in host.environ.get("PATH", "").split(os.pathsep) if folder]
    hidden, foreign = [], []
    for name in PROGRAMS:
        ours = os.path.join(own, name)
        if not host.glob(ours):
            continue
        found = next((path for path in (os.path.join(folder, name) for folder in folders) if host.glob(path)), None)
        if found is None:
            hidden.append(name)
        elif os.path.realpath(found) != os.path.realpath(ours):
            foreign.append(found)
    return tuple(hidden), tuple(foreign)


def _system() -> str | None:
    """`ubuntu 26.04`, or what the system calls itself; None where it says nothing."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return None
    return f"{release.get('ID', '')} {release.get('VERSION_ID', '')}".strip()


def front_end(nki_version: str | None, chosen: str | None) -> str:
    """How that nki reads a kernel: `parser` (a Python subset, 0.2 to 0.6) or `tracer` (runs it, 0.7; chosen, 0.6)."""
    if nki_version is None:
        return "unknown"
    name = "tracer" if traces(nki_version, chosen) else "parser"
    other = traces(nki_version, chosen) != traces(nki_version, None)
    return f"{name} (NKI_COMPILER_FRONTEND={chosen})" if other else name


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Print one paste-able report of this machine: versions, PyTorch world, chip, LNC, devices, known trouble."""
    found = report()
    if as_json:
        print(json.dumps({"facts": found.facts, "problems": found.problems}, indent=1))
        return
    screen = Screen()
    screen.pairs([(name, _spelled(value)) for name, value in found.facts.items()])
    screen.say("", *found.lines())


def _settings() -> tuple[str, str | None]:
    """What runs CPU tensors, and which variable cannot be read."""
    try:
        return f"{settings().backend}, chip {settings().chip}", None
    except ValueError as error:
        return "none: a variable cannot be read", str(error)


def _registered(host: Host) -> tuple[str, str | None]:
    """Whether Transformers knows "nki" in both tables, and what is wrong if it knows it in one only."""
    (modeling, error), (masking, other) = (imported(f"transformers.{name}_utils", host) for name in ("modeling", "masking"))
    if error or other:
        return f"not registered: transformers cannot be imported ({error or other})", None
    attention = "nki" in modeling.ALL_ATTENTION_FUNCTIONS
    mask = "nki" in masking.ALL_MASK_ATTENTION_FUNCTIONS
    if attention and mask:
        return "registered (attention and mask)", None
    if not attention and not mask:
        return "not registered", 'attn_implementation="nki" is not registered: call nki_hf.register().'
    only = "attention" if attention else "mask"
    return f"{only} only", (
        f'"nki" is registered for {only} only: without its mask function padding is dropped silently. Call nki_hf.register().'
    )


def _spelled(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={text}" for name, text in value.items()) or "none"
    return str(value)
