"""A schedule as a Perfetto trace (`.pftrace`, the format that Neuron Explorer writes): open it at ui.perfetto.dev.

One process per NeuronCore. In it one track per engine and per DMA queue (a second lane where transfers of a queue overlap),
a flow for each dependency edge (RAW, WAW, WAR, ORDER: from the producer to the consumer; neither queue order nor
memory reuse), and counters of SBUF and PSUM bytes. Slices carry shapes, bytes and
file:line. Engine and field names are those of Neuron Explorer's profiles. All times are simulated, and the trace says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

from nki_hf.errors import BackendUnavailable
from nki_hf.sim.stream.events import Event, Region
from nki_hf.timing.schedule import Schedule
from nki_hf.timing.times import REASONS

__all__ = ["write_trace"]

_SEQUENCE = 1
_ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync")


def write_trace(scheduled: Schedule, target: Path | IO[bytes], *, title: str = "kernel") -> int:
    """Write the trace of `scheduled` to `target`, a path or an open file; returns the number of slices.

    Raises:
      BackendUnavailable: the perfetto package is not installed.
    """
    try:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent
        from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder
    except ImportError as error:
        raise BackendUnavailable('trace needs the perfetto package: pip install "nki_hf[trace]"') from error
    with target.open("wb") if isinstance(target, Path) else nullcontext(target) as file:
        return _Writer(scheduled, title, TrackEvent, StreamingTraceProtoBuilder, file).write()


class _Writer:
    def __init__(self, scheduled: Schedule, title: str, track_event: Any, builder: Any, file: IO[bytes]) -> None:
        self.scheduled, self.title, self.type, self.builder = scheduled, title, track_event, builder(file)
        self.tracks: dict[tuple[object, ...], int] = {}
        self.lanes: dict[tuple[int, str], list[float]] = {}

    def write(self) -> int:
        """Descriptors, slices in order of time, counters."""
        scheduled = self.scheduled
        for core in sorted({queue.core for queue in scheduled.work.queues}):
            self._core(core)
        leaving: dict[int, list[int]] = {}  # flows by producer; a flow is the number of its edge, from 1 on
        for flow, producer in enumerate(scheduled.work.producers.tolist(), 1):
            leaving.setdefault(producer, []).append(flow)
        first_edge = scheduled.work.starts.tolist()
        order = sorted(range(len(scheduled.events)), key=lambda i: float(scheduled.moves_ns[i]))
        for i in order:
            self._slice(i, leaving.get(i, ()), range(first_edge[i] + 1, first_edge[i + 1] + 1))
        for (core, space), changes in scheduled.occupied().items():
            track = self._counter(core, space)
            for time, nbytes in changes:
                packet = self._packet(time)
                packet.track_event.type = self.type.TYPE_COUNTER
                packet.track_event.track_uuid = track
                packet.track_event.counter_value = nbytes
                self.builder.write_packet(packet)
        return len(order)

    def _packet(self, time_ns: float) -> Any:
        packet = self.builder.create_packet()
        packet.timestamp = round(time_ns)
        packet.trusted_packet_sequence_id = _SEQUENCE
        return packet

    def _descriptor(self, key: tuple[object, ...], parent: int | None, name: str, rank: int = 0) -> Any:
        packet = self.builder.create_packet()
        packet.trusted_packet_sequence_id = _SEQUENCE
        track = packet.track_descriptor
        track.uuid = self.tracks[key] = len(self.tracks) + 1
        track.name = name
        track.sibling_order_rank = rank
        if parent is not None:
            track.parent_uuid = parent
        return packet

    def _core(self, core: int) -> None:
        name = f"NeuronCore {core}: {self.title}, simulated, {self.scheduled.chip.name}, {self.scheduled.order} order"
        packet = self._descriptor((core,), None, name)
        packet.track_descriptor.process.pid = core + 1
        packet.track_descriptor.process.process_name = name
        self.builder.write_packet(packet)
        for rank, engine in enumerate(_ENGINES):
            if any(queue.core == core and queue.engine == engine for queue in self.scheduled.work.queues):
                self.builder.write_packet(self._descriptor((core, engine), self.tracks[core,], engine, rank))

    def _counter(self, core: int, space: str) -> int:
        packet = self._descriptor((core, space, "bytes"), self.tracks[core,], f"{space} bytes per partition", 100)
        packet.track_descriptor.counter.unit_name = "B"
        self.builder.write_packet(packet)
        return self.tracks[core, space, "bytes"]

    def _lane(self, core: int, queue: str, begin: float, end: float) -> int:
        """The first lane of a DMA queue that is free at `begin`."""
        lanes = self.lanes.setdefault((core, queue), [])
        number = next((n for n, busy_until in enumerate(lanes) if busy_until <= begin), len(lanes))
        if number == len(lanes):
            lanes.append(0.0)
            name = f"dma {queue}" if number == 0 else f"dma {queue} ({number + 1})"
            self.builder.write_packet(self._descriptor((core, "dma", queue, number), self.tracks[core,], name, 10 + number))
        lanes[number] = end
        return self.tracks[core, "dma", queue, number]

    def _slice(self, i: int, leaving: Sequence[int], arriving: Sequence[int]) -> None:
        scheduled, event, cost = self.scheduled, self.scheduled.events[i], self.scheduled.work.costs[i]
        begin = float(scheduled.moves_ns[i])
        if event.engine == "dma":
            end = begin + cost.payload_ns
            track = self._lane(event.core, event.queue, begin, end)
        else:
            end, track = float(scheduled.free_ns[i]), self.tracks[event.core, event.engine]
        packet = self._packet(begin)
        body = packet.track_event
        body.type, body.track_uuid, body.name = self.type.TYPE_SLICE_BEGIN, track, event.opcode
        body.categories.append("Instruction" if event.engine != "dma" else "DmaPacket")
        body.flow_ids.extend(leaving)
        body.terminating_flow_ids.extend(arriving)
        for name, value in _arguments(scheduled, i, event):
            note = body.debug_annotations.add()
            note.name = name
            if isinstance(value, str):
                note.string_value = value
            elif isinstance(value, int):
                note.int_value = value
            else:
                note.double_value = value
        self.builder.write_packet(packet)
        packet = self._packet(end)
        packet.track_event.type, packet.track_event.track_uuid = self.type.TYPE_SLICE_END, track
        self.builder.write_packet(packet)


def _arguments(scheduled: Schedule, i: int, event: Event) -> Iterator[tuple[str, str | int | float]]:
    yield "index", event.index
    for number, region in enumerate(event.writes):
        yield f"write {number}", _words(region)
    for number, region in enumerate(event.reads):
        yield f"read {number}", _words(region)
    yield "source", f"{event.file}:{event.line}"
    yield "waited for", REASONS[int(scheduled.reason[i])]
    if scheduled.cause[i] >= 0:
        yield "waited for index", scheduled.events[int(scheduled.cause[i])].index
    yield "result usable ns (simulated)", float(scheduled.done_ns[i])
    if event.engine == "dma":
        yield "bytes", scheduled.work.costs[i].nbytes
        yield "dma engines", scheduled.work.costs[i].engines
        yield "triggered ns (simulated)", float(scheduled.start_ns[i])
    if event.attrs.get("spill"):
        yield "spill", f"added by the model: {_overflowed(event)} overflowed"
    for name in ("op", "op0", "op1", "reduce", "accumulate", "perf_mode"):
        if event.attrs.get(name) is not None:
            yield name, str(event.attrs[name])


def _overflowed(event: Event) -> str:
    """PSUM tiles go to SBUF through an engine or are made again, SBUF tiles go to HBM through DMA."""
    return "SBUF" if event.engine == "dma" else "PSUM"


def _words(region: Region) -> str:
    return f"{region.buffer.name}{list(region.shape)} {region.dtype} {region.buffer.space}, {region.bytes:,} B"
