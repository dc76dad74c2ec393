"""Lookahead: what all schedules of a workload in one window share, whatever memory they are given."""

from __future__ import annotations

import numpy as np

from nki_hf.sim.stream.dependencies import WAR
from nki_hf.timing.resources import moments
from nki_hf.timing.workload import OUTPUT, Workload

__all__ = ["Lookahead"]


class Lookahead:
    """A workload whose queues may run any of their next `window` instructions, as lists by event unless said otherwise.

    Args:
      work: see `prepare`, with `reorder=True`.
      window: how many of a queue's next instructions the compiler may choose from.

    Attributes:
      work, window: as given.
      lines: each queue's events in program order.
      place: position in its queue's line.
      producers: how many edges it waits for.
      most_urgent: the events by urgency, the longest path to the end of the kernel.
      rank: its position there.
      edges: `(consumer, moment)` of all edges, by producer; the moments are those of timing/resources.py.
      first_edge: position of its first one, and at the end how many there are.
      several_tables: by queue: whether its events need several activation tables.

    Raises:
      ValueError: window is not positive.
    """

    def __init__(self, work: Workload, window: int) -> None:
        if window < 1:
            raise ValueError(f"window={window} is not a window: it must be 1 or more.")
        self.work, self.window = work, window
        count, queues = len(work.kind), range(len(work.queues))
        lines = [np.flatnonzero(work.queue_of == queue) for queue in queues]
        place = np.zeros(count, np.int64)
        for line in lines:
            place[line] = np.arange(len(line))
        self.lines = [line.tolist() for line in lines]
        self.place = place.tolist()
        self.producers: list[int] = np.diff(work.starts).tolist()
        self.several_tables = [
            len({work.cost_of_kind[kind].table for kind in np.unique(work.kind[line]).tolist()} - {""}) > 1 for line in lines
        ]
        most_urgent = np.argsort(-np.array(_urgency(work)), kind="stable")
        rank = np.empty(count, np.int64)
        rank[most_urgent] = np.arange(count)
        self.most_urgent, self.rank = most_urgent.tolist(), rank.tolist()
        order = np.argsort(work.producers, kind="stable")
        consumers = np.repeat(np.arange(count), np.diff(work.starts))[order]
        self.edges: list[tuple[int, int]] = list(zip(consumers.tolist(), moments(work)[order].tolist(), strict=True))
        self.first_edge: list[int] = np.searchsorted(work.producers[order], np.arange(count + 1)).tolist()


def _urgency(work: Workload) -> list[float]:
    """The longest path from each event's start to the end of the kernel, in ns, transfers included."""
    starts, producers = work.starts.tolist(), work.producers.tolist()
    busy, kinds, of = work.cost("busy_ns"), work.kinds, work.producers
    arrives = work.cost("done_ns") + work.cost("lead_ns") + np.maximum(work.cost("payload_ns"), work.cost("software_ns"))
    arrives += work.cost("tail_ns")
    done = np.where(kinds == OUTPUT, work.cost("output_ns")[of], arrives[of])
    lasts = np.where((kinds < WAR) & (done != 0), done - busy[of], 0.0).tolist()  # from the producer's end on
    below = [0.0] * len(work.kind)  # from the event's end
    ends, urgency = arrives.tolist(), busy.tolist()
    end = len(producers)
    for i in range(len(below) - 1, -1, -1):
        path = below[i] + urgency[i]
        if ends[i] > path:
            path = ends[i]
        urgency[i] = path
        begin = starts[i]
        for e in range(begin, end):
            through, producer = path + lasts[e], producers[e]
            if through > below[producer]:
                below[producer] = through
        end = begin
    return urgency
