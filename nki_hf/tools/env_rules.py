"""Combinations of versions and variables that are documented or reported to fail, one function each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["RULES", "Facts", "findings", "release"]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the rules look at: the world's name, versions by distribution, variables, device files, chip, Python version,
    programs that lie beside this Python and are not on PATH, and the paths of others that PATH leads to in their place.
    """

    world: str
    versions: Mapping[str, str | None]
    environ: Mapping[str, str]
    devices: tuple[str, ...]
    chip: str | None
    python: tuple[int, int]
    hidden_programs: tuple[str, ...] = ()
    foreign_programs: tuple[str, ...] = ()

    def release(self, name: str) -> tuple[int, ...]:
        """Release numbers of a distribution; () if it is missing."""
        return release(self.versions.get(name))


def release(version: str | None) -> tuple[int, ...]:
    """`2.9.0.2+cpu` -> (2, 9, 0, 2); () for None or text without numbers."""
    found = re.match(r"\d+(?:\.\d+)*", version or "")
    return tuple(int(number) for number in found.group(0).split(".")) if found else ()


def findings(facts: Facts) -> list[str]:
    """One sentence for each rule that says no: what is wrong, and what to do."""
    return [text for text in (rule(facts) for rule in RULES) if text]


def _torch_family(facts: Facts) -> str | None:
    torch, neuronx = facts.release("torch")[:2], facts.release("torch-neuronx")[:2]
    if neuronx and torch and torch != neuronx:
        return (
            f"torch-neuronx {_dotted(neuronx)} with torch {_dotted(torch)}: their first two numbers must be the same. "
            f"Install torch=={_dotted(neuronx)}.*."
        )
    return None


def _native_with_torch_xla(facts: Facts) -> str | None:
    if facts.world == "native" and facts.versions.get("torch-xla"):
        return "torch-xla beside the native torch-neuronx: the two worlds cannot share a venv. Uninstall torch-xla."
    return None


def _native_python(facts: Facts) -> str | None:
    if facts.world == "native" and not (3, 12) <= facts.python <= (3, 14):
        return f"Python {_dotted(facts.python)}: the native torch-neuronx is documented for 3.12 to 3.14. Use one of these."
    return None


def _native_chip(facts: Facts) -> str | None:
    if facts.world == "native" and facts.chip == "trn1":
        return "the native world runs on Trn2 and Trn3 only. Use the xla world (torch-neuronx 2.9) on Trn1."
    return None


def _first_generation(facts: Facts) -> str | None:
    if facts.world == "xla" and facts.chip == "trn1":
        return (
            "Trn1 or Inf2: a release note says that kernels of nki 0.3 and newer are not supported there; one kernel in a "
            "graph is reported to run, two are rejected. `python examples/device_bisect.py --device xla` shows which hold here."
        )
    return None


def _islpy(facts: Facts) -> str | None:
    if facts.release("neuronx-cc")[:2] == (2, 27) and facts.release("islpy") >= (2026, 2):
        return (
            f"islpy {_dotted(facts.release('islpy'))} with neuronx-cc 2.27: compilations end with NCC_ISMP902, is_subset(). "
            "pip install 'islpy==2026.1'."
        )
    return None


def _numpy(facts: Facts) -> str | None:
    numpy = facts.release("numpy")
    if facts.versions.get("neuronx-cc") and numpy and numpy < (2,):
        return f"numpy {_dotted(numpy)} with neuronx-cc, which asks for 2 or newer: 2.2 and 2.3 are documented. Upgrade numpy."
    return None


def _path(facts: Facts) -> str | None:
    if facts.world != "none" and facts.hidden_programs:
        return (
            f"{', '.join(facts.hidden_programs)} beside this Python, but not on PATH, where torch_neuronx looks: activate the "
            "venv, or put its bin folder first on PATH."
        )
    return None


def _other_venv(facts: Facts) -> str | None:
    if facts.world != "none" and facts.foreign_programs:
        return (
            f"PATH leads to {', '.join(facts.foreign_programs)}, not to what lies beside this Python: torch_neuronx would "
            "start what belongs to another venv. Activate this one, or put its bin folder first on PATH."
        )
    return None


def _native_system(facts: Facts) -> str | None:
    system = facts.versions.get("system") or ""
    if facts.world != "native" or not system.startswith("ubuntu ") or system == "ubuntu 26.04":
        return None
    return (
        f"{system.capitalize()}: the wheels of native torch-neuronx are for Ubuntu 26.04. On 24.04 use AWS's image of one "
        "framework (DLAMI), elsewhere build from source."
    )


def _xla_with_newer_compiler(facts: Facts) -> str | None:
    if facts.world != "xla":
        return None
    nki, compiler = facts.release("nki"), facts.release("neuronx-cc")
    if nki >= (0, 7) or compiler >= (2, 28):
        return (
            f"torch-neuronx {_dotted(facts.release('torch-neuronx'))} (xla) with nki {_dotted(nki)} and neuronx-cc "
            f"{_dotted(compiler)}: this pairing is undocumented. The documented pin is neuronx-cc==2.27.5334.0 and nki 0.6."
        )
    return None


