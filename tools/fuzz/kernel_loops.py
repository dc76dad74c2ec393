"""Loops of a random kernel: unrolled, over run-time ranges, inside of each other, or until a register is 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from tools.fuzz.kernel_programs import MOST_TURNS, Step, changed

__all__ = ["loop"]


def loop(
    step: Step,
    bounds: list[Any],
    counter: Any,
    tiles: dict[str, Any],
    core: Any,
    cores: int,
    issue: Callable[[int, Step], None],
) -> list[Any]:
    """The steps of a loop; its outputs have an axis of turns, of which those that do not run hold the tile before the loop.

    Args:
      step: the loop.
      bounds: of each range `(lower, upper, step)`, ints or registers.
      counter: where HBM has the turns of a loop that ends when a register is 0, which is its index.
      tiles: by name.
      core, cores: this core, and how many there are.
      issue: issues a step of the body, given with its number.
    """
    logs: dict[tuple[int, str], Any] = {}
    for inner, one in enumerate(step["body"]):
        for name in changed(one):
            tile = tiles[name]
            log = nl.ndarray((cores, log_size(step), *tile.shape), tile.dtype, buffer=nl.shared_hbm)
            logs[inner, name] = log
            for turn in range(log_size(step)):
                nisa.dma_copy(dst=log[core, turn], src=tile)
    left = nl.ndarray((1, 1), nl.int32)
    nisa.memset(dst=left, value=0)

    def body(index: Any) -> None:
        for inner, one in enumerate(step["body"]):
            issue(inner, one)
            for name in changed(one):
                nisa.dma_copy(dst=logs[inner, name][core].select(0, index), src=tiles[name])

    def counted(by: float) -> Any:
        found = nisa.register_alloc()
        nisa.tensor_scalar(dst=left, data=left, op0=nl.add, operand0=by)
        nisa.register_load(found, left)
        return found

    def nested(depth: int, index: Any = None) -> None:
        if depth == len(bounds):  # a view takes one run-time index only: of nested ranges it is the number of the turn, from 1
            body(counted(1.0) if depth > 1 else index)
            return
        lower, upper, by = bounds[depth]
        if step["kind"] == "fori":
            nl.fori_loop(lower, upper, lambda i: nested(depth + 1, i), by)
        else:
            for i in (nl.dynamic_range if step["kind"] == "dynamic" else nl.static_range)(lower, upper, by):
                nested(depth + 1, i)

    def turn(index: Any) -> Any:
        body(index)
        return counted(-1.0)

    if step["kind"] == "while":
        nisa.dma_copy(dst=left, src=counter)
        nl.while_loop(bounds[0][1], turn)
    else:
        nested(0)
    return list(logs.values())


def log_size(step: Step) -> int:
    """One more than the largest index that a loop stores at."""
    return (6, 27)[len(step["ranges"]) - 1] if "ranges" in step else MOST_TURNS
