"""An interrupt (Ctrl-C) at any line: the next call is right, and nothing is counted twice, lost or left locked."""

import random
import sys
import threading
import warnings

import pytest
import torch
from interrupts import InterruptAt, every_line

import nki_hf
from nki_hf.adapters import call_log, masks
from nki_hf.backends import parallel_for, program_pool, simulator
from nki_hf.backends.simulator import SimulatorBackend, simulator_backend
from nki_hf.chips import get_chip
from nki_hf.sim.dtypes import as_dtype
from nki_hf.sim.execution import numerics, storage
from nki_hf.sim.run import program, tape
from nki_hf.sim.stream.events import Buffer


def tensors(length=5):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, length, 8, generator=generator) for _ in range(3)]


def exact(q, k, v):
    return torch.softmax(q.double() @ k.double().transpose(-1, -2) * 8**-0.5, -1) @ v.double()


def held(pool):
    return sum(size for entries in pool._idle.values() for _, size in entries)


@pytest.mark.parametrize("small", [False, True])
def test_an_interrupt_at_any_line_of_the_pool(small):
    """`small`: every recording drives another one out."""

    class Recording:
        nbytes, instructions = 1000, 0

        def release(self):
            pass

    pool = program_pool.ProgramPool(2500 if small else 1 << 20)
    keys = [("a",), ("b",), ("c",), ("d",)]

    def work():
        for key in keys:
            pool.give(key, Recording())
        for key in keys:
            recording = pool.take(key)
            if recording is not None:
                pool.give(key, recording)
        pool.take(keys[-1])
        pool.clear()
        for key in keys[:2]:
            pool.give(key, Recording())

    def check():
        assert pool._lock.acquire(blocking=False)
        pool._lock.release()
        pool.give(("e",), Recording())
        assert pool.take(("e",)) is not None
        assert pool._used == held(pool)
        assert not small or pool._used <= 2500

    assert every_line(work, program_pool, check=check) > 50


def test_an_interrupt_at_any_line_of_the_back_end_and_of_a_replay(monkeypatch):
    back_end = SimulatorBackend(get_chip("trn2"), threads=1)
    monkeypatch.setattr("nki_hf.adapters.backend_choice.simulator_backend", lambda chip: back_end)
    q, k, v = tensors()
    before = numerics._openblas() and numerics._openblas()[0]()
    expected = exact(q, k, v)

    def check():
        torch.testing.assert_close(nki_hf.attention(q, k, v).double(), expected, rtol=2e-5, atol=2e-5)
        assert back_end._pool._used == held(back_end._pool)
        assert len(back_end._pool._idle) == 1
        assert sum(map(len, back_end._pool._idle.values())) == 1
        assert (numerics._openblas() and numerics._openblas()[0]()) == before

    check()
    assert (
        every_line(lambda: nki_hf.attention(q, k, v), simulator, parallel_for, program_pool, program, numerics, check=check)
        > 50
    )


def test_an_interrupt_at_any_line_of_the_mask_cache():
    q = tensors(6)[0]
    mask = torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(1)) > 0.4
    mask |= torch.eye(6, dtype=torch.bool)
    banded = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
    padded = banded.clone()
    padded[..., :2] = False
    padded |= torch.eye(6, dtype=torch.bool)
    for given in (mask, banded, padded):

        def work(given=given):
            masks._seen.pop(given, None)
            masks.read_mask(given, q=q, seqlen_kv=6, causal=False)
            masks.read_mask(given, q=q, seqlen_kv=6, causal=False)

        def check(given=given):
            keys = masks.read_mask(given, q=q, seqlen_kv=6, causal=False)
            seen = keys.dense(6, 6, q.device)
            assert torch.equal(torch.ones_like(given) if seen is None else seen.expand_as(given), given)

        assert every_line(work, masks, check=check) > 10


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_interrupt_at_any_line_of_the_ledger(dtype):
    """A call that is interrupted while it is counted is counted once or not at all, and its warning is not lost."""
    q, k, v = (each.to(dtype) for each in tensors())
    warned = []

    def work():
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            try:
                nki_hf.attention(q, k, v)
            finally:
                warned.extend(seen)

    def check():
        assert call_log._lock.acquire(blocking=False)
        call_log._lock.release()
        counted = sum(row.calls for row in call_log.rows())
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            nki_hf.attention(*(each.repeat(1, 1, 2, 1) for each in (q, k, v)))
        rows = call_log.rows()
        assert sum(row.calls for row in rows) == counted + 1
        assert all(row.seqlens_q[1] == row.seqlens_kv[1] == 10 for row in rows)
        if dtype == torch.float64:
            assert any(issubclass(each.category, call_log.FallbackWarning) for each in (*warned, *seen))
        call_log.reset()
        warned.clear()

    call_log.reset()
    assert every_line(work, call_log, check=check) > 8


