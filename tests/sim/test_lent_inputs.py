"""Inputs that a replay reads where they lie: runs of whole rows from run-time starts, of arrays of any strides and length."""

import ml_dtypes
import numpy as np
import pytest

from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl

SHAPE = (2, 3, 8, 5)
ROWS = 4


def rows_from(table, start, also=False):
    """`ROWS` rows of all planes of `table` in a row, from row `start` on; nothing where that leaves the table."""
    out = nl.ndarray((ROWS, SHAPE[-1]), dtype=table.dtype, buffer=nl.shared_hbm)
    index, tile = nl.ndarray((1, 1), dtype=nl.int32), nl.ndarray((ROWS, SHAPE[-1]), dtype=table.dtype)
    nisa.dma_copy(dst=index, src=start)
    nisa.memset(dst=tile, value=7.0)
    register = nisa.register_alloc()
    nisa.register_load(dst=register, src=index)
    flat = table.reshape((SHAPE[0] * SHAPE[1] * SHAPE[2], SHAPE[3]))
    moved = flat.ap(pattern=[[SHAPE[3], ROWS], [1, SHAPE[3]]], offset=0, scalar_offset=register, indirect_dim=0)
    nisa.dma_copy(dst=tile, src=moved, oob_mode=nisa.oob_mode.skip)
    if also:  # something else reads the table, so that it must be there
        line = nl.ndarray((1, SHAPE[-1]), dtype=table.dtype)
        nisa.dma_copy(dst=line, src=flat[0:1, 0 : SHAPE[3]])
        nisa.dma_copy(dst=tile[0:1, 0 : SHAPE[3]], src=line)
    nisa.dma_copy(dst=out, src=tile)
    return out


def expected(table, start, also=False):
    whole = np.zeros(SHAPE, table.dtype)
    whole[tuple(slice(0, size) for size in table.shape)] = table
    flat = whole.reshape(-1, SHAPE[-1])
    found = np.full((ROWS, SHAPE[-1]), 7, table.dtype) if start < 0 or start + ROWS > len(flat) else flat[start : start + ROWS]
    return np.concatenate([flat[:1], found[1:]]) if also else found


@pytest.mark.parametrize("also", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("length", [8, 6, 1])
def test_a_replay_reads_what_the_caller_holds(length, dtype, also, rng):
    """Starts inside a plane, at its end, over it, behind the keys that are there, and out of bounds."""
    full = rng.standard_normal(SHAPE).astype(dtype)
    start = np.array([[0]], np.int32)
    program = launch(rows_from, (full, start), {"also": also}, options=SimOptions(events=False, record=True)).program
    assert set(program._lent) == (set() if also else {"table"})
    spread = np.zeros((*SHAPE[:2], 2 * SHAPE[2], 2 * SHAPE[3]), dtype)
    for given in (full[:, :, :length], spread[:, :, ::2, ::2][:, :, :length]):
        given[...] = rng.standard_normal(given.shape).astype(dtype)
        kept = given.copy()
        for first in (0, 2, 4, 5, 7, 20, 44, 45, 1000):
            (out,) = program({"table": given, "start": np.array([[first]], np.int32)})
            np.testing.assert_array_equal(out.astype(np.float32), expected(given, first, also).astype(np.float32))
        np.testing.assert_array_equal(given.astype(np.float32), kept.astype(np.float32))
