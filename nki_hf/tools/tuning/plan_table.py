"""The plan constants of a kernel of ours (its tuning.py): a table per chip and kind of shape, made by the tuner.

Every candidate runs a few cases, on shapes alone and in program order; the least sum of times, each relative to the best of its
case, wins. `LAWS` in the table is a digest of what the times follow from, so that a test can say when the table is older.
"""

from __future__ import annotations

import hashlib
import math
import sys
from pathlib import Path
from typing import Any

import nki_hf
from nki_hf.chips import CHIPS
from nki_hf.kernels.plan import Tuned
from nki_hf.tools.searching.workers import Workers
from nki_hf.tools.tuning.cases import own_cases
from nki_hf.tools.tuning.own import tuned_of
from nki_hf.tools.tuning.search import every
from nki_hf.tools.tuning.space import combinations, key_of, space_of

__all__ = ["laws", "made", "replaced"]

_SOURCES = ("chips/common.py", "chips/trn1.py", "chips/trn2.py", "chips/trn3.py", "timing/costs/*.py", "timing/resources.py")
_SECONDS = 120.0


def laws() -> str:
    """Digest of the sources that times follow from."""
    root = Path(nki_hf.__file__).parent
    files = [path for name in _SOURCES for path in sorted(root.glob(name))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


def made(kernel: str, workers: Workers, folder: Path | None) -> str:
    """The generated block of the kernel's tuning.py.

    Raises:
      ValueError: the kernel has no table of plan constants.
    """
    tuned = tuned_of(kernel)
    if not tuned.cases:
        raise ValueError(f"kernel={kernel!r} has no table of plan constants: its binding names no cases.")
    name = tuned.record.__name__
    lines = [f'LAWS = "{laws()}"', f"TABLE: dict[str, dict[str, {name}]] = {{"]
    for chip in CHIPS:
        lines.append(f'    "{chip}": {{')
        for kind in tuned.cases:
            best = _best(kernel, tuned, kind, chip, workers, folder)
            lines.append(f'        "{kind}": {name}({", ".join(f"{key}={getattr(best, key)}" for key in tuned.constants)}),')
        lines.append("    },")
    return "\n".join([*lines, "}"])


def replaced(text: str, table: str) -> str:
    """The text of tuning.py with another table."""
    before, rest = text.split("# begin table\n")
    return f"{before}# begin table\n{table}\n# end table\n{rest.split('# end table' + chr(10))[1]}"


def _best(kernel: str, tuned: Tuned, kind: str, chip: str, workers: Workers, folder: Path | None) -> Any:
    space = space_of(tuned.spaces[kind])
    tried = list(combinations(space))
    scores = dict.fromkeys(map(key_of, tried), 0.0)
    for shape in tuned.cases[kind]:
        (case,) = own_cases(kernel, shape, [chip], 1, None, space, folder)
        times = {key_of(constants): us for constants, us in every(case, space, workers, _SECONDS).ranked}
        least = min(times.values())
        for key in scores:
            scores[key] += times.get(key, math.inf) / least
    best = min(tried, key=lambda constants: scores[key_of(constants)])
    print(f"{chip} {kind}: {best}", file=sys.stderr)
    return tuned.record(**best)
