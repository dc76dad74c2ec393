"""Kernels with loops of run time, for tests: prefix sums in three forms."""

from __future__ import annotations

import numpy as np

from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl

__all__ = ["KERNELS", "MOST", "NAMES", "ROWS", "WIDTH", "expected", "inputs", "loaded", "output"]

ROWS, WIDTH, MOST = 16, 8, 8


def loaded(source):
    register = nisa.register_alloc()
    nisa.register_load(register, source)
    return register


def output(shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype, buffer=nl.shared_hbm)


def prefix_sums(x, count):
    """out[i] = x[0] + ... + x[i] for i < count, by fori_loop."""
    out, total = output(x.shape), nl.zeros((ROWS, WIDTH), nl.float32)
    nisa.dma_copy(dst=out, src=x)

    def body(i):
        tile = nl.ndarray((ROWS, WIDTH), nl.float32)
        nisa.dma_copy(dst=tile, src=x.select(0, i))
        nisa.tensor_tensor(dst=total, data1=total, data2=tile, op=nl.add)
        nisa.dma_copy(dst=out.select(0, i), src=total)

    nl.fori_loop(0, nisa.scalar_load(count), body)
    return out


def prefix_sums_of_0_6(x, count):
    """The same by dynamic_range, with the register as a subscript."""
    out, total = output(x.shape), nl.zeros((ROWS, WIDTH), nl.float32)
    nisa.dma_copy(dst=out, src=x)
    for i in nl.dynamic_range(loaded(count)):
        tile = nl.ndarray((ROWS, WIDTH), nl.float32)
        nisa.dma_copy(dst=tile, src=x[i])
        nisa.tensor_tensor(dst=total, data1=total, data2=tile, op=nl.add)
        nisa.dma_copy(dst=out[i, :, :], src=total)
    return out


def prefix_sums_while(x, count):
    """The same by while_loop, counting down in the returned register and up in one of its own."""
    out, total = output(x.shape), nl.zeros((ROWS, WIDTH), nl.float32)
    nisa.dma_copy(dst=out, src=x)
    index = nisa.register_alloc(0)

    def body(left):
        tile = nl.ndarray((ROWS, WIDTH), nl.float32)
        nisa.dma_copy(dst=tile, src=x[index])
        nisa.tensor_tensor(dst=total, data1=total, data2=tile, op=nl.add)
        nisa.dma_copy(dst=out[index], src=total)
        numbers = nl.ndarray((1, 2), nl.int32)
        nisa.register_store(numbers[:, 0:1], left)
        nisa.register_store(numbers[:, 1:2], index)
        nisa.tensor_scalar(dst=numbers[:, 0:1], data=numbers[:, 0:1], op0=nl.subtract, operand0=1.0)
        nisa.tensor_scalar(dst=numbers[:, 1:2], data=numbers[:, 1:2], op0=nl.add, operand0=1.0)
        remaining = nisa.register_alloc()
        nisa.register_load(remaining, numbers[:, 0:1])
        nisa.register_load(index, numbers[:, 1:2])
        return remaining

    nl.while_loop(loaded(count), body)
    return out


KERNELS = [prefix_sums, prefix_sums_of_0_6, prefix_sums_while]
NAMES = {prefix_sums: "body", prefix_sums_while: "body"}


def inputs(rng, count):
    return rng.standard_normal((MOST, ROWS, WIDTH)).astype(np.float32), np.array([[count]], np.int32)


def expected(x, count):
    want = x.copy()
    want[:count] = np.cumsum(x[:count].astype(np.float64), 0)
    return want
