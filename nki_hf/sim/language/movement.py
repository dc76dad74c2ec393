"""Filling and copying by whichever instruction reaches the memories involved."""

from __future__ import annotations

import math
from typing import Any

from nki_hf.sim import isa as nisa
from nki_hf.sim.execution.current_machine import current_machine
from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["assign", "fill", "sbuf_tile"]

_FILL_ROW_BYTES = 8192
"""Row length of the SBUF tile that fills HBM: long enough for efficient descriptors, small beside a partition."""


def assign(dst: NkiTensor, value: Any) -> None:
    """`dst = value`, a tensor or a number."""
    if not isinstance(value, NkiTensor):
        fill(dst, value)
    elif dst.on_chip and value.on_chip:
        nisa.tensor_copy(dst=dst, src=value)
    else:
        nisa.dma_copy(dst=dst, src=value)


def fill(dst: NkiTensor, value: Any) -> None:
    """Set every element of `dst` to the number `value`; HBM is filled by DMA from an SBUF tile."""
    if dst.on_chip:
        nisa.memset(dst=dst, value=value)
        return
    total = math.prod(dst.shape)
    if total == 0:
        return
    rows = _largest_divisor(total, int(current_machine("fill").chip.partitions))
    width = _largest_divisor(total // rows, _FILL_ROW_BYTES // dst.dtype.itemsize)
    tile = sbuf_tile((rows, width), dst.dtype)
    nisa.memset(dst=tile, value=value)
    repeated = tile.expand_dim(1).broadcast(1, total // rows // width)
    nisa.dma_copy(dst=dst, src=repeated)


def sbuf_tile(shape: tuple[int, ...], dtype: Any, space: str = "sbuf") -> NkiTensor:
    """A new on-chip tile."""
    machine = current_machine("tile")
    element = machine.element(dtype)
    return NkiTensor(shape, element, machine.allocate(shape, element, space))


def _largest_divisor(number: int, limit: int) -> int:
    return next(size for size in range(min(number, limit), 0, -1) if number % size == 0)
