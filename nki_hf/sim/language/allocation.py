"""Allocation: `nl.ndarray` and what stands on it."""

from __future__ import annotations

from typing import Any

from nki_hf.sim.dtypes import as_dtype
from nki_hf.sim.machine import current_machine
from nki_hf.sim.regions import MemoryRegion, as_region
from nki_hf.sim.tensor import NkiTensor

__all__ = ["ndarray"]


def ndarray(
    shape: Any, dtype: Any, buffer: MemoryRegion | str = MemoryRegion.sbuf, name: str = "", address: Any = None
) -> NkiTensor:
    """A new tensor, never written: SBUF and PSUM take axis 0 as the partition axis."""
    machine = current_machine("nl.ndarray")
    sizes = (shape,) if isinstance(shape, int) else tuple(int(size) for size in shape)
    element = as_dtype(dtype)
    space = as_region(buffer).value
    storage = machine.allocate(sizes, element, space, name=name, role="output" if space == "shared_hbm" else "scratch",
                               address=address)  # fmt: skip
    return NkiTensor(sizes, element, storage)
