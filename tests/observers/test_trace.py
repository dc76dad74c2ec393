"""The Perfetto trace, parsed back; the pictures."""

from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from typer.testing import CliRunner

from nki_hf.chips import get_chip
from nki_hf.cli import app
from nki_hf.observers.perfetto import write_trace
from nki_hf.observers.report import facts
from nki_hf.sim.stream.dependencies import dependencies
from nki_hf.timing.schedule import schedule
from nki_hf.timing.workload import prepare
from nki_hf.tools.shape import problem_of
from nki_hf.tools.subjects import attention_events, events_of

pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
TRN1 = get_chip("trn1")


@pytest.fixture(scope="module")
def plan():
    return schedule(events_of("v3", 1024, TRN1), TRN1)  # every engine, DMA both ways, spills from PSUM


@pytest.fixture(scope="module")
def packets(plan, tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "v3.pftrace"
    assert write_trace(plan, path, title="v3") == len(plan.events)
    trace = pb.Trace()
    trace.ParseFromString(path.read_bytes())
    return trace.packet


@pytest.mark.parametrize(("verb", "name"), [("trace", "t.json"), ("trace", "no/t.pftrace"), ("report", "no/r.html")])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_simulated(verb, name, tmp_path, monkeypatch):
    name_of_work = {"trace": "model", "report": "stream"}[verb]
    monkeypatch.setattr(f"nki_hf.tools.{verb}.{name_of_work}", lambda *_, **__: pytest.fail("simulated"))
    done = CliRunner().invoke(app, [verb, "-o", str(tmp_path / name)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"output={tmp_path / name} " in done.stderr


def _tracks(packets):
    return {p.track_descriptor.uuid: p.track_descriptor for p in packets if p.HasField("track_descriptor")}


def _events(packets, kind):
    return [p for p in packets if p.HasField("track_event") and p.track_event.type == kind]


def test_one_track_per_engine_and_dma_queue_under_one_core(packets):
    tracks = _tracks(packets)
    roots = [track for track in tracks.values() if not track.parent_uuid]
    assert len(roots) == 1
    assert "simulated, trn1" in roots[0].name
    names = {track.name for track in tracks.values() if track.parent_uuid == roots[0].uuid}
    assert {"tensor", "vector", "scalar", "dma sync", "sbuf bytes per partition", "psum bytes per partition"} <= names


def test_every_instruction_is_one_slice_of_the_right_length(packets, plan):
    tracks = _tracks(packets)
    begins, open_at, lengths = _events(packets, pb.TrackEvent.TYPE_SLICE_BEGIN), {}, defaultdict(list)
    assert Counter(p.track_event.name for p in begins) == Counter(event.opcode for event in plan.events)
    for packet in packets:
        if not packet.HasField("track_event"):
            continue
        body = packet.track_event
        if body.type == pb.TrackEvent.TYPE_SLICE_BEGIN:
            assert body.track_uuid not in open_at, "slices of a track overlap"
            open_at[body.track_uuid] = packet.timestamp
        elif body.type == pb.TrackEvent.TYPE_SLICE_END:
            lengths[tracks[body.track_uuid].name].append(packet.timestamp - open_at.pop(body.track_uuid))
    assert not open_at
    for engine in ("tensor", "vector", "scalar"):
        busy = sum(cost.busy_ns for event, cost in zip(plan.events, plan.work.costs, strict=True) if event.engine == engine)
        assert sum(lengths[engine]) == pytest.approx(busy, rel=0.01)
    moved = sum(cost.payload_ns for cost in plan.work.costs)
    assert sum(sum(found) for name, found in lengths.items() if name.startswith("dma")) == pytest.approx(moved, rel=0.01)


def test_slices_carry_shapes_bytes_and_the_kernel_line(packets, plan):
    first = next(p.track_event for p in _events(packets, pb.TrackEvent.TYPE_SLICE_BEGIN) if p.track_event.name == "nc_matmul")
    notes = {note.name: note.string_value or note.int_value for note in first.debug_annotations}
    event = plan.events[notes["index"]]
    assert notes["source"] == f"{event.file}:{event.line}"
    assert notes["source"].split(":")[0].endswith("v3_hbm_round_trips.py")
    assert "[128, 512] float32 psum, 262,144 B" in notes["write 0"]
    assert notes["waited for"] in ("dma", "semaphore", "engine")


def _index(packet):
    return next(note.int_value for note in packet.track_event.debug_annotations if note.name == "index")


def _flows(packets, reorder, events):
    """The flows of a trace as (producer, consumer), and the edges of the same stream: all that sim/stream/dependencies.py finds
    for a reordering scheduler; in program order, where results of an engine may come in another order, those of the schedule.
    """
    leaves, arrives = {}, {}
    for packet in _events(packets, pb.TrackEvent.TYPE_SLICE_BEGIN):
        for found, flows in ((leaves, packet.track_event.flow_ids), (arrives, packet.track_event.terminating_flow_ids)):
            for flow in flows:
                assert flow not in found, "a flow has one beginning and one end"
                assert flow > 0
                found[flow] = (_index(packet), packet.timestamp)
    assert leaves.keys() == arrives.keys()
    assert all(leaves[flow][1] <= arrives[flow][1] for flow in leaves), "a flow goes back in time"
    edges = dependencies(events, reorder=True) if reorder else prepare(events, get_chip("trn2"))
    expected = [
        (producer, consumer)
        for consumer, (begin, end) in enumerate(pairwise(edges.starts.tolist()))
        for producer in edges.producers[begin:end].tolist()
    ]
    return [(leaves[flow][0], arrives[flow][0]) for flow in leaves], expected


def test_there_is_one_flow_for_each_dependency_edge(packets, plan):
    flows, edges = _flows(packets, True, plan.events)
    assert len(flows) == len(edges) > len(plan.events)
    assert Counter(flows) == Counter(edges)


@pytest.mark.parametrize("window", [None, 64])
def test_flows_of_our_kernel_on_one_core(window, tmp_path):
    chip = get_chip("trn2")
    scheduled = schedule(attention_events(problem_of("hq=2,hkv=1,sq=256,skv=640,causal"), chip), chip, window=window)
    write_trace(scheduled, tmp_path / "x.pftrace")
    trace = pb.Trace()
    trace.ParseFromString((tmp_path / "x.pftrace").read_bytes())
    flows, edges = _flows(trace.packet, window is not None, scheduled.events)
    assert Counter(flows) == Counter(edges)


def test_what_bound_an_instruction_is_an_argument(packets, plan):
    for packet in _events(packets, pb.TrackEvent.TYPE_SLICE_BEGIN):
        notes = {note.name: note.string_value or note.int_value for note in packet.track_event.debug_annotations}
        cause = int(plan.cause[notes["index"]])
        assert notes.get("waited for index", -1) == cause
        assert notes["waited for"] == plan.reasons()[notes["index"]]


def test_every_instruction_that_a_spill_added_is_marked(packets, plan):
    marked = [
        p
        for p in _events(packets, pb.TrackEvent.TYPE_SLICE_BEGIN)
        if any(note.name == "spill" for note in p.track_event.debug_annotations)
    ]
    spills = plan.spills
    assert spills.recomputed > 0  # law psum-recompute: what overflows PSUM is made again rather than copied
    assert len(marked) == spills.psum_copies + spills.recomputed + spills.stores + spills.loads
    assert len(marked) == len(plan.events) - len(events_of("v3", 1024, TRN1))
    said = {note.string_value for p in marked for note in p.track_event.debug_annotations if note.name == "spill"}
    assert "added by the model: PSUM overflowed" in said


def test_memory_counters_start_at_zero_and_stay_within_the_chip(packets, plan):
    values = [p.track_event.counter_value for p in _events(packets, pb.TrackEvent.TYPE_COUNTER)]
    assert min(values) == 0
    for (core, space), line in plan.occupied().items():
        limit = TRN1.sbuf_partition_bytes if space == "sbuf" else TRN1.psum_partition_bytes
        assert core == 0
        assert max(level for _, level in line) <= limit
        assert line[-1][1] == 0


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pftrace"])
def test_the_command_writes_each_kind_of_file(suffix, tmp_path):
    path = tmp_path / f"out{suffix}"
    done = CliRunner().invoke(app, ["trace", "--kernel", "v7", "--seqlen", "512", "--chip", "trn1", "-o", str(path)])
    assert done.exit_code == 0, done.output
    assert "simulated" in done.output
    assert path.stat().st_size > 2000


def test_an_unknown_suffix_is_refused(tmp_path):
    done = CliRunner().invoke(app, ["trace", "--kernel", "v7", "--seqlen", "512", "-o", str(tmp_path / "out.json")])
    assert done.exit_code == 2
    assert ".pftrace, .png or .svg" in done.output


def test_the_shares_of_the_critical_path_add_up(plan):
    found = facts(plan)
    assert found["simulated"] is True
    assert sum(row["share"] for row in found["path"]) == pytest.approx(1)


def test_the_report_command_prints_where_time_goes():
    done = CliRunner().invoke(app, ["report", "--kernel", "v7", "--seqlen", "512", "--chip", "trn1"])
    assert done.exit_code == 0, done.output
    assert "us simulated on trn1" in done.stdout
    assert "critical path by kernel line" in done.stdout
