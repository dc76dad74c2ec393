"""Spans: which keys each query tile of a static mask visits, and where two cores divide the query tiles."""

from __future__ import annotations

from nki_hf.problem import Problem

__all__ = ["BLOCK", "TILE", "Span", "blocks_of", "half_of", "spans_of"]

Span = tuple[int, int, int, int]
"""`(first, last, full_first, full_last)` of one query tile: it visits keys `[first, last)`, and all of its rows see all
keys of `[full_first, full_last)`. `first` is a multiple of `TILE`; `first == last` means that no row sees a key."""

TILE = 128
"""Query rows of a tile: the partition count."""
BLOCK = 512
"""Keys of a score block: float32 elements of a PSUM bank of one partition."""


def spans_of(problem: Problem, seqlen_kv: int) -> tuple[Span, ...]:
    """The span of every query tile, from the static part of the mask; with run-time bounds no key is known to be seen by
    all.
    """
    mask, spans = problem.mask, []
    for start in range(0, problem.seqlen_q, TILE):
        stop = min(start + TILE, problem.seqlen_q)
        # Both bounds grow with the row, so the first and the last row tell all.
        edges = [mask.interval(row, seqlen_kv) for row in (start, stop - 1)]
        seen = [(lo, hi) for lo, hi in edges if lo < hi]
        if len(seen) < 2:
            # The first row may lie before the keys, or the last behind them, while rows in between see some.
            seen = [edge for edge in (mask.interval(row, seqlen_kv) for row in range(start, stop)) if edge[0] < edge[1]]
        if not seen:
            spans.append((0, 0, 0, 0))
            continue
        first = max(0, min(lo for lo, _ in seen)) // TILE * TILE
        last = min(seqlen_kv, max(hi for _, hi in seen))
        full_first, full_last = max(lo for lo, _ in edges), min(hi for _, hi in edges)
        if mask.runtime_bounds or full_last <= full_first:
            full_first = full_last = 0
        spans.append((first, last, full_first, full_last))
    return tuple(spans)


def half_of(spans: tuple[Span, ...]) -> int:
    """Number of query tiles whose keys come closest to half of all visited keys."""
    widths = [last - first + 1 for first, last, _, _ in spans]
    best, seen = 0, 0
    for count, width in enumerate(widths, 1):
        previous, seen = seen, seen + width
        if abs(2 * seen - sum(widths)) <= abs(2 * previous - sum(widths)):
            best = count
    return best


def blocks_of(spans: tuple[Span, ...]) -> int:
    """Score blocks of 128 rows x 512 keys that one query head has over these query tiles."""
    return sum(-(-last // BLOCK) - first // BLOCK for first, last, _, _ in spans if last > first)
