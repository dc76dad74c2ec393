"""The line of a round in `rounds.jsonl`: what each entry is, and a reader that takes nothing else."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nki_hf.chips import CHIPS

__all__ = ["checked_against", "checked_line", "checked_lines"]

_LARGEST = 1e15
_GRAIN = 1e-9
"""Relative; a line and its judgement hold the same numbers."""


def _number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= _LARGEST  # neither infinite nor NaN


def _count(value: Any) -> bool:
    return isinstance(value, int) and _number(value)


def _maybe(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or test(value)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _case(value: Any) -> bool:
    chip, _, size = value.partition("@")
    return chip in CHIPS and re.fullmatch(r"[1-9]\d{0,8}", size, re.ASCII) is not None


def _times(value: Any) -> bool:
    return isinstance(value, dict) and all(_case(key) and _number(us) and us > 0 for key, us in value.items())


def _seconds(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"agent", "judge"} and all(map(_number, value.values()))


_ENTRIES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "round": (_count, "a whole number from 0 on"),
    "generation": (_count, "a whole number from 0 on"),
    "parent": (_maybe(_count), "the number of a round, or null"),
    "sha256": (lambda v: _text(v) and re.fullmatch(r"([0-9a-f]{64})?", v) is not None, "64 hexadecimal digits, or empty"),
    "passed": (_flag, "true or false"),
    "stage": (_maybe(_text), "a text, or null"),
    "sentence": (_text, "a text"),
    "score": (lambda v: _number(v) and v <= 1, "a number from 0 to 1"),
    "us": (_times, "an object of us above 0 by CHIP@SIZE"),
    "transient": (_flag, "true or false"),
    "note": (_text, "a text"),
    "seconds": (_seconds, "an object of `agent` and `judge`, seconds from 0 on"),
    "clock_s": (_number, "seconds from 0 on"),
    "same_as": (_maybe(_count), "the number of a round, or null"),
}
"""Entry -> what it may be, in code and in words; docs/search.md says what each means. Further entries are left as they are."""


def checked_line(line: Mapping[str, Any]) -> str:
    """What is wrong with a line by itself; empty if nothing."""
    for name, (fits, words) in _ENTRIES.items():
        if name not in line:
            return f"has no {name}"
        if not fits(line[name]):
            return f"{name}={repr(line[name])[:60]} is not {words}"
    if line["passed"] and not line["sha256"]:
        return "a round without a kernel has passed"
    if not line["passed"] and (line["score"] or line["us"]):
        return f"a round that failed has score={line['score']} and {len(line['us'])} times: it has 0 and none"
    return ""


def checked_lines(lines: Sequence[Mapping[str, Any]]) -> tuple[int, str]:
    """The number of the first line that is damaged and what is wrong with it; 0 and nothing if none is.

    Each line is checked by itself; rounds come once, and start from rounds of earlier generations that passed.
    """
    by_round: dict[int, Mapping[str, Any]] = {}
    for number, line in enumerate(lines, 1):
        wrong = checked_line(line)
        if not wrong and line["round"] in by_round:
            wrong = f"round {line['round']} has two lines"
        if wrong:
            return number, wrong
        by_round[line["round"]] = line
    for number, line in enumerate(lines, 1):
        wrong = _ancestry(line, by_round)
        if wrong:
            return number, wrong
    return 0, ""


def _ancestry(line: Mapping[str, Any], by_round: Mapping[int, Mapping[str, Any]]) -> str:
    for key in ("parent", "same_as"):
        other = line[key]
        if other is not None and (other not in by_round or by_round[other]["generation"] >= line["generation"]):
            return f"{key}={other} is no round of an earlier generation"
    parent = line["parent"]
    if parent is not None and not by_round[parent]["passed"]:
        return f"parent={parent} is a round that failed"
    return ""


def checked_against(line: Mapping[str, Any], record: Mapping[str, Any] | None, width: int) -> str:
    """What of a line is not so by its judgement or its run; empty if nothing.

    Args:
      line: as `checked_line` takes it.
      record: the round's whole judgement; None if it has none.
      width: rounds of a generation.
    """
    if line["generation"] != -(-line["round"] // width):
        return f"generation={line['generation']} is not that of round {line['round']}: {-(-line['round'] // width)}"
    if record is None:
        return "it has passed, and its judgement is missing" if line["passed"] else ""
    try:
        passed, times = record["passed"], record["times"] if record["passed"] else []
        us = {f"{row['chip']}@{row['size']}": float(row["us"]) for row in times}
        shares = [min(1.0, float(row["least_us"]) / float(row["us"])) for row in times]
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return "its judgement cannot be read"
    score = (sum(shares) / len(shares) if shares else 1.0) if passed else 0.0
    if line["passed"] is not passed:
        return f"passed={line['passed']} is not what was judged"
    if line["us"].keys() != us.keys() or not all(math.isclose(line["us"][key], us[key], rel_tol=_GRAIN) for key in us):
        return f"us={line['us']} are not the times that were judged"
    if not math.isclose(line["score"], score, rel_tol=1e-6):
        return f"score={line['score']} is not that of its times: {score:.6g}"
    return ""
