"""Loops of run time: what cannot be in one, leave one, or be read in one is refused, with its reason."""

from __future__ import annotations

import numpy as np
import pytest

from nki_hf.errors import KernelFault
from nki_hf.observers.races import races
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from tests.support import run_time_loops
from tests.support.run_time_loops import KERNELS, NAMES, ROWS, WIDTH, inputs, loaded, output


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_run_on_shapes_alone_asks_for_the_trip_count_by_name(kernel, rng):
    with pytest.raises(KernelFault, match=r"trip count of the loop .*trip_counts=") as caught:
        launch(kernel, inputs(rng, 3), options=SimOptions(values=False))
    assert caught.value.record.file == run_time_loops.__file__
    name = NAMES.get(kernel, f"run_time_loops.py:{caught.value.record.line}")
    events = launch(kernel, inputs(rng, 3), options=SimOptions(values=False, trip_counts={name: 2})).events
    assert sum(e.opcode == "loop_turn" for e in events) == 2
    with pytest.raises(KernelFault, match="trip count"):
        launch(kernel, inputs(rng, 3), options=SimOptions(values=False, trip_counts={"another": 2}))


@pytest.mark.parametrize("counts", [-1, True, 1.5, {"body": -1}, {"body": "3"}])
def test_impossible_trip_counts_are_refused(counts):
    with pytest.raises(ValueError, match="trip_counts"):
        SimOptions(values=False, trip_counts=counts)
    with pytest.raises(ValueError, match="values=False"):
        SimOptions(trip_counts=1)


def test_trip_counts_of_a_loop_that_is_not_there_are_refused(rng):
    counts = {"body": 3, "bodi": 2}
    with pytest.raises(
        ValueError, match=r"bodi is no loop of this launch, which has body, run_time_loops.py:\d+: name a loop by"
    ):
        launch(KERNELS[0], inputs(rng, 3), options=SimOptions(values=False, trip_counts=counts))


@pytest.mark.parametrize("trips", [0, 1])
def test_limits_and_memory_see_the_body_of_a_loop_that_does_not_run(trips):
    def wide(count):
        for _ in nl.dynamic_range(loaded(count)):
            nisa.nc_matmul(
                dst=nl.ndarray((16, 600), nl.float32, buffer=nl.psum),
                stationary=nl.ndarray((32, 16), nl.bfloat16),
                moving=nl.ndarray((32, 600), nl.bfloat16),
            )

    def large(count):
        for _ in nl.dynamic_range(loaded(count)):
            tile = nl.ndarray((128, 60_000), nl.float32)
            nisa.memset(dst=tile, value=0.0)

    for kernel, words in ((wide, "600"), (large, "SBUF overflow")):
        for options in (SimOptions(), SimOptions(values=False, trip_counts=trips)):
            with pytest.raises(KernelFault, match=words):
                launch(kernel, (np.array([[trips]], np.int32),), options=options)


def test_a_race_in_a_body_is_found():
    def kernel(count):
        out = output((ROWS, WIDTH))
        n = loaded(count)
        tile = nl.zeros((ROWS, WIDTH), nl.float32)
        nl.fori_loop(0, n, lambda i: nisa.dma_copy(dst=out, src=tile))
        return out

    events = launch(kernel, (np.array([[2]], np.int32),), lnc=2).events
    assert races(events)


def loose():
    return nl.ndarray((16, 8), nl.float32)


LEAVING = {
    "a tile": lambda made: nisa.memset(dst=made["tile"], value=0.0),
    "a view of a tile": lambda made: nisa.memset(dst=made["tile"][:, 0:2], value=0.0),
    "an index": lambda made: nisa.register_store(nl.ndarray((1, 1), nl.int32), made["index"]),
    "a register": lambda made: nisa.register_move(nisa.register_alloc(), made["register"]),
    "a scalar": lambda made: made["scalar"] + 1,
    "a bound": lambda made: nl.fori_loop(0, made["register"], lambda i: None),
    "a view that the index moves": lambda made: nisa.dma_copy(dst=loose(), src=made["moved"]),
    "the place of a view": lambda made: nisa.dma_copy(dst=loose(), src=made["x"].select(0, made["register"])),
    "an instruction that waits": lambda made: made["instruction"].depends_on(nisa.memset(dst=loose(), value=0.0)),
    "an instruction": lambda made: nisa.memset(dst=nl.ndarray((16, 8), nl.float32), value=0.0).depends_on(made["instruction"]),
}


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("what", LEAVING)
def test_what_a_body_makes_cannot_leave_it(what, inside, values):
    def kernel(five):
        made = {"x": nl.ndarray((8, 16, 8), nl.float32, buffer=nl.private_hbm)}

        def body(i):
            made["tile"] = nl.ndarray((16, 8), nl.float32)
            made["index"] = i
            made["moved"] = made["x"].select(0, i)
            made["register"] = loaded(five)
            made["scalar"] = nisa.scalar_load(five)
            made["instruction"] = nisa.memset(dst=made["tile"], value=1.0)

        if inside:  # it cannot leave an inner loop for the outer one either
            nl.fori_loop(0, 2, lambda j: (nl.fori_loop(0, 2, body), LEAVING[what](made)))
        else:
            nl.fori_loop(0, 2, body)
            LEAVING[what](made)

    with pytest.raises(KernelFault, match=r"in the body of the loop body, which has ended"):
        launch(kernel, (np.array([[5]], np.int32),), options=SimOptions(values=values))


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("inside", [False, True])
def test_no_dependency_leads_out_of_a_loop_that_is_open(inside, values):
    """NKI's page on NkiInstruction: both at the same nesting of dynamic loops, or the producer in an enclosing scope."""

    def kernel():
        outside = nisa.memset(dst=loose(), value=1.0)

        def body(i):
            outside.depends_on(nisa.memset(dst=loose(), value=2.0))

        nl.fori_loop(0, 2, lambda j: nl.fori_loop(0, 2, body)) if inside else nl.fori_loop(0, 2, body)

    with pytest.raises(KernelFault, match=r"outside of the loop body waits for one in its body"):
        launch(kernel, (), options=SimOptions(values=values))


