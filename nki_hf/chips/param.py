"""Param: a hardware number with its unit, its source and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CONFIDENCES", "Param"]

CONFIDENCES = ("documented", "measured", "assumed")


@dataclass(frozen=True, slots=True)
class Param:
    """One hardware constant.

    Attributes:
      value: the number.
      unit: e.g. `B`, `GHz`, `cycles`, `ns`, `elements`.
      source: documentation path and section, or the public measurement it comes from; for assumed values, the reasoning.
      confidence: documented (published by the vendor), measured (third party or profile), assumed (fitted or reasoned).
    """

    value: float
    unit: str
    source: str
    confidence: str

    def __post_init__(self) -> None:
        if self.confidence not in CONFIDENCES:
            raise ValueError(f"confidence={self.confidence!r} is not known: it is one of {', '.join(CONFIDENCES)}.")
        if not self.unit or not self.source:
            raise ValueError(f"a Param of value {self.value} lacks a unit or a source: both must be given.")

    def __int__(self) -> int:
        if self.value != int(self.value):
            raise ValueError(f"value={self.value} {self.unit} is not a whole number.")
        return int(self.value)
