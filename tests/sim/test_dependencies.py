"""Dependency edges against a byte-by-byte oracle, and the rules about queues, addresses, indirection and meetings."""

import time
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_hf.sim.dtypes import as_dtype
from nki_hf.sim.stream import conflict_columns
from nki_hf.sim.stream.dependencies import ORDER, RAW, WAR, WAW, Edge, dependencies
from nki_hf.sim.stream.events import Buffer, Event, Region
from nki_hf.sim.stream.footprint import footprint_of, overlap

F32, BF16, U8 = as_dtype("float32"), as_dtype("bfloat16"), as_dtype("uint8")


def make_buffer(number, shape, dtype=F32, space="sbuf", core=0, address=None):
    return Buffer(number, space, f"b{number}", shape, dtype, core, "scratch", address, "kernel.py", number)


def region(buffer, *slices, dtype=None, indirect=False):
    """The region of `buffer[slices]`, strides as a dense row-major buffer has them."""
    strides = np.cumprod((1, *buffer.shape[:0:-1]))[::-1]
    slices = [*slices, *[slice(None)] * (len(buffer.shape) - len(slices))]
    offset, shape, steps = 0, [], []
    for item, size, stride in zip(slices, buffer.shape, strides, strict=True):
        start, stop, step = item.indices(size)
        offset += start * int(stride)
        shape.append(len(range(start, stop, step)))
        steps.append(int(stride) * step)
    return Region(buffer, dtype or buffer.dtype, offset, tuple(shape), tuple(steps), indirect)


def stream(*items):
    """Events of `(engine, reads, writes)` or `(engine, reads, writes, attrs)`; `dma.sync` is a DMA queue."""
    events = []
    for engine, reads, writes, *rest in items:
        kind, _, queue = engine.partition(".")
        attrs = dict(rest[0]) if rest else {}
        core, opcode = attrs.pop("core", 0), attrs.pop("opcode", "op")
        events.append(
            Event(len(events), core, kind, queue or kind, opcode, tuple(reads), tuple(writes), "kernel.py", len(events), attrs)
        )
    return events


def touched_bytes(item):
    """Byte numbers of a region within its buffer, by enumeration."""
    offsets = np.array([item.offset])
    for size, stride in zip(item.shape, item.strides, strict=True):
        offsets = (offsets[:, None] + stride * np.arange(size)).reshape(-1)
    width = item.dtype.itemsize
    return set((offsets[:, None] * width + np.arange(width)).reshape(-1).tolist())


def reachable(events, edges):
    """`before[i]` = events that precede i by edges and queue order (the transitive closure)."""
    before = [set() for _ in events]
    newest = {}
    for i, event in enumerate(events):
        for producer in [edge.producer for edge in edges if edge.consumer == i] + [newest.get((event.engine, event.queue), -1)]:
            if producer >= 0:
                before[i] |= before[producer] | {producer}
        newest[event.engine, event.queue] = i
    return before


regions = st.builds(
    lambda p, f, ps, fs: (slice(p[0], p[1], ps), slice(f[0], f[1], fs)),
    st.tuples(st.integers(0, 3), st.integers(4, 6)),
    st.tuples(st.integers(0, 7), st.integers(8, 12)),
    st.integers(1, 2),
    st.integers(1, 3),
)


@given(regions, regions, st.sampled_from(["sbuf", "hbm"]), st.booleans())
@settings(max_examples=300, deadline=None)
def test_overlap_is_that_of_the_byte_sets(first, second, space, reinterpret):
    buffer = make_buffer(0, (6, 12), space=space)
    a, b = region(buffer, *first), region(buffer, *second)
    if reinterpret:  # the same bytes, seen as uint8
        b = Region(buffer, U8, b.offset * 4, (*b.shape, 4), (*(s * 4 for s in b.strides), 1))
    assert overlap(footprint_of(a), footprint_of(b)) == bool(touched_bytes(a) & touched_bytes(b))


