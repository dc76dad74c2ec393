"""Random numbers: distribution, seeds, state. Their bits are not the chip's, so nothing here compares bits with it."""

import numpy as np
import pytest
from hypothesis import strategies as st
from isa_operands import (
    DEFAULT_CASES,
    MANY_CASES,
    check,
    column_operand,
    draw_free,
    draw_partitions,
    fill_for,
    operand,
    run,
    run_cases,
    uniform,
)

from nki_hf.chips import get_chip
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl

NAMES = ("rng", "rand2", "dropout", "set_rng_seed", "rand_set_state", "rand_get_state")
TRN3 = SimOptions(chip=get_chip("trn3"))


@check("rng")
def rng_bits(data):
    """Two draws of one launch differ, and nothing outside of the view is touched."""
    partitions, free = draw_partitions(data), (4, 8)
    kind = data.draw(st.sampled_from(["int8", "uint8", "int16", "uint16", "int32", "uint32"]))
    engine = data.draw(st.sampled_from([nisa.engine.vector, nisa.engine.gpsimd]))
    drawn = []
    operands = {
        "first": operand(data, partitions, free, kind, reads=False),
        "second": operand(data, partitions, free, kind, reads=False),
    }

    def body(first, second):
        for tile in (first, second):
            nisa.rng(dst=tile, engine=engine)
            drawn.append(tile.array().copy())

    run(data, body, operands, lambda: dict(zip(operands, drawn or [None, None], strict=True)), exact=tuple(operands))
    assert not np.array_equal(*drawn)


@check("rand2")
def rand2(data):
    partitions, free = draw_partitions(data), draw_free(data)
    kind = data.draw(st.sampled_from(["float32", "bfloat16", "float16"]))
    number = data.draw(st.booleans())
    operands = {
        "dst": operand(data, partitions, free, kind, reads=False),
        "low": column_operand(data, partitions, fill=uniform(-2, -1)),
        "high": column_operand(data, partitions, fill=uniform(1, 2)),
    }
    seen = {}

    def body(dst, low, high):
        nisa.rand2(dst=dst, min=-1.5 if number else low, max=1.5 if number else high)
        seen["values"] = dst.array().astype(np.float64).reshape(partitions[1], -1)
        seen["low"] = -1.5 if number else low.array().astype(np.float64)
        seen["high"] = 1.5 if number else high.array().astype(np.float64)

    run(data, body, operands, lambda: {}, options={"chip": get_chip("trn3")})
    assert (seen["values"] >= np.asarray(seen["low"]) * 1.01).all()
    assert (seen["values"] <= np.asarray(seen["high"]) * 1.01).all()


@check("dropout")
def dropout(data):
    """Probability 0 keeps all, 1 drops all; in between each element is kept as it was or 0."""
    partitions, free = draw_partitions(data), draw_free(data)
    kind = data.draw(st.sampled_from(["float32", "bfloat16", "int32", "int16"]))
    chance = data.draw(st.sampled_from([0.0, 1.0, 0.5]))
    as_tile = data.draw(st.booleans())
    operands = {
        "dst": operand(data, partitions, free, kind, reads=False),
        "data": operand(data, partitions, free, kind, fill=lambda rng, size: fill_for(kind)(rng, size) + 2000),
        "prob": column_operand(data, partitions, fill=lambda rng, size: np.full(size, chance)),
    }
    seen = {}

    def body(dst, data, prob):
        nisa.dropout(dst=dst, data=data, prob=prob if as_tile else chance)
        seen["dst"], seen["data"] = dst.array().copy().reshape(-1), data.array().copy().reshape(-1)

    if chance in (0.0, 1.0):
        want = lambda: {"dst": operands["data"].raw if chance == 0 else np.zeros_like(operands["data"].raw)}  # noqa: E731
        run(data, body, operands, want, exact=("dst",))
    else:
        run(data, body, operands, lambda: {})
        assert ((seen["dst"] == seen["data"]) | (seen["dst"] == 0)).all()


def _seeded(data, seed_first, draw):
    """The same seed before two draws gives the same numbers, another seed others."""
    partitions = draw_partitions(data)
    rows = partitions[0] + partitions[1]
    results = []

    def kernel():
        for seed in (seed_first, seed_first, seed_first + 1):
            results.append(draw(seed, rows))

    launch(kernel, (), options=TRN3)
    assert np.array_equal(results[0], results[1])
    assert not np.array_equal(results[0], results[2])


@check("set_rng_seed")
def set_rng_seed(data):
    def draw(seed, rows):
        tile, dst = nl.ndarray((1, 1), nl.uint32), nl.ndarray((rows, 16), nl.uint32)
        nisa.memset(dst=tile, value=seed)
        nisa.set_rng_seed(src_seeds=tile)
        nisa.rng(dst=dst)
        return dst.array().copy()

    _seeded(data, data.draw(st.integers(0, 2**31)), draw)


