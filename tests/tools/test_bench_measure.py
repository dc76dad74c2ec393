"""Times: the first call apart, warm-ups never counted, statistics over the iterations alone."""

import time

import pytest

from nki_hf.tools.model_bench.measure import PeakMemory, Timing, measure


class Clock:
    """Seconds that pass only when the fake kernel works."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class FakeKernel:
    """Compiles for 1 s at its first call for each shape, then takes 0.25 s."""

    def __init__(self, clock):
        self.clock, self.seen, self.calls = clock, set(), 0

    def __call__(self, shape="a"):
        self.calls += 1
        self.clock.now += 0.25 + (shape not in self.seen)
        self.seen.add(shape)
        return self.calls


def _measure(warmup, iters=4):
    clock = Clock()
    kernel = FakeKernel(clock)
    result, timing = measure(kernel, wait=lambda: None, warmup=warmup, iters=iters, clock=clock)
    return kernel, result, timing


@pytest.mark.parametrize("warmup", [0, 1, 3])
def test_compile_time_is_never_inside_the_iterations(warmup):
    kernel, result, timing = _measure(warmup)
    assert (kernel.calls, result) == (1 + warmup + 4, 1)
    assert timing.iterations_s == (0.25,) * 4
    assert (timing.first_s, timing.compile_s) == (1.25, 1.0)


def test_warmup_does_not_change_the_steady_time():
    assert _measure(0)[2].mean_s == _measure(3)[2].mean_s


@pytest.mark.parametrize(
    ("limit_s", "calls", "timed"),
    [
        (100.0, 8, 4),  # all of them
        (1.0, 1, 1),  # the first call alone takes 1.25 s: it is the only one, and the timed one
        (1.25, 1, 1),  # as long as the limit
        (1.5, 3, 1),  # 1.25 s, one warm-up, and then the one that is always timed
        (2.3, 6, 2),  # 1.25 s, three warm-ups, two timed calls: 2.5 s
    ],
)
def test_calls_that_take_long_are_fewer_but_every_step_is_told(limit_s, calls, timed):
    clock, told = Clock(), []
    kernel = FakeKernel(clock)
    _, timing = measure(kernel, wait=lambda: None, warmup=3, iters=4, clock=clock, limit_s=limit_s, step=told.append)
    assert (kernel.calls, len(timing.iterations_s)) == (calls, timed)
    assert timing.iterations_s == ((1.25,) if calls == 1 else (0.25,) * timed)
    assert timing.compile_s == (0.0 if calls == 1 else 1.0)
    assert len(told) == 1 + 3 + 4  # the progress knows of all
    assert sum("left out" in text for text in told) == 8 - calls


def test_each_reading_waits_for_the_device():
    log = []
    measure(lambda: log.append("call"), wait=lambda: log.append("wait"), warmup=0, iters=1)
    assert log == ["wait", "call", "wait"] * 2


def test_statistics_of_uneven_iterations():
    timing = Timing.of(10.0, [1.0, 2.0, 6.0])
    assert (timing.mean_s, timing.median_s, timing.min_s, timing.max_s, timing.compile_s) == (3.0, 2.0, 1.0, 6.0, 8.0)


def test_real_clock_agrees_with_a_sleep():
    _, timing = measure(lambda: time.sleep(0.02), wait=lambda: None, warmup=0, iters=2)
    assert timing.min_s >= 0.02


def test_peak_memory_sees_an_allocation_that_is_gone_again():
    memory = PeakMemory()
    if memory.growth_bytes() is None:
        pytest.skip("this system does not tell a process's peak memory")
    block = bytearray(64 * 2**20)
    block[::4096] = b"x" * len(block[::4096])
    del block
    assert memory.growth_bytes() > 60 * 2**20


def test_peak_memory_is_unknown_where_the_system_does_not_tell(tmp_path):
    assert PeakMemory(proc=tmp_path / "missing").growth_bytes() is None