@given(regions, regions)
@settings(max_examples=200, deadline=None)
def test_a_footprint_covers_only_what_it_touches(first, second):
    buffer = make_buffer(0, (6, 12))
    a, b = region(buffer, *first), region(buffer, *second)
    if footprint_of(a).covers(footprint_of(b)):
        assert touched_bytes(b) <= touched_bytes(a)


programs = st.lists(
    st.tuples(
        st.sampled_from(["tensor", "vector", "dma.sync", "dma.scalar"]),
        st.lists(st.tuples(st.integers(0, 2), regions), max_size=2),
        st.lists(st.tuples(st.integers(0, 2), regions), min_size=1, max_size=2),
    ),
    min_size=2,
    max_size=24,
)


@given(programs)
@settings(max_examples=150, deadline=None)
def test_edges_and_queue_order_imply_exactly_the_conflicts_of_the_bytes(program):
    buffers = [make_buffer(i, (6, 12), space="hbm" if i == 2 else "sbuf") for i in range(3)]
    events = stream(
        *[
            (engine, [region(buffers[b], *s) for b, s in reads], [region(buffers[b], *s) for b, s in writes])
            for engine, reads, writes in program
        ]
    )
    edges = list(dependencies(events))
    conflicts = set()
    for j, later in enumerate(events):
        for i, earlier in enumerate(events[:j]):
            for kind, ours, theirs in (
                (RAW, later.reads, earlier.writes),
                (WAW, later.writes, earlier.writes),
                (WAR, later.writes, earlier.reads),
            ):
                if any(x.buffer is y.buffer and touched_bytes(x) & touched_bytes(y) for x in ours for y in theirs):
                    conflicts.add((i, j, kind))
    before = reachable(events, edges)
    assert all(i in before[j] for i, j, _ in conflicts)
    assert {(e.producer, e.consumer, e.kind) for e in edges} <= conflicts


def plain_edges(events, placement, reorder):
    """`(producer, consumer, kind)`, every access compared with all earlier ones that are uncovered."""
    lists, found = {}, set()
    queue = [(e.core, e.engine, e.queue) for e in events]
    for j, event in enumerate(events):
        best, noted = {}, []
        for writes, item in [*((False, r) for r in event.reads), *((True, r) for r in event.writes)]:
            start = item.buffer.address or placement.get(item.buffer.number)
            memory = lists.setdefault((event.core, item.buffer.number if start is None else item.buffer.space), [])
            footprint = footprint_of(item).moved(*start) if start else footprint_of(item)
            for i, before, other in memory:
                if (writes or before) and overlap(other, footprint):
                    kind = WAR if not before else WAW if writes else RAW
                    alone = reorder or events[i].engine == "dma"  # transfers of a queue complete in any order
                    lane = (i if alone else queue[i], (RAW, WAW, WAR).index(kind))
                    best[lane] = max(best.get(lane, (-1, 0)), (i, -kind))
            noted.append((memory, writes, footprint))
        for memory, writes, footprint in sorted(noted, key=lambda item: item[1]):
            if writes:
                memory[:] = [item for item in memory if not footprint.covers(item[2])]
            memory.append((j, writes, footprint))
        for (lane, weaker), (i, kind) in best.items():
            if all(best.get((lane, other), (-1, 0))[0] < i for other in range(weaker)):
                found.add((i, j, -kind))
    return found


@given(programs, st.booleans(), st.sampled_from(["apart", "shared", "placed"]), st.sampled_from([1, 3, 64]))
@settings(max_examples=150, deadline=None)
def test_buffers_with_one_history_get_the_edges_of_the_plain_rule(program, reorder, where, most):
    """Each step is done to three sets of buffers in turn, as a loop does: what is found for one set holds for the others.

    `most`: footprints that hang together, up to which queues that reorder have theirs compared as columns.
    """
    apart = where == "apart"
    sets = [
        [make_buffer(3 * k + i, (6, 12), address=(0, 32 * i) if where == "shared" else None) for i in range(3)]
        for k in range(3)
    ]
    placement = {item.number: (0, 16 * item.number) for group in sets for item in group} if where == "placed" else {}
    events = stream(
        *[
            (engine, [region(group[b], *s) for b, s in reads], [region(group[b], *s) for b, s in writes])
            for engine, reads, writes in program
            for group in sets
        ]
    )
    with patch.object(conflict_columns, "_MOST", most):
        found = dependencies(events, placement=placement, reorder=reorder)
    assert {(e.producer, e.consumer, e.kind) for e in found} == plain_edges(events, placement, reorder)
    assert len(found) == len({(e.producer, e.consumer, e.kind == WAR) for e in found})
    for edge in found:
        touched = (*events[edge.producer].reads, *events[edge.producer].writes)
        assert edge.buffer in {item.buffer.number for item in touched}
        assert not apart or edge.producer % 3 == edge.consumer % 3