@check("rand_set_state")
def rand_set_state(data):
    engine, words = data.draw(st.sampled_from([(nisa.engine.gpsimd, 6), (nisa.engine.vector, 24)]))

    def draw(seed, rows):
        state, dst = nl.ndarray((rows, words), nl.uint32), nl.ndarray((rows, 16), nl.uint32)
        nisa.iota(dst=state, pattern=[[7919, words]], offset=seed + 1, channel_multiplier=104729)
        nisa.rand_set_state(src_seeds=state, engine=engine)
        nisa.rng(dst=dst, engine=engine)
        return dst.array().copy()

    _seeded(data, data.draw(st.integers(0, 2**20)), draw)


@check("rand_get_state")
def rand_get_state(data):
    """A saved state that is restored gives the same numbers again."""
    engine, words = data.draw(st.sampled_from([(nisa.engine.gpsimd, 6), (nisa.engine.vector, 24)]))
    rows, count = data.draw(st.integers(1, 128)), data.draw(st.integers(1, 40))
    seen = []

    def kernel():
        state = nl.ndarray((rows, words), nl.uint32)
        nisa.rand_get_state(dst=state, engine=engine)
        for turn in range(2):
            if turn:
                nisa.rand_set_state(src_seeds=state, engine=engine)
            dst = nl.ndarray((rows, count), nl.uint32)
            nisa.rng(dst=dst, engine=engine)
            seen.append(dst.array().copy())

    launch(kernel, (), options=TRN3)
    assert np.array_equal(seen[0], seen[1])


def _draw(body, shape, dtype, options=None):
    def kernel():
        tile, out = nl.ndarray(shape, dtype), nl.ndarray(shape, dtype, buffer=nl.shared_hbm)
        body(tile)
        nisa.dma_copy(dst=out, src=tile)
        return out

    return launch(kernel, (), options=options or TRN3).outputs[0]


@pytest.mark.parametrize("engine", [nisa.engine.vector, nisa.engine.gpsimd])
def test_every_bit_of_rng_is_set_half_of_the_time(engine):
    words = _draw(lambda tile: nisa.rng(dst=tile, engine=engine), (128, 256), nl.uint32)
    ones = np.unpackbits(words.view(np.uint8)).reshape(words.size, 32).mean(axis=0)
    assert np.abs(ones - 0.5).max() < 5 * 0.5 / np.sqrt(words.size)


def test_lanes_and_positions_are_uncorrelated():
    words = _draw(lambda tile: nisa.rng(dst=tile), (128, 256), nl.uint32) / 2.0**32 - 0.5
    scale = np.sqrt(12 * 12)
    assert abs((words[:-1] * words[1:]).mean()) * scale < 5 / np.sqrt(words.size)
    assert abs((words[:, :-1] * words[:, 1:]).mean()) * scale < 5 / np.sqrt(words.size)


def test_rand2_is_uniform_over_its_range():
    values = _draw(lambda tile: nisa.rand2(dst=tile, min=-1.0, max=3.0), (128, 256), nl.float32)
    counts, _ = np.histogram(values, bins=16, range=(-1, 3))
    expected = values.size / 16
    assert counts.sum() == values.size
    assert ((counts - expected) ** 2 / expected).sum() < 45  # chi-square, 15 degrees of freedom: p < 1e-4


def test_dropout_drops_the_asked_share():
    def body(tile):
        nisa.memset(dst=tile, value=1.0)
        nisa.dropout(dst=tile, data=tile, prob=0.3)

    kept = _draw(body, (128, 256), nl.float32).mean()
    assert abs(kept - 0.7) < 5 * np.sqrt(0.21 / (128 * 256))


def test_the_seed_of_the_launch_decides_the_numbers():
    draws = [_draw(lambda tile: nisa.rng(dst=tile), (4, 8), nl.uint32, SimOptions(seed=seed)) for seed in (0, 0, 1)]
    assert np.array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])


def test_a_replay_draws_what_a_fresh_run_draws():
    def kernel(x):
        tile, out = nl.ndarray((4, 8), nl.uint32), nl.ndarray((4, 8), nl.uint32, buffer=nl.shared_hbm)
        nisa.rng(dst=tile)
        nisa.dma_copy(dst=out, src=tile)
        return out

    x = np.zeros((1, 1), np.float32)
    result = launch(kernel, (x,), options=SimOptions(record=True))
    for _ in range(2):
        np.testing.assert_array_equal(result.program({"x": x})[0], result.outputs[0])


@pytest.mark.parametrize("name", NAMES)
def test_equals_numpy_on_random_operands(name):
    run_cases(name, DEFAULT_CASES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_equals_numpy_on_many_random_operands(name):
    run_cases(name, MANY_CASES)
