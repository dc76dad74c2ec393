"""Simulated beside published latencies of kernels that nobody here wrote, run unmodified from somebody's checkout.

    python tools/public_kernels.py --library ../nki-library --samples ../nki-samples --docs ../aws-neuron-sdk/nki/examples

* `--library`: aws-neuron/nki-library (release 2.29 of April 2026): attention_cte, attention_tkg and rmsnorm_quant on trn2.
* `--samples`: a folder with attention_kernels.py of aws-neuron/nki-samples (attention_fwd_performance, commit a2927a51),
  attn_fwd_v1 to v10.
* `--backward`, with --library: attention_bwd and flash_backward of this package, one head of 128, and nothing else.
* `--docs`: nki/examples of aws-neuron/aws-neuron-sdk: the tutorial's matrix multiplications and the fused Mamba kernels.

The kernels leave the engine of a copy to their compiler; `--copies` says which engine it is taken to have chosen. All
figures in the simulated columns are simulated; the measured ones are published. `--write`, which
needs the library, puts measured rows into docs/correlation.md, and with --docs the table into docs/timing.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from nki_hf import sim
from nki_hf.chips import get_chip
from nki_hf.sim.stream.events import Event
from nki_hf.timing.schedule import schedule
from nki_hf.tools.correlate import FITTED
from nki_hf.tools.correlation_page import markdown as correlation_page
from nki_hf.tools.correlation_rows import Row, effects, scheduled_us, store, stored
from nki_hf.tools.program import finished
from tools.page_block import TIMING, replace_block
from tools.public_cases import Case, backward, docs, library, samples

CORRELATION = TIMING.parent / "correlation.md"


def placed(events: Sequence[Event], copies: str) -> list[Event]:
    """The stream with PSUM evictions (tensor_copy out of PSUM) on `copies`: vector, scalar, or each in turn."""
    out, turn = [], 0
    for event in events:
        if event.opcode == "tensor_copy" and event.engine == "vector" and event.reads[0].buffer.space == "psum":
            engine = copies if copies != "alternate" else ("scalar", "vector")[turn % 2]
            turn += 1
            if engine == "scalar":
                event = replace(event, engine="scalar", queue="scalar", opcode="activation", attrs={"op": "copy"})
        out.append(event)
    return out


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of a case: simulated µs in a window and in program order."""

    case: Case
    instructions: int
    window_us: float
    program_us: float
    without: dict[str, float]

    @property
    def error(self) -> str:
        """Simulated / measured - 1, or a dash."""
        known = self.case.measured_us == self.case.measured_us
        return f"{self.window_us / self.case.measured_us - 1:+.0%}" if known else "-"

    @property
    def measured(self) -> str:
        """The published figure, or a dash."""
        return f"{self.case.measured_us:,.0f}" if self.case.measured_us == self.case.measured_us else "-"


def simulate(case: Case, copies: str) -> Result:
    """Both orders of one case, and what each law does to a measured row."""
    events, chip = case.events(), get_chip(case.chip)
    if case.open_copies:
        events = placed(events, copies)

    def scaled(us: float) -> float:
        return (us - chip.kernel_fixed_ns / 1e3) * case.scale + chip.kernel_fixed_ns / 1e3

    stack = bool(case.row and case.row.stack)
    scheduled = schedule(events, chip, stack=stack)
    without = {name: scaled(us) for name, us in effects(events, scheduled).items()} if case.row else {}
    return Result(
        case=case,
        instructions=len(events),
        window_us=scaled(scheduled.total_ns / 1e3),
        without=without,
        program_us=scaled(scheduled_us(events, chip, None, stack=stack)),
    )


def markdown(results: Sequence[Result]) -> str:
    """The table of docs/timing.md: a row per kernel, its sizes side by side."""
    lines = ["| kernel | chip | measured us | simulated us | error |", "|---|---|---:|---:|---:|"]
    by_kernel: dict[str, list[Result]] = {}
    for result in results:
        by_kernel.setdefault(result.case.kernel, []).append(result)
    for kernel, rows in by_kernel.items():
        sizes = " / ".join(f"{row.case.size:,}" for row in rows if row.case.size)
        measured = " / ".join(row.measured for row in rows) if any(row.measured != "-" for row in rows) else "not published"
        errors = " / ".join(row.error for row in rows) if any(row.error != "-" for row in rows) else ""
        lines.append(
            f"| {kernel}{', ' if sizes else ''}{sizes} | {rows[0].case.chip} | {measured} | "
            f"{' / '.join(f'{row.window_us:,.0f}' for row in rows)} | {errors} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Print the table; 0 if every case ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("library", "samples", "docs"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--copies", choices=("vector", "scalar", "alternate"), default="scalar")
    parser.add_argument("--longest", type=int, default=4096, help="longest sequence of the samples")
    parser.add_argument(
        "--write", action="store_true", help="put measured rows into docs/correlation.md, the table into timing.md"
    )
    parser.add_argument("--backward", action="store_true", help="the backward kernels alone")
    asked = parser.parse_args()
    if asked.backward and (asked.write or not asked.library):
        parser.error("--backward needs --library, and writes nothing.")
    everything = bool(asked.library and asked.docs)
    if asked.write and not asked.library:
        parser.error("--write needs --library, and for the table of docs/timing.md --docs as well.")
    os.environ.setdefault("NKILIB_SIMULATION_RUN_ALL", "1")
    console = Console(width=130)
    table = Table(
        "kernel",
        "chip",
        "instructions",
        "measured µs",
        "simulated µs",
        "error",
        "program order µs (sim)",
        title=f"public kernels, unmodified; PSUM copies on {asked.copies}",
    )
    results, failed = [], 0
    with sim.as_nki():
        readers = ((library, asked.library), (samples, asked.samples), (docs, asked.docs))
        if asked.backward:
            readers = ((backward, asked.library),)
        cases = [case for read, folder in readers if folder for case in read(folder)]
        for case in cases:
            if case.row is None and case.size > asked.longest:
                continue
            try:
                result = simulate(case, asked.copies)
            except Exception as error:  # a foreign kernel may refuse in any way; the table says which one did and how
                console.print(f"{case.kernel} {case.size}: {type(error).__name__}: {error}")
                failed += 1
                continue
            results.append(result)
            table.add_row(
                f"{case.kernel} {case.size or ''}",
                case.chip,
                f"{result.instructions:,}",
                result.measured,
                f"{result.window_us:,.0f}",
                result.error,
                f"{result.program_us:,.0f}",
            )
    console.print(table)
    if asked.write and not failed:
        store(
            [
                Row(measurement=item.case.row, us=item.window_us, program_us=item.program_us, without=item.without)
                for item in results
                if item.case.row
            ]
        )
        fitted = {name: float(getattr(get_chip("trn1"), name)) for name in FITTED}
        CORRELATION.write_text(correlation_page(stored(), fitted), encoding="utf-8")
        if everything:
            replace_block(TIMING, "public-kernels", markdown(results))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(finished(main))
