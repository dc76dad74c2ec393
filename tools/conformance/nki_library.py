"""Runs the public kernels of a checkout of aws-neuron/nki-library on the simulator, by that repository's own tests.

python tools/conformance/nki_library.py CHECKOUT [--kernel NAME ...] [--limit N] [--seconds S] [--replay] [--judge]
    [--no-report]

With --kernel only the rows of those kernels are replaced in docs/conformance.md.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.conformance.case import Outcome, run_case
from tools.conformance.library_cases import MODULES, cases_of
from tools.conformance.library_causes import explained
from tools.conformance.library_harness import SimulatingOrchestrator, library
from tools.conformance.report import summary, update

_MEMORY_BYTES = 16 << 30


def main() -> int:
    """Run the chosen kernels; 1 if a case failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--kernel", action="append", choices=sorted(MODULES), help="default: all")
    parser.add_argument("--limit", type=int, default=10, help="cases of each test method")
    parser.add_argument("--seconds", type=float, default=20.0, help="most CPU time of one case")
    parser.add_argument("--replay", action="store_true", help="also compare a replay with a fresh run, bit for bit")
    parser.add_argument("--judge", action="store_true", help="also judge each launch as a user's kernel (nki_hf judge)")
    parser.add_argument("--no-report", action="store_true", help="leave docs/conformance.md as it is")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    SimulatingOrchestrator.replays, SimulatingOrchestrator.judges = options.replay, options.judge
    outcomes: list[Outcome] = []
    with library(options.checkout.resolve()):
        for kernel in options.kernel or MODULES:
            for case in cases_of(kernel, options.limit):
                outcomes.append(explained(_quietly(case, options.seconds)))
    print(summary(outcomes))
    if not options.no_report:
        command = f"python tools/conformance/nki_library.py CHECKOUT --limit {options.limit} --seconds {options.seconds:.0f}"
        update("nki-library", outcomes, command, order=list(MODULES) if options.kernel else ())
    return int(any(outcome.verdict == "failed" for outcome in outcomes))


def _quietly(case: object, seconds: float) -> Outcome:
    sink = io.StringIO()
    stdout = sys.stdout
    with contextlib.redirect_stdout(sink):
        outcome = run_case(case, seconds)  # type: ignore[arg-type]
    print(sink.getvalue().rstrip().splitlines()[-1], file=stdout, flush=True)
    return outcome


if __name__ == "__main__":
    raise SystemExit(main())
