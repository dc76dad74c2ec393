"""Products added to PSUM that another engine wrote: undefined before NeuronCore-v4, found from the events."""

import inspect
import warnings
from contextlib import nullcontext

import numpy as np
import pytest

from nki_hf.chips import CHIPS, get_chip
from nki_hf.errors import KernelFault
from nki_hf.observers.accumulation import foreign_accumulation
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from nki_hf.sim.faults import SimulatorWarning

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
    undefined = start == "memset" and overlap and chip != "trn3"
    options = SimOptions(chip=get_chip(chip), third_party=True)
    with pytest.warns(SimulatorWarning, match=r"4,096 of 4,096.*only a product") if undefined else nullcontext():
        events = launch(product, (X, start, overlap), options=options).events
    found = foreign_accumulation(events, get_chip(chip))
    assert bool(found) == undefined
    for record in found:
        lines, first = inspect.getsourcelines(product)
        last = max(i for i, line in enumerate(lines) if "nc_matmul" in line)
        assert (record.file, record.line, record.instruction) == (__file__, first + last, "nc_matmul")
        assert "sums" in record.message
        assert "memset wrote" in record.message


def test_a_launch_warns_once_of_a_product_added_to_what_a_copy_wrote_and_our_own_kernels_fault():
    def kernel(x):
        tile, psum = nl.ndarray((128, 64), nl.float32), nl.ndarray((64, 64), nl.float32, buffer=nl.psum)
        nisa.dma_copy(dst=tile, src=x)
        for _ in range(3):
            nisa.tensor_copy(dst=psum, src=tile[0:64])
            nisa.nc_matmul(dst=psum, stationary=tile, moving=tile)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        launch(kernel, (X,), options=SimOptions(chip=get_chip("trn2"), third_party=True))
    assert len(caught) == 1
    with pytest.raises(KernelFault, match=r"only a product may start an accumulation.*accumulate=False"):
        launch(kernel, (X,), options=SimOptions(chip=get_chip("trn2")))
    launch(kernel, (X,), options=SimOptions(chip=get_chip("trn3")))


@pytest.mark.parametrize("start", [False, None])
def test_a_product_that_overwrites_starts_afresh_on_what_a_copy_wrote(start):
    """Once a product has overwritten them, the elements are a product's, whoever wrote them before."""

    def kernel(x):
        tile, psum = nl.ndarray((128, 64), nl.float32), nl.ndarray((64, 64), nl.float32, buffer=nl.psum)
        nisa.dma_copy(dst=tile, src=x)
        if start is False:
            nisa.memset(dst=psum, value=5.0)
        nisa.nc_matmul(dst=psum, stationary=tile, moving=tile, accumulate=start)
        nisa.nc_matmul(dst=psum, stationary=tile, moving=tile, accumulate=True)
        out, copy = nl.ndarray((64, 64), nl.float32, buffer=nl.shared_hbm), nl.ndarray((64, 64), nl.float32)
        nisa.tensor_copy(dst=copy, src=psum)
        nisa.dma_copy(dst=out, src=copy)
        return out

    result = launch(kernel, (X,), options=SimOptions(chip=get_chip("trn2"))).outputs[0]
    np.testing.assert_array_equal(result, 2 * X.T @ X)
