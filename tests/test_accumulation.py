"""Products added to PSUM that another engine wrote: undefined before NeuronCore-v4, found from the events."""

import inspect

import numpy as np
import pytest

from nki_hf.chips import CHIPS, get_chip
from nki_hf.observers.accumulation import foreign_accumulation
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl

X = np.ones((128, 64), np.float32)


def product(x, start, overlap):
    """A product onto PSUM whose start is a `memset`, another product, or nothing; the memset may touch other elements only."""
    tile = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    psum = nl.ndarray((64, 128), nl.float32, buffer=nl.psum, name="sums")
    if start == "memset":
        nisa.memset(dst=psum[:, 0:64] if overlap else psum[:, 64:128], value=0.0)
    elif start == "product":
        nisa.nc_matmul(dst=psum[:, 0:64], stationary=tile, moving=tile)
    nisa.nc_matmul(dst=psum[:, 0:64], stationary=tile, moving=tile)
    copy = nl.ndarray((64, 64), nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=copy, src=psum[:, 0:64])
    out = nl.ndarray((64, 64), nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=copy)
    return out


@pytest.mark.parametrize("chip", sorted(CHIPS))
@pytest.mark.parametrize("start", ["memset", "product", "nothing"])
@pytest.mark.parametrize("overlap", [False, True])
def test_only_a_product_may_start_an_accumulation_before_the_fourth_generation(chip, start, overlap):
    events = launch(product, (X, start, overlap), options=SimOptions(chip=get_chip(chip))).events
    found = foreign_accumulation(events, get_chip(chip))
    assert bool(found) == (start == "memset" and overlap and chip != "trn3")
    for record in found:
        lines, first = inspect.getsourcelines(product)
        last = max(i for i, line in enumerate(lines) if "nc_matmul" in line)
        assert (record.file, record.line, record.instruction) == (__file__, first + last, "nc_matmul")
        assert "sums" in record.message
        assert "memset wrote" in record.message
