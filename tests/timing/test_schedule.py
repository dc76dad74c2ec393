"""The schedule: what must hold for any stream of instructions, on every chip and for every order."""

from dataclasses import replace
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given, settings
from plain_schedule import PlainSchedule

from nki_hf.chips import get_chip
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from nki_hf.sim.dtypes import as_dtype
from nki_hf.sim.stream.dependencies import WAR, dependencies
from nki_hf.sim.stream.events import Buffer, Event, Region
from nki_hf.sim.tensors.strides import row_major
from nki_hf.timing.lookahead import Lookahead
from nki_hf.timing.program_order import run_in_program_order
from nki_hf.timing.schedule import schedule
from nki_hf.timing.window_order import run_in_window, run_in_window_below
from nki_hf.timing.workload import prepare
from nki_hf.tools.subjects import events_of

CHIP_NAMES = ("trn1", "trn2", "trn3")
ORDERS = (None, 1, 8, 64)
FORMS = ("load", "store", "matmul", "evict_scalar", "evict_vector", "copy", "ln", "exp", "add", "select")


def build(steps):
    """A stream from `(form, tile, tile, columns)`: tiles are numbered, each form reads and writes some of them."""
    tiles: dict = {}

    def region(space, number, columns):
        key = space, number
        if key not in tiles:
            rows = 128
            tiles[key] = Buffer(
                len(tiles), space, f"{space}{number}", (rows, 512), as_dtype("float32"), 0, "scratch", None, "", 0
            )
        shape = (128, columns)
        return Region(tiles[key], as_dtype("float32"), 0, shape, row_major((128, 512)))

    events = []
    for form, a, b, columns in steps:
        sb = [region("sbuf", a, columns), region("sbuf", b, columns)]
        ps = region("psum", b % 3, columns)
        engine, opcode, reads, writes, attrs = {
            "load": ("dma", "dma_copy", [region("hbm", a, columns)], [sb[1]], {}),
            "store": ("dma", "dma_copy", [sb[0]], [region("hbm", 9, columns)], {}),
            "matmul": ("tensor", "nc_matmul", [region("sbuf", a, 128), sb[1]], [ps], {}),
            "evict_scalar": ("scalar", "activation", [ps], [sb[0]], {"op": "copy"}),
            "evict_vector": ("vector", "tensor_copy", [ps], [sb[0]], {}),
            "copy": ("scalar", "activation", [sb[0]], [sb[1]], {"op": "copy"}),
            "ln": ("scalar", "activation", [sb[0]], [sb[1]], {"op": "log"}),
            "exp": ("scalar", "activation", [sb[0]], [sb[1]], {"op": "exp"}),
            "add": ("vector", "tensor_tensor", sb, [sb[0]], {"op": "add"}),
            "select": ("gpsimd", "affine_select", [sb[0]], [sb[1]], {}),
        }[form]
        events.append(
            Event(
                len(events),
                0,
                engine,
                "sync" if engine == "dma" else engine,
                opcode,
                tuple(reads),
                tuple(writes),
                "k",
                1,
                attrs,
            )
        )
    return events


STEPS = st.lists(
    st.tuples(st.sampled_from(FORMS), st.integers(0, 5), st.integers(0, 5), st.sampled_from((16, 128, 512))),
    min_size=1,
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from(CHIP_NAMES), st.sampled_from(ORDERS))
def test_no_instruction_starts_before_what_it_needs_is_there(steps, name, window):
    events = build(steps)
    scheduled = schedule(events, get_chip(name), window=window)
    for edge in dependencies(events, reorder=True):
        if edge.kind == WAR:
            ready = (
                scheduled.done_ns[edge.producer] if events[edge.producer].engine == "dma" else scheduled.free_ns[edge.producer]
            )
        elif edge.kind == 1 and events[edge.producer].engine == events[edge.consumer].engine != "dma":
            ready = scheduled.free_ns[edge.producer]  # the same engine writes in order
        else:
            ready = scheduled.done_ns[edge.producer]
        assert scheduled.start_ns[edge.consumer] >= ready - 1e-6, edge


