"""Tiles at explicit addresses: which may share one, where they may lie, and what is left beside them."""

import inspect

import numpy as np
import pytest

from nki_hf.chips import get_chip
from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl

X = np.ones((128, 64), np.float32)


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


@pytest.mark.parametrize("read_first_again", [False, True])
@pytest.mark.parametrize("rewrite_first", [False, True])
@pytest.mark.parametrize("second_address", [0, 128, 256])
def test_sharing_an_address_is_a_fault_only_if_the_overwritten_tile_is_read(second_address, rewrite_first, read_first_again):
    def kernel(x):
        out = nl.ndarray((128, 64), nl.float32, buffer=nl.shared_hbm)
        first = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf, name="first", address=(0, 0))
        nisa.dma_copy(dst=first, src=x)
        nisa.dma_copy(dst=out, src=first)
        second = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf, name="second", address=(0, second_address))
        nisa.dma_copy(dst=second, src=x)
        nisa.dma_copy(dst=out, src=second)
        if rewrite_first:
            nisa.dma_copy(dst=first[:, 0:64], src=x)
        if read_first_again:
            nisa.dma_copy(dst=out, src=first)
        return out

    wrong = second_address < 256 and read_first_again and not rewrite_first
    if not wrong:
        launch(kernel, (X,))
        return
    with pytest.raises(KernelFault, match=r"first at address=\(0, 0\) is read, but second") as caught:
        launch(kernel, (X,))
    assert caught.value.record.kind == "overlap"
    assert caught.value.record.line == line_of(kernel, "if read_first_again") + 1
    assert caught.value.record.details["writer"]["line"] == line_of(kernel, "dst=second, src=x")


def test_rewriting_only_half_of_the_shared_bytes_still_faults():
    def kernel(x):
        out = nl.ndarray((128, 64), nl.float32, buffer=nl.shared_hbm)
        first = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf, address=(0, 0))
        second = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf, address=(0, 0))
        nisa.dma_copy(dst=first, src=x)
        nisa.dma_copy(dst=second, src=x)
        nisa.dma_copy(dst=first[:, 0:32], src=x[:, 0:32])
        nisa.dma_copy(dst=out, src=first)
        return out

    with pytest.raises(KernelFault, match="is read, but"):
        launch(kernel, (X,))


@pytest.mark.parametrize(
    ("buffer", "address", "kind"),
    [
        ("sbuf", (0, 229_376 - 252), "capacity"),
        ("sbuf", (1, 0), "placement"),
        ("psum", (0, 16_384 - 128), "capacity"),
        ("psum", (0, 1024), "placement"),
        ("sbuf", (0, 229_376 - 256), None),
        ("psum", (0, 2048), None),
    ],
)
def test_addresses_stay_within_the_memory_and_psum_tiles_start_at_a_bank(buffer, address, kind):
    def kernel(x):
        out = nl.ndarray((128, 64), nl.float32, buffer=nl.shared_hbm)
        tile = nl.ndarray((128, 64), nl.float32, buffer=getattr(nl, buffer), address=address)
        nisa.memset(dst=tile, value=0.0)
        copy = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=copy, src=tile)
        nisa.dma_copy(dst=out, src=copy)
        return out

    options = SimOptions(chip=get_chip("trn2"))
    if kind is None:
        launch(kernel, (X,), options=options)
        return
    with pytest.raises(KernelFault) as caught:
        launch(kernel, (X,), options=options)
    assert caught.value.record.kind == kind


@pytest.mark.parametrize(("width", "fits"), [(19_392, True), (19_393, False)])
def test_a_tile_must_fit_into_one_gap_between_addressed_tiles(width, fits):
    """Of 224 KiB, tiles of 256 B at 74 and 148 KiB leave 74, 73.75 and 75.75 KiB; 75.75 * 1024 / 4 = 19,392 elements."""

    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        low = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf, address=(0, 74 * 1024))
        high = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf, address=(0, 148 * 1024))
        tile = nl.ndarray((128, width), nl.float32, buffer=nl.sbuf, name="wide")
        for item in (low, high, tile):
            nisa.memset(dst=item, value=0.0)
        for item in (low, high, tile):
            nisa.dma_copy(dst=out, src=item[:, :64])
        return out

    options = SimOptions(chip=get_chip("trn2"), values=False)
    if fits:
        launch(kernel, (X,), options=options)
        return
    with pytest.raises(KernelFault, match="leave gaps of 77,568 B") as caught:
        launch(kernel, (X,), options=options)
    assert (caught.value.record.kind, caught.value.record.line) == ("capacity", line_of(kernel, "tile = nl.ndarray"))


def test_psum_banks_taken_by_address_leave_no_room_for_two_in_a_row():
    def kernel(x):
        out = nl.ndarray((128, 64), nl.float32, buffer=nl.shared_hbm)
        copy = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
        fixed = [nl.ndarray((128, 512), nl.float32, buffer=nl.psum, address=(0, 2048 * i)) for i in (1, 3, 5, 7)]
        two = nl.ndarray((128, 1024), nl.float32, buffer=nl.psum, name="two")
        for item in (*fixed, two):
            nisa.memset(dst=item, value=0.0)
        for item in (*fixed, two):
            nisa.tensor_copy(dst=copy, src=item[:, :64])
        nisa.dma_copy(dst=out, src=copy)
        return out

    with pytest.raises(KernelFault, match="leave gaps of 2,048 B") as caught:
        launch(kernel, (X,), options=SimOptions(values=False))
    record = caught.value.record
    assert (record.kind, record.line) == ("capacity", line_of(kernel, "two = nl.ndarray"))
    assert (record.details["bytes"], record.details["largest_gap"]) == (4096, 2048)
