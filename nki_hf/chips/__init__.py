"""Every hardware number of the package, each with value, unit, source and confidence. No number lives elsewhere."""

from __future__ import annotations

from nki_hf.chips.chip import Chip
from nki_hf.chips.param import Param
from nki_hf.chips.trn1 import TRN1
from nki_hf.chips.trn2 import TRN2
from nki_hf.chips.trn3 import TRN3

__all__ = ["CHIPS", "Chip", "Param", "get_chip"]

CHIPS = {chip.name: chip for chip in (TRN1, TRN2, TRN3)}


def get_chip(name: str) -> Chip:
    """The chip of that name.

    Raises:
      ValueError: the name is not known; the message lists the known ones.
    """
    if name not in CHIPS:
        raise ValueError(f"chip={name!r} is not known: chip is one of {', '.join(CHIPS)}.")
    return CHIPS[name]
