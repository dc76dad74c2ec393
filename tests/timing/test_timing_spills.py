"""Spills: the liveness rule, what is added when memory overflows, and that values still flow as they did."""

from dataclasses import replace

import pytest

from nki_hf.chips import get_chip
from nki_hf.chips.laws import without
from nki_hf.sim.dtypes import as_dtype
from nki_hf.sim.stream.events import Buffer, Event, Region
from nki_hf.sim.tensors.strides import row_major
from nki_hf.timing.schedule import schedule
from nki_hf.timing.spills import spilled
from nki_hf.tools.subjects import events_of

TRN1 = get_chip("trn1")
SEEING = without(TRN1, "sbuf-holding")
"""Its allocator sees through loops."""
COPYING = without(TRN1, "psum-recompute")


class Stream:
    """Writes and reads of whole SBUF tiles of `kib` KiB per partition."""

    def __init__(self):
        self.events, self.tiles = [], {}

    def region(self, name, kib):
        if name not in self.tiles:
            self.tiles[name] = Buffer(
                len(self.tiles), "sbuf", name, (128, kib * 256), as_dtype("float32"), 0, "scratch", None, "", 0
            )
        tile = self.tiles[name]
        return Region(tile, tile.dtype, 0, tile.shape, row_major(tile.shape))

    def write(self, name, kib):
        self.events.append(Event(len(self.events), 0, "vector", "vector", "memset", (), (self.region(name, kib),), "k", 1, {}))
        return self

    def read(self, name, kib):
        out = self.region("out", 1)
        self.events.append(
            Event(len(self.events), 0, "vector", "vector", "tensor_reduce", (self.region(name, kib),), (out,), "k", 2, {})
        )
        return self


def test_what_fits_is_left_alone():
    events = Stream().write("a", 90).write("b", 90).read("a", 90).read("b", 90).events
    after, spills = spilled(events, TRN1)
    assert after == events
    assert not spills
    assert spills.peak_bytes["sbuf"] == (90 + 90 + 1) * 1024  # a, b and what is read into


def test_each_core_has_a_memory_of_its_own():
    """Two cores whose instructions alternate, one of which needs more than there is: what is added is what it needs alone."""
    full = Stream().write("a", 90).write("b", 90).write("c", 60).read("a", 90).read("b", 90).read("c", 60).events
    small = Stream().write("d", 60).write("e", 60).write("f", 30).read("d", 60).read("e", 60).read("f", 30).events
    other = [replace(event, core=1, reads=_moved(event.reads), writes=_moved(event.writes)) for event in small]
    mixed = [event for pair in zip(full, other, strict=True) for event in pair]
    after, spills = spilled([replace(event, index=i) for i, event in enumerate(mixed)], TRN1)
    _, alone = spilled(full, TRN1)
    assert alone.stores > 0
    assert (spills.stores, spills.loads, spills.peak_bytes) == (alone.stores, alone.loads, alone.peak_bytes)
    assert {event.core for event in after if event.attrs.get("spill")} == {0}


def _moved(regions):
    return tuple(replace(r, buffer=replace(r.buffer, number=100 + r.buffer.number, core=1)) for r in regions)


def test_the_tile_whose_next_use_is_furthest_goes_to_hbm_and_comes_back():
    events = (
        Stream().write("near", 90).write("far", 90).write("third", 60).read("third", 60).read("near", 90).read("far", 90).events
    )
    after, spills = spilled(events, SEEING)
    moved = [
        (event.opcode, event.reads[0].buffer.name, event.writes[0].buffer.space) for event in after if event.attrs.get("spill")
    ]
    assert moved == [("dma_copy", "far", "private_hbm"), ("dma_copy", "far (spill)", "sbuf")]
    assert (spills.stores, spills.loads) == (1, 1)
    assert spills.stored_bytes == spills.loaded_bytes == 90 * 1024 * 128
    assert spills.peak_bytes["sbuf"] == (90 + 90 + 60 + 1) * 1024
    last = after[-1]
    assert last.reads[0].buffer.name == "far (reload)"
    schedule(events, SEEING)  # and the result fits


def test_what_was_touched_longest_ago_goes_and_is_stored_each_time():
    """a was touched longest ago when c comes, though it is needed next; back from HBM, it leaves by a store again."""
    stream = Stream().write("a", 90).write("b", 90).write("c", 90).read("a", 90).read("b", 90).read("c", 90)
    stream.read("a", 90).read("b", 90)
    after, spills = spilled(stream.events, TRN1)
    stores = [e.reads[0].buffer.name.split(" ")[0] for e in after if e.attrs.get("spill") and not e.writes[0].buffer.on_chip]
    assert stores == ["a", "b", "c", "a"]
    assert spills.loads == 4
    schedule(stream.events, TRN1)


