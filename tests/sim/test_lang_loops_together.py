"""Two cores that meet in the bodies of loops of run time: values, replays, events, and what keeps them from meeting.

No public source forbids it, and public kernels do it (nki-library's blockwise matrix products of mixtures of experts).
"""

import re
from pathlib import Path

import numpy as np
import pytest

from nki_hf.errors import KernelFault
from nki_hf.observers.races import races
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from nki_hf.timing.schedule import schedule

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def loaded(count):
    register = nisa.register_alloc()
    nisa.register_load(register, count)
    return register


def exchanging(x, count):
    """Each turn: what this core has, plus what the other one has; core 0 adds one more."""
    core = nl.program_id(0)
    out = nl.ndarray((2, 4), nl.float32, buffer=nl.shared_hbm)
    mine, other = nl.load(x[core : core + 1]), nl.ndarray((1, 4), nl.float32)
    for _ in nl.dynamic_range(loaded(count)):
        nisa.sendrecv(src=mine, dst=other, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
        nisa.tensor_tensor(dst=mine, data1=mine, data2=other, op=nl.add)
        if core == 0:
            nisa.tensor_scalar(dst=mine, data=mine, op0=nl.add, operand0=1.0)
    nl.store(out[core : core + 1], mine)
    return out


def exchanged(x, turns):
    first, second = x
    for _ in range(turns):
        first, second = first + second + 1, second + first
    return np.stack([first, second])


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_an_exchange_of_every_turn(turns):
    given = (X, np.array([[turns]], np.int32))
    result = launch(exchanging, given, lnc=2, options=SimOptions(record=True))
    np.testing.assert_array_equal(result.outputs[0], exchanged(X, turns))
    for other in (2, 0, 5):
        again = result.program({"x": 3 * X, "count": np.array([[other]], np.int32)})[0]
        np.testing.assert_array_equal(again, exchanged(3 * X, other))
    meetings = [(event.core, event.attrs["meeting"]) for event in result.events if event.opcode == "sendrecv"]
    numbers = sorted({number for _, number in meetings})
    assert len(numbers) == turns
    assert sorted(meetings) == [(core, number) for core in (0, 1) for number in numbers]
    assert not races(result.events)
    assert schedule(result.events, SimOptions().chip).total_ns > 0


def _summing(barriers):
    def kernel(x, count):
        """Each turn of the outer loop: both rows are written; each core then adds up both, `count` times."""
        core = nl.program_id(0)
        shared, out = (nl.ndarray((2, 4), nl.float32, buffer=nl.shared_hbm) for _ in range(2))
        mine = nl.load(x[core : core + 1])
        both, total = nl.ndarray((1, 4), nl.float32), nl.zeros((1, 4), nl.float32)

        def outer(_):
            nisa.dma_copy(dst=shared[core : core + 1], src=mine)
            if barriers:
                nisa.core_barrier(data=shared, cores=(0, 1))

            def inner(_):
                nisa.dma_copy(dst=both, src=shared[1 - core : 2 - core])
                nisa.tensor_tensor(dst=total, data1=total, data2=both, op=nl.add)

            nl.fori_loop(0, loaded(count), inner)
            nisa.tensor_tensor(dst=mine, data1=total, data2=mine, op=nl.add)
            if barriers:
                nisa.core_barrier(data=shared, cores=(0, 1))

        nl.fori_loop(0, 3, outer)
        nl.store(out[core : core + 1], total)
        return out

    return kernel


def test_barriers_of_every_turn_order_what_both_cores_write_and_read():
    count = np.array([[2]], np.int32)
    result = launch(_summing(True), (X, count), lnc=2)
    rows, totals = list(X), [np.zeros(4, np.float32)] * 2
    for _ in range(3):
        totals = [totals[core] + 2 * rows[1 - core] for core in (0, 1)]
        rows = [rows[core] + totals[core] for core in (0, 1)]
    np.testing.assert_array_equal(result.outputs[0], np.stack(totals))
    assert not races(result.events)
    assert races(launch(_summing(False), (X, count), lnc=2).events)
    names = {"outer": 3, "inner": 2}
    alone = launch(_summing(True), (X, count), lnc=2, options=SimOptions(values=False, trip_counts=names))
    shown = [(e.core, e.opcode, e.attrs.get("meeting")) for e in alone.events]
    assert shown == [(e.core, e.opcode, e.attrs.get("meeting")) for e in result.events]


@pytest.mark.parametrize("values", [True, False])
def test_what_the_other_core_writes_in_its_body_counts_as_written(values):
    """Its body is recorded after this one's: strict reads, which verify and judge ask for, refused right kernels."""
    options = SimOptions(uninitialized="error", values=values, trip_counts=None if values else 2)
    count = np.array([[2]], np.int32)
    result = launch(_summing(True), (X, count), lnc=2, options=options)
    if values:
        np.testing.assert_array_equal(result.outputs[0], launch(_summing(True), (X, count), lnc=2).outputs[0])


def test_what_no_core_writes_is_a_fault_with_its_place_after_a_meeting_in_a_loop():
    def kernel(x, count):
        core = nl.program_id(0)
        shared, out = (nl.ndarray((2, 4), nl.float32, buffer=nl.shared_hbm) for _ in range(2))
        tile = nl.ndarray((1, 4), nl.float32)

        def body(_):
            nisa.dma_copy(dst=shared[core : core + 1, 0:3], src=x[core : core + 1, 0:3])
            nisa.core_barrier(data=shared[0:2, 0:3], cores=(0, 1))
            nisa.dma_copy(dst=tile, src=shared[1 - core : 2 - core])  # its last column is nobody's

        nl.fori_loop(0, loaded(count), body)
        nl.store(out[core : core + 1], tile)
        return out

    with pytest.raises(KernelFault, match="1 of 4 elements") as caught:
        launch(kernel, (X, np.array([[2]], np.int32)), lnc=2, options=SimOptions(uninitialized="error"))
    record = caught.value.record
    assert (record.kind, record.instruction) == ("uninitialized", "dma_copy")
    assert "nobody's" in Path(record.file).read_text().splitlines()[record.line - 1]


def test_a_constant_may_be_made_in_the_body_of_a_loop():
    def kernel(x, count):
        out, tile = nl.ndarray((2, 4), nl.float32, buffer=nl.shared_hbm), nl.load(x)
        for _ in nl.dynamic_range(loaded(count)):
            one = nl.ndarray((2, 4), nl.float32)
            nisa.dma_copy(dst=one, src=nl.shared_constant(np.ones((2, 4), np.float32)))
            nisa.tensor_tensor(dst=tile, data1=tile, data2=one, op=nl.add)
        nl.store(out, tile)
        return out

    assert launch(kernel, (X, np.array([[3]], np.int32))).outputs[0].tolist() == (X + 3).tolist()


def meeting(first, second):
    """A kernel in which core 0 does `first(shared, count)` and core 1 `second`."""

    def kernel(count):
        shared = nl.ndarray((2, 4), nl.float32, buffer=nl.shared_hbm)
        (first, second)[nl.program_id(0)](shared, loaded(count))
        return shared

    return kernel


def turns_of(more):
    def body(shared, count):
        nl.fori_loop(more, count, lambda _: nisa.core_barrier(data=shared, cores=(0, 1)))

    return body


def exchanging_on(*pipes):
    def body(shared, count):
        core, tile, other = nl.program_id(0), nl.zeros((2, 4), nl.float32), nl.ndarray((2, 4), nl.float32)

        def turn(_):
            for pipe in pipes:
                nisa.sendrecv(src=tile, dst=other, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=pipe)

        nl.fori_loop(0, count, turn)

    return body


@pytest.mark.parametrize(
    ("first", "second", "match"),
    [
        (turns_of(0), turns_of(1), "core 0 waits in core_barrier at .* and core 1 ends its loop"),
        (turns_of(1), turns_of(0), "core 0 ends its loop and core 1 waits in core_barrier at "),
        (exchanging_on(0, 1), exchanging_on(1, 0), r"core 0 waits in sendrecv \(pipe_id 0\) at .* core 1 waits in sendrecv"),
        (turns_of(0), lambda shared, _: nisa.core_barrier(data=shared, cores=(0, 1)), "one of them in the body of a loop"),
        (turns_of(0), lambda *_: None, "core 0 waits in fori_loop at .* and core 1 has returned"),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_cores_that_cannot_meet_are_a_deadlock_that_names_both(first, second, match, swapped):
    if swapped:
        first, second = second, first
    with pytest.raises(KernelFault) as caught:
        launch(meeting(first, second), (np.array([[2]], np.int32),), lnc=2)
    assert caught.value.record.kind == "deadlock"
    if not swapped:
        assert re.search(match, str(caught.value)), caught.value
