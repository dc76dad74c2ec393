"""Two cores: ids, what they share, the cores of a barrier, and errors on one of them."""

import threading

import numpy as np
import pytest

from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions, launch, simulate
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from nki_hf.sim.faults import SimulatorWarning


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
        simulate(lambda a: a)[lnc]


def test_cores_that_do_not_talk_keep_lists_of_their_own(rng):
    def kernel(a):
        core = nl.program_id()
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        nl.store(out[core], nl.load(a[core]))
        return out

    a = rng.standard_normal((2, 8, 4)).astype(np.float32)
    before = threading.active_count()  # other tests of the process may have left threads of their own
    result = launch(kernel, (a,), options=SimOptions(record=True), lnc=2)
    assert [len(actions) for actions in result.program.actions] == [2, 2]
    assert threading.active_count() == before
    np.testing.assert_array_equal(result.outputs[0], a)


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


def test_shared_tensors_must_match_on_both_cores():
    def kernel(a):
        return nl.ndarray((2 + nl.program_id(),), nl.float32, buffer=nl.shared_hbm)

    with pytest.raises(KernelFault, match="same shared_hbm tensors in the same order"):
        simulate(kernel)[2](np.ones(1, np.float32))


@pytest.mark.parametrize("cores", [(0, 1), [0, 1], range(2), (1, 0), np.arange(2)])
def test_cores_of_a_barrier_are_any_sequence(cores, rng):
    a = rng.standard_normal((2, 8, 4)).astype(np.float32)

    def kernel(a, named):
        core = nl.program_id()
        shared = nl.ndarray((2, 8, 4), nl.float32, buffer=nl.shared_hbm)
        nl.store(shared[core], nl.load(a[core]))
        nisa.core_barrier(data=shared, cores=named if named is not None else np.arange(2))
        out = nl.ndarray((2, 8, 4), nl.float32, buffer=nl.shared_hbm)
        nl.store(out[core], nl.load(shared[1 - core]))
        return out

    named = None if isinstance(cores, np.ndarray) else cores  # arrays in the arguments become tensors
    np.testing.assert_array_equal(launch(kernel, (a, named), lnc=2).outputs[0], a[::-1])


@pytest.mark.parametrize("cores", [(0,), 0, (0, 2), (0, 0, 1), "01", None, 1.0, (0.0, 1.0), (0, "1"), ()])
def test_other_cores_of_a_barrier_are_named_faults(cores):
    def kernel(a):
        shared = nl.ndarray((2, 8, 4), nl.float32, buffer=nl.shared_hbm)
        nisa.core_barrier(data=shared, cores=cores)
        return shared

    with pytest.raises(KernelFault, match=r"core_barrier: .*cores="):
        simulate(kernel)[2](np.ones(1, np.float32))


@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize("lnc", [None, 1])
@pytest.mark.parametrize("cores", [(0, 1), [0, 1], (0,), [0], 0])
def test_a_barrier_in_a_launch_of_one_core_has_no_effect_and_a_warning(cores, lnc, foreign, rng):
    """Public library kernels do so; documented for a logical core of one too, where the other core runs another launch."""
    a = rng.standard_normal((8, 4)).astype(np.float32)

    def kernel(a):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(a))
        nisa.core_barrier(data=out, cores=cores)
        return out

    with pytest.warns(SimulatorWarning, match=f"core_barrier: cores=.*one core.*{__file__}"):
        result = launch(kernel, (a,), options=SimOptions(record=True, third_party=foreign), lnc=lnc)
    np.testing.assert_array_equal(result.outputs[0], a)
    np.testing.assert_array_equal(result.program({"a": 2 * a})[0], 2 * a)
    assert "core_barrier" not in {event.opcode for event in result.events}


def test_a_barrier_of_a_core_that_does_not_exist_is_refused_in_a_launch_of_one_too():
    def kernel(a):
        out = nl.ndarray((8, 4), nl.float32, buffer=nl.shared_hbm)
        nisa.core_barrier(data=out, cores=(1, 2))
        return out

    with pytest.raises(KernelFault, match=r"cores=\(1, 2\)"):
        simulate(kernel)(np.ones(1, np.float32))


def test_what_is_printed_has_arrived(rng, capsys):
    a = np.stack([np.full((1, 2), 3.0, np.float32), np.full((1, 2), 7.0, np.float32)])

    def kernel(a):
        core = nl.program_id()
        mine, other = nl.load(a[core]), nl.ndarray(a.shape[1:], a.dtype)
        nisa.sendrecv(src=mine, dst=other, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
        nl.device_print("got", other)
        return a

    simulate(kernel)[2](a)
    lines = capsys.readouterr().out.splitlines()
    printed = {line.split()[2]: values for line, values in zip(lines[::2], lines[1::2], strict=True)}
    assert printed == {"0": "[[7. 7.]]", "1": "[[3. 3.]]"}
