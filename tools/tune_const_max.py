"""Make the plan constants of flash_const_max (kernels/flash_const_max/tuning.py) with the timing model.

Per chip and kind of shape every candidate runs a few cases, on shapes alone and in program order; the least sum of times,
each relative to the best of its case, wins. About a minute. `LAWS` is a digest of what the times follow from, so that a test
can say when the table is older.

    python tools/tune_const_max.py [--write]
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from nki_hf.chips import CHIPS, Chip, get_chip
from nki_hf.kernels.flash_const_max import tuning
from nki_hf.kernels.flash_const_max.kernel import flash_const_max
from nki_hf.kernels.flash_const_max.plan import plan_const_max
from nki_hf.kernels.flash_const_max.tuning import Tuning
from nki_hf.problem import Mask, Problem
from nki_hf.sim import SimOptions, launch
from nki_hf.timing.schedule import schedule

ROOT = Path(__file__).resolve().parents[1] / "nki_hf"
TABLE = ROOT / "kernels" / "flash_const_max" / "tuning.py"
SOURCES = ("chips/common.py", "chips/trn1.py", "chips/trn2.py", "chips/trn3.py", "timing/costs.py", "timing/resources.py")


def laws() -> str:
    """Digest of the sources that times follow from."""
    found = hashlib.sha256()
    for name in SOURCES:
        found.update((ROOT / name).read_bytes())
    return found.hexdigest()[:16]


def _case(seqlen: int, heads: int, head_dim: int = 128, causal: bool = True) -> Problem:
    mask = Mask(ahead=1 if causal else None)
    return Problem(batch=1, num_heads_q=heads, num_heads_kv=heads, seqlen_q=seqlen, seqlen_kv=seqlen, head_dim=head_dim,
                   head_dim_v=head_dim, mask=mask)  # fmt: skip


CASES = {
    "short": (_case(512, 16), _case(2048, 4), _case(1024, 4, head_dim=64)),
    "long": (_case(4096, 1), _case(4096, 1, causal=False), _case(4096, 1, head_dim=64)),
    "wide": (_case(2048, 1, head_dim=256), _case(1024, 4, head_dim=256)),
    "widest": (_case(2048, 1, head_dim=512), _case(512, 4, head_dim=512)),
}


def candidates(kind: str) -> list[Tuning]:
    """What is tried: a bank holds a key tile of a block of 512 columns, and PSUM has eight."""
    tiles = 2 if kind == "widest" else 4
    return [
        Tuning(block_tiles=tiles, group=group, lag=lag, prefetch=prefetch)
        for group, lag, prefetch in itertools.product((1, 2, 3), (2, 3, 4), (8, 16))
        if not (kind in ("wide", "widest") and group > 2)
    ]


def simulated_us(problem: Problem, chip: Chip, tuned: Tuning, window: int | None = None) -> float:
    """Latency of one core, in program order or in a window, of the entry without loop."""
    plan = plan_const_max(problem, chip, 1, tuned)
    heads, keys = (problem.batch, problem.num_heads_kv), problem.seqlen_kv
    tensors: dict[str, Any] = {
        "q": _shape((problem.batch, problem.num_heads_q, problem.head_dim, problem.seqlen_q)),
        "k": _shape((*heads, problem.head_dim, keys)),
        "v": _shape((*heads, keys, problem.head_dim_v)),
    }
    options = SimOptions(chip=chip, values=False, checks=False)
    events = launch(flash_const_max, (), {**tensors, **plan.constants()}, options=options).events
    return schedule(events, chip, window=window).total_ns / 1e3


def _shape(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.broadcast_to(np.zeros((), ml_dtypes.bfloat16), shape)


def best(kind: str, chip: Chip) -> Tuning:
    """The candidate with the least sum of relative times."""
    tried = candidates(kind)
    times = np.array([[simulated_us(case, chip, tuned) for case in CASES[kind]] for tuned in tried])
    scores = (times / times.min(axis=0)).sum(axis=1)
    found = tried[int(np.argmin(scores))]
    print(f"{chip.name} {kind}: {found}, {', '.join(f'{us:.1f}' for us in times[int(np.argmin(scores))])} us", file=sys.stderr)
    return found


def table() -> str:
    """The generated block of tuning.py."""
    lines = [f'LAWS = "{laws()}"', "TABLE: dict[str, dict[str, Tuning]] = {"]
    for name in CHIPS:
        lines.append(f'    "{name}": {{')
        for kind in tuning.KINDS:
            t = best(kind, get_chip(name))
            lines.append(
                f'        "{kind}": Tuning(block_tiles={t.block_tiles}, group={t.group}, lag={t.lag}, late={t.late}, '
                f"prefetch={t.prefetch}, chunk={t.chunk}),"
            )
        lines.append("    },")
    return "\n".join([*lines, "}"])


def main() -> None:
    """Print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write it into tuning.py")
    arguments = parser.parse_args()
    made = table()
    if not arguments.write:
        print(made)
        return
    before, rest = TABLE.read_text().split("# begin table\n")
    after = rest.split("# end table\n")[1]
    TABLE.write_text(f"{before}# begin table\n{made}\n# end table\n{after}")


if __name__ == "__main__":
    main()
