"""Loops of run time and registers: what bodies receive, what bounds may be, and where the loops may stand."""

import numpy as np
import pytest

from nki_hf.errors import KernelFault
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from nki_hf.sim import launch

FIVE = np.array([[5]], np.int32)


def turns(lower, upper, step=1, body=lambda i: None):
    """The values of `i` in the turns of a fori_loop whose bounds are ints, or made from a loaded 5."""

    def kernel(five):
        bounds = [bound(five) if callable(bound) else bound for bound in (lower, upper)]
        seen = nl.ndarray((1, 16), nl.int32)
        nisa.memset(dst=seen, value=-1)
        count = nisa.register_alloc(0)

        def turn(i):
            tile = nl.ndarray((1, 1), nl.int32)
            nisa.register_store(tile, i)
            nisa.tensor_copy(dst=seen[:, count], src=tile)
            _add_one(count)
            body(i)

        nl.fori_loop(*bounds, turn, step=step)
        out = nl.ndarray((1, 16), nl.int32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=seen)
        return out

    found = launch(kernel, (FIVE,)).outputs[0][0].tolist()
    return found[: found.index(-1)]


def _add_one(register):
    tile = nl.ndarray((1, 1), nl.int32)
    nisa.register_store(tile, register)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
    nisa.register_load(register, tile)


def loaded(five):
    register = nisa.register_alloc()
    nisa.register_load(register, five)
    return register


BOUNDS = {
    "int": 5,
    "register": loaded,
    "scalar": nisa.scalar_load,
    "expression": lambda five: nisa.scalar_load(five) * 2 - 5,
    "numpy": np.int64(5),
}


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_loop_runs_from_lower_to_upper_by_step(bound):
    assert turns(0, BOUNDS[bound], 2) == list(range(0, 5, 2))
    assert turns(BOUNDS[bound], 9, 3) == list(range(5, 9, 3))
    assert turns(BOUNDS[bound], 3) == []


@pytest.mark.parametrize("bound", BOUNDS)
def test_writing_the_index_has_no_effect_on_the_loop(bound):
    """Documented: the index is passed by value, and the loop goes by its bounds."""
    assert turns(0, BOUNDS[bound], body=lambda i: nisa.register_move(i, 100)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("bound", BOUNDS)
def test_the_body_is_called_once(bound):
    calls = []
    assert turns(0, BOUNDS[bound], body=calls.append) == [0, 1, 2, 3, 4]
    assert len(calls) == 1


@pytest.mark.parametrize(("bound", "scalar"), [("int", True), ("scalar", True), ("register", False)])
def test_the_index_is_a_scalar_unless_a_bound_is_a_register(bound, scalar):
    """Documented for 0.7; in 0.6 it is a register, which `register_store` takes."""
    kinds = []

    def body(i):
        kinds.append(isinstance(i, nl.NkiScalar))
        if scalar:
            kinds.append(isinstance(i * 3 + 1, nl.NkiScalar))

    assert turns(0, BOUNDS[bound], body=body) == [0, 1, 2, 3, 4]
    assert kinds == ([True, True] if scalar else [False])


@pytest.mark.parametrize(
    ("bound", "message"),
    [
        (3.7, "upper=3.7"),
        (True, "upper=True"),
        (None, "upper=None"),
        (lambda five: nl.load(five), "register_load or"),
        (lambda five: nisa.NkiScalar(3, nl.int64), "32-bit"),
        (lambda five: nisa.register_alloc(), "never written"),
    ],
)
def test_other_bounds_are_named_faults(bound, message):
    with pytest.raises(KernelFault, match=f"fori_loop: .*{message}"):
        turns(0, bound)


@pytest.mark.parametrize("init", [1, True, None, "tile", "scalar"])
def test_a_while_loop_begins_with_a_register(init):
    def kernel(five):
        made = {"tile": nl.load, "scalar": nisa.scalar_load}
        nl.while_loop(made[init](five) if init in made else init, lambda r: r)

    with pytest.raises(KernelFault, match=r"while_loop: init=.*register_load"):
        launch(kernel, (FIVE,))


@pytest.mark.parametrize("kind", ["fori", "while", "dynamic"])
def test_a_loop_of_run_time_cannot_stand_in_a_no_reorder_block_and_the_block_may_stand_in_the_loop(kind):
    """Documented at nl.no_reorder; the loops that Python unrolls may stand there."""
    ran = []

    def loop(body):
        if kind == "fori":
            nl.fori_loop(0, 2, lambda i: body())
        elif kind == "while":
            nl.while_loop(nisa.register_alloc(1), lambda r: (body(), nisa.register_move(r, 0), r)[2])
        else:
            for _ in nl.dynamic_range(2):
                body()

    def outside():
        with nl.no_reorder():
            loop(lambda: None)

    def inside():
        def body():
            with nl.no_reorder():
                for _ in nl.affine_range(2):
                    ran.append(1)

        loop(body)

    with pytest.raises(KernelFault, match=r"inside nl\.no_reorder.*into the loop's body"):
        launch(outside, ())
    launch(inside, ())
    assert len(ran) == 2  # the body's Python runs once, and unrolls its own loop


def test_the_variable_of_a_dynamic_range_is_frozen():
    """Language guide: neither register_move nor register_load may write it."""

    def kernel(five):
        for i in nl.dynamic_range(3):
            nisa.register_move(i, 1)

    with pytest.raises(KernelFault, match="frozen"):
        launch(kernel, (FIVE,))


def test_registers_hold_float32_too_and_only_whole_numbers_address():
    """Language guide: a register is 32-bit and supports integers and fp32."""

    def stored(x, dtype):
        register, tile = nisa.register_alloc(), nl.ndarray((1, 1), dtype)
        nisa.register_load(register, nl.load(x))
        nisa.register_store(tile, register)
        out = nl.ndarray((1, 1), dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        return out

    for value in (1.7, -2.5, 0.1):
        array = np.array([[value]], np.float32)
        assert launch(stored, (array, nl.float32)).outputs[0][0, 0] == np.float32(value)
        assert launch(stored, (array, nl.int32)).outputs[0][0, 0] == np.rint(value)

    def bound(x):
        register = nisa.register_alloc()
        nisa.register_load(register, nl.load(x))
        nl.fori_loop(0, register, lambda i: None)

    with pytest.raises(KernelFault, match="the register holds"):
        launch(bound, (np.array([[1.5]], np.float32),))


@pytest.mark.parametrize("use", ["store", "move"])
def test_a_register_that_was_never_written_is_not_read(use):
    def kernel():
        register = nisa.register_alloc()
        if use == "store":
            nisa.register_store(nl.ndarray((1, 1), nl.int32), register)
        else:
            nisa.register_move(nisa.register_alloc(), register)

    with pytest.raises(KernelFault, match="never written"):
        launch(kernel, ())


def test_a_register_is_constructed_as_documented():
    def kernel():
        assert repr(nisa.VirtualRegister()) == "VirtualRegister(uninitialized, int32)"
        assert repr(nisa.VirtualRegister(3, True)) == "VirtualRegister(3, int32)"
        nisa.register_move(nisa.VirtualRegister(state=3, frozen=True), 1)

    with pytest.raises(KernelFault, match="frozen"):
        launch(kernel, ())
