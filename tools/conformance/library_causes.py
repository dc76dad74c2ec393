"""Why cases of nki-library's tests cannot pass whatever runs them; each cause was looked for in the case itself."""

from __future__ import annotations

import re
from dataclasses import replace

from tools.conformance.case import Outcome

__all__ = ["CAUSES", "explained"]

CAUSES = (
    (
        "cascaded_max_utils", "failed", "test_folded_load_store_dst_batch: lnc_degree=2",
        "the test's kernel has a race: each core fills the whole output with zeros and then stores its own half, with "
        "nothing between; cores run one after the other here, so the second core's zeros stay; with a core_barrier between, it "
        "passes",
    ),
    (
        "attention_block_tkg", "failed", "quantization_type=<QuantizationType.STATIC.*kv_quant=True",
        "the reference does not round its inputs to float8, as the kernel does, and the scores keep the cache's scale of "
        "104, so that the softmax follows each rounding: the reference with its inputs rounded has cosines of 0.94 to "
        "0.9994 to the reference without; under a scale of the scores that undoes the cache's, the same launches have "
        "0.9993 and more (the cases marked `own`)",
    ),
    (
        "bwmm_bwd", "failed", "own: .*tokens=256.* expert_affinities_masked_grad",
        "the kernel has a race: each core fills a half of the gradient of the affinities with zeros (bwmm_bwd_dropless.py:123) "
        "and then scatters its gradients over the whole (:687), with no core_barrier between; cores run one after the "
        "other here, so the second core's zeros stay; with a core_barrier between, it passes",
    ),
    (
        "mlp_tkg", "failed", r"i=384.*QuantizationType.MX.* is nan",
        "the kernel applies its activation to 128 partitions of a tile of which it wrote 96 (I = 384) and multiplies the "
        "others by weights of zero: NaN where memory that was never written holds NaN, as it does here; with zeros in "
        "such memory the case passes",
    ),
    (
        "moe_bwmm_mx_cte", "failed", r"intermediate=384.* is nan",
        "96 of the 128 partitions of the last tile hold values (intermediate = 384); the kernel's own comment says that the "
        "others hold anything and are multiplied by weights of zero: NaN where memory that was never written holds NaN, as it "
        "does here; with zeros in such memory the case passes, with 0.46 of the tolerance",
    ),
    (
        "moe_tkg", "failed", "test_moe_tkg_mx: .* is nan",
        "the kernel reads memory that was never written, which holds NaN here; with zeros in such memory the case passes",
    ),
    (
        "moe_tkg", "failed", "test_moe_tkg_model: .*dtype=float16",
        "the test's values leave float16's range (65504), the reference's float32 does not; the same in bfloat16 passes",
    ),
    (
        "moe_cte unified", "failed", r"core_barrier: .* in sbuf",
        "the kernel gives a tile in SBUF to core_barrier, whose docstring asks for shared HBM; with its output there it passes",
    ),
    (
        "moe_bwmm_mx_cte", "failed", r"core_barrier: .* in sbuf",
        "the kernel gives a tile in SBUF to core_barrier, whose docstring asks for shared HBM",
    ),
    (
        "moe_block_tkg", "failed", "has no attribute 'dtype'",
        "the kernel asks for the type of a bias that the case has not (has_bias=False), which no Python answers",
    ),
    (
        "moe_block_tkg", "failed", "intermediate=192.* is nan",
        "the kernel reads memory that was never written, which holds NaN here; with zeros in such memory the case passes",
    ),
)  # fmt: skip
"""Kernel, verdict, a pattern of its options and detail, and the cause."""


def explained(outcome: Outcome) -> Outcome:
    """The outcome with its cause, if it is known."""
    for kernel, verdict, pattern, cause in CAUSES:
        if (outcome.kernel, outcome.verdict) == (kernel, verdict) and re.search(pattern, f"{outcome.option} {outcome.detail}"):
            return replace(outcome, detail=f"{outcome.detail.removesuffix('.')}: {cause}")
    return outcome
