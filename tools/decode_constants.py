"""The constants of flash_decode's price (nki_hf/kernels/flash_decode/call.py), from the simulated kernel.

    python tools/decode_constants.py [--write]

`--write` also makes docs/serving.md's table of what dispatch takes a launch of 16 sequences to cost.

A step is 16 key tiles of 128 keys of one kv head of 128. Its time is that of its busiest engine, from two launches that differ
in nothing but chunks; what a query row adds, from 1 and 64 rows. The edges are what a launch that waits for its loads takes
besides them and the fixed cost. All simulated, program order, the laws of the day; a test holds the constants to this.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from nki_hf.chips import CHIPS, Chip, get_chip
from nki_hf.dispatch import decide
from nki_hf.kernels.flash_decode.plan import plan_decode
from nki_hf.problem import Mask, Problem
from nki_hf.timing.schedule import Schedule, schedule
from nki_hf.tools.decode_latency import bandwidth_us
from nki_hf.tools.program import finished
from nki_hf.tools.subjects import attention_events
from tools.page_block import replace_block

CHUNKS = (3, 5)
ROWS = (1, 64)
FEW = 4
SERVING = Path(__file__).parent.parent / "docs" / "serving.md"
TOLD = ((16, 8, 128, "bfloat16"), (32, 4, 64, "bfloat16"), (8, 1, 64, "float32"), (4, 2, 16, "float32"))
"""Rows of that page's table: query heads, kv heads, head_dim, dtype."""


def constants(chip: Chip) -> dict[str, float]:
    """`step_us`, `row_us` in 16 bits and in float32, and `edges_us`."""
    found: dict[str, float] = {}
    for name, dtype in (("", "bfloat16"), ("wide_", "float32")):
        least, most = (_step_us(chip, dtype, rows) for rows in ROWS)
        found[f"{name}row_us"] = (most - least) / (ROWS[1] - ROWS[0])
        found[f"{name}step_us"] = least - found[f"{name}row_us"] * ROWS[0]
    case = _problem("bfloat16", 1, CHUNKS[1], heads=8)
    found["edges_us"] = _placed(case, chip).total_ns / 1e3 - float(chip.kernel_fixed_ns) / 1e3 - bandwidth_us(case, chip)
    return found


def _step_us(chip: Chip, dtype: str, rows: int) -> float:
    """What 16 key tiles more cost the engine that they keep busiest."""
    fewer, more = (_busy(_placed(_problem(dtype, rows, chunks), chip)) for chunks in CHUNKS)
    tiles = plan_decode(_problem(dtype, rows, CHUNKS[0]), chip).per_partition
    return max(more[engine] - fewer[engine] for engine in more) / (CHUNKS[1] - CHUNKS[0]) / FEW * 16 / tiles


def _problem(dtype: str, rows: int, chunks: int, heads: int = FEW) -> Problem:
    return Problem(
        batch=1, num_heads_q=heads * rows, num_heads_kv=heads, seqlen_q=1, seqlen_kv=2048 * chunks, head_dim=128,
        head_dim_v=128, dtype=dtype,
    )  # fmt: skip


def _placed(problem: Problem, chip: Chip) -> Schedule:
    return schedule(attention_events(problem, chip, 1, kernel="flash_decode"), chip, window=None)


def _busy(placed: Schedule) -> dict[str, float]:
    """Busy us of each engine."""
    busy: dict[str, float] = defaultdict(float)
    for event, start, end in zip(placed.events, placed.start_ns, placed.free_ns, strict=True):
        if event.engine != "dma":
            busy[event.engine] += float(end - start) / 1e3
    return busy


def told() -> list[str]:
    """The lines of docs/serving.md's table."""
    lines = ["| query heads, kv heads, head_dim, dtype | runs | flash_decode us | flash_prefill us |", "|---|---|---:|---:|"]
    for heads, kv_heads, head_dim, dtype in TOLD:
        problem = Problem(
            batch=16, num_heads_q=heads, num_heads_kv=kv_heads, seqlen_q=1, seqlen_kv=512, head_dim=head_dim,
            head_dim_v=head_dim, dtype=dtype, mask=Mask(runtime_bounds=True),
        )  # fmt: skip
        found = decide(problem, backend="simulator", chip="trn2")
        us = dict(re.findall(r"(\w+) \(([\d.]+) us", found.why))
        cells = [f"{heads}, {kv_heads}, {head_dim}, {dtype}", str(found.kernel), us["flash_decode"], us["flash_prefill"]]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> int:
    """Print them, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    for name in CHIPS:
        print(name, {key: round(value, 4) for key, value in constants(get_chip(name)).items()}, flush=True)
    if options.write:
        replace_block(SERVING, "decode-kernels", "\n".join(told()))
    return 0


if __name__ == "__main__":
    sys.exit(finished(main))
