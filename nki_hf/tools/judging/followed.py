"""What follows from what in a launch: the instructions whose results some others need, by the bytes that they share."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from nki_hf.sim.stream.access_table import AccessTable, Ints
from nki_hf.sim.stream.conflicts import RAW, WAW, conflicts_of
from nki_hf.sim.stream.events import Event
from nki_hf.sim.stream.live_ranges import keeps

__all__ = ["Bools", "Followed"]

Bools = np.ndarray[tuple[int], np.dtype[np.bool_]]


class Followed:
    """The way back over the events of a launch. Of two cores each is followed by itself.

    Attributes:
      events: of the launch.
      table: their accesses.
    """

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        self.table = table = AccessTable(events)
        found = conflicts_of(table, {}, None, np.zeros(len(table.heads), np.bool_))
        keeping = np.array([keeps(event) for event in events], np.bool_)
        follows = (found.kinds == RAW) | ((found.kinds == WAW) & keeping[found.consumers])
        more = np.array([*_accumulated(events)], np.int64).reshape(-1, 2)
        producers, consumers = np.concatenate([np.stack([found.producers, found.consumers], 1)[follows], more]).T
        order = np.argsort(consumers, kind="stable")
        self._pairs = producers[order], np.searchsorted(consumers[order], np.arange(len(events) + 1))
        self._producers: list[int] = self._pairs[0].tolist()
        self._starts: list[int] = self._pairs[1].tolist()
        self._always = np.array([event.opcode.startswith(_STATEFUL) for event in events], np.bool_)
        writes = np.zeros(len(events), np.bool_)
        writes[table.event[table.writes]] = True
        self._always |= ~writes

    def needed(self, wanted: Ints) -> Bools:
        """True for each event that the events `wanted` (their indices) follow from, for them, and for what has effects beyond
        memory: registers, random numbers, meetings of cores.
        """
        flags = self._always.copy()
        flags[wanted] = True
        found = flags.tolist()
        producers, starts = self._producers, self._starts
        for index in range(len(found) - 1, -1, -1):  # producers stand before their consumers
            if found[index]:
                for producer in producers[starts[index] : starts[index + 1]]:
                    found[producer] = True
        return np.array(found, np.bool_)

    def producers(self, index: int) -> Sequence[int]:
        """The events whose results an event takes."""
        return self._producers[self._starts[index] : self._starts[index + 1]]

    def pairs(self) -> tuple[Ints, Ints]:
        """The producers of all events, one event's after the other's, and where those of each begin (and the last ones end)."""
        return self._pairs

    def sources(self, wanted: Collection[int]) -> list[int]:
        """The events that the events `wanted` follow from, and these, in any order; nothing beyond memory counts."""
        found, ahead = set(wanted), list(wanted)
        while ahead:
            fresh = {producer for producer in self.producers(ahead.pop()) if producer not in found}
            found.update(fresh)
            ahead += fresh
        return list(found)


_STATEFUL = ("rng", "set_rng", "rand", "dropout", "sendrecv", "core_barrier")


def _accumulated(events: Sequence[Event]) -> Iterator[tuple[int, int]]:
    """Pairs of events of which the later one takes an engine's accumulators as the earlier one left them."""
    last: dict[tuple[int, str], int] = {}
    for index, event in enumerate(events):
        command = event.attrs.get("reduce_cmd")
        if command is None:
            continue
        key = event.core, event.engine
        if key in last and (command == "reduce" or (command == "idle" and len(event.writes) > 1)):
            yield last[key], index
        if command != "idle":
            last[key] = index