@pytest.mark.parametrize("name", CHIP_NAMES)
@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
@example(steps=[("ln", 0, 0, 16), ("evict_scalar", 1, 0, 16), ("matmul", 0, 1, 16)])  # the older result comes later on trn3
def test_program_order_needs_no_edge_that_is_left_out(name, steps):
    """The edges that a reordering scheduler needs, all pairs that conflict, lead to the same times."""
    events, chip = build([*steps, ("exp", 0, 1, 16), ("copy", 0, 2, 16), ("copy", 1, 2, 16)]), get_chip(name)
    found, plain = (run_in_program_order(prepare(events, chip, reorder=every)) for every in (False, True))
    assert found.start.tolist() == plain.start.tolist()
    assert found.done.tolist() == plain.done.tolist()


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from(CHIP_NAMES), st.sampled_from(ORDERS))
def test_an_engine_runs_one_instruction_at_a_time(steps, name, window):
    events = build(steps)
    scheduled = schedule(events, get_chip(name), window=window)
    for engine in {(event.engine, event.queue) for event in events}:
        mine = [i for i, event in enumerate(events) if (event.engine, event.queue) == engine]
        order = sorted(mine, key=lambda i: scheduled.start_ns[i])
        for before, after in pairwise(order):
            assert scheduled.start_ns[after] >= scheduled.free_ns[before] - 1e-6
        if window in (None, 1):
            assert order == mine


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(0, 59), st.sampled_from(CHIP_NAMES))
def test_removing_an_instruction_never_makes_another_start_later_in_program_order(steps, position, name):
    position %= len(steps)
    chip = get_chip(name)
    full, less = build(steps), build(steps[:position] + steps[position + 1 :])
    before = np.delete(schedule(full, chip, window=None).start_ns, position)
    after = schedule(less, chip, window=None).start_ns
    assert (after <= before + 1e-6).all()


@pytest.mark.parametrize("window", ORDERS)
@pytest.mark.parametrize("name", CHIP_NAMES)
def test_results_of_one_engine_land_in_order(name, window):
    """A slow function, a quick copy over its result, a transfer over that: what is read is the copy's, and lands last."""
    chip = get_chip(name)
    for columns in (16, 64, 512):
        steps = [("load", 0, 0, 16), ("ln", 0, 5, 16), ("copy", 0, 5, columns), ("load", 0, 5, 16)]
        scheduled = schedule(build(steps), chip, window=window)
        assert scheduled.done_ns[2] >= scheduled.done_ns[1]
        assert scheduled.start_ns[3] >= scheduled.done_ns[1]
        without = schedule(build(steps[:2] + steps[3:]), chip, window=window)
        assert without.start_ns[-1] <= scheduled.start_ns[-1]


@pytest.mark.parametrize("name", CHIP_NAMES)
def test_only_a_quicker_overwrite_waits_for_a_result_below_it(name):
    """What is as slow as the older result, or lies beside it, starts when its engine is free."""
    for steps in ([("ln", 0, 5, 16), ("copy", 0, 4, 16)], [("ln", 0, 5, 16), ("ln", 0, 5, 16)]):
        scheduled = schedule(build([("load", 0, 0, 16), *steps]), get_chip(name), window=None)
        assert scheduled.start_ns[2] == scheduled.free_ns[1]


@settings(max_examples=40, deadline=None)
@given(STEPS, st.sampled_from(CHIP_NAMES))
def test_wider_instructions_never_end_earlier_in_program_order(steps, name):
    chip = get_chip(name)
    wide = [(form, a, b, 512) for form, a, b, _ in steps]
    assert schedule(build(wide), chip, window=None).total_ns >= schedule(build(steps), chip, window=None).total_ns - 1e-6


