"""Laws: each can be switched off, and those that are about more than one instruction do what they say."""

from itertools import count

import pytest

from nki_hf.chips import get_chip
from nki_hf.chips.laws import LAWS, without
from nki_hf.sim.dtypes import as_dtype
from nki_hf.sim.stream.events import Buffer, Event, Region
from nki_hf.sim.tensors.strides import row_major
from nki_hf.timing.schedule import schedule

TRN2 = get_chip("trn2")
_number = count()


def tile(shape, dtype="float32", space="sbuf"):
    return Buffer(next(_number), space, "t", shape, as_dtype(dtype), 0, "scratch", None, "", 0)


def whole(buffer, indirect=False):
    return Region(buffer, buffer.dtype, 0, buffer.shape, row_major(buffer.shape), indirect=indirect)


@pytest.mark.parametrize("name", LAWS)
def test_every_law_changes_a_chip_and_can_be_switched_off(name):
    for chip in (get_chip("trn1"), TRN2):
        off = without(chip, name)
        assert {n for n, p in off if p.value != chip.params[n].value} <= set(LAWS[name].off)
    assert any(without(c, name).params[n].value != c.params[n].value for c in (get_chip("trn1"), TRN2) for n in LAWS[name].off)


def test_an_unknown_law_is_refused():
    with pytest.raises(ValueError, match="without='gravity' is not a law: it is one of"):
        without(TRN2, "gravity")


@pytest.mark.parametrize("window", [None, 64])
def test_an_access_over_three_banks_holds_all_of_them(window):
    """Vector writes banks 0 to 2 of a tile in one instruction; Scalar's copy of another part of bank 2 waits for it."""
    psum = tile((128, 2048), space="psum")
    three = Region(psum, psum.dtype, 0, (128, 1300), (2048, 1))
    rest = Region(psum, psum.dtype, 1400, (128, 100), (2048, 1))  # still in bank 2, bytes that Vector does not write
    other = Region(psum, psum.dtype, 1600, (128, 100), (2048, 1))  # in bank 3
    source, target = whole(tile((128, 1300))), tile((128, 100))

    def run(second):
        return schedule(
            [
                Event(0, 0, "vector", "vector", "tensor_copy", (source,), (three,), "", 0, {}),
                Event(1, 0, "scalar", "scalar", "activation", (second,), (whole(target),), "", 0, {"op": "copy"}),
            ],
            TRN2,
            window=window,
        )

    shared, apart = run(rest), run(other)
    assert apart.start_ns[1] == apart.start_ns[0]
    assert shared.reasons()[1] == "port"
    assert shared.start_ns[1] >= shared.free_ns[0]


@pytest.mark.parametrize("window", [None, 64])
def test_gathers_pass_through_gpsimd_one_after_the_other(window):
    """Two gathers of 128 rows in different queues: the second's descriptors are written after the first's."""

    def gather(index, queue):
        cache, rows = tile((4096, 512), "bfloat16", "hbm"), tile((128, 1), "uint32")
        return Event(index, 0, "dma", queue, "dma_copy", (
            Region(cache, cache.dtype, 0, (128, 512), (512, 1), indirect=True), whole(rows),
        ), (whole(tile((128, 512), "bfloat16")),), "", 0, {})  # fmt: skip

    scheduled = schedule([gather(0, "sync"), gather(1, "gpsimd")], TRN2, window=window)
    assert scheduled.start_ns[1] - scheduled.start_ns[0] == pytest.approx(128 * TRN2.dma_software_descriptor_ns)
    hardware = schedule([gather(0, "sync"), gather(1, "gpsimd")], without(TRN2, "software-descriptors"), window=window)
    assert hardware.start_ns[1] == hardware.start_ns[0]


def test_gpsimd_computes_between_gathers_and_not_while_it_writes_descriptors():
    cache, rows = tile((4096, 512), "bfloat16", "hbm"), tile((128, 1), "uint32")
    gather = Event(0, 0, "dma", "sync", "dma_copy", (
        Region(cache, cache.dtype, 0, (128, 512), (512, 1), indirect=True), whole(rows),
    ), (whole(tile((128, 512), "bfloat16")),), "", 0, {})  # fmt: skip
    iota = Event(1, 0, "gpsimd", "gpsimd", "iota", (), (whole(tile((128, 64))),), "", 0, {})
    scheduled = schedule([gather, iota], TRN2, window=None)
    assert scheduled.start_ns[1] - scheduled.start_ns[0] >= 128 * TRN2.dma_software_descriptor_ns


