"""Numbers that a program has in its instructions: one that only a timed size has makes another function of it there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nki_hf.tools.judging.line_words import line_words

__all__ = ["immediates", "other_number"]

Immediate = tuple[str, str, float]

_NAMES = ("operand0", "operand1", "scale", "bias", "value", "initial", "fill_value", "on_false_value")
"""Operands that may be numbers; offsets and patterns name places, which move with the size."""


def immediates(tape: Mapping[str, Any]) -> dict[Immediate, tuple[str, int]]:
    """Opcode, operand and number of each instruction of a tape, and the file and line where it is first."""
    found: dict[Immediate, tuple[str, int]] = {}
    seen: set[tuple[str, int]] = set()
    for entries in tape["cores"].values():
        for name, operands, place in _instructions(entries):
            if operands[0] != "f":
                keywords = operands[2][1:]
            elif (name, operands[1]) in seen:
                continue
            else:
                seen.add((name, operands[1]))
                keywords = tape["forms"][operands[1]][1]
            for key, value in keywords:
                if key in _NAMES and isinstance(value, int | float) and not isinstance(value, bool):
                    found.setdefault((name, key, float(value)), tuple(tape["places"][place]))
    return found


def _instructions(entries: Iterable[Any]) -> Iterator[tuple[str, Any, Any]]:
    for entry in entries:
        if entry[0] == "isa":
            yield entry[1], entry[2], entry[3]
        elif entry[0] == "loop":
            yield from _instructions(entry[6])


def other_number(
    judged: Iterable[Iterable[Immediate]], timed: Mapping[Immediate, tuple[str, int]], own: str
) -> tuple[str, str, int] | None:
    """What a timed size has in its instructions and no judged size has, as words, file and line; None if nothing. `own`: the
    kernel's file.

    Several numbers of one operand that grow with the size are places (the first column of a tile), and no other function.
    """
    known = {immediate for found in judged for immediate in found}
    several = {key[:2] for key in known if sum(other[:2] == key[:2] and _is_place(other) for other in known) > 1}
    for key, (file, line) in timed.items():
        if key not in known and not (_is_place(key) and key[:2] in several):
            at = line_words(own, file, line)
            return f"has {key[1]}={key[2]:g} in {key[0]} ({at}), which it has at no size of --check", file, line
    return None


def _is_place(immediate: Immediate) -> bool:
    return immediate[2].is_integer() and abs(immediate[2]) >= 32