def test_vector_and_scalar_take_turns_at_psum_on_trn1_only():
    steps = [
        ("load", 0, 0, 512),
        ("matmul", 0, 0, 512),
        ("matmul", 0, 1, 16),
        ("evict_scalar", 2, 0, 512),
        ("evict_vector", 3, 1, 16),
    ]
    for name, overlap in (("trn1", False), ("trn2", True), ("trn3", True)):
        scheduled = schedule(build(steps), get_chip(name))
        assert (scheduled.start_ns[4] < scheduled.free_ns[3]) == overlap


def test_memory_is_reused_only_when_its_last_reader_has_finished():
    """Nine tiles of one PSUM bank each: the ninth waits for the first to be read, and says so."""
    events = []
    for i in range(9):
        sbuf = Buffer(100 + i, "sbuf", "s", (128, 512), as_dtype("bfloat16"), 0, "scratch", None, "", 0)
        psum = Buffer(200 + i, "psum", "p", (128, 512), as_dtype("float32"), 0, "scratch", None, "", 0)
        whole = lambda buffer: Region(buffer, buffer.dtype, 0, buffer.shape, row_major(buffer.shape))  # noqa: E731
        events.append(
            Event(len(events), 0, "tensor", "tensor", "nc_matmul", (whole(sbuf), whole(sbuf)), (whole(psum),), "k", 1, {})
        )
        events.append(Event(len(events), 0, "vector", "vector", "reciprocal", (whole(psum),), (whole(sbuf),), "k", 2, {}))
    scheduled = schedule(events, get_chip("trn2"))
    ninth = 16
    assert scheduled.start_ns[ninth] >= scheduled.free_ns[1]
    assert scheduled.reasons()[ninth] == "memory"
    assert scheduled.high_water_bytes[0, "psum"] == 8 * 2048


def test_a_pinned_order_is_kept():
    steps = [("load", 0, 0, 512), ("load", 0, 1, 512), ("exp", 1, 2, 512), ("exp", 3, 4, 16)]
    free = build(steps)
    pinned = [replace(event, attrs={**event.attrs, "no_reorder": True}) for event in free]
    hoisted, kept = (schedule(events, get_chip("trn1"), window=8).start_ns for events in (free, pinned))
    as_written = schedule(pinned, get_chip("trn1"), window=1).start_ns
    assert list(as_written) == sorted(as_written)
    assert hoisted[3] < hoisted[2]
    assert kept[3] > kept[2]


def test_overflow_in_program_order_is_an_error_by_name():
    tiles = [Buffer(i, "psum", "p", (128, 512), as_dtype("float32"), 0, "scratch", None, "", 0) for i in range(9)]
    regions = [Region(tile, tile.dtype, 0, tile.shape, row_major(tile.shape)) for tile in tiles]
    writes = [Event(i, 0, "vector", "vector", "memset", (), (regions[i],), "k", 1, {}) for i in range(9)]
    reads = [Event(9 + i, 0, "vector", "vector", "tensor_copy", (regions[i],), (regions[i],), "k", 1, {}) for i in range(9)]
    for window in (None, 8):
        with pytest.raises(MemoryError, match="psum overflows"):
            schedule([*writes, *reads], get_chip("trn2"), window=window, overflow="error")


def test_the_fixed_cost_of_a_kernel_is_in_the_total():
    assert schedule([], get_chip("trn2")).total_ns == get_chip("trn2").kernel_fixed_ns


def _barrier_kernel(x):
    """Core 0 works long before the barrier, core 1 hardly; both read what was shared after it."""
    core = nl.program_id(0)
    shared = nl.ndarray((2, 128, 512), nl.float32, buffer=nl.shared_hbm)
    tile = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    for _ in range(20 if core == 0 else 1):
        nisa.reciprocal(dst=tile, data=tile)
    nisa.dma_copy(dst=shared[core], src=tile)
    nisa.core_barrier(shared, (0, 1))
    nisa.dma_copy(dst=tile, src=shared[1 - core])
    out = nl.ndarray((2, 128, 512), nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out[core], src=tile)
    return out


