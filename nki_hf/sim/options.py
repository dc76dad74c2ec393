"""SimOptions: everything a simulated run may be told, in one frozen record."""

from __future__ import annotations

from dataclasses import dataclass, field

from nki_hf.chips import Chip, get_chip

__all__ = ["SimOptions"]


@dataclass(frozen=True, kw_only=True)
class SimOptions:
    """Options of one simulated launch.

    Attributes:
      chip: the chip whose limits hold. Default: trn2.
      values: False runs on shapes alone: no memory, no arithmetic, events only. Default: True.
      uninitialized: `sentinel` fills memory with NaN (floats) or 4 (integers); `error` raises when an element that was
        never written is read. Default: `sentinel`.
      precise: True stores low-precision tiles as such; False keeps them in float32. Default: True.
      foreign: True for kernels written elsewhere: rules that public sources leave unsure warn instead of raising.
        Default: False.
      events: False drops the event stream (replays never record it). Default: True.
      record: True also keeps each instruction's computation, so that the run can be replayed. Default: False.
      seed: seed of the random-number instructions. Default: 0.
    """

    chip: Chip = field(default_factory=lambda: get_chip("trn2"))
    values: bool = True
    uninitialized: str = "sentinel"
    precise: bool = True
    foreign: bool = False
    events: bool = True
    record: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.uninitialized not in ("sentinel", "error"):
            raise ValueError(f"uninitialized={self.uninitialized!r} is not known: it is sentinel or error.")
        if self.record and not self.values:
            raise ValueError("record=True needs values=True: a run on shapes alone has nothing to replay.")
