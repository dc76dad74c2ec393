"""`nl.tile_size`: the machine's tile limits, those of the chip that the running kernel is simulated for."""

from __future__ import annotations

import os
from typing import Any

from nki_hf.sim.execution.current_machine import running_machine
from nki_hf.sim.objects import NKIObject
from nki_hf.sim.options import default_chip

__all__ = ["tile_size"]

_FP32_BYTES = 4


class _TileSize(NKIObject):
    """Tile limits; outside of a kernel those of the chip that a launch would take by default."""

    __slots__ = ()

    def _of(self, name: str) -> Any:
        machine = running_machine()
        return getattr(machine.chip if machine is not None else default_chip(), name)

    @property
    def pmax(self) -> int:
        """Partitions of a tile."""
        return self._of("partitions")

    @property
    def psum_fmax(self) -> int:
        """Elements of fp32 per PSUM bank and partition (deprecated name of `psum_bank_fmax`)."""
        return self.psum_bank_fmax

    @property
    def psum_bank_fmax(self) -> int:
        """Elements of fp32 per PSUM bank and partition."""
        return self.psum_bank_fmax_bytes // _FP32_BYTES

    @property
    def psum_bank_fmax_bytes(self) -> int:
        """Bytes per PSUM bank and partition."""
        return self._of("psum_bank_bytes")

    @property
    def psum_num_banks(self) -> int:
        """PSUM banks that a kernel may use: one less where dma_transpose is lowered to the Tensor engine."""
        lowered = os.environ.get("NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE", "").lower() in ("1", "true")
        return self._of("psum_banks") - (1 if lowered and self._of("generation") >= 3 else 0)

    @property
    def gemm_stationary_fmax(self) -> int:
        """Free elements of nc_matmul's stationary operand."""
        return self._of("stationary_free_max")

    @property
    def gemm_moving_fmax(self) -> int:
        """Free elements of nc_matmul's moving operand."""
        return self._of("moving_free_max")

    @property
    def bn_stats_fmax(self) -> int:
        """Free elements of bn_stats."""
        return self._of("bn_stats_free_max")

    @property
    def psum_min_align(self) -> int:
        """Alignment in bytes of free-dimension addresses in PSUM."""
        return self._of("psum_align_bytes")

    @property
    def sbuf_min_align(self) -> int:
        """Alignment in bytes of free-dimension addresses in SBUF."""
        return self._of("sbuf_align_bytes")

    @property
    def sbuf_size_bytes(self) -> int:
        """Bytes of SBUF over all partitions."""
        return self._of("sbuf_partition_bytes") * self.pmax

    @property
    def sbuf_fmax_bytes(self) -> int:
        """Bytes of SBUF per partition that a kernel may use."""
        return self._of("sbuf_partition_bytes") - self._of("sbuf_reserved_bytes")

    @property
    def sbuf_fmax(self) -> int:
        """Elements of fp32 of SBUF per partition that a kernel may use."""
        return self.sbuf_fmax_bytes // _FP32_BYTES

    @property
    def total_available_sbuf_size(self) -> int:
        """Bytes of SBUF per partition that a kernel may use (deprecated name of `sbuf_fmax_bytes`)."""
        return self.sbuf_fmax_bytes


tile_size = _TileSize()
