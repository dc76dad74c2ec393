"""Lengths: about how many instructions a kernel has at a size, known before it is traced, and how many are modelled at most."""

from __future__ import annotations

from dataclasses import replace

from nki_hf.chips import Chip
from nki_hf.kernels.registry import binding
from nki_hf.problem import Problem
from nki_hf.tools.subjects import attention_events, events_of, subject

__all__ = ["MOST_INSTRUCTIONS", "attention_instructions", "check_length", "subject_instructions"]

MOST_INSTRUCTIONS = 1_000_000
"""More are not traced: a million take minutes and gigabytes."""
_SMALL = 1024
"""Query rows and keys of the problem that is traced to know how far a kernel's own estimate is off."""


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


def attention_instructions(problem: Problem, chip: Chip, kernel: str) -> int:
    """The same for one of our kernels: its own estimate (`Binding.instructions`), as far off as on a small problem.

    Up to two thirds too many where query heads share much, or rows see nothing.

    Raises:
      UnsupportedProblem: the kernel does not take it at any length.
    """
    sq, skv = min(problem.seqlen_q, _SMALL), min(problem.seqlen_kv, _SMALL)
    mask = problem.mask
    if mask.ahead is not None:
        mask = replace(mask, q_offset=skv - sq)
    small = replace(problem, batch=1, num_heads_q=1, num_heads_kv=1, seqlen_q=sq, seqlen_kv=skv, mask=mask)
    estimate = binding(kernel).instructions
    return len(attention_events(small, chip, kernel=kernel)) * estimate(problem) // max(1, estimate(small))


def check_length(instructions: int, what: str, advice: str) -> None:
    """Refuse what is too long to be modelled: ValueError with the estimate."""
    if instructions > MOST_INSTRUCTIONS:
        raise ValueError(
            f"{what} is about {instructions:,} instructions: at most {MOST_INSTRUCTIONS:,} are traced and scheduled; {advice}."
        )