@pytest.mark.parametrize("window", ORDERS)
def test_no_core_passes_a_barrier_before_the_other_has_reached_it(window):
    options = SimOptions(chip=get_chip("trn2"), values=False)
    events = launch(_barrier_kernel, (np.zeros((128, 512), np.float32),), options=options, lnc=2).events
    scheduled = schedule(events, get_chip("trn2"), window=window)
    barrier = {event.core: i for i, event in enumerate(events) if event.opcode == "core_barrier"}
    work = {core: [i for i, e in enumerate(events) if e.core == core and e.opcode == "reciprocal"] for core in (0, 1)}
    assert scheduled.done_ns[work[0][-1]] > scheduled.done_ns[work[1][-1]] + 10_000
    stored = [i for i, e in enumerate(events) if e.core == 0 and e.opcode == "dma_copy"][1]
    first_after = [i for i, e in enumerate(events) if e.core == 1 and e.opcode == "dma_copy"][2]
    assert scheduled.start_ns[barrier[1]] >= scheduled.done_ns[stored]
    assert scheduled.start_ns[first_after] >= scheduled.done_ns[stored]


LADDER = [(name, size) for size in (512, 1024, 2048) for name in ("v4", "v5", "v7", "v8", "v11") if size < 2048 or name == "v5"]


@pytest.mark.parametrize("window", [None, 64])
@pytest.mark.parametrize(("name", "size"), LADDER)
def test_memory_in_use_never_exceeds_what_the_chip_has(name, size, window):
    """Sum over the buffers of each moment from their own first to last instruction in time, against the documented size."""
    chip = get_chip("trn1")
    scheduled = schedule(events_of(name, size, chip), chip, window=window)
    span: dict = {}
    for i, event in enumerate(scheduled.events):
        last = scheduled.done_ns[i] if event.engine == "dma" else scheduled.free_ns[i]
        for region in (*event.reads, *event.writes):
            if region.buffer.space == "psum":
                begin, end, _ = span.get(region.buffer.number, (np.inf, 0.0, 0))
                banks = -(-region.buffer.bytes_per_partition // 2048)
                span[region.buffer.number] = min(begin, scheduled.start_ns[i]), max(end, last), banks * 2048
    changes = sorted(change for begin, end, size in span.values() for change in ((end, -size), (begin, size)))
    most = max(np.cumsum([change for _, change in changes]))
    assert most == scheduled.high_water_bytes[0, "psum"] <= 16384
    assert scheduled.high_water_bytes[0, "sbuf"] <= 196608


@pytest.mark.parametrize("window", [None, 64])
def test_every_writer_of_a_tile_waits_for_its_memory_not_only_the_first_in_program_order(window):
    """Eight banks are full when a ninth tile is written in halves by two engines; the second half needs nothing else."""
    make = lambda number, space: Buffer(number, space, "t", (128, 512), as_dtype("float32"), 0, "scratch", None, "", 0)  # noqa: E731
    part = lambda tile, begin, count: Region(tile, tile.dtype, begin, (128, count), (512, 1))  # noqa: E731
    banks, out, hbm, late = [make(i, "psum") for i in range(9)], make(20, "sbuf"), make(21, "hbm"), make(22, "sbuf")
    whole = [part(tile, 0, 512) for tile in banks]
    body = [("vector", "memset", (), tile) for tile in whole[:8]]
    body += [("vector", "reciprocal", (tile,), part(out, 0, 512)) for tile in whole[:8]]
    body += [("dma", "dma_copy", (part(hbm, 0, 512),), part(late, 0, 512))]
    body += [("scalar", "activation", (part(late, 0, 256),), part(banks[8], 0, 256))]
    body += [("gpsimd", "memset", (), part(banks[8], 256, 256))]
    events = [
        Event(
            i,
            0,
            engine,
            "sync" if engine == "dma" else engine,
            opcode,
            reads,
            (write,),
            "k",
            1,
            {"op": "copy", "no_reorder": True},
        )
        for i, (engine, opcode, reads, write) in enumerate(body)
    ]
    scheduled = schedule(events, get_chip("trn2"), window=window)
    first_bank_read = scheduled.free_ns[8]
    assert min(scheduled.start_ns[-2:]) >= first_bank_read
    assert scheduled.high_water_bytes[0, "psum"] == 16384


@pytest.mark.parametrize("name", CHIP_NAMES)
def test_an_activation_table_is_loaded_in_the_time_before_a_long_load_too(name):
    """Removing the first exp leaves the last one's table to be loaded while Scalar waits for the DMA, not after it."""
    steps = [("exp", 3, 4, 16), ("load", 0, 0, 512), ("copy", 0, 1, 512), ("exp", 3, 5, 16)]
    chip = get_chip(name)
    plans = [schedule(build(some), chip, window=None).start_ns for some in (steps, steps[1:])]
    assert plans[1][-1] == plans[0][-1]
    alone = schedule(build(steps[-1:]), chip, window=None)
    assert alone.start_ns[0] == chip.kernel_fixed_ns + chip.scalar_table_load_ns


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from(CHIP_NAMES), st.sampled_from((1, 3, 8, 64)), st.sets(st.integers(0, 59)))
def test_a_window_schedule_is_that_of_the_rules_said_plainly(steps, name, window, pinned):
    events = build(steps)
    events = [replace(e, attrs={**e.attrs, "no_reorder": True}) if i in pinned else e for i, e in enumerate(events)]
    _compare_with_plain(events, get_chip(name), window)


