"""Published latencies of whole kernels on real chips: what the timing model is compared with, never an input of a run.

Three sets. A *fitted* row took part in a fit by command. A *seen* row had been compared with the model when some constant or
rule was chosen by hand; `informed` names those it could have influenced. An *unseen* row had not been: only its error says
what the model is worth on the next one. A row moves from unseen to seen, never back, and says when; tests hold the sets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["FAMILIES", "MEASUREMENTS", "SIMULATED", "STANDINGS", "Measurement", "error_band", "error_range", "simulated_rows"]

SIMULATED = Path(__file__).parent / "simulated_rows.json"
"""Where the simulated side is kept, so that bands and tables need no run."""

STANDINGS = ("fitted", "seen", "unseen")
FAMILIES = ("attention", "decode attention", "matmul", "normalisation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One published latency.

    Attributes:
      subject: the calibration subject that stands for the measured kernel (see tools/subjects.py), or a public kernel.
      size: its length, or another size that the subject takes.
      chip: trn1, trn2 or trn3.
      us: measured microseconds.
      source: where it is published.
      standing: its set: fitted, seen or unseen.
      family: kernels whose errors are alike, one of `FAMILIES`.
      shape: what a size alone does not say; empty if nothing.
      public: the kernel is not part of this package: tools/public_kernels.py runs it from a checkout.
      note: what makes the comparison weaker than a row of its own kernel; empty if nothing does.
      stack: the kernel's documents say that it is compiled with the stack allocator.
      informed: constants, laws and rules that were chosen by hand after this row, or the profile it belongs to, was seen.
      first_error: simulated / measured - 1 when the row was first compared, which never changes; None if nobody wrote it down.
    """

    subject: str
    size: int
    chip: str
    us: float
    source: str
    standing: str = "seen"
    family: str = "attention"
    shape: str = ""
    public: bool = False
    note: str = ""
    stack: bool = False
    informed: str = ""
    first_error: float | None = None

    @property
    def key(self) -> str:
        """Its name among all rows."""
        return f"{self.subject}{', ' if self.shape else ''}{self.shape} {self.size} {self.chip}"


_LADDER = "attention kernels of aws-neuron/nki-samples, trn1.2xlarge, NeuronCC 2.23, p50, published 2026"
_AUTOCOMP = "ucb-bar/autocomp, Stable Diffusion attention, trn1.2xlarge, published January 2026"
_KOPT = "aws-neuron-sdk, nki/guides/tutorials/kernel-optimization.rst, profile images (trn2)"
_XPU = "public third-party runs on trn2.3xlarge, August to October 2026, LNC 2, about 60 us of dispatch taken off"
_LADDER_LONG = "the same kernels and chip at 8,192 and 16,384 keys, published 2026"
_VIDEO = "public runs of a video model's attention on trn2, LNC 2, 2026"
_DECODE = "public third-party runs on trn2.3xlarge, August to October 2026, LNC 2, host dispatch taken off"
_TARGETS = "aws-neuron-sdk, nki/library/specs/design-rmsnorm-quant.rst, performance targets (trn2, LNC 2)"

_INFORMED_BY_LADDER = "vector_overhead_cycles, scalar_overhead_cycles, dma_end_ns and the order within a window, on trn1"
_LONG = "psum-recompute, sbuf-holding and the class of DMA rows below 4 KiB on trn1"
_DMA_TURNS = "dma_transpose_sbuf_fraction and the default order, on trn2"
_GATHERS = "dma_software_descriptor_ns, on trn2"
_NORM = "the default order and stack-allocator, on trn2"
_INFORMED_BY_PROFILE = "vector_latency_ns, scalar_copy_*_latency_ns and scalar_table_latency_ns, on trn1"
_INFORMED_BY_IMAGES = "tensor_fp32_pass_overhead_cycles, on trn2"

