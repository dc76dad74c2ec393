"""The schedule where on-chip memory is short: streams that take fresh tiles, in as little memory as program order needs."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from plain_schedule import PlainSchedule

from nki_hf.chips import get_chip
from nki_hf.sim.dtypes import as_dtype
from nki_hf.sim.stream.events import Buffer, Event, Region
from nki_hf.sim.tensors.strides import row_major
from nki_hf.timing.lookahead import Lookahead
from nki_hf.timing.times import MEMORY
from nki_hf.timing.window_order import run_in_window
from nki_hf.timing.workload import prepare

ENGINES = {
    "dma": "dma_copy",
    "tensor": "nc_matmul",
    "vector": "tensor_copy",
    "scalar": "activation",
    "reduce": "activation_reduce",
    "gpsimd": "affine_select",
}


class Stream:
    """Events over numbered places; each place holds the tile that was last made there."""

    def __init__(self):
        self.events, self.buffers, self.places = [], 0, {}

    def tile(self, place, columns, *, fresh, half=None):
        """The tile at `place`, `columns` of float32 a partition where it is made; or one half of it, 0 or 1."""
        if fresh or place not in self.places:
            space = place[0]
            self.places[place] = Buffer(
                self.buffers, space, f"{space}{self.buffers}", (128, columns), as_dtype("float32"), 0, "scratch", None, "", 0
            )
            self.buffers += 1
        buffer = self.places[place]
        rows, columns = buffer.shape
        if half is not None and columns > 1:
            return Region(buffer, buffer.dtype, half * columns // 2, (rows, columns // 2), row_major(buffer.shape))
        return Region(buffer, buffer.dtype, 0, buffer.shape, row_major(buffer.shape))

    def add(self, engine, reads, writes):
        """One instruction; `reduce` is one of Scalar whose accumulator, its second destination, is usable later."""
        attrs = {"op": "exp", "reduce": True} if engine == "reduce" else {"op": "copy"}
        name = "scalar" if engine == "reduce" else engine
        queue = "sync" if name == "dma" else name
        self.events.append(Event(len(self.events), 0, name, queue, ENGINES[engine], tuple(reads), tuple(writes), "k", 1, attrs))


def stream_of(steps):
    """The events of `(engine, place read, place written, columns, fresh, half)`."""
    stream = Stream()
    for engine, source, target, columns, fresh, half in steps:
        read = stream.tile(("sbuf", source), columns, fresh=False)
        space = "psum" if engine == "tensor" or (engine in ("vector", "scalar") and target == 0) else "sbuf"
        write = stream.tile((space, target), columns, fresh=fresh, half=half)
        if engine in ("vector", "scalar") and source == 0:
            read = stream.tile(("psum", 0), columns, fresh=False)
        more = [stream.tile(("sbuf", 10 + target), 1, fresh=fresh)] if engine == "reduce" else []
        stream.add(engine, [read, read] if engine == "tensor" else [read], [write, *more])
    return stream.events


def tight(events, chip, more=0, spaces=("sbuf", "psum")):
    """The workload of `events`, with as many bytes in `spaces` as program order needs, and `more`."""
    work = prepare(events, chip, reorder=True)
    pools = [
        (core, space, int(work.tiles.live(k)[1].max()) + more if space in spaces else size)
        for k, (core, space, size) in enumerate(work.tiles.pools)
    ]
    return replace(work, tiles=replace(work.tiles, pools=pools))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(tuple(ENGINES)),
        st.integers(0, 3),
        st.integers(0, 3),
        st.sampled_from((16, 64, 512)),
        st.booleans(),
        st.sampled_from((None, 0, 1)),
    ),
    min_size=4,
    max_size=48,
)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.sampled_from(("trn1", "trn2", "trn3")), st.sampled_from((3, 8, 64)), st.sampled_from((0, 64, 2048)))
def test_a_window_schedule_in_the_least_memory_is_that_of_the_rules_said_plainly(steps, name, window, more):
    work = tight(stream_of(steps), get_chip(name), more)
    plain, times = PlainSchedule(work, window).resources, run_in_window(Lookahead(work, window))
    assert times.start.tolist() == plain.start
    assert times.free.tolist() == plain.free
    assert times.done.tolist() == plain.done


def rotation(loads, tiles):
    """A load into a fresh tile and one reader of it, many times over, as a kernel with `tiles` buffers would run."""
    stream = Stream()
    for i in range(loads):
        stream.add("dma", [stream.tile(("hbm", 0), 512, fresh=False)], [stream.tile(("sbuf", i % tiles), 512, fresh=True)])
        stream.add(
            "vector", [stream.tile(("sbuf", i % tiles), 512, fresh=False)], [stream.tile(("sbuf", -1), 512, fresh=False)]
        )
    return stream.events


@pytest.mark.parametrize("tiles", [1, 2, 3])
def test_a_load_waits_for_the_reader_of_the_tile_before_and_a_hop(tiles):
    """The n-th load takes the memory of load n - tiles: it starts a semaphore hop after that one's reader has finished."""
    chip = get_chip("trn2")
    work = tight(rotation(6, tiles), chip, more=(tiles - 1) * 2048)
    times = run_in_window(Lookahead(work, 64))
    for load in range(2 * tiles, 12, 2):
        reader = load - 2 * tiles + 1
        assert times.start[load] == times.free[reader] + chip.semaphore_hop_ns
        assert times.reason[load] == MEMORY
        assert times.cause[load] == reader


