"""Numbers that are the same on every generation described here."""

from __future__ import annotations

from nki_hf.chips.param import Param

__all__ = ["COMMON"]

_ARCH = "nki/guides/architecture/{trainium_inferentia2,trainium2,trainium3}_arch.rst"
_ISA = "nki/api/nki/isa/__init__.py"

COMMON = {
    "partitions": Param(128, "partitions", f"{_ARCH}: SBUF and PSUM have 128 partitions", "documented"),
    "psum_banks": Param(8, "banks", f"{_ARCH}: PSUM, 8 banks per partition", "documented"),
    "psum_bank_bytes": Param(2048, "B per partition", f"{_ARCH}: PSUM bank, 2 KiB per partition", "documented"),
    "psum_partition_bytes": Param(16384, "B per partition", f"{_ARCH}: PSUM, 16 KiB per partition", "documented"),
    "stationary_free_max": Param(128, "elements", f"{_ISA}: nc_matmul, stationary free size", "documented"),
    "moving_free_max": Param(512, "elements", f"{_ISA}: nc_matmul, moving free size", "documented"),
    "bn_stats_free_max": Param(512, "elements", f"{_ISA}: bn_stats, free size of data", "documented"),
    "pattern_free_axes": Param(4, "axes", f"{_ARCH}: access pattern, free axes", "documented"),
    "pattern_size_max": Param(65535, "elements", f"{_ARCH}: access pattern, axis size is uint16", "documented"),
    "pattern_stride_max": Param(32767, "elements", f"{_ARCH}: access pattern, axis stride is int16", "documented"),
    "vector_transpose_max": Param(32, "elements", f"{_ISA}: nc_transpose on the Vector engine, both axes", "documented"),
    "psum_align_bytes": Param(4, "B", "nl.tile_size.psum_min_align exists, no public value: fp32 accumulators", "assumed"),
    "sbuf_align_bytes": Param(1, "B", "nl.tile_size.sbuf_min_align exists, no public value: byte addresses", "assumed"),
    "sbuf_reserved_bytes": Param(
        16384, "B per partition", "compiler reserve named in public kernels and notes (about 16 KiB for DMA)", "assumed"
    ),
}
