"""Events per second of each stage of the timing model, in CPU time of one process: python tools/schedule_speed.py.

The last line is one question that a user asks, from the shapes to the latency: instructions that the answer stands for,
scheduled or repeated, per CPU second.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from nki_hf.chips import get_chip
from nki_hf.sim.stream.events import Event
from nki_hf.timing.lookahead import Lookahead
from nki_hf.timing.program_order import run_in_program_order
from nki_hf.timing.schedule import DEFAULT_WINDOW, schedule
from nki_hf.timing.window_order import run_in_window
from nki_hf.timing.workload import prepare
from nki_hf.tools.latency import attention_us
from nki_hf.tools.program import finished
from nki_hf.tools.subjects import attention_events, causal, events_of


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """The best of three runs."""
    best, result = float("inf"), None
    for _ in range(3):
        begin = time.process_time()
        result = work()
        best = min(best, time.process_time() - begin)
    return result, best


def main() -> None:
    """Print the table."""
    chip = get_chip("trn2")
    columns = ("trace", "edges and costs", "program order", f"window({DEFAULT_WINDOW})", "all, from events")
    table = Table("kernel", "events", *columns, title="thousand events per CPU second")
    cases: dict[str, Callable[[], Sequence[Event]]] = {
        "v7, 4,096 keys": lambda: events_of.__wrapped__("v7", 4096, chip),
        "flash_prefill, causal 8,192": lambda: attention_events(causal(8192), chip),
    }
    for name, make in cases.items():
        events, traced = _timed(make)
        hoisting, prepared = _timed(lambda events=events: prepare(events, chip, reorder=True))
        as_written = prepare(events, chip)
        _, program = _timed(lambda work=as_written: run_in_program_order(work))
        _, window = _timed(lambda work=hoisting: run_in_window(Lookahead(work, DEFAULT_WINDOW)))
        _, everything = _timed(lambda events=events: schedule(events, chip))
        rates = [f"{len(events) / seconds / 1e3:,.0f}" for seconds in (traced, prepared, program, window, everything)]
        table.add_row(name, f"{len(events):,}", *rates)
    console = Console(width=120)
    console.print(table)
    problem, begin = causal(16384, heads=16), time.process_time()
    latency = attention_us(problem, chip)
    seconds = time.process_time() - begin
    asked = 16 * len(attention_events(causal(16384), chip))
    console.print(
        f"flash_prefill, causal 16,384, 16 heads: {seconds:.1f} CPU s for {asked:,} instructions, {latency.instructions:,} of "
        f"them scheduled: {asked / seconds / 1e3:,.0f} thousand per CPU second; {latency.us:,.0f} us (simulated)"
    )


if __name__ == "__main__":
    raise SystemExit(finished(main))
