"""The logical-core degree (LNC) and the chip of this machine, from every documented source, and whether they agree.

A kernel launched with another LNC than the compiler's runs on half of the core pair (NKI <= 0.6) or is rejected (0.7),
so a launch always names it: `kernel[lnc](...)` with a bare 1 or 2.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from nki_hf.backends.neuron_world import Host, World, imported
from nki_hf.chips import CHIPS
from nki_hf.errors import BackendUnavailable

__all__ = ["Lnc", "Platform", "find_lnc", "find_platform", "lnc_sources", "resolve_lnc"]

_UNREADABLE = "NEURON_CC_FLAGS"
_FLAG = re.compile(r"^(-lnc|--lnc|--logical-nc-config)(?:=(.*))?$")


@dataclass(frozen=True, kw_only=True)
class Platform:
    """The chip that kernels are compiled for.

    Attributes:
      chip: trn1 (also for Inf2, whose cores are the same), trn2, trn3, or None if nothing says so.
      instance: the instance type (`trn2.3xlarge`), or None.
      source: what said so.
    """

    chip: str | None
    instance: str | None
    source: str


@dataclass(frozen=True, kw_only=True)
class Lnc:
    """The degree in force, `value` 1 or 2, and the `source` that said so."""

    value: int
    source: str


def find_platform(world: World, host: Host | None = None) -> Platform:
    """The chip, from NEURON_PLATFORM_TARGET_OVERRIDE, torch_neuronx, or neuron-ls, in this order."""
    host = host or Host()
    listed = host.run(["neuron-ls"]) or ""
    found = re.search(r"instance-type:\s*(\S+)", listed)
    instance = found.group(1) if found else None
    for source, text in (
        ("NEURON_PLATFORM_TARGET_OVERRIDE", host.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE")),
        ("torch_neuronx.utils.get_platform_target()", _ask(world, host, "get_platform_target")),
        ("neuron-ls", instance),
    ):
        chip = _chip_in(text)
        if chip is not None:
            return Platform(chip=chip, instance=instance, source=source)
    return Platform(chip=None, instance=instance, source="nothing names a Trainium chip")


def lnc_sources(world: World, host: Host | None = None) -> dict[str, str]:
    """Every source that states an LNC, in order of precedence, with its text as found."""
    host = host or Host()
    listed = re.search(r"logical-neuroncore-config:\s*(\S+)", host.run(["neuron-ls"]) or "")
    found: dict[str, str | None] = {
        "torch_neuronx.utils.get_logical_neuron_cores()": _ask(world, host, "get_logical_neuron_cores"),
        "NEURON_LOGICAL_NC_CONFIG": host.environ.get("NEURON_LOGICAL_NC_CONFIG"),
        "NEURON_RT_VIRTUAL_CORE_SIZE": host.environ.get("NEURON_RT_VIRTUAL_CORE_SIZE"),
        **_flags(host.environ.get("NEURON_CC_FLAGS", "")),
        "neuron-ls": listed.group(1) if listed else None,
    }
    return {source: text for source, text in found.items() if text is not None}


def find_lnc(sources: dict[str, str], chip: str | None) -> tuple[Lnc | None, str | None]:
    """The LNC and None, or None and one line that says which sources are wrong or disagree.

    `neuron-ls` and torch_neuronx's answer describe the instance when no variable is set; runtime variables and the
    compiler's flag are choices, and these must agree with each other and with torch_neuronx.
    """
    if _UNREADABLE in sources:
        return None, f"NEURON_CC_FLAGS={sources[_UNREADABLE]!r} cannot be split into words: close its quote and start again."
    for source, text in sources.items():
        if text.strip() not in ("1", "2"):
            return None, f"{source}={text!r} is not a logical-core degree: it must be 1 or 2."
    chosen = {source: text.strip() for source, text in sources.items() if source != "neuron-ls"}
    if len(set(chosen.values())) > 1:
        spelled = ", ".join(f"{source}={text}" for source, text in chosen.items())
        return None, (
            f"LNC differs between {spelled}: runtime, compiler and kernels must use one value. "
            "Set NEURON_LOGICAL_NC_CONFIG and --lnc in NEURON_CC_FLAGS to the same 1 or 2 (or unset all) and start again."
        )
    for source, text in sources.items():
        if chip is not None and int(text) > CHIPS[chip].default_lnc:
            return None, (
                f"{source}={text.strip()} on {chip}: its cores are not grouped, only LNC 1 exists there. "
                "Set NEURON_LOGICAL_NC_CONFIG and --lnc in NEURON_CC_FLAGS to 1 (or unset both) and start again."
            )
        return Lnc(value=int(text), source=source), None
    if chip is None:
        return None, (
            "the logical-core degree is unknown: nothing states it and no chip was recognised. "
            "Set NEURON_LOGICAL_NC_CONFIG to 1 or 2 (2 is the default of Trn2 and Trn3)."
        )
    return Lnc(value=CHIPS[chip].default_lnc, source=f"the default of {chip}"), None


def resolve_lnc(world: World, host: Host | None = None) -> Lnc:
    """The LNC to launch with.

    Raises:
      BackendUnavailable: the sources are wrong, disagree, or say nothing.
    """
    host = host or Host()
    lnc, problem = find_lnc(lnc_sources(world, host), find_platform(world, host).chip)
    if lnc is None:
        raise BackendUnavailable(problem)
    return lnc


def _ask(world: World, host: Host, function: str) -> str | None:
    """What `torch_neuronx.utils.<function>()` answers as text; None if there is no such package, function or device."""
    if world.torch_neuronx.module is None:
        return None
    # The package need not import its submodule by itself.
    utils = getattr(world.torch_neuronx.module, "utils", None) or imported("torch_neuronx.utils", host)[0]
    try:
        return str(getattr(utils, function)())
    except Exception:  # asks the runtime, which raises types of its own; the other sources still answer
        return None


def _chip_in(text: str | None) -> str | None:
    found = re.match(r"(trn[1-3]|inf2)", (text or "").strip().lower())
    # The cores of Inf2 are those of Trn1, NeuronCore-v2.
    return {"inf2": "trn1"}.get(found.group(1), found.group(1)) if found else None


def _flags(flags: str) -> dict[str, str]:
    """Every compiler flag that states a degree, each a source of its own: which of several counts is undocumented."""
    try:
        words = shlex.split(flags)
    except ValueError:
        return {_UNREADABLE: flags}
    found: dict[str, str] = {}
    for position, (word, following) in enumerate(zip(words, [*words, ""][1:], strict=True), start=1):
        flag = _FLAG.match(word)
        if flag:
            source = f"{flag[1]} in NEURON_CC_FLAGS"
            source = f"{source} (word {position})" if source in found else source
            found[source] = following if flag[2] is None else flag[2]
    return found
