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
