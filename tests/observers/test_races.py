"""Races: the verdict follows from which orderings are present, for every combination of them."""

import contextlib
import inspect
import itertools

import numpy as np
import pytest

from nki_hf.chips import get_chip
from nki_hf.errors import KernelFault
from nki_hf.observers.races import Trust, check_races, races
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl

X = np.ones((2, 128, 64), np.float32)
SHAPES = SimOptions(values=False)


def line_of(function, text, occurrence=0):
    lines, first = inspect.getsourcelines(function)
    return first + [i for i, line in enumerate(lines) if text in line][occurrence]


def events_of(kernel, *args, lnc=2):
    return launch(kernel, args, options=SHAPES, lnc=lnc).events


def exchange(x, barrier, right_data, own_half, after_write):
    """Each core writes its half of `shared` and reads a half back; a barrier may be missing, misplaced or on other data."""
    shared = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="shared")
    other = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="other")
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
    core = nl.program_id(0)
    tile = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[core])
    nisa.dma_copy(dst=other[core], src=tile)
    if barrier and not after_write:
        nisa.core_barrier(data=shared if right_data else other, cores=(0, 1))
    nisa.dma_copy(dst=shared[core], src=tile)
    if barrier and after_write:
        nisa.core_barrier(data=shared if right_data else other, cores=(0, 1))
    back = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=back, src=shared[core if own_half else 1 - core])
    nisa.dma_copy(dst=out[core], src=back)
    return out


FLAGS = list(itertools.product([False, True], repeat=4))


@pytest.mark.parametrize(("barrier", "right_data", "own_half", "after_write"), FLAGS)
def test_cores_that_read_each_others_writes_need_a_barrier_on_that_data_after_the_write(
    barrier, right_data, own_half, after_write
):
    safe = own_half or (barrier and right_data and after_write)
    events = events_of(exchange, X, barrier, right_data, own_half, after_write)
    found = races(events)
    assert bool(found) == (not safe)
    for race in found:
        assert race.cause == "cores"
        assert {race.first_region.buffer.name, race.second_region.buffer.name} == {"shared"}
        assert {race.first.line, race.second.line} == {line_of(exchange, "dst=shared[core]"), line_of(exchange, "dst=back")}
        assert race.first.core != race.second.core
    if not safe:
        with pytest.raises(KernelFault, match=r"missing: core_barrier\(data=shared, cores=\(0, 1\)\)") as caught:
            check_races(events)
        record = caught.value.record
        assert (record.kind, record.file) == ("race", __file__)
        assert {record.details["first"]["core"], record.details["second"]["core"]} == {0, 1}


@pytest.mark.parametrize("barrier", [False, True])
@pytest.mark.parametrize("second_barrier", [False, True])
def test_reusing_the_buffer_needs_a_second_barrier(barrier, second_barrier):
    def kernel(x):
        shared = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        core = nl.program_id(0)
        for _ in range(2):
            tile = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=x[core])
            nisa.dma_copy(dst=shared[core], src=tile)
            if barrier:
                nisa.core_barrier(data=shared, cores=(0, 1))
            back = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=back, src=shared[1 - core])
            nisa.dma_copy(dst=out[core], src=back)
            if second_barrier:
                nisa.core_barrier(data=shared, cores=(0, 1))
        return out

    # Without the second barrier, the write of round 2 may overtake the other core's read of round 1, and the reverse.
    assert bool(races(events_of(kernel, X))) == (not (barrier and second_barrier))


def test_cores_that_write_the_same_bytes_race_and_disjoint_writers_do_not():
    def kernel(x, same):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[0])
        nisa.dma_copy(dst=out[0 if same else nl.program_id(0)], src=tile)
        return out

    assert races(events_of(kernel, X, False)) == []
    (race,) = races(events_of(kernel, X, True))
    assert "the write of" in str(race)
    assert str(race).count("races.py") >= 2  # both source lines


