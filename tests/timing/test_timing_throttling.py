"""Throttling: dense matmuls fall to the sustained rate after a while, and more work is never faster for it."""

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from nki_hf.chips import get_chip
from nki_hf.sim.dtypes import as_dtype
from nki_hf.sim.stream.events import Buffer, Event, Region
from nki_hf.timing.schedule import schedule

CHIP_NAMES = ("trn1", "trn2", "trn3")


def soon(name, throttle_ns):
    """The chip, with dense matmuls slowed after `throttle_ns`, so that short streams meet it."""
    chip = get_chip(name)
    return replace(
        chip,
        params={**chip.params, "tensor_throttle_ns": replace(chip.params["tensor_throttle_ns"], value=throttle_ns)},
    )


def tile(number, space="sbuf", dtype="bfloat16", columns=512):
    buffer = Buffer(number, space, "t", (128, columns), as_dtype(dtype), 0, "scratch", None, "", 0)
    return Region(buffer, buffer.dtype, 0, (128, columns), (columns, 1))


def stream(forms, dtype="bfloat16"):
    """Matmuls of 512 columns that need nothing, with other work between them by name; `wait` makes the next one wait."""
    events, waits = [], None
    for form in forms:
        number = 100 + 10 * len(events)
        if form == "matmul":
            moving = waits or tile(1, dtype=dtype)
            body = ("tensor", "nc_matmul", (tile(2, dtype=dtype, columns=128), moving), (tile(3, "psum", "float32"),), {})
            waits = None
        elif form == "wait":
            waits = tile(number, dtype=dtype)
            body = ("vector", "tensor_copy", (tile(4, dtype=dtype),), (waits,), {})
        else:
            engine, opcode, attrs = {
                "vector": ("vector", "reciprocal", {}),
                "scalar": ("scalar", "activation", {"op": "exp"}),
                "gpsimd": ("gpsimd", "affine_select", {}),
                "transpose": ("tensor", "nc_transpose", {}),
            }[form]
            target = tile(number + 1, "psum" if form == "transpose" else "sbuf", "float32", 128)
            body = (engine, opcode, (tile(number, columns=128),), (target,), attrs)
        engine, opcode, reads, writes, attrs = body
        events.append(Event(len(events), 0, engine, engine, opcode, reads, writes, "k", 1, attrs))
    return events


@pytest.mark.parametrize("name", CHIP_NAMES)
@pytest.mark.parametrize("window", [None, 64])
def test_dense_matmuls_run_at_full_clock_for_a_while_and_then_at_the_sustained_rate(name, window):
    chip = soon(name, 20_000)
    one, count = 512 / chip.tensor_ghz, 1000
    scheduled = schedule(stream(["matmul"] * count), chip, window=window)
    took = scheduled.free_ns - scheduled.start_ns
    full = int(20_000 / one) - 1
    assert took[:full] == pytest.approx(one)
    assert took[full + 2 :] == pytest.approx(one / chip.tensor_sustained_fraction)
    assert scheduled.throttled
    assert not schedule(stream(["matmul"] * full), chip, window=window).throttled


@pytest.mark.parametrize("name", CHIP_NAMES)
def test_no_span_of_time_holds_more_dense_work_than_the_chip_sustains_and_what_it_may_run_ahead(name):
    """Work done in any span <= fraction x span + (1 - fraction) x throttle time, the definition of the two constants."""
    chip = soon(name, 5_000)
    fraction = chip.tensor_sustained_fraction
    scheduled = schedule(
        stream((["matmul"] * 40 + ["wait"] + ["matmul"] * 5 + ["vector", "wait", "wait"]) * 6), chip, window=None
    )
    mine = np.array([event.opcode == "nc_matmul" for event in scheduled.events])
    start, end = scheduled.start_ns[mine], scheduled.free_ns[mine]
    work = np.arange(1, mine.sum() + 1) * 512 / chip.tensor_ghz
    spans = end[None, :] - start[:, None]
    done = work[None, :] - np.concatenate([[0.0], work[:-1]])[:, None]
    later = np.triu(np.ones_like(spans, bool))
    assert (done <= fraction * spans + (1 - fraction) * 5_000 + 1e-6)[later].all()
    assert scheduled.throttled


def test_matmuls_that_leave_the_engine_enough_time_are_not_slowed():
    chip = soon("trn1", 2_000)
    assert not schedule(stream(["wait", "matmul"] * 200), chip, window=None).throttled


def test_float32_matmuls_are_not_slowed():
    """A float32 kernel whose Tensor engine is active for 28.16 of 28.30 ms runs its passes at full clock (trn2 profile)."""
    assert not schedule(stream(["matmul"] * 400, "float32"), soon("trn2", 2_000)).throttled


FORMS = st.sampled_from(("matmul", "matmul", "matmul", "wait", "vector", "scalar", "gpsimd", "transpose"))


@settings(max_examples=60, deadline=None)
@given(st.lists(FORMS, min_size=1, max_size=60), st.integers(0, 60), FORMS, st.sampled_from(CHIP_NAMES), st.integers(0, 6))
def test_added_work_never_ends_anything_earlier_in_program_order(forms, place, extra, name, steps):
    """On both sides of the onset: it lies at 0 to 3 us, streams last 0 to 11 us."""
    place = min(place, len(forms))
    if extra == "wait":
        extra = "vector"  # a wait would also change what the next matmul needs
    chip = soon(name, 500 * steps)
    less, more = stream(forms), stream(forms)
    (added,) = stream([extra])
    number = 5000 if extra != "matmul" else 0
    moved = [replace(r, buffer=replace(r.buffer, number=r.buffer.number + number)) for r in (*added.reads, *added.writes)]
    added = replace(added, reads=tuple(moved[: len(added.reads)]), writes=tuple(moved[len(added.reads) :]))
    more.insert(place, added)
    more = [replace(event, index=i) for i, event in enumerate(more)]
    before, after = schedule(less, chip, window=None), schedule(more, chip, window=None)
    assert after.total_ns >= before.total_ns - 1e-6
    assert (np.delete(after.done_ns, place) >= before.done_ns - 1e-6).all()
    assert (np.delete(after.start_ns, place) >= before.start_ns - 1e-6).all()


@pytest.mark.parametrize("name", CHIP_NAMES)
def test_idle_time_between_dense_stretches_lengthens_the_kernel_by_no_less_than_it_saves(name):
    """A share of 90 % was once a step: the same matmuls with pauses that take them below it must not be faster."""
    chip = soon(name, 3_000)
    dense = schedule(stream(["matmul"] * 200), chip, window=None).total_ns
    for every in (5, 10, 20, 50):
        paused = (["matmul"] * every + ["wait"]) * (200 // every)
        assert schedule(stream(paused), chip, window=None).total_ns >= dense - 1e-6


@pytest.mark.parametrize("window", [None, 64])
def test_accumulating_matmuls_load_their_weights_behind_one_another(window):
    """All of a stream add to one PSUM tile; the next stationary tile is loaded while the engine streams (full clock here)."""
    chip = soon("trn2", 1e9)
    scheduled = schedule(stream(["matmul"] * 50), chip, window=window)
    assert np.diff(np.sort(scheduled.start_ns)) == pytest.approx(512 / chip.tensor_ghz)
