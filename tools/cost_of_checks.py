"""What the checks cost: CPU time of launches of flash_prefill with every check on against none.

python tools/cost_of_checks.py [--repeat N]

`limits` are the rules of each instruction (remembered per shape) and memory, `reads` also refuses never-written memory,
`all` adds the race search over the events. Times are CPU seconds of this process, the smallest of N runs each; they are host
times and say nothing about the chip.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from nki_hf.chips import get_chip
from nki_hf.kernels.flash_prefill import flash_prefill
from nki_hf.observers.races import check_races
from nki_hf.problem import Mask, Problem
from nki_hf.sim import SimOptions, launch
from nki_hf.sim.stream.dependencies import dependencies
from nki_hf.tools.program import finished
from nki_hf.tools.verify_subject import AttentionSubject

_MODES = {"none": (False, "sentinel"), "limits": (True, "sentinel"), "reads": (True, "error"), "all": (True, "error")}


def main() -> int:
    """Print one line per mode and kind of run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seqlen", type=int, default=2048)
    arguments = parser.parse_args()
    if arguments.repeat < 1:
        parser.error(f"--repeat {arguments.repeat} measures nothing: it is 1 or more.")
    length, chip = arguments.seqlen, get_chip("trn2")
    problem = Problem(
        batch=1,
        num_heads_q=2,
        num_heads_kv=1,
        seqlen_q=length,
        seqlen_kv=length,
        head_dim=128,
        head_dim_v=128,
        mask=Mask(ahead=1),
    )
    call = dict(AttentionSubject(kernel=flash_prefill, problem=problem, chip=chip).case("normal", 0).arguments)
    for values in (True, False):
        times: dict[str, list[float]] = {mode: [] for mode in _MODES}
        count = 0
        for _ in range(arguments.repeat):
            for mode, (checks, reads) in _MODES.items():
                options = SimOptions(chip=chip, values=values, checks=checks, uninitialized=reads)
                started = time.process_time()
                result = launch(flash_prefill, (), call, options=options)
                if mode == "all":
                    check_races(result.events)
                times[mode].append(time.process_time() - started)
                count = len(result.events)
        best = {mode: min(seconds) for mode, seconds in times.items()}
        print(f"{count:,} instructions, {'with values' if values else 'on shapes alone'}:")
        for mode, seconds in best.items():
            more = (seconds - best["none"]) / count * 1e6
            print(f"  {mode:6} {seconds:6.3f} s  x{seconds / best['none']:.2f}  {more:+.1f} us per instruction")
    started = time.process_time()
    graph = dependencies(result.events)
    seconds = time.process_time() - started
    print(f"dependencies: {len(graph):,} edges, {len(result.events) / seconds:,.0f} events per second")
    return 0


if __name__ == "__main__":
    raise SystemExit(finished(main))
