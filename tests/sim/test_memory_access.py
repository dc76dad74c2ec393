"""What a kernel returns, asks of an allocation and reaches: outputs in shared HBM, arguments, bounds."""

import inspect
import json

import numpy as np
import pytest

from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from nki_hf.sim.faults import SimulatorWarning

X = np.ones((128, 64), np.float32)


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


@pytest.mark.parametrize("space", ["sbuf", "psum", "hbm", "private_hbm", "shared_hbm"])
@pytest.mark.parametrize("foreign", [False, True])
def test_outputs_are_in_shared_hbm(space, foreign):
    def kernel(x):
        tile = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        out = nl.ndarray((128, 64), nl.float32, buffer=getattr(nl, space))
        if space in ("sbuf", "psum"):
            nisa.tensor_copy(dst=out, src=tile)
        else:
            nisa.dma_copy(dst=out, src=tile)
        return out

    options = SimOptions(third_party=foreign)
    if space == "shared_hbm":
        launch(kernel, (X,), options=options)
    elif foreign and space in ("hbm", "private_hbm"):
        with pytest.warns(SimulatorWarning, match="outputs must be in shared_hbm"):
            launch(kernel, (X,), options=options)
    else:
        with pytest.raises(KernelFault, match="outputs must be in") as caught:
            launch(kernel, (X,), options=options)
        assert caught.value.record.kind == "output"


@pytest.mark.parametrize("space", ["sbuf", "hbm"])
def test_a_returned_tensor_that_is_no_output_is_named_with_the_line_of_its_allocation(space):
    def kernel(x):
        tile = nl.ndarray((128, 64), nl.float32, buffer=getattr(nl, space), name="mine")
        nisa.dma_copy(dst=tile, src=x)
        return tile

    with pytest.raises(KernelFault) as caught:
        launch(kernel, (X,))
    record = caught.value.record
    assert (record.kind, record.file, record.line) == ("output", __file__, line_of(kernel, "tile = nl.ndarray"))
    assert len(record.operands) == 1
    assert record.operands[0].startswith("mine")


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"address": 7}, "argument"),
        ({"address": (0, 1.5)}, "argument"),
        ({"address": (0, 0, 0)}, "argument"),
        ({"buffer": "nowhere"}, "argument"),
        ({"buffer": "shared_hbm", "address": (0, 0)}, "argument"),
        ({"buffer": "psum", "address": (0, 3)}, "placement"),
    ],
)
def test_arguments_of_an_allocation_that_cannot_be_are_faults(arguments, kind):
    def kernel(x):
        nl.ndarray((128, 4), nl.float32, **arguments)

    with pytest.raises(KernelFault) as caught:
        launch(kernel, (X,))
    assert (caught.value.record.kind, caught.value.record.instruction) == (kind, "ndarray")
    assert caught.value.record.line == line_of(kernel, "nl.ndarray((128, 4)")


@pytest.mark.parametrize(
    ("view", "index"),
    [
        (lambda x: x[:, 0:65], 64),
        (lambda x: x[:, 64], 64),
        (lambda x: x[:, -65], -65),
        (lambda x: x[1:129], 128),
        (lambda x: x[:, nl.ds(60, 20)], 64),
        (lambda x: x[:, 70:80], 70),
        (lambda x: x.ap([[64, 128], [1, 64]], offset=1), 8192),
        (lambda x: x.select(0, 128), 128),
        (lambda x: x.slice(1, 60, 65), 64),
    ],
)
def test_out_of_bounds_names_the_first_index_outside(view, index):
    with pytest.raises(KernelFault) as caught:
        launch(lambda x: view(x), (X,))
    assert caught.value.record.kind == "bounds"
    assert caught.value.record.details["index"] == index


def test_a_run_time_index_out_of_bounds_is_plain_json():
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        row = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)
        nisa.memset(dst=row, value=128)
        nisa.dma_copy(dst=out[0:1], src=x.ap(pattern=[[64, 1], [1, 64]], scalar_offset=row, indirect_dim=0))
        return out

    with pytest.raises(KernelFault) as caught:
        launch(kernel, (X,))
    json.dumps(caught.value.record.to_dict(), allow_nan=False)
    assert caught.value.record.details["index"] == 128
