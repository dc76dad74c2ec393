"""Single numbers of the inputs that a kernel reads by themselves: what it makes of them may be a condition in disguise.

`max(x[0, 5] - 100, 0)` multiplied into an output is right or wrong by the draw, as a comparison is, whatever the operators
are. A kernel that treats all elements alike reads tiles. So every region of a few elements that an instruction reads is
followed back to the inputs, and given up where it follows from many of their elements (a sum, a maximum).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nki_hf.sim.stream.events import Event, Region
from nki_hf.tools.judging.backwards import hit_of, mark, mark_reads

__all__ = ["single_numbers"]

Array = np.ndarray[Any, Any]
_FEW = 16
"""Distinct elements of a region, and of the inputs that it follows from."""
_MOST = 8
"""Sets of elements."""
_STEPS = 50_000
"""Instructions that are looked at on the way back, all together."""
_OVERWRITES = frozenset(
    "activation dma_copy dma_transpose memset nc_transpose reciprocal scalar_tensor_tensor tensor_copy tensor_reduce "
    "tensor_scalar tensor_tensor".split()
)
"""What leaves nothing of what its destination held."""


def single_numbers(events: Sequence[Event]) -> Iterator[tuple[Event, dict[str, Array]]]:
    """The first instruction that reads them, and the elements, as bool arrays by the input's name; each set once."""
    writers: dict[int, list[int]] = {}
    for index, event in enumerate(events):
        for region in event.writes:
            writers.setdefault(region.buffer.number, []).append(index)
    seen = set[tuple[Any, ...]]()
    steps = [_STEPS]
    for index in _in_turn(events):
        for region in events[index].reads:
            if region.indirect or _distinct(region) > _FEW:
                continue
            elements = _inputs(events, writers, index, region, steps)
            key = tuple((name, flags.tobytes()) for name, flags in sorted(elements.items()))
            if elements and key not in seen:
                seen.add(key)
                yield events[index], elements
        if steps[0] < 0 or len(seen) >= _MOST:
            return


def _in_turn(events: Sequence[Event]) -> list[int]:
    """All of them: first the first of each line, then the second of each, and so on."""
    count: dict[tuple[str, int], int] = {}
    turns = []
    for index, event in enumerate(events):
        place = (event.file, event.line)
        count[place] = turn = count.get(place, 0) + 1
        turns.append((turn, index))
    return [index for _, index in sorted(turns)]


def _distinct(region: Region) -> int:
    """Elements, each once where a stride is 0."""
    return int(np.prod([size for size, stride in zip(region.shape, region.strides, strict=True) if stride]))


def _inputs(
    events: Sequence[Event], writers: Mapping[int, Sequence[int]], at: int, root: Region, steps: list[int]
) -> dict[str, Array]:
    """The elements of inputs that a region follows from when an instruction reads it; empty if none or more than a few."""
    live: dict[int, Array] = {}
    found: dict[int, Any] = {}
    queue: list[int] = []
    queued = set[int]()

    def push(before: int) -> bool:
        """Queue who writes what has become live; False if too much of the inputs has."""
        for number in live.keys() - queued:
            queued.add(number)
            for index in writers.get(number, ()):
                if index < before:
                    heapq.heappush(queue, -index)
        return sum(int(live[number].sum()) for number, buffer in found.items() if buffer.role == "input") <= _FEW

    mark(live, found, root, None)
    going = push(at)
    last = at
    while queue and going and steps[0] >= 0:
        index = -heapq.heappop(queue)
        if index == last:
            continue
        last = index
        steps[0] -= 1
        event = events[index]
        for region in event.writes:
            hit = hit_of(live, region)
            if hit is None:
                continue
            if event.opcode in _OVERWRITES and not event.attrs.get("keeps") and not region.indirect:
                mark(live, found, region, None, value=False)
            mark_reads(live, found, event, region, hit)
        going = push(index)
    if not going or steps[0] < 0:
        return {}
    return {
        buffer.name: live[number].reshape(buffer.shape)
        for number, buffer in found.items()
        if buffer.role == "input" and live[number].any() and live[number].size == buffer.elements
    }
