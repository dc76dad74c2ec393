"""trn3: NeuronCore-v4. No public per-instruction measurement exists: what trn3's own pages, or
those common to all generations, do not document is carried over from trn2 and graded assumed.
"""

from __future__ import annotations

from dataclasses import replace

from nki_hf.chips.chip import Chip
from nki_hf.chips.common import COMMON
from nki_hf.chips.param import Param
from nki_hf.chips.trn2 import TRN2

__all__ = ["TRN3"]

_ARCH = "nki/guides/architecture/trainium3_arch.rst"
_DMA = "nki/deep-dives/nki-dma-bandwidth-guide.rst"


def _carried_over() -> dict[str, Param]:
    return {
        name: param
        if param.confidence == "documented" and name in COMMON
        else replace(param, source=f"as trn2: {param.source}", confidence="assumed")
        for name, param in TRN2
    }


TRN3 = Chip(
    name="trn3",
    generation=4,
    default_lnc=2,
    params={
        **_carried_over(),
        "sbuf_partition_bytes": Param(262144, "B per partition", f"{_ARCH}: SBUF, 128 x 256 KiB", "documented"),
        "tensor_ghz": Param(2.4, "GHz", _ARCH, "documented"),
        "tensor_peak_tflops": Param(78.6, "TFLOP/s", f"{_ARCH}: 79; 128 x 128 x 2 x 2.4 GHz", "documented"),
        "tensor_double_row_speedup": Param(2, "x", f"{_ARCH}: fp8; MX formats contract 512 in the time of 128", "documented"),
        "vector_ghz": Param(1.2, "GHz", _ARCH, "documented"),
        "vector_overhead_cycles": Param(64, "cycles", "MIN_II; no reading on trn3", "assumed"),
        "vector_psum_overhead_cycles": Param(100, "cycles", "as trn2; no reading on trn3", "assumed"),
        "hbm_bytes_per_ns": Param(1175, "B per ns and core pair", f"{_ARCH}: 4.7 TB/s for 8 cores", "documented"),
        "vector_latency_ns": Param(130, "ns", "trn2's 155 ns scaled by the clock, less what does not scale", "assumed"),
        "vector_exponential_cycles": Param(
            0.25, "cycles per 16-bit element", f"{_ARCH}: 4 times Scalar's exp throughput in bf16", "documented"
        ),
        "scalar_ghz": Param(1.2, "GHz", _ARCH, "documented"),
        "scalar_copy_16bit_cycles": Param(
            0.5, "cycles per element", f"{_ARCH}: 256 elements per cycle, 16- and 8-bit", "documented"
        ),
        "gpsimd_ghz": Param(1.2, "GHz", _ARCH, "documented"),
        "psum_exclusive": Param(0, "flag", f"{_ARCH}: Vector and Scalar access different PSUM banks in parallel", "documented"),
        "sbuf_exclusive": Param(0, "flag", f"{_ARCH}: only Vector's fast modes take GpSimd's SBUF port", "documented"),
        "dma_engine_bytes_per_ns": Param(33, "B per ns per engine", f"{_DMA}: practical", "documented"),
    },
)