@pytest.mark.parametrize("through", ["sendrecv", "nothing"])
def test_an_exchange_of_the_value_orders_what_follows_from_it(through):
    """Core 1 reads `flag` data only after core 0's tile, read back from it, arrived by sendrecv."""

    def kernel(x):
        shared = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        core = nl.program_id(0)
        mine = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
        theirs = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=mine, src=x[core])
        if core == 0:
            nisa.dma_copy(dst=shared[0], src=mine)
            nisa.dma_copy(dst=mine, src=shared[0])
        if through == "sendrecv":
            nisa.sendrecv(src=mine, dst=theirs, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
        if core == 1:
            nisa.dma_copy(dst=shared[0], src=theirs if through == "sendrecv" else mine)
        nisa.dma_copy(dst=out[core], src=mine)
        return out

    assert bool(races(events_of(kernel, X))) == (through == "nothing")


def rotate(x, shared_address, read_before, waits):
    """A tile is written over another one's bytes after (or before) that one was read by another engine."""
    out = nl.ndarray((128, 64), nl.float32, buffer=nl.shared_hbm)
    first = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf, name="first", address=(0, 0))
    nisa.dma_copy(dst=first, src=x)
    copy = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
    read = nisa.activation(dst=copy, op=nl.copy, data=first) if read_before else None
    second = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf, name="second", address=(0, 0 if shared_address else 256))
    write = nisa.memset(dst=second, value=0.0, engine=nisa.engine.vector)
    if waits and read is not None:
        write.depends_on(read)
    nisa.dma_copy(dst=out, src=second)
    return out


@pytest.mark.parametrize("shared_address", [False, True])
@pytest.mark.parametrize("read_before", [False, True])
@pytest.mark.parametrize("waits", [False, True])
def test_rotating_addresses_is_a_race_only_if_the_compiler_is_not_trusted_with_it(shared_address, read_before, waits):
    events = events_of(rotate, X[0], shared_address, read_before, waits, lnc=1)
    assert races(events) == []
    found = races(events, trust=Trust(addresses=False))
    # The write waits for the read, which waited for the load: then both conflicts with `first` are ordered.
    assert bool(found) == (shared_address and not (waits and read_before))
    for race in found:
        assert race.cause == "addresses"
        assert race.second.line == line_of(rotate, "nisa.memset")
        assert (race.first_region.buffer.name, race.second_region.buffer.name) == ("first", "second")
        assert "depends_on" in str(race)


@pytest.mark.parametrize("same_queue", [False, True])
@pytest.mark.parametrize("waits", [False, True])
def test_hbm_written_and_read_back_is_a_race_only_between_queues_and_if_not_trusted(same_queue, waits):
    def kernel(x):
        scratch = nl.ndarray((128, 64), nl.float32, buffer=nl.private_hbm)
        out = nl.ndarray((128, 64), nl.float32, buffer=nl.shared_hbm)
        tile = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        back = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
        write = nisa.dma_copy(dst=scratch, src=tile, engine=nisa.engine.sync, dge_mode=nisa.dge_mode.hwdge)
        engine = nisa.engine.sync if same_queue else nisa.engine.scalar
        read = nisa.dma_copy(dst=back, src=scratch, engine=engine, dge_mode=nisa.dge_mode.hwdge)
        if waits:
            read.depends_on(write)
        nisa.dma_copy(dst=out, src=back)
        return out

    events = events_of(kernel, X[0], lnc=1)
    assert races(events) == []
    assert bool(races(events, trust=Trust(hbm=False))) == (not same_queue and not waits)


@pytest.mark.parametrize("waits", [False, True])
def test_run_time_indices_are_ordered_only_by_trust_or_by_hand(waits):
    def kernel(x, idx):
        table = nl.ndarray((256, 64), nl.float32, buffer=nl.private_hbm)
        out = nl.ndarray((128, 64), nl.float32, buffer=nl.shared_hbm)
        tile = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        rows = nl.ndarray((128, 1), nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=rows, src=idx)
        write = nisa.dma_copy(dst=table.ap(pattern=[[64, 128], [1, 64]], vector_offset=rows, indirect_dim=0), src=tile)
        back = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
        read = nisa.dma_copy(dst=back, src=table[0:128], engine=nisa.engine.scalar, dge_mode=nisa.dge_mode.hwdge)
        if waits:
            read.depends_on(write)
        nisa.dma_copy(dst=out, src=back)
        return out

    events = events_of(kernel, X[0], np.arange(128, dtype=np.int32).reshape(128, 1), lnc=1)
    assert races(events) == []
    assert bool(races(events, trust=Trust(indices=False))) == (not waits)


@pytest.mark.parametrize("apart", [False, True])
def test_indices_between_cores_count_as_what_they_chose(apart):
    """On shapes alone nobody knows them, and the whole tensor counts as written."""

    def kernel(x, idx):
        out = nl.ndarray((256, 64), nl.float32, buffer=nl.shared_hbm)
        tile = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        rows = nl.ndarray((128, 1), nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=rows, src=idx[nl.program_id(0)])
        nisa.dma_copy(dst=out.ap(pattern=[[64, 128], [1, 64]], vector_offset=rows, indirect_dim=0), src=tile)
        return out

    places = np.arange(256, dtype=np.int32).reshape(2, 128, 1)
    if not apart:
        places[1, 5] = 3
    with_values = SimOptions(third_party=True)
    assert bool(races(launch(kernel, (X[0], places), options=with_values, lnc=2).events)) == (not apart)
    assert races(events_of(kernel, X[0], places))


