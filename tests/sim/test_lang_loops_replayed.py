"""Loops of run time are recorded once and run as often as the registers say: fresh, replayed, on shapes alone, in time."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from nki_hf.chips import get_chip
from nki_hf.errors import KernelFault
from nki_hf.observers.races import races
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from nki_hf.sim.faults import SimulatorWarning
from nki_hf.timing.schedule import schedule
from tests.support.run_time_loops import KERNELS, MOST, ROWS, WIDTH, expected, inputs, loaded, output

TRIPS = (0, 1, 7)


def stored(tile):
    out = output(tile.shape, tile.dtype)
    nisa.dma_copy(dst=out, src=tile)
    return out


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("recorded", TRIPS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_replay_of_other_trip_counts_equals_a_fresh_run(kernel, recorded, rng):
    x, count = inputs(rng, recorded)
    result = launch(kernel, (x, count), options=SimOptions(record=True))
    np.testing.assert_allclose(result.outputs[0], expected(x, recorded), rtol=1e-5, atol=1e-5)
    for trips in (*TRIPS, MOST):
        other, count = inputs(rng, trips)
        fresh = launch(kernel, (other, count)).outputs[0]
        np.testing.assert_allclose(fresh, expected(other, trips), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(result.program({"x": other, "count": count})[0], fresh)


@pytest.mark.parametrize("kernel", KERNELS)
def test_times_rise_with_the_trip_count_and_shapes_alone_give_the_same(kernel, rng):
    chip, times = get_chip("trn2"), []
    for trips in TRIPS:
        events = launch(kernel, inputs(rng, trips)).events
        options = SimOptions(values=False, trip_counts=trips)
        shapes = launch(kernel, inputs(rng, 3), options=options).events
        assert [(e.opcode, e.line, e.queue) for e in events] == [(e.opcode, e.line, e.queue) for e in shapes]
        assert [e.index for e in events] == list(range(len(events)))
        for window in (None, 64):
            assert schedule(events, chip, window=window).total_ns == schedule(shapes, chip, window=window).total_ns
        times.append(schedule(events, chip).total_ns)
        assert not races(events)
    for fewer, more, turns in ((0, 1, 1), (1, 2, 6)):
        assert times[more] - times[fewer] >= turns * chip.loop_turn_ns
    entry = next(e for e in events if e.opcode == "loop_entry")
    assert entry.engine == "sync"
    assert sum(e.opcode == "loop_turn" for e in events) == TRIPS[-1]


@pytest.mark.parametrize(
    "bounds",
    [lambda: (0, 5), lambda: (nisa.register_alloc(2), 7), lambda: (0, _moved(5)), lambda: (0, nl.NkiScalar(2) * 3 - 1)],
)
def test_trip_counts_that_follow_from_constants_need_not_be_given(bounds):
    def kernel():
        nl.fori_loop(*bounds(), lambda i: nisa.memset(dst=nl.ndarray((16, 8), nl.float32), value=0.0))

    for options in (SimOptions(values=False), SimOptions()):
        assert sum(e.opcode == "memset" for e in launch(kernel, (), options=options).events) == 5


def _moved(value):
    first, second = nisa.register_alloc(99), nisa.register_alloc()
    nisa.register_move(first, value)
    nisa.register_move(second, first)
    return second


def triangle(x, count):
    """Row sums of a triangle: for i < count: for j < i + 1: out[i] += x[j]; loops within loops."""
    out, n = output(x.shape), loaded(count)
    nisa.dma_copy(dst=out, src=x)

    def outer(i):
        total = nl.ndarray((ROWS, WIDTH), nl.float32)
        nisa.memset(dst=total, value=0.0)

        def inner(j):
            tile = nl.ndarray((ROWS, WIDTH), nl.float32)
            nisa.dma_copy(dst=tile, src=x.select(0, j))
            nisa.tensor_tensor(dst=total, data1=total, data2=tile, op=nl.add)

        above = nl.ndarray((1, 1), nl.int32)
        nisa.register_store(above, i)
        nisa.tensor_scalar(dst=above, data=above, op0=nl.add, operand0=1.0)
        nl.fori_loop(0, nisa.scalar_load(above), inner)
        nisa.dma_copy(dst=out.select(0, i), src=total)

    nl.fori_loop(0, n, outer)
    return out


@pytest.mark.parametrize("recorded", TRIPS)
def test_loops_may_stand_in_loops_with_bounds_of_the_outer_index(recorded, rng):
    x, count = inputs(rng, recorded)
    result = launch(triangle, (x, count), options=SimOptions(record=True))
    np.testing.assert_allclose(result.outputs[0], expected(x, recorded), rtol=1e-5, atol=1e-5)
    assert sum(e.opcode == "loop_entry" for e in result.events) == 1 + recorded
    assert sum(e.opcode == "loop_turn" for e in result.events) == recorded + recorded * (recorded + 1) // 2
    for trips in TRIPS:
        other, count = inputs(rng, trips)
        fresh = launch(triangle, (other, count)).outputs[0]
        np.testing.assert_allclose(fresh, expected(other, trips), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(result.program({"x": other, "count": count})[0], fresh)
    events = launch(triangle, (x, count), options=SimOptions(values=False, trip_counts={"outer": 3, "inner": 2})).events
    assert sum(e.opcode == "loop_turn" for e in events) == 3 + 3 * 2


def work_list(q, k, items, count):
    """Products of the tiles that a list in HBM names: q tile, k tile, and where the result goes; per core a list of its own."""
    core = nl.program_id(0)
    out = output((8, 16, 16))
    if core == 0:
        zero = nl.zeros((16, 16), nl.float32)
        for place in range(8):
            nisa.dma_copy(dst=out[place], src=zero)
    n = loaded(count[core : core + 1])

    def body(i):
        entry = nl.ndarray((1, 4), nl.int32)
        nisa.dma_copy(dst=entry, src=items[core].expand_dim(1)[i].expand_dim(1).reshape((1, 4)))
        iq, ik, place = (loaded(entry[:, c : c + 1]) for c in range(3))
        left, right = nl.ndarray((32, 16), nl.float32), nl.ndarray((32, 16), nl.float32)
        nisa.dma_copy(dst=left, src=q[iq])
        nisa.dma_copy(dst=right, src=k[ik])
        product = nl.ndarray((16, 16), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=product, stationary=left, moving=right)
        staged = nl.ndarray((16, 16), nl.float32)
        nisa.tensor_copy(dst=staged, src=product)
        nisa.dma_copy(dst=out[place], src=staged)

    nl.fori_loop(0, n, body)
    return out


@pytest.mark.parametrize("recorded", [(0, 0), (2, 1), (4, 4)])
def test_a_work_list_of_run_time_drives_dmas_and_tiles_on_two_cores(recorded, rng):
    def case(counts):
        q, k = (rng.standard_normal((6, 32, 16)).astype(np.float32) for _ in range(2))
        items = np.zeros((2, 4, 4), np.int32)
        places = rng.permutation(8)
        for core in range(2):
            for i in range(4):
                items[core, i, :3] = rng.integers(0, 6), rng.integers(0, 6), places[4 * core + i]
        want = np.zeros((8, 16, 16))
        for core in range(2):
            for iq, ik, place, _ in items[core, : counts[core]]:
                want[place] = q[iq].astype(np.float64).T @ k[ik]
        return {"q": q, "k": k, "items": items, "count": np.array(counts, np.int32).reshape(2, 1)}, want

    arguments, want = case(recorded)
    result = launch(work_list, (), arguments, options=SimOptions(record=True), lnc=2)
    np.testing.assert_allclose(result.outputs[0], want, rtol=1e-5, atol=1e-5)
    for counts in ((0, 0), (1, 4), (4, 0), (3, 2)):
        arguments, want = case(counts)
        fresh = launch(work_list, (), arguments, lnc=2).outputs[0]
        np.testing.assert_allclose(fresh, want, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(result.program(arguments)[0], fresh)
    shapes = launch(work_list, (), arguments, options=SimOptions(values=False, trip_counts={"body": 2}), lnc=2).events
    assert sum(e.opcode == "nc_matmul" for e in shapes) == 4
    assert schedule(shapes, get_chip("trn2")).total_ns > 2 * 9_000


@pytest.mark.filterwarnings("ignore:nc_matmul")
@pytest.mark.parametrize("where", ["outside", "inside"])
@pytest.mark.parametrize("accumulate", [None, True, False])
def test_a_product_in_a_loop_adds_to_what_an_earlier_turn_wrote_to_the_same_tile(accumulate, where, rng):
    """accumulate=None: the first write of a tile overwrites, later ones add; a tile of the body is new in each turn."""
    x = rng.standard_normal((MOST, 32, 16)).astype(np.float32)

    def kernel(x, count):
        outer = nl.ndarray((16, 16), nl.float32, buffer=nl.psum)
        result = nl.zeros((16, 16), nl.float32)
        if accumulate is True:
            zero = nl.zeros((32, 16), nl.float32)
            nisa.nc_matmul(dst=outer, stationary=zero, moving=zero)
        for i in nl.dynamic_range(loaded(count)):
            tile = nl.ndarray((32, 16), nl.float32)
            nisa.dma_copy(dst=tile, src=x[i])
            psum = outer if where == "outside" else nl.ndarray((16, 16), nl.float32, buffer=nl.psum)
            adds = accumulate if where == "outside" or accumulate is not True else None
            nisa.nc_matmul(dst=psum, stationary=tile, moving=tile, accumulate=adds)
            nisa.tensor_copy(dst=result, src=psum)
        return stored(result)

    with warnings.catch_warnings(record=True) as caught:  # a body is compiled once: what None means there is an open choice
        warnings.simplefilter("always")
        program = launch(kernel, (x, np.array([[2]], np.int32)), options=SimOptions(record=True)).program
    assert [issubclass(item.category, SimulatorWarning) for item in caught] == [True] * (
        accumulate is None and where == "outside"
    )
    products = np.einsum("nkm,nkl->nml", x.astype(np.float64), x.astype(np.float64))
    sums = where == "outside" and accumulate is not False
    for trips in (1, 2, 5):
        want = products[:trips].sum(0) if sums else products[trips - 1]
        count = np.array([[trips]], np.int32)
        np.testing.assert_allclose(launch(kernel, (x, count)).outputs[0], want, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(program({"x": x, "count": count})[0], want, rtol=1e-4, atol=1e-4)


def test_engine_state_goes_on_from_turn_to_turn(rng):
    """The accumulator registers and the random numbers are set before the loop, not in each turn."""
    x = rng.standard_normal((MOST, ROWS, WIDTH)).astype(np.float32)

    def kernel(x, count):
        total, numbers = nl.zeros((ROWS, 1), nl.float32), nl.zeros((ROWS, 4), nl.uint32)
        out = output((MOST, ROWS, 4), nl.uint32)
        for place in range(MOST):
            nisa.dma_copy(dst=out[place], src=numbers)
        for i in nl.dynamic_range(loaded(count)):
            tile = nl.ndarray((ROWS, WIDTH), nl.float32)
            nisa.dma_copy(dst=tile, src=x[i])
            nisa.activation(
                dst=tile, op=nl.copy, data=tile, reduce_op=nl.add, reduce_res=total, reduce_cmd=nisa.reduce_cmd.reduce
            )
            nisa.rng(dst=numbers, engine=nisa.engine.vector)
            nisa.dma_copy(dst=out[i], src=numbers)
        return stored(total), out

    result = launch(kernel, (x, np.array([[3]], np.int32)), options=SimOptions(record=True))
    for trips in (1, 3, 8):
        count = np.array([[trips]], np.int32)
        fresh = launch(kernel, (x, count)).outputs
        np.testing.assert_allclose(fresh[0][:, 0], x[:trips].astype(np.float64).sum((0, 2)), rtol=1e-5, atol=1e-5)
        assert len({row.tobytes() for row in fresh[1][:trips]}) == trips
        for have, want in zip(result.program({"x": x, "count": count}), fresh, strict=True):
            np.testing.assert_array_equal(have, want)


def test_a_tile_that_the_body_drops_is_not_reused_within_the_loop(rng):
    """Its bytes are read again in the next turn."""
    x = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)

    def kernel(x, count):
        tiles = [nl.load(x)]
        total = nl.zeros((ROWS, WIDTH), nl.float32)
        for _ in nl.dynamic_range(loaded(count)):
            nisa.tensor_tensor(dst=total, data1=total, data2=tiles.pop(), op=nl.add)
            other = nl.ndarray((ROWS, WIDTH), nl.float32)
            nisa.memset(dst=other, value=5.0)
        return stored(total)

    have = launch(kernel, (x, np.array([[3]], np.int32))).outputs[0]
    np.testing.assert_allclose(have, 3 * x.astype(np.float64), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("trips", [0, 1, 4])
def test_tiles_of_a_body_stay_for_all_turns(trips):
    """Documented: they are allocated once and reused; unrolled, these three would follow one another in the same bytes."""

    def kernel(count, unrolled):
        for _ in range(2) if unrolled else nl.dynamic_range(loaded(count)):
            for _ in range(3):  # 100 KiB of each partition
                nisa.memset(dst=nl.ndarray((128, 25_600), nl.float32), value=0.0)

    arguments, options = (np.array([[trips]], np.int32),), SimOptions(values=False, trip_counts=trips)
    launch(kernel, (*arguments, True), options=options)
    with pytest.raises(KernelFault, match=r"SBUF overflow: 307,200 B"):
        launch(kernel, (*arguments, False), options=options)


def test_a_loop_whose_tiles_are_spilled_keeps_its_barriers():
    def kernel(count):
        kept = [nl.zeros((128, 14_000), nl.float32) for _ in range(5)]  # 56,000 B of each partition
        sums = nl.ndarray((128, 1), nl.float32)
        for _ in nl.dynamic_range(loaded(count)):
            for tile in kept:
                nisa.tensor_reduce(dst=sums, op=nl.add, data=tile, axis=1)
        return stored(sums)

    chip = get_chip("trn2")
    events = launch(kernel, (np.array([[3]], np.int32),), options=SimOptions(checks=False)).events
    for window in (None, 64):
        scheduled = schedule(events, chip, window=window)
        assert scheduled.spills.stores > 0
        turns = [i for i, event in enumerate(scheduled.events) if event.opcode == "loop_turn"]
        assert len(turns) == 3
        done = scheduled.done_ns
        for i, event in enumerate(scheduled.events):
            for producer in event.attrs.get("depends_on", ()):
                assert producer < i
                assert scheduled.start_ns[i] >= done[producer]
        for turn in turns:
            assert {scheduled.events[i].opcode for i in scheduled.events[turn].attrs["depends_on"]} >= {"tensor_reduce"}


def test_dependencies_named_in_a_body_hold_in_every_turn():
    def kernel():
        first = nisa.memset(dst=nl.ndarray((16, 8), nl.float32), value=0.0)

        def body(i):
            second = nisa.memset(dst=nl.ndarray((16, 8), nl.float32), value=1.0)
            nisa.memset(dst=nl.ndarray((16, 8), nl.float32), value=2.0).depends_on(first, second)

        nl.fori_loop(0, 3, body)
        nisa.memset(dst=nl.ndarray((16, 8), nl.float32), value=3.0)

    events = launch(kernel, ()).events
    opcodes = [event.opcode for event in events]
    assert opcodes == ["memset", "loop_entry", *["memset", "memset", "loop_turn"] * 3, "memset"]
    entry, turns = 1, [4, 7, 10]
    assert events[entry].attrs["depends_on"] == (0,)
    for turn, barrier in zip(turns, [entry, *turns], strict=False):
        assert set(events[turn - 2].attrs["depends_on"]) == {barrier}
        assert set(events[turn - 1].attrs["depends_on"]) == {0, turn - 2, barrier}
        assert set(events[turn].attrs["depends_on"]) == {barrier, turn - 2, turn - 1}
    assert events[-1].attrs["depends_on"] == (10,)


def test_rows_are_loaded_and_stored_by_the_index_of_a_body(rng):
    x = rng.standard_normal((MOST, ROWS, WIDTH)).astype(np.float32)

    def kernel(x, count):
        out = output(x.shape)
        out[:, :, :] = x
        for i in nl.dynamic_range(1, loaded(count), 2):
            tile = nl.load(x[i])
            out[i] = nl.multiply(tile, 2.0)
        return out

    program = launch(kernel, (x, np.array([[4]], np.int32)), options=SimOptions(record=True)).program
    for stop in (0, 2, 7, 8):
        want = x.copy()
        want[1:stop:2] *= 2
        np.testing.assert_array_equal(program({"x": x, "count": np.array([[stop]], np.int32)})[0], want)


@pytest.mark.parametrize("recorded", TRIPS)
def test_offsets_are_computed_from_the_index_in_every_turn(recorded, rng):
    """Arithmetic of scalars in the body: rows 2 i + 1 of x, columns from 3 i on, into SBUF at 4 i."""
    x = rng.standard_normal((20, 32)).astype(np.float32)

    def kernel(x, count):
        gathered = nl.zeros((1, 64), nl.float32)

        def body(i):
            row = x.ap([[1, 1], [1, 4]], scalar_offset=(2 * i + 1) * 32 + i * 3, indirect_dim=1)
            nisa.dma_copy(dst=gathered.ap([[64, 1], [1, 4]], scalar_offset=4 * i, indirect_dim=1), src=row)

        nl.fori_loop(0, nisa.scalar_load(count), body)
        return stored(gathered)

    program = launch(kernel, (x, np.array([[recorded]], np.int32)), options=SimOptions(record=True)).program
    for trips in TRIPS:
        want = np.zeros((1, 64), np.float32)
        for i in range(trips):
            want[0, 4 * i : 4 * i + 4] = x.reshape(-1)[(2 * i + 1) * 32 + 3 * i :][:4]
        np.testing.assert_array_equal(program({"x": x, "count": np.array([[trips]], np.int32)})[0], want)


@pytest.mark.parametrize(
    ("view", "pick"),
    [
        (lambda t, r: t[r], lambda x, i: x[i]),
        (lambda t, r: t[..., r], lambda x, i: x[..., i]),
        (lambda t, r: t[:, r, 2:6], lambda x, i: x[:, i, 2:6]),
        (lambda t, r: t[nl.ds(r, 2)], lambda x, i: x[i : i + 2]),
        (lambda t, r: t[1, :, nl.ds(r, 3)], lambda x, i: x[1, :, i : i + 3]),
    ],
)
def test_a_register_in_a_subscript_moves_the_view_in_every_replay(view, pick, rng):
    x = rng.standard_normal((6, 8, 10)).astype(np.float32)

    def kernel(x, index):
        part = view(x, loaded(index))
        out = output(part.shape)
        nisa.dma_copy(dst=out, src=part)
        return out

    program = launch(kernel, (x, np.array([[0]], np.int32)), options=SimOptions(record=True)).program
    for i in (0, 1, 4):
        np.testing.assert_array_equal(program({"x": x, "index": np.array([[i]], np.int32)})[0], pick(x, i))
    for i in (-1, 10):
        with pytest.raises(KernelFault, match="leaves"):
            launch(kernel, (x, np.array([[i]], np.int32)))
