"""Plan constants of `flash_const_max`: a table per chip, made with the timing model, and the rule for shapes of every kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nki_hf.chips import Chip
from nki_hf.kernels.spans import spans_of
from nki_hf.problem import Problem

__all__ = ["CASES", "KINDS", "LAWS", "SPACES", "TABLE", "Tuning", "kind_of", "tuning_of"]


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What may be chosen freely: see `plan.ConstMaxPlan` for the words."""

    block_tiles: int = 4
    group: int = 2
    lag: int = 3
    late: int = 1
    copied: int = 0
    prefetch: int = 16
    chunk: int = 2048


KINDS = ("shortest", "shorter", "short", "long", "longest", "wide", "widest")
"""Query tiles that visit up to 384 keys on average, without a window; up to 768; up to 1,536; up to 3,072; more; head_dim_v of
256 to 511, whose accumulators take a bank each; 512, two of them."""

CASES: Mapping[str, tuple[str, ...]] = {
    "shortest": ("hq=16,sq=512,causal", "hq=16,sq=256", "hq=8,sq=512,d=64,causal"),
    "shorter": ("hq=4,sq=1024,causal", "hq=4,sq=1024,d=64,causal", "hq=4,sq=2048,window=512"),
    "short": ("hq=4,sq=2048,causal", "hq=8,hkv=1,sq=2048,causal", "hq=4,sq=2048,d=64,causal"),
    "long": ("sq=4096,causal", "sq=2048", "sq=4096,d=64,causal"),
    "longest": ("sq=4096", "sq=8192,causal", "sq=4096,d=64"),
    "wide": ("sq=2048,d=256,causal", "hq=4,sq=1024,d=256,causal"),
    "widest": ("sq=2048,d=512,causal", "hq=4,sq=512,d=512,causal"),
}
"""Shapes by kind, on one core."""

SPACES: Mapping[str, tuple[str, ...]] = {
    "shortest": ("group=1..3", "lag=2..4", "copied=0,1", "prefetch=8,16", "block_tiles=4"),
    "shorter": ("group=1..2", "lag=2..5", "copied=0,1", "prefetch=8,16", "block_tiles=4"),
    "short": ("group=2", "lag=2,3,5,6", "copied=0..2", "prefetch=8,16", "block_tiles=4"),
    "long": ("group=1..2", "lag=3,5,9", "copied=0..2", "prefetch=8,16", "block_tiles=4"),
    "longest": ("group=2", "lag=3,5,9,12", "copied=0..4", "prefetch=8,16", "block_tiles=4"),
    "wide": ("group=1..2", "lag=2..4", "prefetch=8,16", "block_tiles=4"),
    "widest": ("group=1..2", "lag=2..4", "prefetch=8,16", "block_tiles=2"),
}
"""What is tried: a bank holds a key tile of a block of 512 columns, and PSUM has eight."""

# begin table
LAWS = "678efbbc4dbf7daa"
TABLE: dict[str, dict[str, Tuning]] = {
    "trn1": {
        "shortest": Tuning(block_tiles=4, group=1, lag=4, late=1, copied=0, prefetch=16, chunk=2048),
        "shorter": Tuning(block_tiles=4, group=2, lag=3, late=1, copied=0, prefetch=8, chunk=2048),
        "short": Tuning(block_tiles=4, group=2, lag=3, late=1, copied=0, prefetch=8, chunk=2048),
        "long": Tuning(block_tiles=4, group=2, lag=3, late=1, copied=0, prefetch=8, chunk=2048),
        "longest": Tuning(block_tiles=4, group=2, lag=5, late=1, copied=0, prefetch=8, chunk=2048),
        "wide": Tuning(block_tiles=4, group=1, lag=3, late=1, copied=0, prefetch=16, chunk=2048),
        "widest": Tuning(block_tiles=2, group=1, lag=2, late=1, copied=0, prefetch=16, chunk=2048),
    },
    "trn2": {
        "shortest": Tuning(block_tiles=4, group=2, lag=2, late=1, copied=0, prefetch=16, chunk=2048),
        "shorter": Tuning(block_tiles=4, group=2, lag=4, late=1, copied=0, prefetch=16, chunk=2048),
        "short": Tuning(block_tiles=4, group=2, lag=5, late=1, copied=1, prefetch=16, chunk=2048),
        "long": Tuning(block_tiles=4, group=2, lag=5, late=1, copied=1, prefetch=8, chunk=2048),
        "longest": Tuning(block_tiles=4, group=2, lag=9, late=1, copied=2, prefetch=8, chunk=2048),
        "wide": Tuning(block_tiles=4, group=1, lag=3, late=1, copied=0, prefetch=16, chunk=2048),
        "widest": Tuning(block_tiles=2, group=1, lag=2, late=1, copied=0, prefetch=8, chunk=2048),
    },
    "trn3": {
        "shortest": Tuning(block_tiles=4, group=2, lag=2, late=1, copied=0, prefetch=8, chunk=2048),
        "shorter": Tuning(block_tiles=4, group=2, lag=3, late=1, copied=0, prefetch=8, chunk=2048),
        "short": Tuning(block_tiles=4, group=2, lag=6, late=1, copied=1, prefetch=8, chunk=2048),
        "long": Tuning(block_tiles=4, group=2, lag=9, late=1, copied=2, prefetch=8, chunk=2048),
        "longest": Tuning(block_tiles=4, group=2, lag=12, late=1, copied=4, prefetch=8, chunk=2048),
        "wide": Tuning(block_tiles=4, group=1, lag=3, late=1, copied=0, prefetch=8, chunk=2048),
        "widest": Tuning(block_tiles=2, group=1, lag=2, late=1, copied=0, prefetch=8, chunk=2048),
    },
}
# end table


def kind_of(problem: Problem) -> str:
    """Which of `KINDS` a problem is."""
    if problem.head_dim_v + 1 > 512:
        return "widest"
    if problem.head_dim_v + 1 > 256:
        return "wide"
    visited = [last - first for first, last, _, _ in spans_of(problem, problem.seqlen_kv)]
    mean = sum(visited) / max(1, len(visited))
    limits = {"shortest": 384, "shorter": 768, "short": 1536, "long": 3072}
    if problem.mask.window is not None:
        del limits["shortest"]  # their edges want the output product further behind
    return next((kind for kind, most in limits.items() if mean <= most), "longest")


def tuning_of(problem: Problem, chip: Chip) -> Tuning:
    """The constants of one problem on one chip."""
    return TABLE[chip.name][kind_of(problem)]