@pytest.mark.parametrize("looped", [False, True])
@pytest.mark.parametrize("later", ["another", "itself"])
def test_an_instruction_does_not_wait_for_itself_or_a_later_one(later, looped):
    """The schedule could never start it."""

    def body(i):
        first = nisa.memset(dst=loose(), value=1.0)
        second = first if later == "itself" else nisa.memset(dst=loose(), value=2.0)
        first.depends_on(second)

    def kernel():
        nl.fori_loop(0, 2, body) if looped else body(0)

    with pytest.raises(KernelFault, match=r"waits for (itself|one that is issued after it)"):
        launch(kernel, ())


def test_a_producer_is_an_instruction():
    def kernel():
        first = nisa.memset(dst=loose(), value=1.0)
        nisa.memset(dst=loose(), value=2.0).depends_on([first])

    with pytest.raises(KernelFault, match=r"Pass what nisa functions return: c.depends_on\(a, b\)"):
        launch(kernel, ())


def test_an_output_is_not_made_in_a_body_and_no_tile_of_one_is_returned():
    def shared():
        nl.fori_loop(0, 2, lambda i: output((16, 8)))

    def returned():
        made = []
        nl.fori_loop(0, 2, lambda i: made.append(nl.ndarray((16, 8), nl.float32, buffer=nl.hbm)))
        return made[0]

    for kernel in (shared, returned):
        with pytest.raises(KernelFault, match="body of the loop"):
            launch(kernel, ())


@pytest.mark.parametrize("how", ["break", "return"])
def test_a_loop_is_not_left_by_break_or_return(how):
    def kernel(count):
        for _ in nl.dynamic_range(loaded(count)):
            nisa.memset(dst=nl.ndarray((16, 8), nl.float32), value=0.0)
            if how == "break":
                break
            return

    with pytest.raises(KernelFault, match="left by break or return"):
        launch(kernel, (np.array([[3]], np.int32),))


@pytest.mark.parametrize("use", [lambda r: bool(r), lambda r: int(r), lambda r: range(r), lambda r: [1, 2, 3][r]])
@pytest.mark.parametrize("values", [True, False])
def test_python_does_not_read_a_register_while_a_body_is_recorded(use, values):
    """The answer would hold for one turn only."""

    def kernel(five):
        outer = loaded(five)
        nl.fori_loop(0, 2, lambda i: use(outer))

    with pytest.raises(KernelFault, match="not known"):
        launch(kernel, (np.array([[2]], np.int32),), options=SimOptions(values=values))


def test_python_does_not_read_a_loaded_register_on_shapes_alone():
    """It would be 0 whatever the input, and `while register:` would drop its body without a word."""

    def kernel(five):
        register = loaded(five)
        while register:
            nisa.register_move(register, 0)

    launch(kernel, (np.array([[2]], np.int32),))
    with pytest.raises(KernelFault, match="on shapes alone"):
        launch(kernel, (np.array([[2]], np.int32),), options=SimOptions(values=False))


@pytest.mark.parametrize(
    "use", [lambda t, r: t[r], lambda t, r: t[:, r, r], lambda t, r: t[:, nl.ds(r, 9)], lambda t, r: t[r:]]
)
def test_other_registers_in_subscripts_are_refused_on_chip(use):
    def kernel(x):
        register = nisa.register_alloc()
        nisa.register_load(register, x[0:1, 0:1])
        nl.fori_loop(0, 1, lambda i: use(nl.ndarray((16, 8, 4), nl.float32), register))

    with pytest.raises(KernelFault):
        launch(kernel, (np.zeros((4, 4), np.int32),))