_ONE_TILE = {
    hidden: "a target of the library, no measurement. Its page says that it uses the stack allocator, and its published "
    "profile shows each tile loaded after the one before is done: it is simulated so. A tile takes "
    f"{here} us here and {there} there. Vector's part is what the profile has (products with gamma 0.64 us apart, maximum 17.2 "
    "and quantisation 8.8 us for 16,384 elements); load, square and store, of which no split is published, make the rest"
    for hidden, here, there in ((8192, 40, "49 to 56"), (16_384, 77, "103 to 107"))
}
_FUSED_LATER = (
    "measured 4 % faster than v6, though v6 only leaves out v5's sum of the exponentials and is the faster of the two at every "
    "other length; the model has both spill PSUM alike there, so it keeps their order"
)

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
                    standing="fitted" if subject != "v3" and (size == 512 or subject in ("v5", "v6")) else "seen",
                    informed=_INFORMED_BY_LADDER + (" (also dma_small_packet_*)" if subject == "v3" else ""))
        for subject, row in _P50.items()
        for size, us in zip((512, 1024, 2048, 4096), row, strict=True)
    ),
    Measurement(subject="sd_baseline", size=4096, chip="trn1", us=558, source=_AUTOCOMP, informed=_INFORMED_BY_PROFILE),
    Measurement(subject="sd_swapped_operands", size=4096, chip="trn1", us=384, source=_AUTOCOMP, informed=_INFORMED_BY_PROFILE),
    Measurement(subject="matmul_tiled", size=8192, chip="trn2", us=39_890, source=_KOPT, family="matmul",
                informed=_INFORMED_BY_IMAGES),
    Measurement(subject="matmul_blocked", size=8192, chip="trn2", us=28_300, source=_KOPT, family="matmul",
                informed=_INFORMED_BY_IMAGES),
    Measurement(
        subject="gemm_bf16", size=8192, chip="trn2", us=10_978, source=_XPU, family="matmul",
        note="another kernel (the compiler's GEMM); the row that tensor_sustained_fraction is read from",
        informed="tensor_sustained_fraction, on trn2",
    ),
    *(
        Measurement(subject=subject, size=8192, chip="trn1", us=us, source=_LADDER_LONG, informed=_LONG, first_error=first,
                    note=_FUSED_LATER if subject == "v5" else "")
        for subject, us, first in (
            ("v3", 13_105, 0.19), ("v4", 3_360, 0.18), ("v5", 2_455, 0.18), ("v6", 2_565, 0.11), ("v7", 1_526, 0.30),
            ("v8", 1_613, 0.26), ("v11", 1_387, -0.09),
        )
    ),
    Measurement(subject="v11", size=16_384, chip="trn1", us=35_067, source=_LADDER_LONG, informed=_LONG, first_error=-0.62),
    Measurement(subject="attention_cte", shape="80 heads, causal, 1 core", size=4096, chip="trn2", us=13_628, source=_XPU,
                public=True, informed=_DMA_TURNS, first_error=-0.09),
    Measurement(subject="attention_cte", shape="80 heads, causal, 2 cores", size=4096, chip="trn2", us=7_347, source=_XPU,
                public=True, informed=_DMA_TURNS, first_error=-0.14),
    Measurement(subject="attention_cte", shape="6 heads, non-causal, 2 cores", size=4608, chip="trn2", us=1_341, source=_VIDEO,
                public=True, informed=_DMA_TURNS, first_error=-0.32),
    *(
        Measurement(subject="attention_tkg", shape="batch 16, 80/8 heads, blocks of 128", size=size, chip="trn2", us=us,
                    source=_DECODE, family="decode attention", public=True, informed=_GATHERS, first_error=first,
                    note="simulated as 8 launches of one kv head")
        for size, us, first in ((4096, 1_880, -0.72), (16_384, 3_370, -0.47))
    ),
    *(
        Measurement(subject="rmsnorm_quant", shape=f"hidden {hidden:,}", size=rows, chip="trn2", us=us, source=_TARGETS,
                    family="normalisation", public=True, first_error=first, note=_ONE_TILE[hidden], stack=True, informed=_NORM)
        for hidden, rows, us, first in (  # the last one was unseen until `stack-allocator` was chosen
            (8192, 2048, 458.2, -0.51), (16_384, 32_768, 13_214.4, -0.44), (16_384, 2048, 866.8, None),
            (8192, 32_768, 6_287.0, None),
        )
    ),
)  # fmt: skip
"""v9 and v10 have no rows: v9 pins addresses that only the original's allocator chooses, v10 never ran. Rows of kernels
without a published shape (attention_const_max: 64.3 and 60.0 % of peak on trn3) have none either. The
published bfloat16 GEMM of 1024 x 4096 x 4096 (276.8 us) is left out: a quarter of it is the host's dispatch, and its kernel is
unknown."""


@cache
def simulated_rows() -> Mapping[str, Mapping[str, Any]]:
    """What the model gives for each row, by `Measurement.key`, as last written by `nki_hf correlate --write` and
    tools/public_kernels.py: `us` in the default order, `program_us`, and `without`, the times without each law that matters.
    """
    return dict(json.loads(SIMULATED.read_text(encoding="utf-8")))


def error_range(family: str, chip: str) -> tuple[float, float, int] | None:
    """Smallest and largest simulated / measured - 1 of a family's rows on a chip, and how many there are; None if none."""
    known = simulated_rows()
    rows = [m for m in MEASUREMENTS if m.family == family and m.chip == chip and m.key in known]
    errors = [known[m.key]["us"] / m.us - 1 for m in rows]
    return (min(errors), max(errors), len(errors)) if errors else None


def error_band(family: str, chip: str) -> str:
    """How far the model was off on a family's rows, e.g. `attention, trn2: -14 .. +10 % (3 rows)`; says so if it has none."""
    found = error_range(family, chip)
    if found is None:
        return f"{family}, {chip}: no measured rows"
    low, high, count = found
    return f"{family}, {chip}: {100 * low:+.0f} .. {100 * high:+.0f} % ({count} measured row{'s' * (count > 1)})"