def _xla_python(facts: Facts) -> str | None:
    if facts.world == "xla" and not (3, 11) <= facts.python <= (3, 13):
        return f"Python {_dotted(facts.python)}: the xla torch-neuronx is documented for 3.11 to 3.13. Use one of these."
    return None


def _xla_pair(facts: Facts) -> str | None:
    bridge, neuronx = facts.release("torch-xla")[:2], facts.release("torch-neuronx")[:2]
    if facts.world == "xla" and bridge and neuronx and bridge != neuronx:
        return (
            f"torch-neuronx {_dotted(neuronx)} with torch-xla {_dotted(bridge)}: their first two numbers must be the same. "
            f"Install torch-xla=={_dotted(neuronx)}.*."
        )
    return None


def _native_with_older_compiler(facts: Facts) -> str | None:
    nki, compiler = facts.release("nki"), facts.release("neuronx-cc")
    if facts.world == "native" and ((nki and nki < (0, 7)) or (compiler and compiler < (2, 28))):
        return (
            f"native torch-neuronx with nki {_dotted(nki)} and neuronx-cc {_dotted(compiler)}: it is documented with nki 0.7 "
            "and neuronx-cc 2.28 or newer. Upgrade both, in a venv without the xla build."
        )
    return None


def _nki_too_old(facts: Facts) -> str | None:
    nki = facts.release("nki")
    if nki and nki < (0, 3):
        return f"nki {_dotted(nki)} is older than these kernels: they are written for 0.3 to 0.7. Upgrade nki."
    return None


def _lite(facts: Facts) -> str | None:
    if facts.versions.get("libtorch-neuronx-lite"):
        return "libtorch-neuronx-lite is installed: it is another, unsupported build. Use torch-neuronx."
    return None


def _trace_cache(facts: Facts) -> str | None:
    if facts.environ.get("NKI_ENABLE_TRACE_CACHE") == "1":
        return "NKI_ENABLE_TRACE_CACHE=1: a stale trace looks like a wrong kernel. Set it to 0 while checking numbers."
    return None


def _simulator_hides_device(facts: Facts) -> str | None:
    if facts.environ.get("NKI_SIMULATOR") == "1" and facts.devices:
        return "NKI_SIMULATOR=1 with a Neuron device: every kernel runs in nki's CPU simulator, not on the chip. Unset it."
    return None


def _wrapper_flags(facts: Facts) -> str | None:
    flags = facts.environ.get("NEURON_CC_FLAGS", "").split()
    wrong = [flag for flag in flags if flag.split("=")[0] in ("--no_cache", "--cache_dir", "--retry_failed_compilation")]
    if facts.world == "native" and wrong:
        return f"NEURON_CC_FLAGS has {' '.join(wrong)}: the native compiler call rejects it (NCC_EARG002). Remove it."
    return None


def _silent_eager(facts: Facts) -> str | None:
    if facts.environ.get("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION") == "0":
        return "TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION=0: a failed compilation falls back to eager silently. Unset it."
    return None


def _sdpa_rewrite_off(facts: Facts) -> str | None:
    if facts.environ.get("TORCH_NEURONX_ENABLE_NKI_SDPA") == "0":
        return "TORCH_NEURONX_ENABLE_NKI_SDPA=0: sdpa runs without its NKI kernel, so an sdpa baseline is not the shipped one."
    return None


def _profiled(facts: Facts) -> str | None:
    if facts.environ.get("NEURON_RT_INSPECT_ENABLE") == "1":
        return "NEURON_RT_INSPECT_ENABLE=1: profiled runs are slower. Unset it before timing anything."
    return None


def _two_variables(facts: Facts) -> str | None:
    both = [facts.environ.get(name) for name in ("NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES")]
    if all(both):
        return (
            f"NEURON_RT_VISIBLE_CORES={both[0]} and NEURON_RT_NUM_CORES={both[1]} are both set: VISIBLE_CORES wins. Unset one."
        )
    return None


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers)) or "(missing)"


RULES: tuple[Callable[[Facts], str | None], ...] = (
    _torch_family,
    _native_with_torch_xla,
    _native_python,
    _native_chip,
    _first_generation,
    _native_system,
    _islpy,
    _numpy,
    _path,
    _other_venv,
    _native_with_older_compiler,
    _xla_with_newer_compiler,
    _xla_python,
    _xla_pair,
    _nki_too_old,
    _lite,
    _trace_cache,
    _simulator_hides_device,
    _wrapper_flags,
    _silent_eager,
    _sdpa_rewrite_off,
    _profiled,
    _two_variables,
)