@pytest.mark.parametrize("reorder", [False, True])
def test_histories_that_differ_in_what_one_instruction_does_are_told_apart(reorder):
    """Write, read, write: the last two by one instruction on the first tile, by two on the second."""
    a, b = (region(make_buffer(i, (8, 8))) for i in range(2))
    events = stream(("vector", [], [a]), ("vector", [a], [a]), ("vector", [], [b]), ("scalar", [b], []), ("vector", [], [b]))
    found = {(e.producer, e.consumer, e.kind) for e in dependencies(events, reorder=reorder)}
    assert (3, 4, WAR) in found
    assert found == plain_edges(events, {}, reorder)


def test_only_the_newest_producer_of_a_queue_is_kept():
    tile = make_buffer(0, (8, 8))
    halves = [region(tile, slice(None), slice(0, 4)), region(tile, slice(None), slice(4, 8))]
    events = stream(("vector", [], [halves[0]]), ("vector", [], [halves[1]]), ("scalar", [region(tile)], []))
    assert list(dependencies(events)) == [Edge(1, 2, RAW, 0)]


def test_a_newer_write_of_an_engine_does_not_hide_an_older_result_of_it():
    a, b = make_buffer(0, (8, 8)), make_buffer(1, (8, 8))
    events = stream(("vector", [], [region(a)]), ("vector", [], [region(b)]), ("vector", [region(a)], [region(b)]))
    assert set(dependencies(events).of(2)) == {Edge(0, 2, RAW, 0), Edge(1, 2, WAW, 1)}


def test_a_newer_transfer_of_a_queue_stands_for_no_older_one():
    """They use other DMA engines, so the small one may be there first."""
    tile, source = make_buffer(0, (128, 8)), make_buffer(1, (128, 8), space="hbm")
    most, last = region(tile, slice(0, 120)), region(tile, slice(120, 128))
    events = stream(("dma.sync", [], [most]), ("dma.sync", [], [last]), ("vector", [region(tile)], []))
    assert {edge.producer for edge in dependencies(events).of(2)} == {0, 1}
    events = stream(
        ("dma.sync", [region(source)], []), ("dma.sync", [region(source)], []), ("dma.scalar", [], [region(source)])
    )
    assert {edge.producer for edge in dependencies(events).of(2)} == {0, 1}


def test_a_newer_reader_adds_a_war_edge_beside_the_completion_edge():
    tile, other = make_buffer(0, (8, 8)), make_buffer(1, (8, 8))
    events = stream(("vector", [], [region(tile)]), ("vector", [region(tile)], [region(other)]), ("scalar", [], [region(tile)]))
    assert set(dependencies(events).of(2)) == {Edge(0, 2, WAW, 0), Edge(1, 2, WAR, 0)}


def test_dma_queues_of_two_engines_are_two_queues_and_apart_from_the_engines():
    tile = make_buffer(0, (8, 8))
    events = stream(*[(name, [], [region(tile)]) for name in ("dma.sync", "dma.scalar", "scalar")])
    found = dependencies(events)
    assert [(q.engine, q.name) for q in found.queues] == [("dma", "sync"), ("dma", "scalar"), ("scalar", "scalar")]
    assert list(found.previous) == [-1, -1, -1]
    assert list(found.same_queue()) == [False, False]


