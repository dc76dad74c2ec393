"""PSUM is written in whole, aligned words of 4 bytes, on every way there: two field reports, and nki-library's own padding."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from nki_hf.chips import get_chip
from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from nki_hf.sim.constraints import psum_words
from nki_hf.sim.faults import SimulatorWarning

ROWS = 32


def psum(shape, dtype=nl.bfloat16):
    return nl.ndarray(shape, dtype, buffer=nl.psum)


def sbuf(shape, dtype=nl.bfloat16):
    return nl.ndarray(shape, dtype, buffer=nl.sbuf)


def _transpose(dst):
    nisa.nc_transpose(dst=dst, data=sbuf((dst.free_size, dst.partitions), dst.dtype), engine=nisa.engine.tensor)


def _identity(dst):
    nisa.nc_matmul(
        dst=dst,
        stationary=sbuf((dst.free_size, dst.partitions), dst.dtype),
        moving=sbuf((dst.free_size, dst.free_size), dst.dtype),
        is_transpose=True,
    )


WRITERS = {
    "nc_transpose": _transpose,
    "nc_transpose on vector": lambda dst: nisa.nc_transpose(
        dst=dst, data=sbuf((dst.free_size, dst.partitions), dst.dtype), engine=nisa.engine.vector
    ),
    "nc_matmul": _identity,
    "tensor_copy": lambda dst: nisa.tensor_copy(dst=dst, src=sbuf(dst.shape)),
    "activation": lambda dst: nisa.activation(dst=dst, op=nl.exp, data=sbuf(dst.shape)),
    "memset": lambda dst: nisa.memset(dst=dst, value=0.0),
    "tensor_tensor": lambda dst: nisa.tensor_tensor(dst=dst, data1=sbuf(dst.shape), data2=sbuf(dst.shape), op=nl.add),
    "tensor_scalar": lambda dst: nisa.tensor_scalar(dst=dst, data=sbuf(dst.shape), op0=nl.add, operand0=1.0),
    "range_select": lambda dst: nisa.range_select(
        dst=dst,
        on_true_tile=sbuf(dst.shape),
        comp_op0=nl.greater_equal,
        comp_op1=nl.less,
        bound0=sbuf((ROWS, 1), nl.float32),
        bound1=sbuf((ROWS, 1), nl.float32),
        on_false_value=-3.4028235e38,
    ),
    "select_reduce": lambda dst: nisa.select_reduce(
        dst=dst, predicate=sbuf(dst.shape, nl.uint8), on_true=sbuf(dst.shape), on_false=0.0
    ),
    "tensor_copy_predicated": lambda dst: nisa.tensor_copy_predicated(
        dst=dst, src=sbuf(dst.shape, dst.dtype), predicate=sbuf(dst.shape, nl.uint8)
    ),
}

VIEWS = {  # what is written of a tile, and whether it is whole words
    "whole": (lambda: psum((ROWS, 16)), True),
    "odd": (lambda: psum((ROWS, 15)), False),
    "one element": (lambda: psum((ROWS, 1)), False),
    "odd start": (lambda: psum((ROWS, 32))[:, 1:17], False),
    "odd end": (lambda: psum((ROWS, 32))[:, 0:15], False),
    "even part": (lambda: psum((ROWS, 32))[:, 2:18], True),
    "every second": (lambda: psum((ROWS, 32))[:, 0:32:2], False),
    "rows of three": (lambda: psum((ROWS, 4, 3))[:, :, 0:2], False),
    "rows of four": (lambda: psum((ROWS, 4, 4))[:, :, 0:2], True),
    "permuted": (lambda: psum((ROWS, 4, 4)).permute((0, 2, 1)), False),
    "access pattern": (lambda: psum((ROWS, 32)).ap([[32, ROWS], [1, 16]], offset=3), False),
    "a float32 tile seen as 16 bits": (lambda: psum((ROWS, 16), nl.float32).view(nl.bfloat16)[:, 1:17], False),
    "float32": (lambda: psum((ROWS, 15), nl.float32)[:, 3:10], True),
    "a run-time step of one": (
        lambda: psum((ROWS, 32)).ap([[32, ROWS], [1, 16]], scalar_offset=nisa.register_alloc(2), indirect_dim=1),
        False,
    ),
    "a run-time step of two": (
        lambda: psum((ROWS, 16, 2)).ap([[32, ROWS], [1, 16]], scalar_offset=nisa.register_alloc(2), indirect_dim=1),
        True,
    ),
    "rows of one": (lambda: psum((ROWS, 8, 2)).select(2, 0), False),
}


CASES = [  # documented: a dst of the Scalar engine that is moved at run time cannot be in PSUM at all
    (view, writer) for view in VIEWS for writer in WRITERS if not (writer == "activation" and "run-time" in view)
]


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize(("view", "writer"), CASES)
def test_a_write_to_psum_is_made_of_whole_words(view, writer, values):
    make, whole = VIEWS[view]

    def kernel():
        WRITERS[writer](make())

    options = SimOptions(values=values)
    if whole:
        launch(kernel, (), options=options)
    else:
        with pytest.raises(KernelFault, match="PSUM") as caught:
            launch(kernel, (), options=options)
        assert caught.value.record.kind == "placement"
        assert "byte" in caught.value.record.message


def test_a_result_of_an_accumulator_in_psum_is_a_whole_word_too():
    def kernel(dtype):
        nisa.activation_reduce(
            dst=sbuf((ROWS, 8)), op=nl.exp, data=sbuf((ROWS, 8)), reduce_op=nl.add, reduce_res=psum((ROWS, 1), dtype)
        )

    launch(kernel, (nl.float32,))
    with pytest.raises(KernelFault, match=r"reduce_res .* runs of 2 bytes"):
        launch(kernel, (nl.bfloat16,))


@pytest.mark.parametrize("chip", ["trn1", "trn2", "trn3"])
def test_kernels_written_elsewhere_are_refused_a_start_inside_a_word_and_warned_about_half_a_word(chip):
    """nki-library pads the starts of its 16-bit tiles to 4 bytes and writes odd numbers of elements there."""
    options = SimOptions(chip=get_chip(chip), third_party=True)
    with pytest.raises(KernelFault, match="starts at byte 2 of its partition"):
        launch(lambda: _transpose(psum((ROWS, 32))[:, 1:17]), (), options=options)
    with pytest.warns(SimulatorWarning, match="runs of 30 bytes"):
        launch(lambda: _transpose(psum((ROWS, 32))[:, 16:31]), (), options=options)


@pytest.mark.parametrize(("first", "whole"), [(15, True), (16, False), (17, True), (31, True)])
def test_a_pattern_that_steps_back_begins_at_its_lowest_byte(first, whole):
    """Elements first - 15 to first, of 2 bytes: bytes 2 * (first - 15) to 2 * first + 1."""

    def kernel():
        nisa.memset(dst=psum((ROWS, 32)).ap([[32, ROWS], [-1, 16]], offset=first), value=0.0)

    if whole:
        launch(kernel, ())
    else:
        with pytest.raises(KernelFault, match=f"starts at byte {2 * (first - 15)} of its partition"):
            launch(kernel, ())


def test_the_positions_of_replaced_values_are_a_write_too():
    def kernel(begin):
        nisa.nc_match_replace8(
            dst=sbuf((ROWS, 16)),
            data=sbuf((ROWS, 16)),
            vals=sbuf((ROWS, 8)),
            imm=0.0,
            dst_idx=psum((ROWS, 16), nl.uint16)[:, begin : begin + 8],
        )

    options = SimOptions(values=False)
    launch(kernel, (2,), options=options)
    with pytest.raises(KernelFault, match=r"dst_idx .* starts at byte 2 of its partition"):
        launch(kernel, (1,), options=options)


def test_every_parameter_that_is_written_is_looked_at():
    """NKI calls what an instruction writes a destination or the result of a reduction."""
    named = {
        name
        for instruction in map(nisa.__dict__.get, nisa.__all__)
        if inspect.isfunction(instruction)
        for name in inspect.signature(instruction).parameters
        if "dst" in name or name.endswith("_res")
    }
    assert named == set(psum_words._WRITTEN)


def test_odd_tiles_of_8_bits_need_four_elements():
    def kernel(count):
        nisa.memset(dst=psum((ROWS, count), nl.uint8), value=0)

    launch(kernel, (8,))
    for count in (5, 6, 7):
        with pytest.raises(KernelFault, match=f"runs of {count} bytes"):
            launch(kernel, (count,))


def test_a_register_is_not_stored_to_psum():
    def kernel():
        nisa.register_store(psum((1, 1), nl.int32), nisa.register_alloc(1))

    with pytest.raises(KernelFault, match="in psum"):
        launch(kernel, ())


def test_reads_of_psum_may_start_anywhere(rng):
    """The even tile of an odd number of rows is written whole and read in part."""
    data = rng.standard_normal((16, 15)).astype(np.float32)

    def kernel(x):
        tile, turned = sbuf((16, 16), nl.float32), psum((16, 16), nl.float32)
        nisa.memset(dst=tile, value=0.0)
        nisa.dma_copy(dst=tile[:, 0:15], src=x)
        half, turned = sbuf((16, 16)), psum((16, 16))
        nisa.tensor_copy(dst=half, src=tile)
        nisa.nc_transpose(dst=turned, data=half, engine=nisa.engine.tensor)
        back, out = sbuf((16, 15), nl.float32), nl.ndarray((16, 15), nl.float32, buffer=nl.shared_hbm)
        nisa.tensor_copy(dst=back, src=turned[:, 1:16])
        nisa.dma_copy(dst=out, src=back)
        return out

    rounded = data.astype(nl.bfloat16.dtype).astype(np.float32)
    want = np.zeros((16, 15), np.float32)
    want[0:15] = rounded.T[:, 1:16]
    np.testing.assert_array_equal(launch(kernel, (data,)).outputs[0], want)