@pytest.mark.parametrize("pinned", [False, True])
def test_a_block_that_may_not_be_reordered_is_ordered(pinned):
    def kernel(x):
        out = nl.ndarray((128, 64), nl.float32, buffer=nl.shared_hbm)
        first = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf, address=(0, 0))
        second = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf, address=(0, 0))
        with nl.no_reorder() if pinned else contextlib.nullcontext():
            nisa.dma_copy(dst=first, src=x)
            nisa.memset(dst=second, value=0.0)
        nisa.dma_copy(dst=out, src=second)
        return out

    assert bool(races(events_of(kernel, X[0], lnc=1), trust=Trust(addresses=False))) == (not pinned)


def test_a_race_in_a_loop_is_one_report_with_its_count():
    def kernel(x):
        shared = nl.ndarray((4, 128, 64), nl.float32, buffer=nl.shared_hbm)
        tile = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[0])
        for i in range(4):
            nisa.dma_copy(dst=shared[i], src=tile)
        return shared

    (race,) = races(events_of(kernel, X))
    assert race.count == 4
    assert "4 pairs" in str(race)


def test_launches_on_one_core_have_no_race_between_cores():
    assert races(events_of(exchange, X[:1], False, True, True, True, lnc=1)) == []


def test_the_checks_of_two_cores_hold_on_every_chip_with_two_cores():
    for chip in ("trn2", "trn3"):
        options = SimOptions(values=False, chip=get_chip(chip))
        events = launch(exchange, (X, True, True, False, True), options=options, lnc=2).events
        assert races(events) == []


def over_rows(x, split, own_rows_first):
    """A run-time loop over tiles of rows: of its own half of them, or of all of them on both cores."""
    rows, width = x.shape
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
    core, tiles = nl.program_id(0), rows // 128
    first, last = (core * tiles // 2, (core + 1) * tiles // 2) if split else (0, tiles)

    def body(i):
        tile = nl.ndarray((128, width), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x.ap([[width, 128], [1, width]], scalar_offset=i * 128, indirect_dim=0))
        nisa.dma_copy(dst=out.ap([[width, 128], [1, width]], scalar_offset=i * 128, indirect_dim=0), src=tile)

    nl.fori_loop(first, last, body)
    if own_rows_first:
        nisa.dma_copy(dst=out, src=out)  # waits for the stores
    return out


@pytest.mark.parametrize("own_rows_first", [False, True])
@pytest.mark.parametrize("split", [False, True])
def test_what_turns_of_a_run_time_loop_choose_counts_between_cores(split, own_rows_first):
    """Halves do not meet; two cores that do all rows write the same elements by the same instructions."""
    found = races(launch(over_rows, (np.ones((512, 32), np.float32), split, own_rows_first), lnc=2).events)
    if own_rows_first and split:  # the copy of the whole reads and writes the other core's half, which may be under way
        assert found
        assert not any(race.same for race in found if len({race.first.line, race.second.line}) > 1)
    else:
        assert bool(found) == (not split)
        assert all(race.same for race in found)


def alike(x, order):
    """Both cores write `shared` and read it back."""
    shared = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="shared")
    out = nl.ndarray((2, *x.shape), x.dtype, buffer=nl.shared_hbm, name="out")
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    back = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    for step in order:
        if step == "write":
            nisa.dma_copy(dst=shared, src=tile)
        if step == "read":
            nisa.dma_copy(dst=back, src=shared)
    nisa.dma_copy(dst=out[nl.program_id(0)], src=back)
    return out


@pytest.mark.parametrize(
    ("order", "same"),
    [
        (("write", "read"), True),  # each core has written what it reads, and the other writes the same
        (("read", "write"), False),  # what is read first may be old, or the other core's
        (("write", "write", "read"), False),  # the other core may still be at its first write
        (("write", "read", "write"), False),  # or at its second one
    ],
)
def test_reads_of_what_both_cores_write_alike_are_harmless_only_after_the_own_single_write(order, same):
    found = races(launch(alike, (np.ones((128, 32), np.float32), order), lnc=2).events)
    between = [race for race in found if race.first.line != race.second.line]
    assert between
    assert all(race.same == same for race in between)
