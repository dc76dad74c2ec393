"""Lengths: about how many instructions a kernel has at a size, known before it is traced, and how many are modelled at most."""

from __future__ import annotations

from dataclasses import replace

from nki_hf.chips import Chip
from nki_hf.kernels.flash_prefill.plan import BLOCK, TILE
from nki_hf.problem import Problem
from nki_hf.tools.subjects import events_of, flash_prefill_events, subject

__all__ = ["MOST_INSTRUCTIONS", "check_length", "prefill_instructions", "subject_instructions"]

MOST_INSTRUCTIONS = 1_000_000
"""More are not traced: a million take minutes and gigabytes."""
_SMALL = 1024
"""Query rows and keys of the problem that is traced to know the instructions of a score block."""
_SAMPLED = 1000
"""Query tiles whose keys are looked at."""


def subject_instructions(name: str, size: int, chip: Chip) -> int:
    """About how many instructions a subject has at a size: linear and quadratic in it, as at its two smallest sizes.

    Raises:
      ValueError: the name is not known.
    """
    found = subject(name)
    small = found.multiple
    one, two = (len(events_of(name, n * small, chip)) for n in (1, 2))
    ratio, curved = size / small, (two - 2 * one) / 2
    rows = found.flops(size) / found.flops(small) / ratio**2 if size > 0 else 1.0  # the rows of a matmul may jump
    return int((ratio * (one - curved) + ratio**2 * curved) * rows)


def prefill_instructions(problem: Problem, chip: Chip) -> int:
    """The same for `flash_prefill`, by score blocks: query tiles times the blocks of keys that they visit.

    Up to two thirds too many where query heads share much, or rows see nothing.

    Raises:
      UnsupportedProblem: the kernel does not take it at any length.
    """
    sq, skv = min(problem.seqlen_q, _SMALL), min(problem.seqlen_kv, _SMALL)
    mask = problem.mask
    if mask.ahead is not None:
        mask = replace(mask, q_offset=skv - sq)
    small = replace(problem, batch=1, num_heads_q=1, num_heads_kv=1, seqlen_q=sq, seqlen_kv=skv, mask=mask)
    heads = problem.batch * problem.num_heads_q
    return len(flash_prefill_events(small, chip)) * heads * _blocks(problem) // _blocks(small)


def check_length(instructions: int, what: str, advice: str) -> None:
    """Refuse what is too long to be modelled: ValueError with the estimate."""
    if instructions > MOST_INSTRUCTIONS:
        raise ValueError(
            f"{what} is about {instructions:,} instructions: at most {MOST_INSTRUCTIONS:,} are traced and scheduled; {advice}."
        )


def _blocks(problem: Problem) -> int:
    """Score blocks of one head; of long ones by a sample of the query tiles."""
    tiles = -(-problem.seqlen_q // TILE)
    count = min(tiles, _SAMPLED)
    return max(1, sum(_visited(problem, tiles * n // count) for n in range(count)) * tiles // max(count, 1))


def _visited(problem: Problem, tile: int) -> int:
    first, last = tile * TILE, min((tile + 1) * TILE, problem.seqlen_q) - 1
    lo = problem.mask.interval(first, problem.seqlen_kv)[0]
    hi = problem.mask.interval(last, problem.seqlen_kv)[1]
    return max(1, -(-hi // BLOCK) - lo // BLOCK)  # a tile that sees no key is still written