def test_memory_taken_ahead_leaves_room_for_what_comes_first():
    """Three tiles' room. The second half's loads could all start at once, but not before the first half's has its tile."""
    stream = Stream()
    whole = lambda place, fresh=False: stream.tile(("sbuf", place), 512, fresh=fresh)  # noqa: E731
    source = stream.tile(("hbm", 0), 512, fresh=False)
    stream.add("dma", [source], [whole(0, True)])
    stream.add("scalar", [whole(0)], [whole(1, True)])
    stream.add("vector", [whole(1), whole(0)], [whole(2, True)])
    stream.add("vector", [whole(2)], [whole(2)])
    for place in (3, 4, 5):
        stream.add("dma", [source], [whole(place, True)])
    stream.add("gpsimd", [whole(3), whole(4), whole(5)], [whole(5)])
    work = tight(stream.events, get_chip("trn2"))
    assert work.tiles.pools[0][2] == 3 * 2048
    times = run_in_window(Lookahead(work, 64))
    assert (times.start[4:7] >= times.free[2]).all()
    assert times.start[1] < times.start[4]


def test_what_waited_behind_an_older_tile_goes_on_as_soon_as_that_one_has_its_memory():
    """Three banks' room: one tile is long done, two banks are kept for the next one until its late writer may take them."""
    stream = Stream()
    sbuf = lambda place: stream.tile(("sbuf", place), 512, fresh=False)  # noqa: E731
    bank = lambda place, columns=512: stream.tile(("psum", place), columns, fresh=False)  # noqa: E731
    stream.add("vector", [sbuf(0)], [bank(0)])
    for place in (1, 2, 3, 4):
        stream.add("gpsimd", [sbuf(place)], [sbuf(place + 1)])
    stream.add("gpsimd", [sbuf(5)], [bank(1, 1024)])
    stream.add("vector", [bank(0)], [sbuf(10)])
    stream.add("scalar", [bank(1)], [sbuf(11)])
    stream.add("scalar", [sbuf(12)], [bank(2)])
    stream.add("vector", [bank(2)], [sbuf(13)])
    chip = get_chip("trn2")
    work = tight(stream.events, chip, spaces=("psum",))
    assert [capacity for _, space, capacity in work.tiles.pools if space == "psum"] == [3 * 2048]
    times = run_in_window(Lookahead(work, 64))
    assert times.free[6] < times.start[4]
    assert times.start[8] == times.free[6] + chip.semaphore_hop_ns < times.start[5]
