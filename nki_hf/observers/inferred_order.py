"""Inferred order: dependencies within a core of which no page says that the compiler tracks them (see races.py)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nki_hf.observers.race import Race
from nki_hf.sim.stream.dependencies import Dependencies, dependencies
from nki_hf.sim.stream.events import Event, Region

__all__ = ["Trust", "races_within_cores"]


@dataclass(frozen=True, kw_only=True)
class Trust:
    """Which inferred dependencies within a core count as tracked by the compiler; see races.py.

    Attributes:
      addresses: between tiles that share bytes by `address=`. Default: True.
      hbm: between DMAs of different queues through one HBM tensor. Default: True.
      indices: through accesses with run-time indices. Default: True.
    """

    addresses: bool = True
    hbm: bool = True
    indices: bool = True


def races_within_cores(events: Sequence[Event], trust: Trust) -> Iterator[Race]:
    """Pairs whose dependency is not trusted, and that nothing else orders."""
    graph = dependencies(events, reorder=True)
    doubtful: list[tuple[int, int, str, Region, Region]] = []
    kept: list[list[int]] = [[] for _ in events]
    for edge in graph:
        pair = None if edge.buffer < 0 else _doubt(events[edge.producer], events[edge.consumer], edge.buffer, trust)
        if pair is None:
            kept[edge.consumer].append(edge.producer)
        else:
            doubtful.append((edge.producer, edge.consumer, *pair))
    clocks = _clocks(graph, kept)
    for producer, consumer, cause, ours, theirs in doubtful:
        queue = int(graph.queue_of[producer])
        if clocks[consumer][queue] < producer:
            a, b = events[producer], events[consumer]
            missing = f"an edge from queue {a.queue} to queue {b.queue}, e.g. depends_on, or a dependency through other data"
            yield Race(a, b, ours, theirs, cause, missing)


def _doubt(a: Event, b: Event, buffer: int, trust: Trust) -> tuple[str, Region, Region] | None:
    """The cause for not trusting the edge from `a` to `b`, and the two regions; None if it is trusted."""
    if a.index in b.attrs.get("depends_on", ()) or (a.attrs.get("no_reorder") and b.attrs.get("no_reorder")):
        return None
    first = next(region for region in (*a.writes, *a.reads) if region.buffer.number == buffer)
    same = [region for region in (*b.writes, *b.reads) if region.buffer.number == buffer]
    if not same:
        other = next((r for r in (*b.writes, *b.reads) if r.buffer.space == first.buffer.space and r.buffer.address), None)
        return None if trust.addresses or other is None else ("addresses", first, other)
    if not trust.indices and (first.indirect or any(region.indirect for region in same)):
        return "indices", first, same[0]
    if not trust.hbm and not first.buffer.on_chip and a.engine == b.engine == "dma" and a.queue != b.queue:
        return "hbm", first, same[0]
    return None


def _clocks(graph: Dependencies, producers: Iterable[list[int]]) -> list[list[int]]:
    """For each event, the newest event of every queue that is ordered before it (vector clocks; -1 = none)."""
    previous, queue_of = graph.previous.tolist(), graph.queue_of.tolist()
    clocks: list[list[int]] = []
    for event, waited in enumerate(producers):
        clock = [-1] * len(graph.queues)
        for earlier in (previous[event], *waited):
            if earlier >= 0:
                clock = [max(mine, theirs) for mine, theirs in zip(clock, clocks[earlier], strict=True)]
                clock[queue_of[earlier]] = max(clock[queue_of[earlier]], earlier)
        clocks.append(clock)
    return clocks
