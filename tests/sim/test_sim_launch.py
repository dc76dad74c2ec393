"""A kernel end to end on the simulator: values, events, replay, faults with the kernel's line."""

import inspect

import numpy as np
import pytest

from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions, jit, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl


@jit
def matmul_kernel(a, b):
    """a [K, M], b [K, N], both HBM -> a.T @ b [M, N] float32."""
    a_sbuf = nl.ndarray(a.shape, a.dtype, buffer=nl.sbuf)
    b_sbuf = nl.ndarray(b.shape, b.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a_sbuf, src=a)
    nisa.dma_copy(dst=b_sbuf, src=b)
    psum = nl.ndarray((a.shape[1], b.shape[1]), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=psum, stationary=a_sbuf, moving=b_sbuf)
    out_sbuf = nl.ndarray(psum.shape, nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=out_sbuf, src=psum)
    out = nl.ndarray(psum.shape, nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=out_sbuf)
    return out


def _operands(rng, k=64):
    return (rng.standard_normal((k, 32)).astype(np.float32), rng.standard_normal((k, 48)).astype(np.float32))


def test_values_match_numpy(rng):
    a, b = _operands(rng)
    np.testing.assert_allclose(matmul_kernel(a, b), a.astype(np.float64).T @ b, rtol=0, atol=1e-4)


def test_events_name_engine_operands_and_kernel_line(rng):
    events = launch(matmul_kernel, _operands(rng)).events
    assert [e.opcode for e in events] == ["dma_copy", "dma_copy", "nc_matmul", "tensor_copy", "dma_copy"]
    assert [e.engine for e in events] == ["dma", "dma", "tensor", "vector", "dma"]
    matmul = events[2]
    lines, first = inspect.getsourcelines(matmul_kernel.function)
    assert (matmul.file, lines[matmul.line - first].strip()) == (
        __file__,
        "nisa.nc_matmul(dst=psum, stationary=a_sbuf, moving=b_sbuf)",
    )
    assert [r.shape for r in matmul.reads] == [(64, 32), (64, 48)]


def test_replay_gives_the_numbers_of_a_fresh_run(rng):
    program = launch(matmul_kernel, _operands(rng), options=SimOptions(record=True)).program
    a, b = _operands(rng)
    np.testing.assert_array_equal(program({"a": a, "b": b})[0], matmul_kernel(a, b))


def test_fault_names_operand_limit_and_line(rng):
    a, b = _operands(rng, k=200)
    with pytest.raises(KernelFault, match="200 partitions, at most 128") as caught:
        matmul_kernel(a, b)
    assert caught.value.record.file == __file__
    assert caught.value.record.kind == "shape"


def test_a_run_on_shapes_alone_gives_the_same_events(rng):
    with_values = launch(matmul_kernel, _operands(rng)).events
    without = launch(matmul_kernel, _operands(rng), options=SimOptions(values=False)).events
    assert [(e.opcode, e.line) for e in without] == [(e.opcode, e.line) for e in with_values]
