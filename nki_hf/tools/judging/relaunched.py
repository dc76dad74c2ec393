"""Launches that are done once more: a kernel is a function of its arguments, so the same ones give the same program."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nki_hf.tools.judging.budget import slowness
from nki_hf.tools.judging.impure import another_process
from nki_hf.tools.judging.tape_difference import tape_difference

__all__ = ["changed_when_repeated", "order"]

_MORE = 2
"""Further launches of the largest trace: what counts its launches, or takes turns, needs some to show."""
_SECONDS = 2.0
"""CPU time on a fast processor after which no further launch begins: one is enough where they are that long."""


def order(traces: Sequence[Mapping[str, Any]]) -> list[int]:
    """Numbers of the traces to launch again, in this order.

    They are those marked `repeated`, the last ones first, and the largest of them once more at the end: a state that follows
    the launches so far shows only where a kernel has more than one tile. Without a mark it is the first.
    """
    marked = [number for number, trace in enumerate(traces) if trace.get("repeated")]
    if not marked:
        return [0] if traces else []
    largest = max(marked, key=lambda number: traces[number]["size"])
    return [*reversed(marked), *[largest] * _MORE]


def changed_when_repeated(
    traces: Sequence[Mapping[str, Any]],
    found: Sequence[Mapping[str, Any]],
    launch: Callable[[Mapping[str, Any]], Mapping[str, Any]],
) -> dict[str, Any] | None:
    """Where a launch that is done once more gives another program, as file, line and message; None if none does.

    Args:
      traces, found: what was asked, and the tapes.
      launch: gives the tape of a trace.
    """
    began = time.process_time()
    for number in order(traces):
        if time.process_time() - began > _SECONDS * slowness():
            return None
        if "tape" not in found[number]:  # an optional one, refused
            continue
        said = f"launched again with the same arguments (size {traces[number]['size']:,})"
        try:
            with another_process():
                tape = launch(traces[number])["tape"]
            changed = tape_difference(found[number]["tape"], tape)
        except MemoryError:
            return None  # a further tape is more than the launches need
        except BaseException as error:  # whatever the kernel raises
            return {"file": "", "line": 0, "message": f"the kernel raises {type(error).__name__} when it is {said}"}
        if changed is not None:
            words = (
                f"the kernel gives another program when it is {said}: its Python depends on time, random numbers, files or "
                "what an earlier launch left"
            )
            return {**changed, "message": words}
    return None