def load(index, target, source):
    region = Region(source, source.dtype, 0, target.shape, (source.shape[1], 1))
    return Event(index, 0, "dma", "sync", "dma_copy", (region,), (whole(target),), "", 0, {})


def turns(count):
    """Turns of a loop: load a tile, square it on Scalar, copy the square on Vector, store the copy."""
    events = []
    for turn in range(count):
        x, square, y = (tile((128, 4096)) for _ in range(3))
        at, out = 4 * turn, whole(tile((128, 4096), space="hbm"))
        events += [
            load(at, x, tile((128, 4096), space="hbm")),
            Event(at + 1, 0, "scalar", "scalar", "activation", (whole(x),), (whole(square),), "", 0, {"op": "square"}),
            Event(at + 2, 0, "vector", "vector", "tensor_copy", (whole(square),), (whole(y),), "", 0, {}),
            Event(at + 3, 0, "dma", "sync", "dma_copy", (whole(y),), (out,), "", 0, {}),
        ]
    return events


@pytest.mark.parametrize("chip", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("window", [None, 64])
def test_with_the_stack_allocator_a_turn_begins_when_its_bytes_are_no_longer_used(chip, window):
    """x has the first bytes, the square those behind, and y those of x, which has been read: the next x waits for y's store."""
    chip = get_chip(chip)
    free, stacked = (schedule(turns(4), chip, window=window, stack=stack) for stack in (False, True))
    for turn in range(1, 4):
        before, now = 4 * turn - 4, 4 * turn
        assert stacked.start_ns[now] == stacked.done_ns[before + 3]
        assert stacked.start_ns[now + 1] >= stacked.free_ns[before + 2]
        assert stacked.cause[now] == before + 3
    if window is not None:
        assert free.start_ns[4] < free.done_ns[0]  # it is triggered while the first load is under way
        assert stacked.total_ns > free.total_ns
    assert (stacked.stack, free.stack) == (True, False)
    off = schedule(turns(4), without(chip, "stack-allocator"), window=window, stack=True)
    assert off.total_ns == free.total_ns
    assert not off.stack


@pytest.mark.parametrize("addressed", [False, True])
def test_tiles_that_live_together_or_have_an_address_wait_for_nothing_more_with_the_stack_allocator(addressed):
    places = [(0, 16384 * k) if addressed else None for k in range(4)]
    tiles = [Buffer(next(_number), "sbuf", "t", (128, 4096), as_dtype("float32"), 0, "scratch", at, "", 0) for at in places]
    events = [load(k, x, tile((128, 4096), space="hbm")) for k, x in enumerate(tiles)]
    result = tile((128, 4096))
    for x in tiles:
        events.append(
            Event(len(events), 0, "vector", "vector", "tensor_tensor", (whole(x), whole(result)), (whole(result),), "", 0, {})
        )
    free, stacked = (schedule(events, TRN2, stack=stack).start_ns.tolist() for stack in (False, True))
    assert stacked == free


def test_psum_stays_as_it_is_with_the_stack_allocator():
    """Products into banks of their own, each copied out once: the law is about SBUF."""
    left, right = whole(tile((128, 128), "bfloat16")), whole(tile((128, 512), "bfloat16"))
    events = []
    for k in range(4):
        bank, out = whole(tile((128, 512), space="psum")), whole(tile((128, 512)))
        events.append(Event(2 * k, 0, "tensor", "tensor", "nc_matmul", (left, right), (bank,), "", 0, {}))
        events.append(Event(2 * k + 1, 0, "vector", "vector", "tensor_copy", (bank,), (out,), "", 0, {}))
    free, stacked = (schedule(events, TRN2, window=None, stack=stack).start_ns.tolist() for stack in (False, True))
    assert stacked == free