@pytest.mark.parametrize("shift", [0, 16, 31, 32, 33, 64])
def test_tiles_placed_by_address_depend_on_each_other_where_their_bytes_meet(shift):
    first = make_buffer(0, (8, 8), address=(0, 0))  # 32 bytes per partition
    second = make_buffer(1, (8, 8), address=(0, shift))
    events = stream(("vector", [], [region(first)]), ("scalar", [], [region(second)]))
    assert [edge.kind for edge in dependencies(events)] == ([WAW] if shift < 32 else [])


def test_placement_adds_the_hazards_of_reused_memory():
    first, second = make_buffer(0, (8, 8)), make_buffer(1, (8, 8))
    events = stream(
        ("vector", [], [region(first)]),
        ("scalar", [region(first)], [region(make_buffer(2, (8, 8)))]),
        ("gpsimd", [], [region(second)]),
    )
    assert list(dependencies(events).of(2)) == []
    reused = dependencies(events, placement={0: (0, 0), 1: (0, 16), 2: (0, 64)})
    assert {(e.producer, e.kind) for e in reused.of(2)} == {(0, WAW), (1, WAR)}


def test_indirect_access_touches_the_whole_buffer_and_hides_no_earlier_write():
    table, tile = make_buffer(0, (64, 8), space="hbm", core=None), make_buffer(1, (8, 8))
    part = region(table, slice(0, 8))
    events = stream(
        ("dma.sync", [region(tile)], [part]),
        ("dma.gpsimd", [region(tile)], [region(table, slice(32, 40), indirect=True)]),
        ("dma.scalar", [part], [region(make_buffer(2, (8, 8)))]),
    )
    found = dependencies(events)
    assert [e.producer for e in found.of(1)] == [0]
    assert {e.producer for e in found.of(2) if e.kind == RAW} == {0, 1}


def test_depends_on_is_an_order_edge():
    a, b = make_buffer(0, (8, 8)), make_buffer(1, (8, 8))
    events = stream(("vector", [], [region(a)]), ("scalar", [], [region(b)], {"depends_on": (0,)}))
    assert list(dependencies(events)) == [Edge(0, 1, ORDER, -1)]


def test_a_barrier_waits_for_its_data_and_holds_back_later_readers_on_the_same_core_only():
    shared = make_buffer(0, (8, 8), space="shared_hbm", core=None)
    tiles = [make_buffer(1 + core, (8, 8), core=core) for core in (0, 1)]
    items = []
    for core in (0, 1):
        mine = slice(4 * core, 4 * core + 4)
        items += [
            ("dma.sync", [region(tiles[core], slice(0, 4))], [region(shared, mine)], {"core": core}),
            ("gpsimd", [region(shared)], [], {"core": core, "opcode": "core_barrier"}),
            ("dma.scalar", [region(shared)], [region(tiles[core])], {"core": core}),
        ]
    found = dependencies(stream(*items))
    assert [(e.producer, e.kind) for e in found.of(1)] == [(0, RAW)]
    assert (1, RAW) in [(e.producer, e.kind) for e in found.of(2)]
    assert all(e.producer // 3 == e.consumer // 3 for e in found)
    assert found.meetings == ((1, 4),)


def test_inputs_that_nobody_writes_cost_no_edges():
    table, tile = make_buffer(0, (64, 8), space="hbm", core=None), make_buffer(1, (8, 8))
    events = stream(*[("dma.sync", [region(table, slice(i, i + 8))], [region(tile)]) for i in range(20)])
    assert {e.buffer for e in dependencies(events)} == {1}


def test_many_writes_to_one_buffer_do_not_cost_quadratic_time():
    out, tile = make_buffer(0, (8192, 8), space="hbm", core=None), make_buffer(1, (8, 8))

    def seconds(count):
        events = stream(*[("dma.sync", [region(tile)], [region(out, slice(i, i + 1))]) for i in range(count)])
        started = time.process_time()
        found = dependencies(events)
        assert len(found) == 0
        return time.process_time() - started

    seconds(64)
    assert seconds(8192) < 40 * max(seconds(1024), 1e-3)  # 8 times as many events; quadratic would be 64
