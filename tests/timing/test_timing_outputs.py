"""An exp that also sums has two results: its readers wait for the one they read, as the probes on trn2 found them usable."""

import pytest

from nki_hf.chips import get_chip
from nki_hf.observers.gains import gains
from nki_hf.sim.dtypes import as_dtype
from nki_hf.sim.stream.events import Buffer, Event, Region
from nki_hf.timing.costs import cost_of
from nki_hf.timing.schedule import reschedule, schedule

ORDERS = (None, 8, 64)
WIDE = 512


class Stream:
    """A stream of instructions over named SBUF tiles [128, 1024] in float32."""

    def __init__(self):
        self.tiles, self.events = {}, []

    def part(self, name, begin=0, count=WIDE):
        tile = self.tiles.setdefault(
            name, Buffer(len(self.tiles), "sbuf", name, (128, 1024), as_dtype("float32"), 0, "scratch", None, "", 0)
        )
        return Region(tile, tile.dtype, begin, (128, count), (1024, 1))

    def add(self, engine, opcode, reads, writes, **attrs):
        self.events.append(Event(len(self.events), 0, engine, engine, opcode, tuple(reads), tuple(writes), "k", 1, attrs))
        return len(self.events) - 1


def exp_and_sum(stream, output, total):
    return stream.add("scalar", "activation_reduce", [stream.part("scores")], [output, total], op="exp")


@pytest.mark.parametrize("n", [64, 256, 1024, 2048])
def test_trn2_output_and_sum_are_usable_as_measured(n):
    """Laws of isolated exp and sum pairs: output 294.5 + N / 1.2, read-out issued at 200.7 + N / 1.2 and 279 long."""
    tile = Buffer(0, "sbuf", "t", (128, 4096), as_dtype("float32"), 0, "scratch", None, "", 0)
    part = lambda begin, count: Region(tile, tile.dtype, begin, (128, count), (4096, 1))  # noqa: E731
    made = Event(0, 0, "scalar", "scalar", "activation_reduce", (part(0, n),), (part(0, n), part(n, 1)), "k", 1, {"op": "exp"})
    cost = cost_of(made, get_chip("trn2"))
    assert cost.output_ns == pytest.approx(294.5 + n / 1.2, rel=0.02)
    assert cost.done_ns == pytest.approx(200.7 + 279 + n / 1.2, rel=0.02)
    assert cost.busy_ns == pytest.approx(200.7 + 185 + n / 1.2, rel=0.02)


READERS = {
    "output": (("probs", 0, WIDE),),
    "half of the output": (("probs", 256, 256),),
    "sum": (("sum", 0, 1),),
    "both": (("probs", 0, WIDE), ("sum", 0, 1)),
    "sum, then output": (("sum", 0, 1), ("probs", 0, WIDE)),
    "its neighbour, and the output": (("sum", 1, 1), ("probs", 0, WIDE)),
}


@pytest.mark.parametrize("window", ORDERS)
@pytest.mark.parametrize("one_tile", [False, True], ids=["two tiles", "one tile"])
@pytest.mark.parametrize("reads", READERS)
@pytest.mark.parametrize("name", ["trn1", "trn2", "trn3"])
def test_each_reader_waits_for_the_result_it_reads(name, reads, one_tile, window):
    stream, chip = Stream(), get_chip(name)

    def part(tile, begin, count):
        return stream.part("t", begin + WIDE * (tile == "sum"), count) if one_tile else stream.part(tile, begin, count)

    exp = exp_and_sum(stream, part("probs", 0, WIDE), part("sum", 0, 1))
    reader = stream.add("vector", "tensor_tensor", [part(*which) for which in READERS[reads]], [stream.part("c")])
    scheduled = schedule(stream.events, chip, window=window)
    cost = scheduled.work.costs[exp]
    assert cost.output_ns < cost.done_ns
    needed = cost.done_ns if ("sum", 0, 1) in READERS[reads] else cost.output_ns
    assert scheduled.start_ns[reader] == pytest.approx(scheduled.start_ns[exp] + needed + chip.semaphore_hop_ns)


@pytest.mark.parametrize("window", ORDERS)
def test_a_reader_that_overwrites_the_sum_waits_for_it(window):
    stream, chip = Stream(), get_chip("trn2")
    exp = exp_and_sum(stream, stream.part("probs"), stream.part("sum", 0, 1))
    after = stream.add("vector", "tensor_reduce", [stream.part("probs")], [stream.part("sum", 0, 1)])
    scheduled = schedule(stream.events, chip, window=window)
    assert scheduled.start_ns[after] >= scheduled.start_ns[exp] + scheduled.work.costs[exp].done_ns


def test_a_reader_at_an_address_that_is_not_compared_waits_for_both():
    stream, chip = Stream(), get_chip("trn2")
    at = lambda number, begin: Buffer(number, "sbuf", "x", (128, 512), as_dtype("float32"), 0, "scratch", (0, begin), "", 0)  # noqa: E731
    whole = lambda tile, count: Region(tile, tile.dtype, 0, (128, count), (512, 1))  # noqa: E731
    output, total, alias = at(10, 0), at(11, 4096), at(12, 0)
    exp = exp_and_sum(stream, whole(output, 512), whole(total, 1))
    reader = stream.add("gpsimd", "tensor_copy", [whole(alias, 512)], [stream.part("a")])
    scheduled = schedule(stream.events, chip)
    assert scheduled.start_ns[reader] >= scheduled.start_ns[exp] + scheduled.work.costs[exp].done_ns


@pytest.mark.parametrize("window", ORDERS)
def test_a_free_scalar_engine_gives_its_output_at_once(window):
    """What `gains` asks: the exp takes no time, so its reader starts with it (and the hop between engines)."""
    stream, chip = Stream(), get_chip("trn2")
    exp = exp_and_sum(stream, stream.part("probs"), stream.part("sum", 0, 1))
    reader = stream.add("gpsimd", "tensor_copy", [stream.part("probs")], [stream.part("a")])
    scheduled = schedule(stream.events, chip, window=window)
    saved = gains(scheduled)["scalar"]
    assert saved == pytest.approx(scheduled.start_ns[reader] - chip.kernel_fixed_ns - chip.semaphore_hop_ns)
    assert (
        reschedule(scheduled, scheduled.work.cost_of_kind).start_ns[reader]
        == scheduled.start_ns[reader]
        > scheduled.start_ns[exp]
    )
