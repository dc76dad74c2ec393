"""Simulated times of a decode step on one core and on two, and public attention_tkg beside it if it is given.

    python tools/decode_targets.py [--chip trn2] [--batch 1] [--keys 4096] [--cores 1] [--write]

8 kv heads of 128, bfloat16, program order, the laws of the day. 100 % = keys and values once at the rate of the DMA engines;
`share` counts the launch's fixed cost, `without` leaves it out. Every figure is simulated. `--write` puts the table into
docs/timing.md.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from nki_hf.chips import get_chip
from nki_hf.problem import Problem
from nki_hf.tools.decode_latency import decode_step
from nki_hf.tools.program import finished
from tools.page_block import TIMING, replace_block

GROUPS = (1, 2, 4, 8)
CASES = ((1, 1025), (1, 4096), (1, 4097), (1, 5000), (1, 16_384), (1, 17_000), (8, 4096), (8, 16_384))


def problem_of(batch: int, keys: int, group: int, seqlen_q: int = 1) -> Problem:
    """A decode call of 8 kv heads of 128."""
    return Problem(
        batch=batch, num_heads_q=8 * group, num_heads_kv=8, seqlen_q=seqlen_q, seqlen_kv=keys, head_dim=128, head_dim_v=128
    )


def row_of(name: str, cores: int, batch: int, keys: int) -> str:
    """One line: for each group microseconds and share; of the first group also the share without the fixed cost, and what 8
    query tokens cost relative to one.
    """
    chip = get_chip(name)
    steps = [decode_step(problem_of(batch, keys, group), chip, cores, window=None) for group in GROUPS]
    more = decode_step(problem_of(batch, keys, 1, 8), chip, cores, window=None)
    first = steps[0]
    cells = [name, str(cores), str(batch), f"{keys:,}", *(f"{step.us:,.1f} ({step.share:.0%})" for step in steps)]
    without = first.bandwidth_us / (first.us - float(chip.kernel_fixed_ns) / 1e3)
    return f"| {' | '.join([*cells, f'{without:.0%}', f'{more.us / first.us:.2f}'])} |"


def main() -> int:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chip", choices=("trn1", "trn2", "trn3"))
    parser.add_argument("--batch", type=int)
    parser.add_argument("--keys", type=int)
    parser.add_argument("--cores", type=int, choices=(1, 2))
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    groups = [f"group {group}, us (share)" for group in GROUPS]
    titles = ["chip", "cores", "batch", "live keys", *groups, "without fixed cost", "8 tokens / 1"]
    lines = [f"| {' | '.join(titles)} |", f"|{'---|' * 2}{'---:|' * (len(titles) - 2)}"]
    for name, cores, (batch, keys) in itertools.product(("trn1", "trn2", "trn3"), (1, 2), CASES):
        asked = {"chip": name, "cores": cores, "batch": batch, "keys": keys}
        wanted = all(getattr(options, key) in (None, value) for key, value in asked.items())
        if not wanted or (name == "trn1" and cores == 2) or (cores == 2 and batch == 8):
            continue
        lines.append(row_of(name, cores, batch, keys))
        print(lines[-1], flush=True)
    if options.write:
        replace_block(TIMING, "decode", "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(finished(main))