def test_an_interrupt_at_any_line_leaves_no_thread_at_work(monkeypatch):
    back_end = SimulatorBackend(get_chip("trn2"), threads=2)
    monkeypatch.setattr("nki_hf.adapters.backend_choice.simulator_backend", lambda chip: back_end)
    q, k, v = (torch.randn(1, 2, 130, 8, generator=torch.Generator().manual_seed(2)) for _ in range(3))
    expected = exact(q, k, v)
    nki_hf.attention(q, k, v)
    threads = threading.active_count()

    def check():
        assert threading.active_count() == threads

    every_line(lambda: nki_hf.attention(q, k, v), simulator, parallel_for, program_pool, check=check, stride=5)
    torch.testing.assert_close(nki_hf.attention(q, k, v).double(), expected, rtol=2e-5, atol=2e-5)
    assert back_end._pool._used == held(back_end._pool)
    assert simulator_backend("trn2") is not back_end


def test_memory_that_an_interrupt_left_half_made_goes_without_a_complaint(monkeypatch):
    complaints = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    pool = storage.BytePool()
    buffer = Buffer(
        number=1,
        space="sbuf",
        name="t",
        shape=(4, 4),
        dtype=as_dtype("float32"),
        core=0,
        role="scratch",
        address=None,
        file="",
        line=0,
    )

    def work():
        storage.Storage(buffer, pool.take(64), tracked=True, pool=pool)

    def check():  # an interrupt within __del__ itself is one that Python tells and goes on
        assert not [each for each in complaints if each.exc_type is not KeyboardInterrupt]

    every_line(work, storage, check=check)


def learning(seed):
    """q, k, v and an additive bias that have gradients."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((1, 2, 5, 8), (1, 2, 7, 8), (1, 2, 7, 8), (1, 1, 5, 7))
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def with_gradients(given):
    out = nki_hf.attention(*given)
    return out, *torch.autograd.grad(out.sin().sum(), given)


def exact_with_gradients(given):
    q, k, v, bias = wide = [each.detach().double().requires_grad_() for each in given]
    out = torch.softmax(q @ k.transpose(-1, -2) * 8**-0.5 + bias, -1) @ v
    return out, *torch.autograd.grad(out.sin().sum(), wide)


@pytest.mark.parametrize("count", [5, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.parametrize("recorded", [False, True])
def test_an_interrupt_anywhere_in_a_call_and_its_gradients(monkeypatch, recorded, count):
    """At random lines of the whole package, kernels and simulator included, while programs are recorded or replayed."""
    package = [
        module for name, module in list(sys.modules.items()) if name.startswith("nki_hf") and hasattr(module, "__file__")
    ]
    cases = [(given, exact_with_gradients(given)) for given in (learning(0), learning(1))]

    def interrupted(number):
        back_end = SimulatorBackend(get_chip("trn2"), threads=1)
        monkeypatch.setattr("nki_hf.adapters.backend_choice.simulator_backend", lambda chip: back_end)
        if recorded:
            with_gradients(cases[0][0])
        with InterruptAt(number, *package) as tracer:
            with_gradients(cases[0][0])
        return tracer, back_end._pool

    interrupted(0)  # what is made once is made here
    lines, reached = interrupted(0)[0].seen, 0
    assert lines > 3000
    for number in random.Random(0).sample(range(1, lines), count):
        tracer, pool = interrupted(number)
        reached += tracer.seen == number
        for given, expected in cases:
            for one, other in zip(with_gradients(given), expected, strict=True):
                torch.testing.assert_close(one.double(), other, rtol=2e-5, atol=2e-5)
        assert pool._used == held(pool)
        assert not tape._current
    assert reached > 0.9 * count
