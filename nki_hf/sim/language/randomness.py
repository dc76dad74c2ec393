"""Random tiles. The distribution is right and a seed repeats it; the numbers are not those of the chip."""

from __future__ import annotations

from typing import Any

from nki_hf.sim import isa as nisa
from nki_hf.sim.isa import operators as op
from nki_hf.sim.language.allocation import ndarray
from nki_hf.sim.language.movement import assign, sbuf_tile
from nki_hf.sim.tensors.regions import MemoryRegion
from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["rand", "random_seed"]


def rand(shape: Any, dtype: Any, buffer: MemoryRegion | str = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    """A new tensor with values drawn uniformly from [0, 1), then rounded to `dtype`."""
    result = ndarray(shape, dtype, buffer, name)
    bits, kept = sbuf_tile(result.shape, "uint32"), sbuf_tile(result.shape, "uint32")
    nisa.rng(dst=bits)
    # 24 bits are what a float32 below 1 holds exactly
    nisa.tensor_scalar(dst=kept, data=bits, op0=op.right_shift, operand0=8)
    tile = result if result.on_chip else sbuf_tile(result.shape, result.dtype)
    nisa.tensor_scalar(dst=tile, data=kept, op0=op.multiply, operand0=2.0**-24)
    if tile is not result:
        assign(result, tile)
    return result


def random_seed(seed: NkiTensor) -> None:
    """Seed the random numbers of this core with a one-element tile; the same seed repeats them."""
    nisa.set_rng_seed(seed)
