"""The plan constants of flash_const_max (its tuning.py): a table per chip and kind of shape, made by the tuner.

Every candidate runs a few cases, on shapes alone and in program order; the least sum of times, each relative to the best of its
case, wins. `LAWS` in the table is a digest of what the times follow from, so that a test can say when the table is older.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Mapping
from pathlib import Path

import nki_hf
from nki_hf.chips import CHIPS
from nki_hf.kernels.flash_const_max.tuning import KINDS, Tuning
from nki_hf.tools.searching.workers import Workers
from nki_hf.tools.tuning.cases import own_cases
from nki_hf.tools.tuning.search import every
from nki_hf.tools.tuning.space import combinations, key_of, space_of

__all__ = ["CASES", "KERNEL", "SPACES", "laws", "made", "replaced"]

KERNEL = "flash_const_max"
_SOURCES = ("chips/common.py", "chips/trn1.py", "chips/trn2.py", "chips/trn3.py", "timing/costs.py", "timing/resources.py")
_SECONDS = 120.0

CASES: Mapping[str, tuple[str, ...]] = {
    "short": ("hq=16,sq=512,causal", "hq=4,sq=2048,causal", "hq=4,sq=1024,d=64,causal"),
    "long": ("sq=4096,causal", "sq=2048", "sq=4096,d=64,causal"),
    "longest": ("sq=4096", "sq=8192,causal", "sq=4096,d=64"),
    "wide": ("sq=2048,d=256,causal", "hq=4,sq=1024,d=256,causal"),
    "widest": ("sq=2048,d=512,causal", "hq=4,sq=512,d=512,causal"),
}
"""Shapes by kind, on one core."""

SPACES: Mapping[str, tuple[str, ...]] = {
    "short": ("group=1..3", "lag=2..4", "copied=0,1", "prefetch=8,16", "block_tiles=4"),
    "long": ("group=1..2", "lag=2,3,5", "copied=0..2", "prefetch=8,16", "block_tiles=4"),
    "longest": ("group=1..2", "lag=2,3,5", "copied=0..2", "prefetch=8,16", "block_tiles=4"),
    "wide": ("group=1..2", "lag=2..4", "prefetch=8,16", "block_tiles=4"),
    "widest": ("group=1..2", "lag=2..4", "prefetch=8,16", "block_tiles=2"),
}
"""What is tried: a bank holds a key tile of a block of 512 columns, and PSUM has eight."""


def laws() -> str:
    """Digest of the sources that times follow from."""
    root = Path(nki_hf.__file__).parent
    return hashlib.sha256(b"".join((root / name).read_bytes() for name in _SOURCES)).hexdigest()[:16]


def made(workers: Workers, folder: Path | None) -> str:
    """The generated block of tuning.py."""
    lines = [f'LAWS = "{laws()}"', "TABLE: dict[str, dict[str, Tuning]] = {"]
    for chip in CHIPS:
        lines.append(f'    "{chip}": {{')
        for kind in KINDS:
            t = _best(kind, chip, workers, folder)
            lines.append(
                f'        "{kind}": Tuning(block_tiles={t.block_tiles}, group={t.group}, lag={t.lag}, late={t.late}, '
                f"copied={t.copied}, prefetch={t.prefetch}, chunk={t.chunk}),"
            )
        lines.append("    },")
    return "\n".join([*lines, "}"])


def replaced(text: str, table: str) -> str:
    """The text of tuning.py with another table."""
    before, rest = text.split("# begin table\n")
    return f"{before}# begin table\n{table}\n# end table\n{rest.split('# end table' + chr(10))[1]}"


def _best(kind: str, chip: str, workers: Workers, folder: Path | None) -> Tuning:
    space = space_of(SPACES[kind])
    tried = list(combinations(space))
    scores = dict.fromkeys(map(key_of, tried), 0.0)
    for shape in CASES[kind]:
        (case,) = own_cases(KERNEL, shape, [chip], 1, None, space, folder)
        times = {key_of(constants): us for constants, us in every(case, space, workers, _SECONDS).ranked}
        least = min(times.values())
        for key in scores:
            scores[key] += times.get(key, math.inf) / least
    best = min(tried, key=lambda constants: scores[key_of(constants)])
    print(f"{chip} {kind}: {best}", file=sys.stderr)
    return Tuning(**best)
