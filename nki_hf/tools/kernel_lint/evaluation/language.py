"""Calls of the language: what they give, and their record."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from nki_hf.tools.kernel_lint.evaluation import calls, running
from nki_hf.tools.kernel_lint.evaluation.machine import Use
from nki_hf.tools.kernel_lint.evaluation.operators import key_of, unknown
from nki_hf.tools.kernel_lint.evaluation.values import Cut, Frame, Function
from nki_hf.tools.kernel_lint.signatures import arguments_of

if TYPE_CHECKING:
    from nki_hf.tools.kernel_lint.evaluation.machine import Machine

__all__ = ["called"]


def called(
    machine: Machine,
    frame: Frame,
    node: ast.Call,
    text: str,
    given: list[Any],
    words: dict[str, Any],
    nodes: list[ast.expr | None],
    loose: bool,
) -> Any:
    """What `nisa.<name>(...)` or `nl.<name>(...)` gives.

    Args:
      machine: keeps the record.
      frame: where the call stands.
      node: the call.
      text: what is called: `nisa.memset`.
      given, words: arguments by position and by name.
      nodes: where those by position are written; None where that is not told.
      loose: some arguments are not known.
    """
    space, _, name = text.partition(".")
    if space == "nl" and name in calls.RANGES:
        return calls.ranged(machine, given or list(words.values()))
    if space == "nl" and name == "ds":
        return Cut(*(given + list(words.values()))[:2]) if len(given) + len(words) >= 2 else unknown("nl.ds")
    machine.turns += 1
    result: Any = unknown(f"{text}#{machine.turns}")
    by_name = arguments_of(space, name, given) | words
    if space == "nl" and name in calls.ALLOCATORS:
        result = calls.allocated(name, by_name, node, machine.turns)
    elif name in ("get_nc_version", "program_id", "num_programs", "nc_version", "program_ndim"):
        result = unknown(f"{text}({', '.join(map(key_of, given))})", low=0)
    if name in ("fori_loop", "while_loop"):
        for each in (*given, *words.values()):
            if isinstance(each, Function):
                count = len(each.node.args.args)
                running.run(machine, each, [unknown(f"{name}#{machine.turns}.{place}") for place in range(count)], {})
    if frame.function is not None and not machine.starting and not loose:
        written: dict[str, ast.expr] = {key: node for key in by_name}
        written |= {word.arg: word.value for word in node.keywords if word.arg}
        placed = zip(arguments_of(space, name, given), nodes, strict=False)
        written |= {key: each for key, each in placed if each is not None}
        use = Use(frame.function, node, name, by_name, written, machine.path.doubtful, result, machine.path.decided)
        machine.uses.append((space, use))
    return result
