"""trn1 (and inf2): NeuronCore-v2."""

from __future__ import annotations

from nki_hf.chips.chip import Chip
from nki_hf.chips.common import COMMON
from nki_hf.chips.param import Param

__all__ = ["TRN1"]

_ARCH = "nki/guides/architecture/trainium_inferentia2_arch.rst"
_OLD = "NKI API reference 2.20 to 2.26, 'Estimated instruction cost'"
_PERF = "nki/deep-dives/nki_perf_guide.rst"
_DMA = "nki/deep-dives/nki-dma-bandwidth-guide.rst"
_CHOSEN = f"{_OLD}: MIN_II; sources say 60 to 264 (docs/timing.md), and 64 was taken after the ladder's rows were seen"
_PROFILE = "chosen by hand after the Autocomp profile was seen"

TRN1 = Chip(
    name="trn1",
    generation=2,
    default_lnc=1,
    params={
        **COMMON,
        "sbuf_partition_bytes": Param(196608, "B per partition", f"{_ARCH}: SBUF, 128 x 192 KiB", "documented"),
        # ---- Tensor engine ------------------------------------------------------------------------------------------
        "tensor_ghz": Param(2.8, "GHz", _ARCH, "documented"),
        "tensor_peak_tflops": Param(91.75, "TFLOP/s", f"{_ARCH}: 92; 128 x 128 x 2 x 2.8 GHz", "documented"),
        "tensor_latency_ns": Param(
            150, "ns", f"{_PERF} images: 128 columns take 188 to 219 ns, 46 of them streaming", "measured"
        ),
        "tensor_double_row_speedup": Param(1, "x", f"{_ARCH}: no double-row mode", "documented"),
        "tensor_fp32_pass_overhead_cycles": Param(0, "cycles", "covered by tensor_fp32_weight_load_cycles", "assumed"),
        "tensor_fp32_weight_load_cycles": Param(
            64,
            "cycles per LOW / LOW_HIGH pair",
            "fitted by `nki_hf correlate --fit` (v5, v6): the part of a float32 weight load that is not hidden",
            "assumed",
        ),
        "tensor_fp32_transpose_cycles": Param(
            4, "cycles per column", "as a float32 matmul: the transpose flag exists from NeuronCore-v3 on", "assumed"
        ),
        "tensor_sustained_fraction": Param(
            0.857, "of peak", "public clock study: a dense bf16 GEMM sustains 85.7 % of 91.75 TFLOP/s", "measured"
        ),
        # ---- Vector engine ------------------------------------------------------------------------------------------
        "vector_ghz": Param(1.12, "GHz", _ARCH, "documented"),
        "vector_overhead_cycles": Param(64, "cycles", _CHOSEN, "assumed"),
        "vector_psum_overhead_cycles": Param(64, "cycles", "as vector_overhead_cycles; no separate reading on trn1", "assumed"),
        "vector_8bit_output_cycles": Param(1, "cycles per element", f"{_ARCH}: no fast modes", "documented"),
        "vector_latency_ns": Param(146, "ns", f"{_PROFILE}: (177 - 117) us over 414 instructions", "assumed"),
        "vector_memset_latency_ns": Param(146, "ns", "as vector_latency_ns; no reading on trn1", "assumed"),
        "vector_copy_16bit_cycles": Param(
            1, "cycles per element", f"{_ARCH}: 128 elements per cycle, no fast modes", "documented"
        ),
        "vector_copy_fp32_cycles": Param(1, "cycles per element", f"{_ARCH}: no fast modes", "documented"),
        "vector_copy_narrow_cycles": Param(1, "cycles per element", f"{_ARCH}: no fast modes", "documented"),
        "vector_copy_widen_cycles": Param(1, "cycles per element", f"{_ARCH}: no fast modes", "documented"),
        "vector_scalar_16bit_cycles": Param(1, "cycles per element", f"{_ARCH}: no fast modes", "documented"),
        "vector_tensor_tensor_16bit_cycles": Param(
            1, "cycles per element", f"{_OLD}: tensor_tensor, all bf16 in SBUF", "documented"
        ),
        "vector_tensor_tensor_cycles": Param(
            2,
            "cycles per element",
            f"{_OLD}: tensor_tensor, both in SBUF; a profile shows 8192 elements in 14.97 us",
            "documented",
        ),
        "vector_reciprocal_cycles": Param(8, "cycles per element", f"{_OLD}: reciprocal", "documented"),
        "vector_exponential_cycles": Param(1, "cycles per element", "no such instruction before NeuronCore-v4", "assumed"),
        "vector_transpose_cycles": Param(1, "cycles per element", f"{_OLD}: nc_transpose on Vector, max(64, N)", "documented"),
        "vector_memset_zero_16bit_cycles": Param(0.5, "cycles per element", f"{_OLD}: memset of 0, 16-bit", "documented"),
        "vector_memset_cycles": Param(1, "cycles per element", f"{_OLD}: memset", "documented"),
        # ---- Scalar engine ------------------------------------------------------------------------------------------
        "scalar_ghz": Param(1.4, "GHz", _ARCH, "documented"),
        "scalar_overhead_cycles": Param(64, "cycles", _CHOSEN, "assumed"),
        "scalar_copy_psum_latency_ns": Param(105, "ns", f"{_PROFILE}: 100 to 107 ns an instruction", "assumed"),
        "scalar_copy_sbuf_latency_ns": Param(105, "ns", f"{_PROFILE}: 100 to 107 ns an instruction", "assumed"),
        "scalar_table_latency_ns": Param(
            143,
            "ns",
            f"{_PERF} images: midway between 113 (1 element lasts 159 ns) and 174 (exp of 512 from PSUM, 0.54 us)",
            "assumed",
        ),
        "scalar_table_psum_latency_ns": Param(143, "ns", "as scalar_table_latency_ns; no separate reading", "assumed"),
        "scalar_table_psum_cycles": Param(1, "cycles per element", f"{_ARCH}: 128 elements per cycle", "documented"),
        "scalar_operand_latency_ns": Param(0, "ns", "a copy with scale or bias per partition: no reading on trn1", "assumed"),
        "scalar_silu_cycles": Param(
            1, "cycles per element", f"{_ARCH}: 128 elements per cycle; no reading on trn1", "documented"
        ),
        "scalar_reduce_start_ns": Param(
            45.7,
            "ns",
            "overhead of the activation before it; a profile shows exps of 512 with read-out 0.45 us apart",
            "assumed",
        ),
        "scalar_reduce_readout_ns": Param(
            45.7, "ns", f"{_OLD}: activation with reduce_res, 64 cycles; profile II 0.45 us", "documented"
        ),
        "scalar_reduce_latency_ns": Param(143, "ns", "as scalar_table_latency_ns; no separate reading", "assumed"),
        "scalar_table_load_ns": Param(368, "ns", "one AWS profile image; trn2 measures 1.28 us", "measured"),
        "scalar_copy_16bit_cycles": Param(1, "cycles per element", f"{_ARCH}: 128 elements per cycle", "documented"),
        # ---- GpSimd engine ------------------------------------------------------------------------------------------
        "gpsimd_ghz": Param(1.4, "GHz", _ARCH, "documented"),
        "gpsimd_latency_ns": Param(50, "ns", "as on trn2", "assumed"),
        # ---- ports --------------------------------------------------------------------------------------------------
        "psum_exclusive": Param(1, "flag", f"{_ARCH}: Vector and Scalar cannot access PSUM in parallel", "documented"),
        "sbuf_exclusive": Param(1, "flag", f"{_ARCH}: Vector and GpSimd share one SBUF port", "documented"),
        # ---- DMA ----------------------------------------------------------------------------------------------------
        "dma_engine_bytes_per_ns": Param(17, "B per ns per engine", f"{_DMA}: practical; profile images 18.1", "documented"),
        "dma_issue_ns": Param(
            8, "ns per dma_copy", "AWS profile images: a DMA trigger; descriptors are built ahead", "measured"
        ),
        "dma_start_ns": Param(1300, "ns", "AWS profile images: semaphore to first byte", "measured"),
        "dma_end_ns": Param(
            315,
            "ns",
            f"about 2 us of {_DMA} with the rest; taken instead of 700 ns after the ladder's rows were seen",
            "assumed",
        ),
        "dma_store_start_ns": Param(1300, "ns", "as dma_start_ns; no reading of stores", "assumed"),
        "dma_store_end_ns": Param(315, "ns", "as dma_end_ns; no reading of stores", "assumed"),
        "dma_small_packet_bytes": Param(
            0, "B", "no reading on trn1; v3's rows leave no room for a class of its own below 2 KiB", "assumed"
        ),
        "dma_small_packet_fraction": Param(1, "of peak", "see dma_small_packet_bytes", "assumed"),
        "hbm_bytes_per_ns": Param(820, "B per ns and core pair", f"{_ARCH}: 820 GB/s for the two cores", "documented"),
        "dma_software_descriptor_ns": Param(
            86, "ns per index", "trn2's 100 ns scaled by GpSimd's clock; no reading on trn1", "assumed"
        ),
        "dma_transpose_hbm_fraction": Param(
            0.067, "of peak", "element-wise descriptors: reasoned 10 to 20 times slower", "assumed"
        ),
        "dma_transpose_sbuf_fraction": Param(
            0.067, "of peak", "element-wise descriptors: reasoned 10 to 20 times slower", "assumed"
        ),
        # ---- launch -------------------------------------------------------------------------------------------------
        "kernel_fixed_ns": Param(
            7000,
            "ns",
            "fitted by `nki_hf correlate --fit` (rows of 512 keys): start and stop; loads and stores are modelled apart",
            "assumed",
        ),
    },
)
