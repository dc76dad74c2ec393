"""The enumerations of `nki.isa`, with their public values."""

from __future__ import annotations

from enum import Enum

__all__ = ["dge_mode", "dma_engine", "engine", "matmul_perf_mode", "nc_version", "oob_mode", "reduce_cmd"]

# The names are the language's own, hence lower case.
# ruff: noqa: N801


class engine(Enum):
    """Engines of a NeuronCore; `unknown` leaves the choice to the compiler (here: to the instruction's default)."""

    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6


class reduce_cmd(Enum):
    """What an instruction does with its engine's accumulator registers."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class dge_mode(Enum):
    """Who generates DMA descriptors."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class oob_mode(Enum):
    """What an out-of-bounds run-time index does: raise, or leave the destination as it was."""

    error = 0
    skip = 1


class matmul_perf_mode(Enum):
    """Matmul performance modes."""

    none = "none"
    double_row = "double_row"


class nc_version(Enum):
    """NeuronCore generations; ordered."""

    gen2 = 2
    gen3 = 3
    gen4 = 4

    def __lt__(self, other: nc_version) -> bool:
        return self.value < other.value

    def __le__(self, other: nc_version) -> bool:
        return self.value <= other.value

    def __gt__(self, other: nc_version) -> bool:
        return self.value > other.value

    def __ge__(self, other: nc_version) -> bool:
        return self.value >= other.value


class dma_engine(Enum):
    """Transfer engines of `sendrecv`."""

    dma = 1
    gpsimd_dma = 2
