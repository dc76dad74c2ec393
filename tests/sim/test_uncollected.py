"""The garbage collector rests while a trace grows, and only then."""

import gc

import numpy as np
import pytest

from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from nki_hf.sim.uncollected import uncollected


def test_it_works_again_behind_the_block_whatever_happens_there():
    assert gc.isenabled()
    with uncollected(), uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), uncollected():
        _ = 1 / 0
    assert gc.isenabled()


def test_it_stays_off_for_a_program_that_has_switched_it_off():
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("values", [False, True])
def test_a_launch_on_shapes_alone_is_such_a_block(values):
    seen = []

    def kernel(a):
        seen.append(gc.isenabled())
        tile = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=a)
        return a

    launch(kernel, (np.zeros((4, 4), np.float32),), options=SimOptions(values=values, checks=False))
    assert seen == [values]
    assert gc.isenabled()
