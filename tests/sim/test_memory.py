"""Lifetimes, placement, capacity, explicit addresses, outputs and never-written memory, by kernels that break each rule."""

import inspect
import json

import numpy as np
import pytest

from nki_hf.chips import CHIPS, get_chip
from nki_hf.errors import KernelFault
from nki_hf.observers.capacity import report
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from nki_hf.sim.faults import SimulatorWarning
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