@pytest.mark.parametrize("window", [4, 64])
@pytest.mark.parametrize(("name", "chip"), [("v7", "trn1"), ("v8", "trn2"), ("v11", "trn1"), ("v5", "trn3")])
def test_the_schedule_of_a_kernel_short_of_memory_is_that_of_the_rules_said_plainly(name, chip, window):
    events = events_of(name, 512, get_chip(chip))
    _compare_with_plain(events, get_chip(chip), window)


def _compare_with_plain(events, chip, window):
    work = prepare(events, chip, reorder=True)
    plain, times = PlainSchedule(work, window).resources, run_in_window(Lookahead(work, window))
    assert times.start.tolist() == plain.start
    assert times.free.tolist() == plain.free
    assert times.done.tolist() == plain.done


@pytest.mark.parametrize(("name", "chip"), [("v7", "trn2"), ("v3", "trn1"), ("v11", "trn3")])
def test_a_schedule_below_a_limit_is_the_schedule_and_is_given_up_only_if_it_ends_later(name, chip):
    work = prepare(events_of(name, 512, get_chip(chip)), get_chip(chip), reorder=True)
    whole = run_in_window(Lookahead(work, 64))
    end = float(whole.done.max())
    given_up = []
    for share in (0.1, 0.5, 0.9, 1.0, 1.5):
        found = run_in_window_below(Lookahead(work, 64), share * end)
        if found is None:
            given_up.append(share)
        else:
            assert np.array_equal(found.start, whole.start)
            assert np.array_equal(found.done, whole.done)
    assert 0.1 in given_up  # no engine can do all of its work in a tenth of the time
    assert not {1.0, 1.5} & set(given_up)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from(CHIP_NAMES), st.sampled_from((1, 8, 64)), st.floats(0.1, 1.5))
def test_a_small_kernel_below_a_limit_is_its_schedule_and_is_given_up_only_if_it_ends_later(steps, name, window, share):
    work = prepare(build(steps), get_chip(name), reorder=True)
    whole = run_in_window(Lookahead(work, window))
    end = float(whole.done.max())
    for limit in (share * end, end):
        found = run_in_window_below(Lookahead(work, window), limit)
        if found is None:
            assert end > limit
        else:
            assert found.start.tolist() == whole.start.tolist()
            assert found.done.tolist() == whole.done.tolist()
