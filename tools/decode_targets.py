"""Simulated times of a decode step on one core and on two, with public attention_tkg beside it.

    python tools/decode_targets.py [--chip trn2] [--batch 1] [--keys 4096] [--cores 1] [--library NKI_LIBRARY] [--write]

8 kv heads of 128, bfloat16, program order, the laws of the day. 100 % = keys and values once at the rate of the DMA engines.
Every cell of a group says: microseconds (share; what 8 query tokens cost relative to one, where that was simulated). `share`
counts the launch's fixed cost, `without fixed cost` leaves it out, for groups 1 and 8. Every figure is simulated. `--library`
names a checkout of aws-neuron/nki-library (release 2.29 of April 2026): its attention_tkg on a flat cache, one query token.
`--write` puts all into docs/timing.md.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from nki_hf import sim
from nki_hf.chips import get_chip
from nki_hf.problem import Problem
from nki_hf.timing.schedule import schedule
from nki_hf.tools.decode_latency import bandwidth_us, decode_step
from nki_hf.tools.program import finished
from tools.page_block import TIMING, replace_block
from tools.public_cases import flat_tkg
from tools.public_kernels import placed

GROUPS = (1, 2, 4, 8)
CASES = ((1, 1025), (1, 4096), (1, 4097), (1, 5000), (1, 16_384), (1, 17_000), (8, 4096), (8, 16_384))
PUBLIC = ((1, 4096), (1, 16_384), (8, 4096))
KV_HEADS = 8
TOKENS = 8
MORE = (1025, 4097, 5000, 17_000)
"""Live keys at which 8 tokens are simulated too, on one core."""


def problem_of(batch: int, keys: int, group: int, seqlen_q: int = 1) -> Problem:
    """A decode call of 8 kv heads of 128."""
    return Problem(
        batch=batch,
        num_heads_q=KV_HEADS * group,
        num_heads_kv=KV_HEADS,
        seqlen_q=seqlen_q,
        seqlen_kv=keys,
        head_dim=128,
        head_dim_v=128,
    )


def row_of(name: str, cores: int, batch: int, keys: int) -> str:
    """One line of flash_decode."""
    chip = get_chip(name)
    cells, without = [], []
    for group in GROUPS:
        step = decode_step(problem_of(batch, keys, group), chip, cores, window=None)
        more = ""
        if keys in MORE and cores == 1:
            eight = decode_step(problem_of(batch, keys, group, TOKENS), chip, cores, window=None, kernel="flash_decode")
            more = f"; {eight.us / step.us:.2f}"
        cells.append(f"{step.us:,.1f} ({step.share:.0%}{more})")
        without.append(step.bandwidth_us / (step.us - float(chip.kernel_fixed_ns) / 1e3))
    shares = f"{without[0]:.0%} / {without[-1]:.0%}"
    return f"| flash_decode | {' | '.join([name, str(cores), str(batch), f'{keys:,}', *cells, shares])} |"


def public_rows(library: Path) -> Iterator[str]:
    """attention_tkg on two cores of trn2; one kv head is simulated, eight follow each other."""
    os.environ.setdefault("NKILIB_SIMULATION_RUN_ALL", "1")
    sys.path.insert(0, str(library / "src"))
    chip = get_chip("trn2")
    fixed = float(chip.kernel_fixed_ns) / 1e3
    with sim.as_nki():
        for batch, keys in PUBLIC:
            cells, without = [], []
            for group in GROUPS:
                events = placed(flat_tkg(library, batch, group, keys), "scalar")
                us = (schedule(events, chip, window=None).total_ns / 1e3 - fixed) * KV_HEADS
                bound = bandwidth_us(problem_of(batch, keys, group), chip, 2)
                cells.append(f"{us + fixed:,.1f} ({bound / (us + fixed):.0%})")
                without.append(bound / us)
            shares = f"{without[0]:.0%} / {without[-1]:.0%}"
            yield f"| attention_tkg | {' | '.join(['trn2', '2', str(batch), f'{keys:,}', *cells, shares])} |"


def main() -> int:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chip", choices=("trn1", "trn2", "trn3"))
    parser.add_argument("--batch", type=int)
    parser.add_argument("--keys", type=int)
    parser.add_argument("--cores", type=int, choices=(1, 2))
    parser.add_argument("--library", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.write and not options.library:
        parser.error("--write needs --library: the rows of attention_tkg would be lost.")
    groups = [f"group {group}, us" for group in GROUPS]
    titles = ["kernel", "chip", "cores", "batch", "live keys", *groups, "without fixed cost, group 1 / 8"]
    lines = [f"| {' | '.join(titles)} |", f"|{'---|' * 3}{'---:|' * (len(titles) - 3)}"]
    rows = []
    for name, cores, (batch, keys) in itertools.product(("trn1", "trn2", "trn3"), (1, 2), CASES):
        asked = {"chip": name, "cores": cores, "batch": batch, "keys": keys}
        wanted = all(getattr(options, key) in (None, value) for key, value in asked.items())
        if not wanted or (name == "trn1" and cores == 2) or (cores == 2 and (batch, keys) == (8, 16_384)):
            continue
        rows.append((name, cores, batch, keys))
    with ProcessPoolExecutor(options.processes) as pool:
        for line in pool.map(row_of, *zip(*rows, strict=True)):
            lines.append(line)
            print(line, flush=True)
    for line in public_rows(options.library) if options.library else ():
        lines.append(line)
        print(line, flush=True)
    if options.write:
        replace_block(TIMING, "decode", "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(finished(main))
