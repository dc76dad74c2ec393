"""Lifetimes, placement, capacity and never-written memory, by kernels that break each rule."""

import inspect

import numpy as np
import pytest

from nki_hf.chips import CHIPS, get_chip
from nki_hf.errors import KernelFault
from nki_hf.observers.capacity import report
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from nki_hf.sim.stream.memory import occupancies, placement

X = np.ones((128, 64), np.float32)


def high_water(events, chip):
    """The largest number of bytes per partition alive at once over all cores, by memory."""
    found = {"sbuf": 0, "psum": 0}
    for item in occupancies(events, chip):
        found[item.space] = max(found[item.space], item.high_water)
    return found


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


def held(x, kilobytes, count, *, keep):
    """`count` tiles of that size, all read at the end (`keep`) or each read at once."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tiles = []
    for i in range(count):
        tile = nl.ndarray((128, kilobytes * 256), nl.float32, buffer=nl.sbuf, name=f"tile{i}")
        nisa.memset(dst=tile, value=0.0)
        tiles.append(tile)
        if not keep:
            nisa.dma_copy(dst=out, src=tile[:, :64])
    for tile in tiles if keep else ():
        nisa.dma_copy(dst=out, src=tile[:, :64])
    return out


@pytest.mark.parametrize("chip", sorted(CHIPS))
@pytest.mark.parametrize("spare", [0, 1])
def test_sbuf_takes_exactly_its_documented_size(chip, spare):
    options = SimOptions(chip=get_chip(chip), values=False)
    kilobytes = int(get_chip(chip).sbuf_partition_bytes) // 1024
    if spare == 0:
        result = launch(held, (X, kilobytes // 4, 4), {"keep": True}, options=options)
        assert high_water(result.events, options.chip)["sbuf"] == kilobytes * 1024
        return
    with pytest.raises(KernelFault, match="SBUF overflow") as caught:
        launch(held, (X, kilobytes // 4 + spare, 4), {"keep": True}, options=options)
    record = caught.value.record
    assert (record.kind, record.file, record.line) == ("capacity", __file__, line_of(held, "tile = nl.ndarray"))
    assert record.details["bytes"] == 4 * (kilobytes // 4 + 1) * 1024
    assert [h["name"] for h in record.details["holders"]] == ["tile0", "tile1", "tile2", "tile3"]
    assert f"{(kilobytes // 4 + 1) * 1024:,} B" in str(caught.value)


def test_a_tile_lives_until_its_last_reader():
    result = launch(held, (X, 200, 50), {"keep": False}, options=SimOptions(values=False))
    assert high_water(result.events, get_chip("trn2"))["sbuf"] == 200 * 1024
    with pytest.raises(KernelFault, match="SBUF overflow"):
        launch(held, (X, 200, 2), {"keep": True}, options=SimOptions(values=False))


def test_a_tile_that_nothing_touches_takes_no_memory():
    def kernel(x):
        for _ in range(10):
            nl.ndarray((128, 50_000), nl.float32, buffer=nl.sbuf)
        return held(x, 1, 1, keep=True)

    result = launch(kernel, (X,), options=SimOptions(values=False))
    assert high_water(result.events, get_chip("trn2"))["sbuf"] == 1024


@pytest.mark.parametrize("partitions", [128, 129])
def test_a_tile_has_no_more_partitions_than_the_memory_even_if_they_are_not_used(partitions):
    def kernel(x):
        tile = nl.ndarray((partitions, 64), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile[0:64], src=x[0:64])
        out = nl.ndarray((64, 64), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile[0:64])
        return out

    if partitions == 128:
        launch(kernel, (X,))
        return
    with pytest.raises(KernelFault, match="129 partitions") as caught:
        launch(kernel, (X,))
    assert (caught.value.record.kind, caught.value.record.line) == ("shape", line_of(kernel, "tile = nl.ndarray"))


def banks(x, widths, dtype):
    """One PSUM tile of each width, all read at the end."""
    a = nl.ndarray((64, 128), nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=a, value=1.0)
    b = nl.ndarray((64, 512), nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=b, value=1.0)
    tiles = []
    for width in widths:
        tile = nl.ndarray((128, width), dtype, buffer=nl.psum)
        for start in range(0, width, 512):
            nisa.nc_matmul(dst=tile[:, start : min(width, start + 512)], stationary=a, moving=b[:, : min(512, width - start)])
        tiles.append(tile)
    total = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
    for tile in tiles:
        nisa.tensor_copy(dst=total[:, : min(64, tile.shape[1])], src=tile[:, : min(64, tile.shape[1])])
    out = nl.ndarray((128, 64), nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=total)
    return out


@pytest.mark.parametrize(
    ("widths", "taken"), [([512] * 8, 8), ([1] * 8, 8), ([513], 2), ([512] * 9, 9), ([1] * 9, 9), ([2048, 2048], 8)]
)
def test_psum_tiles_take_whole_banks(widths, taken):
    def kernel(x):
        return banks(x, widths, nl.float32)

    options = SimOptions(values=False)
    if taken <= 8:
        assert high_water(launch(kernel, (X,), options=options).events, options.chip)["psum"] == taken * 2048
    else:
        with pytest.raises(KernelFault, match=f"PSUM overflow.*{taken} banks") as caught:
            launch(kernel, (X,), options=options)
        assert caught.value.record.kind == "capacity"


def test_tiles_alive_together_are_placed_apart_and_within_the_capacity():
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        fixed = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf, address=(0, 512))
        nisa.dma_copy(dst=fixed, src=x)
        previous = fixed
        for i in range(6):
            tile = nl.ndarray((128, 64 + 32 * (i % 3)), nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=tile[:, :64], src=previous[:, :64])
            nisa.tensor_copy(dst=tile[:, :64], src=fixed)
            previous = tile
        nisa.dma_copy(dst=out, src=previous[:, :64])
        return out

    events = launch(kernel, (X,), options=SimOptions(values=False)).events
    places = placement(events, get_chip("trn2"))
    spans = {}
    for event in events:
        for item in (*event.reads, *event.writes):
            if item.buffer.on_chip:
                first, _, buffer = spans.get(item.buffer.number, (event.index, 0, item.buffer))
                spans[item.buffer.number] = (first, event.index, buffer)
    assert places.keys() == spans.keys()
    for a, (a0, a1, first) in spans.items():
        for b, (b0, b1, second) in spans.items():
            if a < b and a0 <= b1 and b0 <= a1:
                lo, hi = places[a][1], places[b][1]
                assert lo + first.bytes_per_partition <= hi or hi + second.bytes_per_partition <= lo
    assert max(places[n][1] for n in places) < 2048


def test_bytes_shared_by_address_count_once():
    def kernel(x):
        out = nl.ndarray((128, 64), nl.float32, buffer=nl.shared_hbm)
        a = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf, address=(0, 0))
        b = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf, address=(0, 128))
        nisa.dma_copy(dst=a, src=x)
        nisa.dma_copy(dst=b, src=x)
        nisa.dma_copy(dst=a, src=x)
        nisa.dma_copy(dst=out, src=a)
        return out

    assert high_water(launch(kernel, (X,)).events, get_chip("trn2"))["sbuf"] == 384


@pytest.mark.parametrize("written", [64, 63, 0])
def test_reading_what_nothing_wrote_is_an_error_on_request(written):
    def kernel(x):
        tile = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf, name="tile")
        if written:
            nisa.dma_copy(dst=tile[:, :written], src=x[:, :written])
        out = nl.ndarray((128, 64), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        return out

    silent = launch(kernel, (X,)).outputs[0]
    assert np.isnan(silent).sum() == 128 * (64 - written)
    options = SimOptions(uninitialized="error")
    if written == 64:
        launch(kernel, (X,), options=options)
        return
    with pytest.raises(KernelFault, match=rf"the first at \[0, {written}\]") as caught:
        launch(kernel, (X,), options=options)
    assert (caught.value.record.kind, caught.value.record.instruction) == ("uninitialized", "dma_copy")


def test_an_instruction_that_works_in_place_does_not_hide_its_own_unwritten_read():
    def kernel(x):
        tile = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
        return held(x, 1, 1, keep=True)

    with pytest.raises(KernelFault, match="never written"):
        launch(kernel, (X,), options=SimOptions(uninitialized="error"))


def test_memory_is_not_judged_when_checks_are_off():
    launch(held, (X, 200, 2), {"keep": True}, options=SimOptions(values=False, checks=False))


def test_the_capacity_report_names_the_largest_tiles_with_their_lines():
    result = launch(held, (X, 8, 3), {"keep": True}, options=SimOptions(values=False))
    (row,) = report(result.events, get_chip("trn2"), largest=2)
    assert (row["space"], row["high_water_bytes"], row["capacity_bytes"]) == ("sbuf", 3 * 8192, 229_376)
    assert [(h["name"], h["bytes"], h["line"]) for h in row["holders"]] == [
        ("tile0", 8192, line_of(held, "tile = nl.ndarray")),
        ("tile1", 8192, line_of(held, "tile = nl.ndarray")),
    ]
    (timeline,) = (item.timeline for item in occupancies(result.events, get_chip("trn2")) if item.space == "sbuf")
    assert [nbytes for _, nbytes in timeline] == [8192, 16384, 24576, 0]
