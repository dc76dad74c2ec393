"""Instructions that keep old bytes of their destination read them: shared addresses and unwritten elements show it."""

import inspect

import numpy as np
import pytest

from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl

X = np.ones((128, 64), np.float32)


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


def shared_bytes(x, buffer, between, use):
    """`first` is written, `between` writes over it through `second` at the same address, and `use` goes on with `first`."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    left = nl.ndarray((128, 128), nl.bfloat16, buffer=nl.sbuf)
    right = nl.ndarray((128, 64), nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=left, value=1.0)
    nisa.memset(dst=right, value=1.0)
    first = nl.ndarray((128, 64), nl.float32, buffer=buffer, name="first", address=(0, 0))
    second = nl.ndarray((128, 64), nl.float32, buffer=buffer, name="second", address=(0, 0))
    if buffer is nl.psum:
        nisa.nc_matmul(dst=first, stationary=left, moving=right)
    else:
        nisa.memset(dst=first, value=0.0)
    if between:
        nisa.memset(dst=second, value=1e6)
    use(first, left, right, x)  # the use
    copy = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=copy, src=first)
    nisa.dma_copy(dst=out, src=copy)
    return out


def product(accumulate):
    return lambda first, a, b, x: nisa.nc_matmul(dst=first, stationary=a, moving=b, accumulate=accumulate)


def shuffle(mask):
    def use(first, a, b, x):
        other = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=other, value=2.0)
        nisa.nc_stream_shuffle(dst=first, src=other, shuffle_mask=mask)

    return use


def gather(index):
    """Rows of x by run-time index, those out of bounds left alone."""

    def use(first, a, b, x):
        rows = nl.ndarray((128, 1), nl.uint32, buffer=nl.sbuf)
        nisa.memset(dst=rows, value=index)
        view = x.ap(pattern=[[64, 128], [1, 64]], vector_offset=rows, indirect_dim=0)
        nisa.dma_copy(dst=first, src=view, oob_mode=nisa.oob_mode.skip)

    return use


def moved_read(first, a, b, x):
    column = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=column, value=3)
    one = nl.ndarray((128, 1), nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=one, src=first.ap(pattern=[[64, 128], [1, 1]], scalar_offset=column, indirect_dim=1))


KEEPING = [
    ("psum", product(True)),
    ("psum", product(None)),
    ("sbuf", shuffle([255] * 32)),
    ("sbuf", shuffle([0, 255] * 16)),
    ("sbuf", gather(500)),
    ("sbuf", moved_read),
]


@pytest.mark.parametrize(("buffer", "use"), KEEPING)
@pytest.mark.parametrize("between", [False, True])
def test_what_keeps_old_bytes_reads_them(buffer, use, between):
    arguments = (X, getattr(nl, buffer), between, use)
    options = SimOptions(uninitialized="error")
    if not between:
        launch(shared_bytes, arguments, options=options)
        return
    with pytest.raises(KernelFault, match=r"first at address=.* is read, but second") as caught:
        launch(shared_bytes, arguments, options=options)
    assert caught.value.record.kind == "overlap"
    assert caught.value.record.details["writer"]["line"] == line_of(shared_bytes, "value=1e6")


@pytest.mark.parametrize(("buffer", "use"), [("psum", product(False)), ("sbuf", shuffle(list(range(32))))])
def test_what_overwrites_everything_reads_nothing(buffer, use):
    launch(shared_bytes, (X, getattr(nl, buffer), True, use))


@pytest.mark.parametrize("how", ["shuffle", "gather", "predicate"])
@pytest.mark.parametrize("all_written", [False, True])
def test_elements_that_an_instruction_leaves_alone_do_not_count_as_written(how, all_written):
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
        if how == "predicate":
            source = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=source, src=x)
            chosen = nl.ndarray((128, 64), nl.uint8, buffer=nl.sbuf)
            nisa.memset(dst=chosen, value=1)
            if not all_written:
                nisa.memset(dst=chosen[:, 32:], value=0)
            nisa.tensor_copy_predicated(dst=tile, src=source, predicate=chosen)
            nisa.dma_copy(dst=out[:, :32], src=tile[:, :32])
        elif how == "shuffle":
            shuffle(list(range(32)) if all_written else [*range(31), 255])(tile, None, None, x)
        else:
            gather(3 if all_written else 500)(tile, None, None, x)
        nisa.dma_copy(dst=out, src=tile)
        return out

    options = SimOptions(uninitialized="error")
    if all_written:
        launch(kernel, (X,), options=options)
        return
    with pytest.raises(KernelFault, match="never written") as caught:
        launch(kernel, (X,), options=options)
    assert caught.value.record.line == line_of(kernel, "dma_copy(dst=out, src=tile)")
