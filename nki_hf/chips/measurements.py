"""Published latencies of whole kernels on real chips: what the timing model is compared with, never an input of a run."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MEASUREMENTS", "Measurement"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One published latency.

    Attributes:
      subject: the calibration subject that stands for the measured kernel (see tools/subjects.py).
      size: its length, or another size that the subject takes.
      chip: trn1, trn2 or trn3.
      us: measured microseconds.
      source: where it is published.
      note: what makes the comparison weaker than a row of its own kernel; empty if nothing does.
      informed: constants and rules that were chosen by hand after this row, or the profile it belongs to, was seen.
      group: `attention` rows carry the headline error figures; others are listed beside them.
    """

    subject: str
    size: int
    chip: str
    us: float
    source: str
    note: str = ""
    informed: str = ""
    group: str = "attention"


_LADDER = "attention kernels of aws-neuron/nki-samples, trn1.2xlarge, NeuronCC 2.23, p50, published 2026"
_AUTOCOMP = "ucb-bar/autocomp, Stable Diffusion attention, trn1.2xlarge, published January 2026"
_KOPT = "aws-neuron-sdk, nki/guides/tutorials/kernel-optimization.rst, profile images (trn2)"
_XPU = "public third-party runs on trn2.3xlarge, August to October 2026, LNC 2, about 60 us of dispatch taken off"

_INFORMED_BY_LADDER = "vector_overhead_cycles, scalar_overhead_cycles, dma_end_ns and the order within a window, on trn1"
_INFORMED_BY_PROFILE = "vector_latency_ns, scalar_copy_*_latency_ns and scalar_table_latency_ns, on trn1"
_INFORMED_BY_IMAGES = "tensor_fp32_pass_overhead_cycles, on trn2"

_P50 = {
    "v3": (57, 175, 652, 3130),
    "v4": (25, 67, 229, 873),
    "v5": (23, 53, 171, 631),
    "v6": (23, 53, 163, 609),
    "v7": (19, 39, 112, 400),
    "v8": (20, 40, 116, 421),
    "v11": (19, 37, 98, 360),
}

MEASUREMENTS: tuple[Measurement, ...] = (
    *(
        Measurement(subject=subject, size=size, chip="trn1", us=us, source=_LADDER,
                    informed=_INFORMED_BY_LADDER + (" (also dma_small_packet_*)" if subject == "v3" else ""))
        for subject, row in _P50.items()
        for size, us in zip((512, 1024, 2048, 4096), row, strict=True)
    ),
    Measurement(subject="sd_baseline", size=4096, chip="trn1", us=558, source=_AUTOCOMP, informed=_INFORMED_BY_PROFILE),
    Measurement(subject="sd_swapped_operands", size=4096, chip="trn1", us=384, source=_AUTOCOMP, informed=_INFORMED_BY_PROFILE),
    Measurement(subject="matmul_tiled", size=8192, chip="trn2", us=39_890, source=_KOPT, group="matmul",
                informed=_INFORMED_BY_IMAGES),
    Measurement(subject="matmul_blocked", size=8192, chip="trn2", us=28_300, source=_KOPT, group="matmul",
                informed=_INFORMED_BY_IMAGES),
    Measurement(
        subject="gemm_bf16", size=8192, chip="trn2", us=10_978, source=_XPU, group="matmul",
        note="another kernel (the compiler's GEMM); the row that tensor_sustained_fraction is read from",
        informed="tensor_sustained_fraction, on trn2",
    ),
)  # fmt: skip
"""v9 and v10 have no rows: v9 pins addresses that only the original's allocator chooses, v10 never ran. Rows of kernels
that are not part of this package (attention_cte, fused_mamba) are compared by tools/public_kernels.py, from a checkout. The
published bfloat16 GEMM of 1024 x 4096 x 4096 (276.8 us) is left out: a quarter of it is the host's dispatch, and its kernel
is unknown."""
