"""What a launch of a kernel for few query rows takes, from counts of what its busiest core does: the law that dispatch compares
such kernels by.

    us = fixed cost of a launch + edge + max(loads, sum over counts of count * price)

Every kernel has its counts, and `Prices` for each chip and width of dtype; `python tools/decode_constants.py` fits them to the
simulated kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nki_hf.chips import Chip

__all__ = ["ITEMSIZE", "Prices", "launch_us", "loads_us", "prices_of"]

ITEMSIZE = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True)
class Prices:
    """Microseconds, simulated in program order.

    Attributes:
      edge: before the first step and behind the last one.
      each: of one of each count, in the order of the kernel's counts.
    """

    edge: float
    each: tuple[float, ...]


def prices_of(table: Mapping[tuple[str, int], Prices], chip: Chip, dtype: str) -> Prices:
    """The prices for a chip and the bytes of a dtype."""
    return table[chip.name, ITEMSIZE[dtype]]


def loads_us(chip: Chip, nbytes: float) -> float:
    """Microseconds in which the DMA engines of one core move so many bytes."""
    return nbytes / float(chip.dma_engines * chip.dma_engine_bytes_per_ns) / 1e3


def launch_us(chip: Chip, counts: Sequence[float], prices: Prices, loads: float) -> float:
    """The law above; `loads` in microseconds."""
    work = sum(count * price for count, price in zip(counts, prices.each, strict=True))
    return float(chip.kernel_fixed_ns) / 1e3 + prices.edge + max(loads, work)
