"""Which transfers of flash_decode's bucket move nothing, and what the launch then is for the timing model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nki_hf.kernels.plan import Plan
from nki_hf.kernels.spans import TILE
from nki_hf.problem import Problem

__all__ = ["live_events"]

_QUARTERS = 4


def live_events(events: Sequence[Any], problem: Problem, plan: Plan) -> Sequence[Any]:
    """The events with all keys of the problem live: transfers of the bucket that start out of bounds move nothing.

    The timing model prices a transfer by its shape, not by where it starts. Here one that is skipped keeps its descriptor, its
    place in the ring and its latency, and moves one element a partition.
    """
    chunk = plan.constants["per_partition"] * TILE
    whole = -(-problem.seqlen_kv // chunk) - 1
    tail = problem.seqlen_kv - whole * chunk
    found, seen = list(events), dict[Any, list[int]]()
    for number, event in enumerate(events):
        if event.opcode != "dma_copy" or event.reads[0].buffer.name not in ("k", "v"):
            continue
        target = event.writes[0]
        if target.shape[0] == TILE:
            # Whole chunks of a unit come in order, on each core every `lnc`-th or all of them; those that are live come first.
            place = seen.setdefault((event.core, event.reads[0].buffer.name, event.reads[0].offset), [])
            place.append(number)
        elif target.partition_start // (TILE // _QUARTERS) * chunk // _QUARTERS >= tail:
            found[number] = _nothing(event)
    by_unit: dict[Any, list[tuple[int, list[int]]]] = {}
    for (core, name, offset), places in seen.items():
        by_unit.setdefault((name, offset), []).append((core, places))
    for shares in by_unit.values():
        for core, places in shares:
            step, first = (len(shares), core) if len(shares) > 1 else (1, 0)
            for n, number in enumerate(places):
                if first + n * step >= whole:
                    found[number] = _nothing(events[number])
    return found


def _nothing(event: Any) -> Any:
    def one(region: Any) -> Any:
        return replace(region, shape=(region.shape[0], 1), strides=(region.strides[0], 1))

    reads = (one(event.reads[0]), *event.reads[1:])
    return replace(event, reads=reads, writes=tuple(one(region) for region in event.writes))
