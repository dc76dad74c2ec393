"""What follows from the rounds of a run: the beam, the best, what was remembered. Pure functions of their records.

A round is one call of the agent with its judgement, one line of `rounds.jsonl`. Rounds of one generation are asked for on the
same knowledge, that of the generations before, so that what is asked for does not depend on which ended first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Round", "beam", "best_of", "earlier", "generation_of", "parent_of", "pairs", "speedup"]

Round = Mapping[str, Any]

_GAIN = 1.01
"""Speed-up from which a change is remembered; below it is the model's grain."""
_SAME = 1e-6


def generation_of(number: int, width: int) -> int:
    """The generation of round `number`, from 1 on; round 0 is the kernel that the run started from."""
    return -(-number // width)


def earlier(rounds: Sequence[Round], number: int, width: int) -> list[Round]:
    """What round `number` may know: the rounds of the generations before its own, by their numbers, whichever ended first."""
    generation = generation_of(number, width)
    return sorted((r for r in rounds if r["generation"] < generation), key=lambda r: r["round"])


def best_of(rounds: Sequence[Round]) -> Round | None:
    """The passed round with the highest score, of equal ones the first."""
    return next(iter(beam(rounds, 1)), None)


def beam(rounds: Sequence[Round], size: int) -> list[Round]:
    """The best passed rounds, best first; of kernels with equal times, which say the same, only the first."""
    found: list[Round] = []
    for item in sorted((r for r in rounds if r["passed"]), key=lambda r: (-r["score"], r["round"])):
        if not any(_alike(item, other) for other in found):
            found.append(item)
        if len(found) == size:
            break
    return found


def _alike(a: Round, b: Round) -> bool:
    same = a["us"].keys() == b["us"].keys()
    return a["sha256"] == b["sha256"] or (same and all(abs(a["us"][k] / b["us"][k] - 1) < _SAME for k in a["us"]))


def parent_of(rounds: Sequence[Round], number: int, size: int, tries: int) -> Round | None:
    """Which kernel round `number` starts from: the kernels of the beam take turns; None while nothing has passed."""
    width = size * tries
    kept = beam(earlier(rounds, number, width), size)
    return kept[((number - 1) % width) // tries % len(kept)] if kept else None


def speedup(slow: Round, fast: Round) -> float:
    """How many times as fast, by score: the mean over sizes and chips of what the chip allows at best."""
    return fast["score"] / slow["score"] if slow["score"] else 0.0


def pairs(rounds: Sequence[Round], most: int = 8) -> list[tuple[Round, Round]]:
    """Slow and fast: a round that passed and its parent that it improves on, the largest gain first."""
    by_number = {r["round"]: r for r in rounds}
    found = []
    for item in by_number.values():
        parent = by_number.get(item["parent"])
        if item["passed"] and parent is not None and parent["passed"] and speedup(parent, item) >= _GAIN:
            found.append((parent, item))
    return sorted(found, key=lambda pair: (-speedup(*pair), pair[1]["round"]))[:most]
