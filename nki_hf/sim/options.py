"""SimOptions: everything a simulated run may be told, in one frozen record."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from nki_hf.chips import Chip, get_chip
from nki_hf.settings import settings

__all__ = ["BLOCK", "Block", "SimOptions", "default_chip", "default_precise", "target_chip"]

_TARGETS = {"trn1": "trn1", "inf2": "trn1", "gen2": "trn1", "trn2": "trn2", "gen3": "trn2", "trn3": "trn3", "gen4": "trn3"}


def default_chip() -> Chip:
    """The chip of launches that name none: of the block's options, NEURON_PLATFORM_TARGET_OVERRIDE, else the setting."""
    block = BLOCK.get()
    if block is not None and block.given is not None:
        return block.given.chip
    target = os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE", "").strip()
    return target_chip(target) if target else get_chip(settings().chip)


def target_chip(target: str) -> Chip:
    """The chip of a platform target: trn1, inf2 or gen2; trn2 or gen3; trn3 or gen4.

    Raises:
      ValueError: the target is not known.
    """
    name = _TARGETS.get(target.lower())
    if name is None:
        raise ValueError(f"platform target {target!r} is not known: it is one of {', '.join(_TARGETS)}.")
    return get_chip(name)


def default_precise() -> bool:
    """False if NKI_PRECISE_FP=0 asks for low-precision tiles to be kept in float32."""
    return os.environ.get("NKI_PRECISE_FP", "1").strip().lower() not in ("0", "false")


@dataclass(frozen=True, kw_only=True)
class SimOptions:
    """Options of one simulated launch.

    Attributes:
      chip: the chip whose limits hold. Default: NEURON_PLATFORM_TARGET_OVERRIDE, else the package's setting (trn2).
      values: False runs on shapes alone: no memory, no arithmetic, events only. Default: True.
      uninitialized: `sentinel` fills memory with NaN (floats) or 4 (integers); `error` raises when an element that was
        never written is read. Default: `sentinel`.
      precise: True stores low-precision tiles as such; False keeps them in float32. Default: True unless NKI_PRECISE_FP=0.
      third_party: True for kernels written elsewhere: rules that public sources leave unsure warn instead of raising.
        Default: False.
      checks: False skips the rules of sim/constraints, memory included: for replays of what has been checked, and to see
        what the checks cost. Default: True.
      events: False drops the event stream (replays never record it). Default: True.
      record: True also keeps each instruction's computation, so that the run can be replayed. Default: False.
      trip_counts: turns of the loops of run time in a run on shapes alone, where registers hold nothing: one number for all, or
        a mapping from the loop's name (its body function's, or "file.py:line") to one. Loops whose bounds are constants of
        the kernel need none; for the others a missing one is a fault, and so is the name of a loop that there is none of.
        Default: none.
      most_turns: turns of a loop of run time beyond which it counts as one that never ends, which is a fault. Default:
        100,000, which are 0.9 s at the 9 us of a turn.
      seed: seed of the random-number instructions. Default: 0.
    """

    chip: Chip = field(default_factory=default_chip)
    values: bool = True
    uninitialized: str = "sentinel"
    precise: bool = field(default_factory=default_precise)
    third_party: bool = False
    checks: bool = True
    events: bool = True
    record: bool = False
    trip_counts: int | Mapping[str, int] | None = None
    most_turns: int = 100_000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.uninitialized not in ("sentinel", "error"):
            raise ValueError(f"uninitialized={self.uninitialized!r} is not known: it is sentinel or error.")
        counts = self.trip_counts
        for count in counts.values() if isinstance(counts, Mapping) else () if counts is None else (counts,):
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise ValueError(f"trip_counts={counts!r} is not possible: a trip count is an int of 0 or more.")
        if isinstance(self.most_turns, bool) or not isinstance(self.most_turns, int) or self.most_turns < 1:
            raise ValueError(f"most_turns={self.most_turns!r} is not possible: it is an int of 1 or more.")
        if counts is not None and self.values:
            raise ValueError("trip_counts is for values=False: a run with values reads them from its registers.")
        if self.record and not self.values:
            raise ValueError("record=True needs values=True: a run on shapes alone has nothing to replay.")


@dataclass(eq=False)
class Block:
    """What a block (`as_nki`) says about the launches inside it.

    Attributes:
      given: the block's options; None = the default ones at the time of each launch, so that a file which sets
        NEURON_PLATFORM_TARGET_OVERRIDE or NKI_PRECISE_FP inside the block is heard.
      outer: the block that was open when this one opened.
      open: False once the block has ended.
    """

    given: SimOptions | None
    outer: Block | None = None
    open: bool = True

    def options(self) -> SimOptions:
        """Options of a launch that happens now."""
        return replace(self.given or SimOptions(), third_party=True)


BLOCK: ContextVar[Block | None] = ContextVar("nki_hf_sim_block", default=None)
"""The block that is open; kernels decorated there keep it."""
