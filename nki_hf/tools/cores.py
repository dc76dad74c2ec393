"""How many cores a launch on a chip may have."""

from __future__ import annotations

from collections.abc import Iterable

from nki_hf.chips import get_chip

__all__ = ["check_cores"]


def check_cores(lnc: int | None, chips: Iterable[str]) -> None:
    """Refuse a number of cores that a launch on one of the chips cannot have: ValueError. None = each chip's own."""
    for name in chips:
        allowed = range(1, get_chip(name).default_lnc + 1)
        if lnc is not None and lnc not in allowed:
            raise ValueError(f"lnc={lnc} is not possible on {name}: it is {' or '.join(map(str, allowed))}.")
