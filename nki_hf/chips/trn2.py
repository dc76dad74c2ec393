"""trn2: NeuronCore-v3."""

from __future__ import annotations

from nki_hf.chips.chip import Chip
from nki_hf.chips.common import COMMON
from nki_hf.chips.param import Param

__all__ = ["TRN2"]

_ARCH = "nki/guides/architecture/trainium2_arch.rst"
_PERF = "nki/deep-dives/nki_perf_guide.rst"
_DMA = "nki/deep-dives/nki-dma-bandwidth-guide.rst"
_KOPT = "nki/guides/tutorials/kernel-optimization.rst images"
_PROBE = "public isolated-instruction probes on trn2 (LNC 1, neuronx-cc 2.22)"

TRN2 = Chip(
    name="trn2",
    generation=3,
    default_lnc=2,
    params={
        **COMMON,
        "sbuf_partition_bytes": Param(229376, "B per partition", f"{_ARCH}: SBUF, 128 x 224 KiB", "documented"),
        # ---- Tensor engine ------------------------------------------------------------------------------------------
        "tensor_ghz": Param(2.4, "GHz", _ARCH, "documented"),
        "tensor_peak_tflops": Param(78.6, "TFLOP/s", f"{_ARCH}: 79; 128 x 128 x 2 x 2.4 GHz", "documented"),
        "tensor_latency_ns": Param(178, "ns", f"{_KOPT}: 512 columns start 430 ns apart and last 608 ns", "measured"),
        "tensor_double_row_speedup": Param(2, "x", f"{_ARCH}: fp8 double row contracts 256 in the time of 128", "documented"),
        "tensor_fp32_pass_overhead_cycles": Param(
            7,
            "cycles per pair",
            f"chosen by hand from {_KOPT}, 429.7 ns for 1024 cycles: profiles of the matmul rows it is compared with",
            "assumed",
        ),
        "tensor_fp32_weight_load_cycles": Param(
            0, "cycles per LOW / LOW_HIGH pair", f"{_PROBE}: 128 columns in 225 ns, hidden", "measured"
        ),
        "tensor_fp32_transpose_cycles": Param(
            3.15, "cycles per column", f"{_PROBE}: 128 x 128 float32 in 168 ns, warm", "measured"
        ),
        "tensor_sustained_fraction": Param(
            0.95, "of peak", "public GEMM runs: 149.4 of 157.2 TFLOP/s on a core pair", "measured"
        ),
        # ---- Vector engine ------------------------------------------------------------------------------------------
        "vector_ghz": Param(0.96, "GHz", _ARCH, "documented"),
        "vector_overhead_cycles": Param(60, "cycles", f"{_PROBE}: 50 to 60 cycles; {_ARCH}: about 60 per access", "measured"),
        "vector_psum_overhead_cycles": Param(
            100,
            "cycles",
            f"{_PERF}: about 100; a profile of rmsnorm_quant has 512 elements with a PSUM operand 0.64 us apart",
            "measured",
        ),
        "vector_8bit_output_cycles": Param(
            0.516, "cycles per element", "profile of rmsnorm_quant: 16,384 bfloat16 to float8 in 8.80 us", "measured"
        ),
        "vector_latency_ns": Param(155, "ns", f"{_PROBE}: 152 to 161 ns beyond streaming", "measured"),
        "vector_memset_latency_ns": Param(58, "ns", f"{_PROBE}: memset usable after 58 ns + 0.833 ns an element", "measured"),
        "vector_copy_16bit_cycles": Param(0.258, "cycles per element", f"{_PROBE}: 0.269 ns, SBUF to SBUF", "measured"),
        "vector_copy_fp32_cycles": Param(0.5, "cycles per element", f"{_PROBE}: 0.521 to 0.534 ns, SBUF to SBUF", "measured"),
        "vector_copy_narrow_cycles": Param(0.5, "cycles per element", f"{_PROBE}: float32 to bfloat16, 0.522 ns", "measured"),
        "vector_copy_widen_cycles": Param(0.771, "cycles per element", f"{_PROBE}: bfloat16 to float32, 0.803 ns", "measured"),
        "vector_scalar_16bit_cycles": Param(
            0.25, "cycles per element", f"{_ARCH}: 4x for 16-bit in and out; measured only to fp8 (2x)", "documented"
        ),
        "vector_tensor_tensor_16bit_cycles": Param(
            0.5, "cycles per element", f"{_PROBE}: 0.517 ns, all 16-bit in SBUF", "measured"
        ),
        "vector_tensor_tensor_cycles": Param(1, "cycles per element", f"{_PROBE}: 1.04 ns; the old text says 2", "measured"),
        "vector_reciprocal_cycles": Param(6, "cycles per element", f"{_PROBE}: 6.25 ns; the old text says 8", "measured"),
        "vector_exponential_cycles": Param(1, "cycles per element", "no such instruction before NeuronCore-v4", "assumed"),
        "vector_transpose_cycles": Param(
            1, "cycles per element", f"{_PROBE}: 32 x 32 issues in 93 ns, overhead included", "measured"
        ),
        "vector_memset_zero_16bit_cycles": Param(
            0.5, "cycles per element", "NKI API reference 2.20 to 2.26: memset", "documented"
        ),
        "vector_memset_cycles": Param(0.8, "cycles per element", f"{_PROBE}: 0.833 ns", "measured"),
        # ---- Scalar engine ------------------------------------------------------------------------------------------
        "scalar_ghz": Param(1.2, "GHz", _ARCH, "documented"),
        "scalar_overhead_cycles": Param(64, "cycles", "NKI API reference 2.20 to 2.26: MIN_II", "assumed"),
        "scalar_copy_psum_latency_ns": Param(165, "ns", f"{_PROBE}: 159 to 174 ns beyond streaming", "measured"),
        "scalar_copy_sbuf_latency_ns": Param(191, "ns", f"{_PROBE}: 189 to 202 ns beyond streaming", "measured"),
        "scalar_table_latency_ns": Param(290, "ns", f"{_PROBE}: 280 to 295 ns beyond streaming", "measured"),
        "scalar_table_psum_latency_ns": Param(
            251, "ns", f"{_PROBE}: exp of float32 in PSUM to bfloat16, 251 + 0.974 N ns", "measured"
        ),
        "scalar_table_psum_cycles": Param(
            1.169, "cycles per element", f"{_PROBE}: exp of float32 in PSUM to bfloat16, 0.974 ns an element", "measured"
        ),
        "scalar_operand_latency_ns": Param(
            93, "ns", f"{_PROBE}: a copy with scale or bias per partition, 91 to 95 ns more", "measured"
        ),
        "scalar_silu_cycles": Param(
            1.6, "cycles per element", f"{_PROBE}: SiLU from PSUM, 1.33 ns; taken for SBUF as well", "measured"
        ),
        "scalar_reduce_start_ns": Param(
            200.7, "ns", f"{_PROBE}: from the end of the exp's stream to the start of its accumulator read", "measured"
        ),
        "scalar_reduce_readout_ns": Param(185, "ns", f"{_PROBE}: accumulator read, issue", "measured"),
        "scalar_reduce_latency_ns": Param(279, "ns", f"{_PROBE}: accumulator read, completion", "measured"),
        "scalar_table_load_ns": Param(1284, "ns", f"{_PROBE} and an AWS profile image: 1283 to 1285 ns", "measured"),
        "scalar_copy_16bit_cycles": Param(1, "cycles per element", f"{_ARCH}: 128 elements per cycle", "documented"),
        # ---- GpSimd engine ------------------------------------------------------------------------------------------
        "gpsimd_ghz": Param(1.2, "GHz", _ARCH, "documented"),
        "gpsimd_latency_ns": Param(
            50, "ns", f"{_PROBE}: affine_select lasts 177 ns beyond streaming, 127 of them start", "measured"
        ),
        # ---- ports --------------------------------------------------------------------------------------------------
        "psum_exclusive": Param(0, "flag", f"{_ARCH}: Vector and Scalar access different PSUM banks in parallel", "documented"),
        "sbuf_exclusive": Param(0, "flag", f"{_ARCH}: only Vector's fast modes take GpSimd's SBUF port", "documented"),
        # ---- DMA ----------------------------------------------------------------------------------------------------
        "dma_engine_bytes_per_ns": Param(23, "B per ns per engine", f"{_DMA}: practical; profile images 23.1", "documented"),
        "dma_issue_ns": Param(
            599, "ns per dma_copy and ring", f"{_PROBE}; {_DMA}: about 600 ns of descriptor generation", "measured"
        ),
        "dma_start_ns": Param(751, "ns", f"{_PROBE}: dispatch of a load; a profile shows 739 to its first byte", "measured"),
        "dma_end_ns": Param(608, "ns", f"{_PROBE}: 293 ns payload intercept and 314.5 ns notification", "measured"),
        "dma_store_start_ns": Param(
            565.5, "ns", f"{_PROBE}: dispatch of a store; a profile shows 616 to its first byte", "measured"
        ),
        "dma_store_end_ns": Param(517, "ns", f"{_PROBE}: 162 ns payload intercept and 355 ns notification", "measured"),
        "dma_small_packet_bytes": Param(
            2048, "B", "public porting notes: rows below 2 KiB move at 12 to 18 GB/s per engine", "measured"
        ),
        "dma_small_packet_fraction": Param(0.65, "of peak", "public porting notes: 15 of 23 GB/s", "measured"),
        "dma_transpose_hbm_fraction": Param(0.9, "of peak", f"{_DMA}: up to 90 %", "documented"),
        "dma_transpose_sbuf_fraction": Param(
            0.333,
            "of peak",
            f"{_ARCH}: up to 50 %; chosen after the rows of attention_cte were seen, whose own sources imply 30 to 50 %",
            "assumed",
        ),
        "hbm_bytes_per_ns": Param(
            640, "B per ns and core pair", "peak that a public kernel-search study measures against; documents: 725", "measured"
        ),
        "dma_software_descriptor_ns": Param(
            100,
            "ns per index",
            "fitted by hand to two decode rows whose gathers GpSimd bounds; documents give no time",
            "assumed",
        ),
        # ---- launch -------------------------------------------------------------------------------------------------
        "kernel_fixed_ns": Param(9400, "ns", f"{_PROBE}: start and stop of a kernel", "measured"),
    },
)
