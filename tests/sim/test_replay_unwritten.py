"""A replay that writes less than the one before shows nothing of it: unwritten elements are NaN, as in a fresh run."""

import numpy as np
import pytest

from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from tests.support.run_time_loops import loaded, output

ROWS, WIDTH, MOST = 16, 8, 8
NOTHING = np.full((ROWS, WIDTH), np.nan, np.float32)


def turns_to_out(x, count):
    """out[i] = 2 x[i] for i < count."""
    out = output(x.shape)

    def body(i):
        tile = nl.ndarray((ROWS, WIDTH), nl.float32)
        nisa.dma_copy(dst=tile, src=x.select(0, i))
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out.select(0, i), src=tile)

    nl.fori_loop(0, nisa.scalar_load(count), body)
    return out


def turns_to_tile(x, count):
    """out = the last x[i] that a turn loaded, in memory that a tile which is dead by then had before."""
    out = output((ROWS, WIDTH))
    before = nl.zeros((ROWS, WIDTH), nl.float32)
    nisa.dma_copy(dst=before, src=x[0])
    del before
    tile = nl.ndarray((ROWS, WIDTH), nl.float32)
    nl.fori_loop(0, nisa.scalar_load(count), lambda i: nisa.dma_copy(dst=tile, src=x.select(0, i)))
    nisa.dma_copy(dst=out, src=tile)
    return out


def scattered(x, count):
    """out[count] = x[0], beside a constant out[-1]."""
    out, tile = output((MOST + 2, ROWS, WIDTH)), nl.ndarray((ROWS, WIDTH), nl.float32)
    nisa.dma_copy(dst=tile, src=x[0])
    nisa.dma_copy(dst=out[MOST + 1], src=nl.zeros((ROWS, WIDTH), nl.float32))
    nisa.dma_copy(dst=out[loaded(count)], src=tile)
    return out


def skipped(x, count):
    """out = x[count], where there is one."""
    out, tile = output((ROWS, WIDTH)), nl.ndarray((ROWS, WIDTH), nl.float32)
    nisa.dma_copy(dst=tile, src=x.select(0, loaded(count)), oob_mode=nisa.oob_mode.skip)
    nisa.dma_copy(dst=out, src=tile)
    return out


def read_before_written(x, count):
    """out = a tile before x[count] is loaded into it."""
    out, tile = output((ROWS, WIDTH)), nl.ndarray((ROWS, WIDTH), nl.float32)
    nisa.dma_copy(dst=out, src=tile)
    nisa.dma_copy(dst=tile, src=x.select(0, loaded(count)), oob_mode=nisa.oob_mode.skip)
    return out


def put(x, count):
    want = np.full((MOST + 2, ROWS, WIDTH), np.nan, np.float32)
    want[MOST + 1], want[count] = 0, x[0]
    return want


EXPECTED = {
    turns_to_out: lambda x, count: np.concatenate([2 * x[:count], np.repeat(NOTHING[None], MOST - count, 0)]),
    turns_to_tile: lambda x, count: x[count - 1] if count else NOTHING,
    scattered: put,
    skipped: lambda x, count: x[count] if count < MOST else NOTHING,
    read_before_written: lambda x, count: NOTHING,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("recorded", [0, 1, 8])
@pytest.mark.parametrize("kernel", EXPECTED)
def test_a_replay_leaves_unwritten_what_a_fresh_run_leaves_unwritten(kernel, recorded, rng):
    def inputs(count):
        return {"x": rng.standard_normal((MOST, ROWS, WIDTH)).astype(np.float32), "count": np.array([[count]], np.int32)}

    program = launch(kernel, (), inputs(recorded), options=SimOptions(record=True)).program
    for count in (8, 1, 0, 7, 7, 8, 0):
        given = inputs(count)
        np.testing.assert_array_equal(program(given)[0], EXPECTED[kernel](given["x"], count))


def test_what_a_first_write_covers_is_not_filled_again(rng):
    def kernel(x, count):
        out, tile = output((ROWS, WIDTH)), nl.zeros((ROWS, WIDTH), nl.float32)
        nl.fori_loop(0, nisa.scalar_load(count), lambda i: nisa.dma_copy(dst=tile, src=x.select(0, i)))
        nisa.dma_copy(dst=out, src=tile)
        return out

    x = rng.standard_normal((MOST, ROWS, WIDTH)).astype(np.float32)
    assert not launch(kernel, (x, np.array([[3]], np.int32)), options=SimOptions(record=True)).run.refills
