"""Numbers that are the same on every generation described here."""

from __future__ import annotations

from nki_hf.chips.param import Param

__all__ = ["COMMON"]

_ARCH = "nki/guides/architecture/{trainium_inferentia2,trainium2,trainium3}_arch.rst"
_ISA = "nki/api/nki/isa/__init__.py"
_OLD = "NKI API reference 2.20 to 2.26, 'Estimated instruction cost'"
_PERF = "nki/deep-dives/nki_perf_guide.rst"
_DMA = "nki/deep-dives/nki-dma-bandwidth-guide.rst"

COMMON = {
    # ---- memories ---------------------------------------------------------------------------------------------------
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
    "sbuf_access_elements_max": Param(65536, "elements per partition", f"{_ARCH}: access pattern, SBUF", "documented"),
    "psum_access_elements_max": Param(
        4096, "elements per partition", f"{_ARCH}: access pattern, PSUM (before NeuronCore-v4)", "documented"
    ),
    "search_free_max": Param(16384, "elements", f"{_ISA}: max8, free size of src", "documented"),
    "gather_indices_max": Param(4096, "indices per GpSimd core", f"{_ISA}: local_gather", "documented"),
    "gpsimd_core_partitions": Param(16, "partitions per GpSimd core", f"{_ISA}: local_gather", "documented"),
    "gpsimd_dma_elements_max": Param(
        256, "elements per partition", f"{_ISA}: sendrecv through GpSimd, 1,024 B of 4 B elements", "documented"
    ),
    "vector_transpose_max": Param(32, "elements", f"{_ISA}: nc_transpose on the Vector engine, both axes", "documented"),
    "psum_align_bytes": Param(4, "B", "nl.tile_size.psum_min_align exists, no public value: fp32 accumulators", "assumed"),
    "sbuf_align_bytes": Param(1, "B", "nl.tile_size.sbuf_min_align exists, no public value: byte addresses", "assumed"),
    "sbuf_reserved_bytes": Param(
        16384, "B per partition", "compiler reserve named in public kernels and notes (about 16 KiB for DMA)", "assumed"
    ),
    "psum_recompute": Param(
        1,
        "flag",
        "chosen after the ladder's rows of 8,192 keys were seen: from 4,096 to 8,192 keys, where scores stop fitting PSUM, the "
        "time per block of v4 to v8 does not rise, though the engines that could evict them are busy",
        "assumed",
    ),
    "sbuf_spill_held": Param(
        1,
        "flag",
        "a tile from outside a loop is held through it, and allocators do not see the next use across a loop's back edge; "
        "chosen after v11's rows of 8,192 and 16,384 keys were seen",
        "assumed",
    ),
    "stack_allocator": Param(
        1,
        "flag",
        "NKI of SDK 2.26: nki.compiler.enable_stack_allocator; the page of rmsnorm_quant says that it uses it, and its profile "
        "has each tile loaded after the one before; chosen after its rows were seen",
        "assumed",
    ),
    "port_stride_bytes": Param(
        16, "B", f"{_ARCH}: an innermost free stride above 16 B halves an engine's SBUF and PSUM rate", "documented"
    ),
    # ---- every engine -----------------------------------------------------------------------------------------------
    "min_issue_cycles": Param(64, "cycles", f"{_OLD}: MIN_II, shortest time between two instructions' starts", "documented"),
    "dynamic_address_cycles": Param(600, "cycles", f"{_OLD}: MIN_II of an instruction with a run-time address", "documented"),
    "semaphore_hop_ns": Param(
        30, "ns", f"{_PERF}, profile of a dependent Scalar chain: 189 ns between starts less 159 ns duration", "measured"
    ),
    "semaphore_instruction_ns": Param(9, "ns", "AWS profile images: a semaphore instruction", "measured"),
    "register_move_ns": Param(68, "ns", "AWS profile images: a register move", "measured"),
    "loop_turn_ns": Param(
        9_000,
        "ns",
        "public kernels' own comments: about 9 us per iteration of a loop of run time, with the barrier of all "
        "engines behind it; no measurement with its conditions is published",
        "assumed",
    ),
    # ---- Tensor engine ----------------------------------------------------------------------------------------------
    "tensor_min_cycles": Param(64, "cycles", f"{_PERF}, {_OLD}: shortest time between two matmuls", "documented"),
    "tensor_weight_load_cycles": Param(
        32, "cycles", f"{_PERF}: fast weight load, 128 columns of a 16-bit stationary tile in about 32 cycles", "documented"
    ),
    "tensor_fp32_cycles": Param(4, "cycles per column", f"{_OLD}: nc_matmul float32, 4 passes", "documented"),
    "tensor_throttle_ns": Param(
        100_000, "ns", "no published number: how long dense matmuls run at full clock before they are slowed", "assumed"
    ),
    # ---- Vector engine ----------------------------------------------------------------------------------------------
    "vector_reduce_readout_cycles": Param(
        64, "cycles", f"{_OLD}: tensor_scalar_reduce and other instructions that also reduce", "documented"
    ),
    "vector_scan_cycles": Param(
        2, "cycles per element", f"{_OLD}: tensor_tensor_scan; measured the same on trn2", "documented"
    ),
    "vector_bn_aggr_cycles": Param(4.34, "cycles per element", f"{_OLD}: bn_aggr, 13 N / 3", "documented"),
    "vector_quantize_cycles": Param(
        0.25,
        "cycles per element",
        "nki/guides/architecture/trainium3_arch.rst: quantize_mx, 4 elements per cycle",
        "documented",
    ),
    # ---- GpSimd engine ----------------------------------------------------------------------------------------------
    "gpsimd_start_cycles": Param(150, "cycles", f"{_OLD}: cost of a GpSimd instruction beyond its elements", "documented"),
    "gpsimd_tensor_tensor_cycles": Param(
        2, "cycles per element", "no published number; two SBUF operands through one port", "assumed"
    ),
    "gpsimd_topk_cycles": Param(4, "cycles per element searched", f"{_ISA}: topk, 4 n + k", "documented"),
    "gpsimd_memset_cycles": Param(1, "cycles per element", "no published number", "assumed"),
    # ---- DMA --------------------------------------------------------------------------------------------------------
    "dma_engines": Param(16, "engines per core", f"{_DMA}: engine i serves partitions 8i to 8i+7", "documented"),
    "dma_full_packet_bytes": Param(4096, "B", f"{_DMA}: target for full bandwidth", "documented"),
    "dma_medium_packet_fraction": Param(
        0.82, "of peak", f"{_DMA}, curve: rows of 2 KiB reach 82 %, of 4 KiB 97 %", "documented"
    ),
    "dma_trigger_ns": Param(
        8, "ns of the triggering engine", "AWS profile images: a DMA trigger in an engine's queue", "measured"
    ),
    "dma_descriptor_ns": Param(7, "ns", "AWS profile images: a 4 B write takes 7 ns on its DMA engine", "measured"),
}
