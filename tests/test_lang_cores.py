"""Two cores: ids, shared memory, exchanges, barriers, replays, deadlocks."""

import inspect
import threading

import numpy as np
import pytest

from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions, jit, launch, simulate
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl


def swap(a):
    """Each core sends its half of `a [2, P, F]` to the other one and stores what it gets."""
    core = nl.program_id(0)
    mine, other = nl.load(a[core]), nl.ndarray(a.shape[1:], a.dtype)
    nisa.sendrecv(src=mine, dst=other, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    nl.store(out[core], other)
    return out


def test_program_ids_and_grid():
    def kernel(a):
        return (nl.program_ndim(), nl.num_programs(), nl.program_id())

    a = np.zeros(1, np.float32)
    assert simulate(kernel)(a) == (0, 1, 0)
    assert simulate(kernel)[1](a) == (1, 1, 0)
    assert simulate(kernel)[2](a) == (1, 2, 0)


@pytest.mark.parametrize("lnc", [0, 3, True, "2", 2.0])
def test_only_bare_one_or_two_is_a_degree(lnc):
    with pytest.raises(ValueError, match="logical-core degree"):
        simulate(swap)[lnc]


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
    assert len(program.steps) == 1
    np.testing.assert_array_equal(program({"a": second})[0], simulate(kernel)[2](second))


def test_cores_that_do_not_talk_keep_lists_of_their_own(rng):
    def kernel(a):
        core = nl.program_id()
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        nl.store(out[core], nl.load(a[core]))
        return out

    a = rng.standard_normal((2, 8, 4)).astype(np.float32)
    before = threading.active_count()  # other tests of the process may have left threads of their own
    result = launch(kernel, (a,), options=SimOptions(record=True), lnc=2)
    assert [len(steps) for steps in result.program.steps] == [2, 2]
    assert threading.active_count() == before
    np.testing.assert_array_equal(result.outputs[0], a)


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


def test_an_error_on_one_core_ends_the_other_and_is_raised():
    def kernel(a):
        tile = nl.load(a)
        if nl.program_id() == 1:
            raise LookupError("core 1 gives up")
        nisa.sendrecv(src=tile, dst=tile, send_to_rank=1, recv_from_rank=1, pipe_id=0)
        return a

    before = threading.active_count()  # other tests of the process may have left threads of their own
    with pytest.raises(LookupError, match="gives up"):
        simulate(kernel)[2](np.ones((4, 4), np.float32))
    assert threading.active_count() == before


def test_an_exchange_needs_two_cores():
    with pytest.raises(KernelFault, match=r"two cores.*kernel\[2\]"):
        simulate(swap)(np.ones((2, 4, 4), np.float32))


def test_shared_tensors_must_match_on_both_cores():
    def kernel(a):
        return nl.ndarray((2 + nl.program_id(),), nl.float32, buffer=nl.shared_hbm)

    with pytest.raises(KernelFault, match="same shared_hbm tensors in the same order"):
        simulate(kernel)[2](np.ones(1, np.float32))


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
