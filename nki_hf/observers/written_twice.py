"""A tensor that both cores of a launch write alike: each element once by each core, and read only where its own core wrote it.

If the two cores write the same values, such a tensor has one content whichever of them comes first: what a core reads has
been written by itself, and what the other core writes there is the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from nki_hf.sim.stream.events import Event, Region

__all__ = ["elements_of", "written_twice"]

Array = np.ndarray[Any, Any]


def written_twice(accesses: Iterable[tuple[Event, Region, bool]]) -> bool:
    """True if all that both cores write of a shared HBM tensor is written alike.

    Args:
      accesses: of one tensor, in order of execution: event, region, and whether it writes. A copy of a region onto itself
        writes nothing.
    """
    writes: dict[int, dict[tuple[Any, ...], Array]] = {0: {}, 1: {}}
    reads: dict[int, list[tuple[Array, Array]]] = {0: [], 1: []}
    flags: dict[int, Array] = {}
    seen: set[tuple[int, int]] = set()
    numbers: dict[tuple[Any, ...], int] = defaultdict(int)
    for event, region, writing in accesses:
        core, size = event.core, region.buffer.elements
        if region.indirect and (core, id(region)) in seen:
            continue  # another turn of a loop: the region holds what all of them chose
        seen.add((core, id(region)))
        elements = elements_of(region)
        if elements is None or region.twice or region.dtype.itemsize != region.buffer.dtype.itemsize:
            return False
        written = flags.setdefault(core, np.zeros(size, np.bool_))
        if not writing:
            reads[core].append((elements, written[elements]))
        elif not _onto_itself(event):
            if written[elements].any() or len(np.unique(elements)) < elements.size:
                return False
            written[elements] = True
            place = (event.file, event.line, event.opcode)
            writes[core][*place, numbers[core, *place]] = elements
            numbers[core, *place] += 1
    if len(flags) < 2:
        return False
    for core, other in ((0, 1), (1, 0)):
        for key, elements in writes[core].items():
            twin = writes[other].get(key)
            if flags[other][elements].any() and (twin is None or not np.array_equal(elements, twin)):
                return False
        if any((flags[other][elements] & ~own).any() for elements, own in reads[core]):
            return False
    return True


def elements_of(region: Region) -> Array | None:
    """Numbers of the elements that a region touches; None if nobody knows."""
    if region.indirect:
        return region.reached
    found = np.array([region.offset])
    for count, stride in zip(region.shape, region.strides, strict=True):
        found = (found[:, None] + stride * np.arange(count)).reshape(-1)
    return found


def _onto_itself(event: Event) -> bool:
    """True for a copy of a region onto itself, by which kernels wait for their stores."""
    if event.opcode != "dma_copy" or len(event.reads) != 1 or len(event.writes) != 1:
        return False
    (source,), (target,) = event.reads, event.writes
    where = [(r.buffer.number, r.dtype, r.offset, r.shape, r.strides, r.indirect) for r in (source, target)]
    return where[0] == where[1] and not source.indirect
