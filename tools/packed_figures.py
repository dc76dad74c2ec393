"""What packed prefill visits and takes, beside the same work with its edges compiled in.

    PYTHONPATH=. python tools/packed_figures.py [--chip trn2] [--heads 16 --kv-heads 8 --head-dim 128] [16x512 64x128 ...]

A case is sequences x tokens, several joined by + (4x512+8x100). Per case: tiles of 128 queries x 128 keys that the pieces
visit, beside those that hold a visible key; the launches' simulated time; and that of launches whose lengths are constants,
one for each length that occurs, batched. The fixed cost of a launch is counted once on both sides.
"""

import argparse
from collections import Counter

from rich.console import Console
from rich.table import Table

from nki_hf.adapters.packed.pieces import Segments, cut
from nki_hf.chips import get_chip
from nki_hf.problem import Mask, Problem
from nki_hf.tools.latency import attention_us

CASES = ("16x512", "64x128", "4x512+8x100", "1x2000+3x700+12x90")


def lengths_of(case):
    """Tokens of each sequence."""
    found = []
    for part in case.split("+"):
        count, tokens = map(int, part.split("x"))
        found += [tokens] * count
    return found


def _problem(sizes, batch, rows, keys, mask, row_statistics=False):
    heads, kv_heads, head_dim = sizes
    return Problem(
        batch=batch,
        num_heads_q=heads,
        num_heads_kv=kv_heads,
        seqlen_q=rows,
        seqlen_kv=keys,
        head_dim=head_dim,
        head_dim_v=head_dim,
        mask=mask,
        row_statistics=row_statistics,
    )


MASKS = {
    "causal": Mask(ahead=1),
    "keys": Mask(bias="boolean", bias_batch=True),
    "bounds": Mask(runtime_bounds=True),
}


def _us(problem, chip, window):
    """Simulated microseconds without the fixed cost of a launch."""
    return attention_us(problem, chip, chip.default_lnc, window=window).us - chip.kernel_fixed_ns / 1e3


def figures(case, chip, sizes, window=None):
    """Tiles needed and visited, launches, and simulated microseconds of the pieces and of constant lengths."""
    lengths = lengths_of(case)
    starts = tuple(sum(lengths[:n]) for n in range(len(lengths) + 1))
    pieces = cut(Segments(cu_q=starts, cu_kv=starts, ahead=1))
    kinds = Counter(launch.kind for launch in pieces.launches)
    fixed = chip.kernel_fixed_ns / 1e3
    packed = fixed + sum(
        count * _us(_problem(sizes, kind.pieces, kind.rows, kind.keys, MASKS[kind.mask], kind.shared), chip, window)
        for kind, count in kinds.items()
    )
    compiled = fixed + sum(
        _us(_problem(sizes, count, tokens, tokens, MASKS["causal"]), chip, window) for tokens, count in Counter(lengths).items()
    )
    return pieces, len(pieces.launches), packed, compiled


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("--chip", default="trn2")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    given = parser.parse_args()
    chip, sizes = get_chip(given.chip), (given.heads, given.kv_heads, given.head_dim)
    title = f"packed prefill, {given.heads}/{given.kv_heads} heads of {given.head_dim}, bfloat16, {chip.name}, simulated"
    table = Table(title=title)
    for name in ("case", "tiles needed", "visited", "ratio", "idle", "launches", "us", "us compiled in", "ratio"):
        table.add_column(name, justify="right")
    for case in given.cases:
        pieces, launches, packed, compiled = figures(case, chip, sizes)
        table.add_row(
            case,
            f"{pieces.needed:,}",
            f"{pieces.visited:,}",
            f"{pieces.visited / pieces.needed:.2f}",
            f"{pieces.idle:,}",
            str(launches),
            f"{packed:,.0f}",
            f"{compiled:,.0f}",
            f"{packed / compiled:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