def test_a_tile_holds_nothing_between_its_last_read_and_the_next_whole_write():
    """a is read, then written anew after b came and went: 120 + 120 KiB never live together."""
    events = Stream().write("a", 120).read("a", 120).write("b", 120).read("b", 120).write("a", 120).read("a", 120).events
    after, spills = spilled(events, SEEING)
    assert not spills
    assert spills.peak_bytes["sbuf"] == (120 + 1) * 1024
    assert len(after) == len(events)
    assert spilled(events, TRN1)[1].stores, "held from its first to its last instruction, a does not fit beside b"
    assert schedule(events, SEEING).high_water_bytes[0, "sbuf"] <= TRN1.sbuf_partition_bytes


def test_an_instruction_in_place_needs_the_value():
    """a is scaled in place after b came and went: it must be brought back, which an overwrite of all of it would not need."""
    stream = Stream().write("a", 120).write("b", 120).read("b", 120)
    tile = stream.region("a", 120)
    stream.events.append(Event(3, 0, "vector", "vector", "tensor_scalar", (tile,), (tile,), "k", 3, {}))
    events = stream.read("a", 120).events
    after, spills = spilled(events, SEEING)
    assert (spills.stores, spills.loads) == (1, 1)
    assert spills.peak_bytes["sbuf"] == (120 + 120 + 1) * 1024
    scaled = next(event for event in after if event.opcode == "tensor_scalar")
    assert scaled.reads[0].buffer is scaled.writes[0].buffer
    assert scaled.reads[0].buffer.name == "a (reload)"


def test_overflow_of_one_instruction_alone_is_an_error():
    events = Stream().write("a", 193).read("a", 193).events
    with pytest.raises(MemoryError, match="sbuf overflows"):
        spilled(events, TRN1)


def test_scores_that_overflow_psum_move_to_sbuf_and_from_there_to_hbm():
    _, at_512 = spilled(events_of("v3", 512, COPYING), COPYING)
    _, at_1024 = spilled(events_of("v3", 1024, COPYING), COPYING)
    assert not at_512  # 4 query tiles of one bank
    assert at_1024.psum_copies == 8  # 16 banks asked, 8 there
    assert at_1024.stores == 0


def test_scores_that_overflow_psum_are_computed_once_more():
    """16 banks of scores a query tile, 8 there: each of 64 x 16 score blocks is made for the maximum and again for exp."""
    before = events_of("v7", 8192, TRN1)
    after, spills = spilled(before, TRN1)
    assert (spills.recomputed, spills.psum_copies) == (64 * 16, 0)
    assert len(after) == len(before) + 64 * 16
    written = set()
    for event in after:
        assert all(r.buffer.number in written for r in event.reads if r.buffer.space == "psum")
        written |= {r.buffer.number for r in event.writes}


def test_what_cannot_be_computed_again_is_copied():
    """The stationary operand is overwritten between the matmul and the last use of its result."""
    chip = TRN1
    stream = Stream()

    def psum(name):
        tile = stream.tiles.setdefault(
            name, Buffer(1000 + len(stream.tiles), "psum", name, (128, 512), as_dtype("float32"), 0, "scratch", None, "k", 7)
        )
        return Region(tile, tile.dtype, 0, tile.shape, row_major(tile.shape))

    def matmul(name):
        reads = (stream.region("weights", 1), stream.region("moving", 1))
        stream.events.append(Event(len(stream.events), 0, "tensor", "tensor", "nc_matmul", reads, (psum(name),), "k", 7, {}))

    def use(name):
        writes = (stream.region("out", 1),)
        reduce = ("vector", "vector", "tensor_reduce")
        stream.events.append(Event(len(stream.events), 0, *reduce, (psum(name),), writes, "k", 8, {}))

    stream.write("weights", 1).write("moving", 1)
    names = [f"bank {k}" for k in range(9)]
    for name in names:
        matmul(name)
    for name in names:
        use(name)
    _, kept = spilled(stream.events, chip)
    assert (kept.recomputed, kept.psum_copies) == (0, 0)  # made when needed: nothing is made twice
    stream.write("weights", 1)
    use("bank 8")
    _, overwritten = spilled(stream.events, chip)
    assert overwritten.recomputed == 0
    assert overwritten.psum_copies <= 1


def test_the_cliff_of_v11_lies_between_8192_and_16384_keys_on_trn1():
    """Live bytes per partition: q, k, V^T, exps and P^T 2 B, one set of scores 4 B: 14 B a key; see v11's docstring."""
    fits, spills_at_8k = spilled(events_of("v11", 8192, SEEING), SEEING)
    assert len(fits) == len(events_of("v11", 8192, TRN1))
    assert not spills_at_8k
    assert spills_at_8k.peak_bytes["sbuf"] == pytest.approx(14 * 8192, rel=0.02)
    assert 14 * 8192 < TRN1.sbuf_partition_bytes < 14 * 16384


@pytest.mark.slow
def test_v11_at_16384_keys_spills_and_takes_five_times_what_scaling_would_give():
    """Measured: 1,387 and 35,067 us."""
    at_8k = schedule(events_of("v11", 8192, TRN1), TRN1)
    at_16k = schedule(events_of("v11", 16384, TRN1), TRN1)
    assert not at_8k.spills
    assert at_16k.spills.loads > 1000
    assert 20 < at_16k.total_ns / at_8k.total_ns < 31
