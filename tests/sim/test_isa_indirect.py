"""Operands whose columns run-time offsets choose (`.indirect`, NeuronCore-v4): the same values as a gather in NumPy."""

import numpy as np
import pytest
from hypothesis import strategies as st
from isa_operands import DEFAULT_CASES, FLOATS, MANY_CASES, check, integers, operand, run, run_cases

from nki_hf.chips import get_chip
from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl

TRN3 = {"chip": get_chip("trn3")}
NAMES = ("gathered operands", "scattered results", "gathered matmul", "scattered matmul")


def columns(index, group, count):
    """Column of each element `[partitions, count]`: element i of a group's rows takes index[i % group, i // group]."""
    chosen = np.empty((len(index), count), np.int64)
    for row in range(len(index)):
        first = row // group * group
        for i in range(count):
            chosen[row, i] = index[first + i % group, i // group]
    return chosen


CALLS = {
    "tensor_copy": (lambda dst, src: nisa.tensor_copy(dst=dst, src=src), lambda x: x),
    "activation": (lambda dst, src: nisa.activation(dst=dst, op=nl.exp, data=src, scale=0.5), lambda x: np.exp(0.5 * x)),
    "tensor_scalar": (lambda dst, src: nisa.tensor_scalar(dst=dst, data=src, op0=nl.add, operand0=1.5), lambda x: x + 1.5),
    "exponential": (lambda dst, src: nisa.exponential(dst=dst, src=src), np.exp),
    "tensor_reduce": (lambda dst, src: nisa.tensor_reduce(dst=dst, op=nl.maximum, data=src, axis=1), None),
}


@check("gathered operands")
def gathered(data):
    rows, width, count = 16 * data.draw(st.integers(1, 8)), data.draw(st.integers(1, 40)), 16 * data.draw(st.integers(1, 3))
    name = data.draw(st.sampled_from(sorted(CALLS)))
    call, function = CALLS[name]
    operands = {
        "dst": operand(data, (0, rows), (1,) if name == "tensor_reduce" else (count,), reads=False),
        "src": operand(data, (0, rows), (width,), data.draw(st.sampled_from(FLOATS)), plain=True),
        "index": operand(data, (0, rows), (count // 16,), "uint16", fill=integers(0, width - 1), plain=True),
    }

    def expect():
        x = np.take_along_axis(operands["src"].values, columns(operands["index"].values, 16, count), axis=1)
        return {"dst": x.max(axis=1) if function is None else function(x)}

    run(data, lambda dst, src, index: call(dst, src.indirect(index, num_elem=count)), operands, expect, options=TRN3)


@check("scattered results")
def scattered(data):
    """Distinct columns per group, so that the order of writing does not matter; the others stay as they were."""
    groups, count = data.draw(st.integers(1, 8)), 16 * data.draw(st.integers(1, 2))
    rows, width = 16 * groups, data.draw(st.integers(count, 60))
    name = data.draw(st.sampled_from(["tensor_copy", "activation", "tensor_scalar", "exponential"]))
    call, function = CALLS[name]

    def distinct(rng, size):
        lists = [rng.permutation(width)[:count].reshape(count // 16, 16).T for _ in range(size * 16 // count // 16)]
        return np.concatenate(lists).reshape(-1)

    operands = {
        "dst": operand(data, (0, rows), (width,), data.draw(st.sampled_from(FLOATS)), reads=False, plain=True),
        "src": operand(data, (0, rows), (count,), data.draw(st.sampled_from(FLOATS))),
        "index": operand(data, (0, rows), (count // 16,), "uint16", fill=distinct, plain=True),
    }

    def expect():
        want = operands["dst"].values.copy()
        chosen = columns(operands["index"].values, 16, count)
        np.put_along_axis(want, chosen, function(operands["src"].values), axis=1)
        return {"dst": want}

    run(data, lambda dst, src, index: call(dst.indirect(index, num_elem=count), src), operands, expect, options=TRN3)


@check("gathered matmul")
def matmul(data):
    """The Tensor engine reads offsets in groups of 32 partitions."""
    rows, width, count = 32 * data.draw(st.integers(1, 4)), data.draw(st.integers(1, 40)), 32 * data.draw(st.integers(1, 2))
    operands = {
        "dst": operand(data, (0, 8), (count,), reads=False, plain=True),
        "s": operand(data, (0, rows), (8,), "bfloat16", plain=True),
        "m": operand(data, (0, rows), (width,), "bfloat16", plain=True),
        "index": operand(data, (0, rows), (count // 32,), "uint16", fill=integers(0, width - 1), plain=True),
    }

    def body(dst, s, m, index):
        psum = nl.ndarray((8, count), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=psum, stationary=s, moving=m.indirect(index, num_elem=count))
        nisa.tensor_copy(dst=dst, src=psum)

    def expect():
        chosen = columns(operands["index"].values, 32, count)
        return {"dst": operands["s"].values.T @ np.take_along_axis(operands["m"].values, chosen, axis=1)}

    run(data, body, operands, expect, options=TRN3, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("rows", "columns", "count", "offered"),
    [(64, 1, None, 32), (32, 2, 33, 32), (8, 3, 25, 8), (32, 1, None, 16), (40, 2, 9, 8), (19, 2, 4, 3), (8, 3, 24, 8)],
)
def test_more_elements_than_a_group_has_offsets_for_is_a_fault(rows, columns, count, offered):
    def kernel(a):
        index = nl.zeros((rows, columns), nl.uint16)
        view = nl.zeros((rows, 80), nl.float32).indirect(index, num_elem=count)
        nisa.tensor_copy(dst=nl.ndarray((rows, view.shape[1]), nl.float32), src=view)

    taken = rows * columns if count is None else count
    with pytest.raises(KernelFault, match=rf"num_elem={taken}.*has {offered} offsets.*num_elem={offered} or less") as caught:
        launch(kernel, (np.zeros(1, np.float32),), options=SimOptions(**TRN3))
    assert caught.value.record.kind == "bounds"


@check("scattered matmul")
def scattered_matmul(data):
    """The columns of a product scattered over PSUM, then added to by a second product."""
    groups, rows = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 128))
    count, width = 32, data.draw(st.integers(32, 60))
    accumulate = data.draw(st.booleans())

    def distinct(rng, size):
        return np.concatenate([rng.permutation(width)[:count] for _ in range(size // count)])

    operands = {
        "dst": operand(data, (0, 32 * groups), (width,), reads=False, plain=True),
        "s": operand(data, (0, rows), (32 * groups,), "bfloat16", plain=True),
        "m": operand(data, (0, rows), (count,), "bfloat16", plain=True),
        "index": operand(data, (0, 32 * groups), (1,), "uint16", fill=distinct, plain=True),
    }

    def body(dst, s, m, index):
        psum = nl.ndarray((32 * groups, width), nl.float32, buffer=nl.psum)
        nisa.memset(dst=psum, value=0.0)
        view = psum.indirect(index, num_elem=count)
        nisa.nc_matmul(dst=view, stationary=s, moving=m, accumulate=False)
        nisa.nc_matmul(dst=view, stationary=s, moving=m, accumulate=accumulate)
        nisa.tensor_copy(dst=dst, src=psum)

    def expect():
        want = np.zeros((32 * groups, width))
        product = operands["s"].values.T @ operands["m"].values * (2 if accumulate else 1)
        np.put_along_axis(want, columns(operands["index"].values, 32, count), product, axis=1)
        return {"dst": want}

    run(data, body, operands, expect, options=TRN3, rtol=1e-5, atol=1e-4)


def test_a_scattered_product_must_say_whether_it_is_added():
    def kernel(x, i):
        tile, index = nl.ndarray((32, 32), nl.bfloat16), nl.ndarray((32, 1), nl.uint16)
        nisa.dma_copy(dst=tile, src=x)
        nisa.dma_copy(dst=index, src=i)
        psum = nl.ndarray((32, 64), nl.float32, buffer=nl.psum)
        view = psum.indirect(index, num_elem=32)
        nisa.nc_matmul(dst=view, stationary=tile, moving=tile)
        nisa.nc_matmul(dst=view, stationary=tile, moving=tile)

    arrays = (np.zeros((32, 32), nl.bfloat16.dtype), np.arange(32, dtype=np.uint16)[:, None])
    with pytest.raises(KernelFault, match="Pass accumulate=True or False"):
        launch(kernel, arrays, options=SimOptions(**TRN3))


@pytest.mark.parametrize("name", NAMES)
def test_equals_numpy_on_random_operands(name):
    run_cases(name, DEFAULT_CASES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_equals_numpy_on_many_random_operands(name):
    run_cases(name, MANY_CASES)
