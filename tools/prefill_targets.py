"""Simulated times of prefill on one core: flash_const_max, flash_prefill, and public attention_cte if it is given.

    python tools/prefill_targets.py [--case TEXT] [--chip trn2] [--library ../nki-library] [--long] [--write]

Every figure is simulated. `program` is the engines' order as the kernel issues, `window` a compiler that reorders (see
docs/timing.md); no query tile fails the certificate. On trn1, which has no loops at run time, flash_const_max is the entry
without loop, which dispatch does not take. A block is 128 queries x 512 keys of which some cell is visible, without
the fixed cost of a launch. The floor is the algorithm's: the greatest of the Tensor columns of both products on visible cells,
their exps (from PSUM, or from SBUF after a copy by Vector, in the best division), and q, k, v and out once, each at its
engine's rate. `--write`, with --library, puts all cases into docs/timing.md, which takes minutes.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from nki_hf import sim
from nki_hf.chips import Chip, get_chip
from nki_hf.errors import UnsupportedProblem
from nki_hf.kernels.spans import spans_of
from nki_hf.problem import Mask, Problem
from nki_hf.sim.stream.events import Event
from nki_hf.timing.schedule import DEFAULT_WINDOW, schedule
from nki_hf.tools.latency import attention_us
from nki_hf.tools.program import finished
from nki_hf.tools.subjects import attention_events
from nki_hf.tools.tuning.own import own_launch
from nki_hf.tools.tuning.plan_table import laws
from tools.page_block import TIMING, replace_block

TILE, BLOCK = 128, 512


@dataclass(frozen=True, kw_only=True)
class Case:
    """One problem and the most that a target allows, if it has one: microseconds, or microseconds a block. Long ones take
    minutes and run if they are asked for. `before` is what flash_prefill was given for the same work before.
    """

    name: str
    problem: Problem
    chips: tuple[str, ...] = ("trn2",)
    most_us: float | None = None
    most_block_us: float | None = None
    long: bool = False
    before: Problem | None = None


def _problem(
    seqlen: int,
    heads: int = 1,
    heads_kv: int | None = None,
    head_dim: int = 128,
    head_dim_v: int | None = None,
    batch: int = 1,
    **mask: Any,
) -> Problem:
    return Problem(
        batch=batch,
        num_heads_q=heads,
        num_heads_kv=heads_kv or heads,
        seqlen_q=seqlen,
        seqlen_kv=seqlen,
        head_dim=head_dim,
        head_dim_v=head_dim_v or head_dim,
        mask=Mask(**mask),
    )


CASES = (
    Case(name="512 causal, 16 heads", problem=_problem(512, 16, ahead=1), most_us=57),
    Case(name="2K causal, 4 heads", problem=_problem(2048, 4, ahead=1), most_us=90),
    Case(name="4K", problem=_problem(4096), chips=("trn1", "trn2", "trn3")),
    Case(name="4K causal, d 64", problem=_problem(4096, head_dim=64, ahead=1)),
    Case(name="4K causal, d 96", problem=_problem(4096, head_dim=96, ahead=1)),
    Case(name="4K causal, d 192/128", problem=_problem(4096, head_dim=192, head_dim_v=128, ahead=1)),
    Case(name="4K causal, d 256", problem=_problem(4096, head_dim=256, ahead=1)),
    Case(name="2K causal, 8:1", problem=_problem(2048, 8, 1, ahead=1)),
    Case(name="8K", problem=_problem(8192), chips=("trn2", "trn3"), most_block_us=0.50),
    Case(name="8K causal", problem=_problem(8192, ahead=1), chips=("trn1", "trn2", "trn3"), most_us=300),
    Case(name="8K bounds per row", problem=_problem(8192, runtime_bounds=True)),
    Case(name="packed 16 x 512", problem=_problem(512, batch=16, ahead=1), before=_problem(8192, runtime_bounds=True)),
    Case(name="16K", problem=_problem(16384), chips=("trn2", "trn3"), most_block_us=0.50, long=True),
    Case(name="32K window 4,096", problem=_problem(32768, window=4096, ahead=1), long=True),
)
TRN1_4K_US = 140.0
"""Target of the case `4K` on trn1; the public kernel v11 is measured at 360 there."""


def blocks_of(problem: Problem) -> int:
    """Visited blocks of all heads."""
    spans = spans_of(problem, problem.seqlen_kv)
    heads = problem.batch * problem.num_heads_q
    return heads * sum(-(-(last - first) // BLOCK) for first, last, _, _ in spans if first < last)


def visible_of(problem: Problem) -> int:
    """Visible cells of all heads."""
    first, last = problem.mask.edges(np.arange(problem.seqlen_q), problem.seqlen_kv)
    seen = np.minimum(last, problem.seqlen_kv) - np.maximum(first, 0)
    return int(np.maximum(seen, 0).sum()) * problem.batch * problem.num_heads_q


def floor_us(problem: Problem, chip: Chip) -> tuple[float, str]:
    """The algorithm's floor and the engine that sets it."""
    cells = visible_of(problem) / TILE  # a column of 128 of them
    columns = cells * (-(-problem.head_dim // TILE) + problem.head_dim_v / TILE)
    rows = problem.seqlen_q * problem.num_heads_q + problem.seqlen_kv * problem.num_heads_kv
    moved = 2 * problem.batch * rows * (problem.head_dim + problem.head_dim_v)
    # A score is exponentiated from PSUM, or from SBUF after Vector has copied it: the best division of both.
    direct, copied, copy = chip.scalar_table_psum_cycles / chip.scalar_ghz, 1 / chip.scalar_ghz, 1 / chip.vector_ghz
    share = 0.0 if chip.psum_exclusive else min(1.0, direct / (copy + direct - copied))
    found = {
        "Tensor": columns / chip.tensor_ghz,
        "Scalar": cells * (direct - share * (direct - copied)),
        "DMA": moved / (chip.dma_engines * chip.dma_engine_bytes_per_ns),
    }
    engine = max(found, key=lambda name: found[name])
    return found[engine] / 1e3, engine


def public_events(problem: Problem, chip: Chip, checkout: Path) -> Sequence[Event] | None:
    """The event stream of attention_cte; None where it takes no such mask or size."""
    if problem.mask.runtime_bounds or problem.head_dim != problem.head_dim_v or problem.head_dim > TILE or chip.generation < 3:
        return None
    sys.path.insert(0, str(checkout / "src"))
    os.environ.setdefault("NKILIB_SIMULATION_RUN_ALL", "1")
    with sim.as_nki():
        kernel = importlib.import_module("nkilib_src.nkilib.core.attention.attention_cte").attention_cte
        shapes = {
            "q": (problem.num_heads_q, problem.seqlen_q, problem.head_dim),
            "k": (problem.num_heads_kv, problem.head_dim, problem.seqlen_kv),
            "v": (problem.num_heads_kv, problem.seqlen_kv, problem.head_dim),
        }
        tensors = {name: np.broadcast_to(np.zeros((), ml_dtypes.bfloat16), shape) for name, shape in shapes.items()}
        asked: dict[str, Any] = {"causal_mask": problem.mask.ahead is not None}
        if problem.mask.window is not None:
            asked["sliding_window"] = problem.mask.window
        options = sim.SimOptions(chip=chip, values=False, third_party=True, checks=False)
        return sim.launch(kernel, (), {**tensors, **asked}, options=options, lnc=1).events


def const_max_events(problem: Problem, chip: Chip) -> Sequence[Event]:
    """The event stream of flash_const_max: the entry with the loop where dispatch takes it, else the other one."""
    if chip.generation >= 3:
        return attention_events(problem, chip, kernel="flash_const_max")
    return own_launch("flash_const_max", problem, chip, 1, {}, None)[1](False)


def _both_us(events: Sequence[Event], chip: Chip) -> list[float]:
    """Simulated microseconds in program order and in a window."""
    return [schedule(events, chip, window=window).total_ns / 1e3 for window in (None, DEFAULT_WINDOW)]


def row_of(case: Case, chip: Chip, library: Path | None) -> tuple[str, ...]:
    """One line of the table."""
    problem = case.problem
    ours = _both_us(const_max_events(problem, chip), chip)
    old = case.before or problem
    before = [attention_us(old, chip, 1, window=window, kernel="flash_prefill").us for window in (None, DEFAULT_WINDOW)]
    public = None if library is None or case.before else public_events(problem, chip, library)
    fixed = chip.kernel_fixed_ns / 1e3
    block = (ours[0] - fixed) / blocks_of(problem)
    least, engine = floor_us(problem, chip)
    most = case.most_us if (case.name, chip.name) != ("4K", "trn1") else TRN1_4K_US
    target = f"{most:,.0f}" if most else f"{case.most_block_us:.2f} a block" if case.most_block_us else "-"
    theirs = ["-", "-"] if public is None else [f"{us:,.1f}" for us in _both_us(public, chip)]
    return (
        *(case.name, chip.name, *(f"{us:,.1f}" for us in ours), target, f"{block:.3f}", *(f"{us:,.1f}" for us in before)),
        *(f"{min(before) / ours[0]:.2f}", *theirs, f"{least:,.1f}", engine, f"{least / (ours[0] - fixed):.0%}"),
    )


HEADER = ("case", "chip", "µs program", "µs window", "target", "µs a block", "flash_prefill program", "flash_prefill window",
          "gain on the better", "attention_cte program", "attention_cte window", "floor", "set by", "share")  # fmt: skip


def markdown(rows: Sequence[tuple[str, ...]]) -> str:
    """The table of docs/timing.md."""
    lines = [HEADER, ("---", "---", *["---:"] * (len(HEADER) - 2)), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> int:
    """Print the table; 1 if a kernel took no case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="", help="only cases whose name has this text")
    parser.add_argument("--chip", help="only this chip")
    parser.add_argument("--library", type=Path, help="checkout of aws-neuron/nki-library")
    parser.add_argument("--long", action="store_true", help="also the cases of 16,384 keys and more")
    parser.add_argument("--write", action="store_true", help="put the table into docs/timing.md")
    asked = parser.parse_args()
    if asked.write and (asked.case or asked.chip or not asked.library):
        parser.error("--write writes all cases: leave --case and --chip out, and give --library.")
    console, rows, failed = Console(width=200), [], 0
    for case in CASES:
        for name in case.chips:
            if asked.case in case.name and asked.chip in (None, name) and (asked.long or asked.write or not case.long):
                try:
                    rows.append(row_of(case, get_chip(name), asked.library))
                    print(*rows[-1], sep="  ", file=sys.stderr, flush=True)
                except UnsupportedProblem as error:
                    console.print(f"{case.name} on {name}: {error}")
                    failed += 1
    table = Table(*HEADER, title="prefill on one core, simulated: no figure here was measured")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if asked.write and not failed:
        replace_block(TIMING, "prefill", f"Laws {laws()}.\n\n{markdown(rows)}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(finished(main))
