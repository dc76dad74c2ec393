"""What two cores tell each other: exchanges, their pipes and order, memory behind a barrier, and waits without end."""

import inspect

import numpy as np
import pytest

from nki_hf.errors import KernelFault
from nki_hf.observers.races import races
from nki_hf.sim import SimOptions, jit, launch, simulate
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from nki_hf.timing.schedule import schedule


def swap(a):
    """Each core sends its half of `a [2, P, F]` to the other one and stores what it gets."""
    core = nl.program_id(0)
    mine, other = nl.load(a[core]), nl.ndarray(a.shape[1:], a.dtype)
    nisa.sendrecv(src=mine, dst=other, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    nl.store(out[core], other)
    return out


def test_sendrecv_exchanges_tiles(rng):
    a = rng.standard_normal((2, 8, 4)).astype(np.float32)
    np.testing.assert_array_equal(simulate(swap)[2](a), a[::-1])


def test_sendrecv_into_its_own_source_exchanges_too(rng):
    a = rng.standard_normal((2, 8, 4)).astype(np.float32)

    def kernel(a):
        core = nl.program_id()
        tile = nl.load(a[core])
        nisa.sendrecv(src=tile, dst=tile, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=7)
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        nl.store(out[core], tile)
        return out

    np.testing.assert_array_equal(simulate(kernel)[2](a), a[::-1])


def _total_of_both(a):
    """Both cores write partial sums to shared memory, meet, and read the sum of both."""
    core = nl.program_id()
    shared = nl.ndarray((2, 8, 1), nl.float32, buffer=nl.shared_hbm)
    nl.store(shared[core], nl.sum(nl.load(a[core]), axis=1))
    nisa.core_barrier(data=shared, cores=(0, 1))
    out = nl.ndarray((2, 8, 1), nl.float32, buffer=nl.shared_hbm)
    nl.store(out[core], nl.add(nl.load(shared[0]), nl.load(shared[1])))
    return out


def test_barrier_makes_shared_memory_visible_to_both(rng):
    a = rng.standard_normal((2, 8, 4)).astype(np.float32)
    want = a.astype(np.float64).sum((0, 2))
    for have in simulate(_total_of_both)[2](a):
        np.testing.assert_allclose(have[:, 0], want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kernel", [swap, _total_of_both])
def test_a_recorded_exchange_replays_in_the_order_of_the_run(kernel, rng):
    first, second = (rng.standard_normal((2, 8, 4)).astype(np.float32) for _ in range(2))
    program = launch(kernel, (first,), options=SimOptions(record=True), lnc=2).program
    assert len(program.actions) == 1
    np.testing.assert_array_equal(program({"a": second})[0], simulate(kernel)[2](second))


def test_events_of_an_exchange_name_their_meeting(rng):
    events = launch(swap, (rng.standard_normal((2, 8, 4)).astype(np.float32),), lnc=2).events
    met = [event for event in events if event.opcode == "sendrecv"]
    assert {event.core for event in met} == {0, 1}
    assert met[0].attrs["meeting"] == met[1].attrs["meeting"]


@pytest.mark.parametrize(("meetings", "where"), [((1, 0), "core 0 waits"), ((0, 1), "core 1 waits"), ((2, 1), "core 0 waits")])
def test_a_core_that_waits_for_one_that_returned_is_a_deadlock(meetings, where):
    def kernel(a):
        core = nl.program_id()
        tile = nl.load(a)
        for _ in range(meetings[core]):
            nisa.sendrecv(src=tile, dst=tile, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
        return a

    with pytest.raises(KernelFault, match=f"{where} in sendrecv .pipe_id 0. at .*has returned") as caught:
        simulate(kernel)[2](np.ones((4, 4), np.float32))
    assert caught.value.record.kind == "deadlock"


def test_cores_that_wait_at_different_places_are_a_deadlock_with_both_positions():
    def kernel(a):
        core = nl.program_id()
        tile = nl.load(a)
        if core == 0:
            nisa.sendrecv(src=tile, dst=tile, send_to_rank=1, recv_from_rank=1, pipe_id=3)
        else:
            shared = nl.ndarray((1,), nl.float32, buffer=nl.shared_hbm)
            nisa.core_barrier(data=shared, cores=(0, 1))
        return a

    with pytest.raises(KernelFault, match=r"core_barrier at .*:\d+ and core 0 waits in sendrecv .pipe_id 3. at .*:\d+"):
        simulate(kernel)[2](np.ones((4, 4), np.float32))


def test_an_exchange_needs_two_cores():
    with pytest.raises(KernelFault, match=r"two cores.*kernel\[2\]"):
        simulate(swap)(np.ones((2, 4, 4), np.float32))


@pytest.mark.parametrize("differs", ["shape", "dtype"])
@pytest.mark.parametrize("values", [True, False])
def test_what_two_cores_exchange_must_agree_and_the_fault_names_both_positions(differs, values):
    """Documented: the same data type, the same shape and layout."""
    lines = {}

    @jit
    def kernel(x):
        me = nl.program_id(0)
        shape = (16, 32) if me == 0 or differs == "dtype" else (32, 16)
        dtype = nl.float32 if me == 0 or differs == "shape" else nl.int32
        mine, theirs = nl.zeros(shape, dtype), nl.zeros(shape, dtype)
        if me == 0:
            lines[0] = inspect.currentframe().f_lineno + 1
            nisa.sendrecv(src=mine, dst=theirs, send_to_rank=1, recv_from_rank=1, pipe_id=0)
        else:
            lines[1] = inspect.currentframe().f_lineno + 1
            nisa.sendrecv(src=mine, dst=theirs, send_to_rank=0, recv_from_rank=0, pipe_id=0)

    with pytest.raises(KernelFault, match="must agree in dtype and shape") as caught:
        launch(kernel[2], (np.zeros((2, 2), np.float32),), options=SimOptions(values=values))
    text = str(caught.value)
    assert f"core 0 [16, 32] float32 at {__file__}:{lines[0]}" in text
    assert f"at {__file__}:{lines[1]}" in text


def _crossed(a):
    """Core 0 uses pipes 0 and 1 in this order, core 1 in the other; each pipe carries a row of its own."""
    core = nl.program_id(0)
    mine = [nl.load(a[core, pipe]) for pipe in (0, 1)]
    theirs = [nl.ndarray(a.shape[2:], a.dtype) for _ in (0, 1)]
    for pipe in (0, 1) if core == 0 else (1, 0):
        nisa.sendrecv(src=mine[pipe], dst=theirs[pipe], send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=pipe)
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    for pipe in (0, 1):
        nl.store(out[core, pipe], theirs[pipe])
    return out


def _crossed_into_one_tile(a):
    core = nl.program_id(0)
    width = a.shape[-1]
    tile = nl.ndarray((a.shape[2], 2 * width), a.dtype)
    mine = [nl.load(a[core, pipe]) for pipe in (0, 1)]
    for pipe in (0, 1) if core == 0 else (1, 0):
        nisa.sendrecv(
            src=mine[pipe],
            dst=tile[:, nl.ds(pipe * width, width)],
            send_to_rank=1 - core,
            recv_from_rank=1 - core,
            pipe_id=pipe,
        )
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    for pipe in (0, 1):
        nl.store(out[core, pipe], tile[:, nl.ds(pipe * width, width)])
    return out


def _sends_what_it_changes_later(a):
    """What is sent is what the tile held then, although each core goes on to overwrite it."""
    core = nl.program_id(0)
    mine = [nl.load(a[core, pipe]) for pipe in (0, 1)]
    theirs = [nl.ndarray(a.shape[2:], a.dtype) for _ in (0, 1)]
    for pipe in (0, 1):
        nisa.sendrecv(src=mine[pipe], dst=theirs[pipe], send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=pipe)
        nisa.memset(dst=mine[pipe], value=0.0)
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    for pipe in (0, 1):
        nl.store(out[core, pipe], theirs[pipe])
    return out


def _many_in_flight(a):
    """Two exchanges on one pipe before either result is used: the n-th pairs with the n-th."""
    core = nl.program_id(0)
    mine = [nl.load(a[core, row]) for row in (0, 1)]
    theirs = [nl.ndarray(a.shape[2:], a.dtype) for _ in (0, 1)]
    for row in (0, 1):
        nisa.sendrecv(src=mine[row], dst=theirs[row], send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=5)
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    for row in (1, 0):
        nl.store(out[core, row], theirs[row])
    return out


def _barrier_between(a):
    """Core 1 meets at the barrier before it uses the pipe, core 0 after."""
    core = nl.program_id(0)
    mine = [nl.load(a[core, row]) for row in (0, 1)]
    theirs = [nl.ndarray(a.shape[2:], a.dtype) for _ in (0, 1)]
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    if core == 1:
        nisa.core_barrier(data=out, cores=(0, 1))
    for pipe in (0, 1):
        nisa.sendrecv(src=mine[pipe], dst=theirs[pipe], send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=pipe)
    if core == 0:
        nisa.core_barrier(data=out, cores=(0, 1))
    for pipe in (0, 1):
        nl.store(out[core, pipe], theirs[pipe])
    return out


EXCHANGES = [_crossed, _crossed_into_one_tile, _sends_what_it_changes_later, _many_in_flight, _barrier_between]


@pytest.mark.parametrize("kernel", EXCHANGES)
def test_pipes_progress_independently(kernel, rng):
    """Fresh, replayed, on shapes alone, scheduled in both orders, and without races."""
    first, second = (rng.standard_normal((2, 2, 8, 4)).astype(np.float32) for _ in range(2))
    strict = SimOptions(uninitialized="error" if kernel is not _barrier_between else "sentinel")  # a barrier reads its data
    for options in (SimOptions(record=True), strict):
        result = launch(kernel, (first,), options=options, lnc=2)
        np.testing.assert_array_equal(result.outputs[0], first[::-1])
        if options.record:
            np.testing.assert_array_equal(result.program({"a": second})[0], second[::-1])
    events = launch(kernel, (first,), options=SimOptions(values=False), lnc=2).events
    assert [event.opcode for event in events] == [event.opcode for event in result.events]
    assert {event.line for event in events} == {event.line for event in result.events}
    sends = [event for event in events if event.opcode == "sendrecv"]
    assert len(sends) == 4
    assert all(event.file == __file__ for event in sends)
    assert not races(events)
    for window in (None, 64):
        scheduled = schedule(events, SimOptions().chip, window=window)
        starts = {}
        for event, start, done in zip(scheduled.work.events, scheduled.start_ns, scheduled.done_ns, strict=True):
            if event.opcode == "sendrecv":
                starts.setdefault(event.attrs["meeting"], []).append((start, done))
        for first_end, second_end in starts.values():  # neither core has the data before both have begun
            assert min(first_end[1], second_end[1]) > max(first_end[0], second_end[0])


def test_each_core_waiting_for_what_the_other_sends_later_is_still_a_deadlock():
    """Core 0 needs pipe 0 before it sends on pipe 1, core 1 the reverse."""

    def kernel(a):
        core = nl.program_id(0)
        mine, theirs, last = nl.load(a), nl.ndarray(a.shape, a.dtype), nl.ndarray(a.shape, a.dtype)
        first = 0 if core == 0 else 1
        nisa.sendrecv(src=mine, dst=theirs, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=first)
        nisa.sendrecv(src=theirs, dst=last, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=1 - first)
        return a

    with pytest.raises(KernelFault, match=r"core 1 waits in sendrecv .pipe_id 1. .*core 0 waits in sendrecv .pipe_id 0."):
        simulate(kernel)[2](np.ones((4, 4), np.float32))


def test_exchanges_inside_no_reorder_keep_their_order():
    def kernel(a):
        core = nl.program_id(0)
        tiles = [nl.load(a) for _ in range(4)]
        with nl.no_reorder():
            for pipe in (0, 1) if core == 0 else (1, 0):
                nisa.sendrecv(
                    src=tiles[pipe], dst=tiles[2 + pipe], send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=pipe
                )
        return a

    with pytest.raises(KernelFault, match="core 1 waits in sendrecv"):
        simulate(kernel)[2](np.ones((4, 4), np.float32))


def test_an_instruction_can_depend_on_an_exchange_under_way(rng):
    a = rng.standard_normal((2, 8, 4)).astype(np.float32)

    def kernel(a):
        core = nl.program_id(0)
        mine, other, extra = nl.load(a[core]), nl.ndarray(a.shape[1:], a.dtype), nl.ndarray(a.shape[1:], a.dtype)
        sent = nisa.sendrecv(src=mine, dst=other, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
        nisa.memset(dst=extra, value=0.0).depends_on(sent)
        return a

    events = launch(kernel, (a,), lnc=2).events
    for event in events:
        if event.opcode == "memset":
            (producer,) = event.attrs["depends_on"]
            assert (events[producer].opcode, events[producer].core) == ("sendrecv", event.core)
