"""Loops of run time that never end: a fault says so, and what to do, instead of a run that hangs."""

import numpy as np
import pytest

import nki_hf
from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from tests.support.run_time_loops import loaded

ONE, NONE = np.array([[1]], np.int32), np.array([[0]], np.int32)


def the_same(register):
    return register


def never_written(register):
    other = nisa.register_alloc(3)
    nl.fori_loop(0, 0, lambda i: None)  # a loop in the body writes nothing either, but that takes a turn more to know
    return other


def always_one(register):
    nisa.register_move(register, 1)
    return register


@pytest.mark.parametrize("record", [False, True])
def test_a_while_loop_whose_register_nothing_writes_is_a_fault_after_its_first_turn(record):
    def kernel(x):
        nl.while_loop(loaded(x), the_same)

    launch(kernel, (NONE,), options=SimOptions(record=record))
    with pytest.raises(
        KernelFault, match=r"the loop the_same never ends: .* holds 1 and that nothing in the body writes.*register_move"
    ) as caught:
        launch(kernel, (ONE,), options=SimOptions(record=record))
    assert caught.value.record.file == __file__


def test_a_register_that_a_loop_in_the_body_may_write_later_is_not_taken_for_one_that_nothing_writes():
    """Turn by turn: no turn of the inner loop, then one, which ends the outer loop."""

    def kernel(x):
        count, condition = loaded(x), nisa.register_alloc(1)

        def body(register):
            nl.fori_loop(0, count, lambda i: nisa.register_move(condition, 0))
            nisa.register_move(count, 1)
            return condition

        nl.while_loop(condition, body)

    events = launch(kernel, (NONE,)).events
    assert sum(e.opcode == "loop_turn" for e in events) == 2 + 1


@pytest.mark.parametrize("body", [always_one, never_written])
def test_a_while_loop_of_too_many_turns_is_a_fault(body):
    def kernel(x):
        nl.while_loop(loaded(x), body)

    with pytest.raises(KernelFault, match=r"the loop \w+ has 51 turns or more.*more than 50 turns.*most_turns=N"):
        launch(kernel, (ONE,), options=SimOptions(most_turns=50))


@pytest.mark.parametrize("kind", ["fori_loop", "dynamic_range"])
@pytest.mark.parametrize("bound", ["constant", "value"])
def test_bounds_too_far_apart_are_a_fault_before_the_first_turn(kind, bound):
    """As what a register holds that was loaded from the wrong place."""

    def kernel(x):
        count = 2_000_000_000 if bound == "constant" else loaded(x)
        if kind == "fori_loop":
            nl.fori_loop(0, count, lambda i: None)
        else:
            for _ in nl.dynamic_range(count):
                pass

    many = np.array([[2_000_000_000]], np.int32)
    with pytest.raises(KernelFault, match=rf"{kind}: .*2,000,000,000 turns or more.*more than 100,000 turns"):
        launch(kernel, (many,))
    with pytest.raises(KernelFault, match="turns or more"):
        launch(kernel, (many,), options=SimOptions(values=False, trip_counts=2_000_000_000))
    if bound == "value":
        launch(kernel, (np.array([[3]], np.int32),), options=SimOptions(most_turns=3))


def test_a_replay_of_a_loop_that_would_not_end_is_a_fault_too():
    def kernel(x):
        nl.while_loop(loaded(x), the_same)

    recorded = launch(kernel, (NONE,), options=SimOptions(record=True))
    with pytest.raises(KernelFault, match="never ends"):
        recorded.program({"x": ONE})


def test_a_while_statement_on_a_register_that_stays_is_a_fault():
    def kernel(x):
        register = nisa.register_alloc(1)
        while register:
            nisa.register_move(register, 1)

    with pytest.raises(KernelFault, match=r"`while register:` has 21 turns or more.*most_turns=N"):
        launch(kernel, (ONE,), options=SimOptions(most_turns=20))


@pytest.mark.parametrize("most", [0, True, 1.5, -1])
def test_impossible_limits_of_turns_are_refused(most):
    with pytest.raises(ValueError, match="most_turns"):
        SimOptions(most_turns=most)


ENDLESS = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def softmax(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.while_loop(nisa.register_alloc(1), lambda register: register)
    return out
"""


def test_the_judge_says_that_a_loop_never_ends_and_where(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text(ENDLESS)
    record = nki_hf.judge(file, "softmax", check=(128,), at=(128,), chip=("trn2",))
    assert not record["passed"]
    (found,) = record["findings"]
    assert "never ends" in found["message"]
    assert found["line"] == 10
    assert "register_move" in found["advice"]
