"""The memory regions of the language."""

from __future__ import annotations

from enum import Enum

__all__ = ["REGIONS", "MemoryRegion", "as_region"]


class MemoryRegion(Enum):
    """Where a tensor lives."""

    sbuf = "sbuf"
    psum = "psum"
    hbm = "hbm"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"


REGIONS = {item.value: item for item in MemoryRegion}


def as_region(value: MemoryRegion | str) -> MemoryRegion:
    """The region that a member or its name stands for; a TypeError lists the known ones."""
    if isinstance(value, MemoryRegion):
        return value
    if value in REGIONS:
        return REGIONS[value]
    raise TypeError(f"buffer={value!r} is not a memory region: it is one of {', '.join(REGIONS)}.")
