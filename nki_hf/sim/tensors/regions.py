"""The memory regions of the language."""

from __future__ import annotations

from enum import Enum
from typing import Any

__all__ = ["REGIONS", "MemoryRegion", "as_region", "is_hbm", "is_on_chip", "is_psum", "is_sbuf"]


class MemoryRegion(Enum):
    """Where a tensor lives; `hbm` is another name of `private_hbm`."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"
    hbm = "private_hbm"


REGIONS = {**{item.value: item for item in MemoryRegion}, "hbm": MemoryRegion.private_hbm}


def as_region(value: MemoryRegion | str) -> MemoryRegion:
    """The region that a member or its name stands for; a TypeError lists the known ones."""
    if isinstance(value, MemoryRegion):
        return value
    if value in REGIONS:
        return REGIONS[value]
    raise TypeError(f"buffer={value!r} is not a memory region: it is one of {', '.join(REGIONS)}.")


def is_hbm(buffer: Any) -> bool:
    """True for every kind of HBM."""
    return as_region(buffer) in (MemoryRegion.private_hbm, MemoryRegion.shared_hbm)


def is_on_chip(buffer: Any) -> bool:
    """True for SBUF and PSUM."""
    return not is_hbm(buffer)


def is_psum(buffer: Any) -> bool:
    """True for PSUM."""
    return as_region(buffer) is MemoryRegion.psum


def is_sbuf(buffer: Any) -> bool:
    """True for SBUF."""
    return as_region(buffer) is MemoryRegion.sbuf
