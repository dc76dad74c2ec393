"""How the times of prefill depend on what the timing model is not sure of: order, exp from PSUM, short matmuls.

    python tools/prefill_sensitivity.py --library ../nki-library [--chip trn2] [--write]

flash_prefill, the public attention_cte and flash_const_max on the same calls, in one run, one core, simulated, in program order
and in a window. What is switched:

* exp from PSUM: published probes have it at 251 + 0.974 N ns, from SBUF at 290 + 0.833 N; switched, PSUM is read as SBUF is.
* short matmuls: in whole models, matmuls of 128 columns were seen at 39 to 41 % of their rate, waits included; switched, every
  instruction of the Tensor engine of up to 129 columns takes 1 / 0.41 of its time.
* one bank: an exp of flash_const_max reads two PSUM banks; switched, one.

`--write` puts the table into docs/timing.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from nki_hf.chips import Chip, get_chip
from nki_hf.chips.laws import without
from nki_hf.problem import Mask, Problem
from nki_hf.sim.stream.events import Event
from nki_hf.timing.costs import Cost
from nki_hf.timing.schedule import DEFAULT_WINDOW, Schedule, reschedule, schedule
from nki_hf.tools.program import finished
from nki_hf.tools.subjects import attention_events
from nki_hf.tools.tuning.own import own_launch
from nki_hf.tools.tuning.plan_table import laws
from tools.page_block import TIMING, replace_block
from tools.prefill_targets import const_max_events, public_events

SHORT_COLUMNS, SHORT_RATE = 129, 0.41
CASES: Mapping[str, tuple[int, bool]] = {"4K": (4096, False), "4K causal": (4096, True)}
"""Keys, and whether causal; one head of 128."""
CHIPS = ("trn1", "trn2", "trn3")
HEADER = (
    "case",
    "chip",
    "switched",
    "flash_prefill program",
    "window",
    "attention_cte program",
    "window",
    "flash_const_max program",
    "window",
    "gain on the better of both",
)


def _problem(seqlen: int, causal: bool) -> Problem:
    return Problem(
        batch=1,
        num_heads_q=1,
        num_heads_kv=1,
        seqlen_q=seqlen,
        seqlen_kv=seqlen,
        head_dim=128,
        head_dim_v=128,
        mask=Mask(ahead=1 if causal else None),
    )


def short_matmuls_slowed(scheduled: Schedule, chip: Chip) -> Schedule:
    """The schedule with the costs of `chip` and slow short matmuls."""
    costs = scheduled.work.costs_on(chip)
    slowed: dict[int, Cost] = {}
    for event, kind in zip(scheduled.work.events, scheduled.work.kind.tolist(), strict=True):
        if kind not in slowed:
            columns = min(item.free_elements for item in event.writes) if event.engine == "tensor" else 0
            more = costs[kind].busy_ns * (1 / SHORT_RATE - 1) if 0 < columns <= SHORT_COLUMNS else 0.0
            slowed[kind] = replace(costs[kind], busy_ns=costs[kind].busy_ns + more, done_ns=costs[kind].done_ns + more)
    return reschedule(scheduled, [slowed[kind] for kind in range(len(costs))])


def times_of(events: Sequence[Event] | None, chip: Chip) -> list[tuple[str, ...]]:
    """Microseconds in program order and in a window, for nothing switched, exp, short matmuls, both; `-` without events."""
    if events is None:
        return [("-", "-")] * 4
    fast = without(chip, "exp-from-psum")
    rows: list[list[float]] = [[], [], [], []]
    for window in (None, DEFAULT_WINDOW):
        scheduled = schedule(events, chip, window=window)
        found = (
            scheduled,
            reschedule(scheduled, scheduled.work.costs_on(fast)),
            short_matmuls_slowed(scheduled, chip),
            short_matmuls_slowed(scheduled, fast),
        )
        for row, item in zip(rows, found, strict=True):
            row.append(item.total_ns / 1e3)
    return [tuple(f"{us:,.1f}" for us in row) for row in rows]


def rows_of(name: str, chip: Chip, library: Path) -> list[tuple[str, ...]]:
    """The lines of one case on one chip."""
    problem = _problem(*CASES[name])
    before = times_of(attention_events(problem, chip, kernel="flash_prefill"), chip)
    public = times_of(public_events(problem, chip, library), chip)
    ours = times_of(const_max_events(problem, chip), chip)
    one_bank = times_of(own_launch("flash_const_max", problem, chip, 1, {"group": 1}, None)[1](False), chip)[0]
    switched = ("nothing", "exp from PSUM", "short matmuls", "both")
    lines = [*zip(switched, before, public, ours, strict=True), ("one bank", before[0], public[0], one_bank)]
    found = []
    for switch, old, theirs, own in lines:
        others = [float(us.replace(",", "")) for us in (*old, *theirs) if us != "-"]
        gain = min(others) / min(float(us.replace(",", "")) for us in own)
        found.append((name, chip.name, switch, *old, *theirs, *own, f"{gain:.2f}"))
    return found


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, required=True, help="checkout of aws-neuron/nki-library")
    parser.add_argument("--chip", help="only this chip")
    parser.add_argument("--write", action="store_true", help="put the table into docs/timing.md")
    asked = parser.parse_args()
    if asked.write and asked.chip:
        parser.error("--write writes all chips: leave --chip out.")
    rows = [
        row
        for name in CASES
        for chip in CHIPS
        if asked.chip in (None, chip)
        for row in rows_of(name, get_chip(chip), asked.library)
    ]
    table = Table(*HEADER, title="prefill on one core, simulated us: no figure here was measured")
    for row in rows:
        table.add_row(*row)
    Console(width=170).print(table)
    if asked.write:
        lines = [HEADER, ("---", "---", "---", *["---:"] * (len(HEADER) - 3)), *rows]
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        replace_block(TIMING, "prefill-sensitivity", f"Laws {laws()}.\n\n{body}")
    return 0


if __name__ == "__main__":
    raise SystemExit(finished(main))
