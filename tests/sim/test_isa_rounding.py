"""How results become numbers of their type: rounding, saturation, NaN, float8, integers and bit patterns."""

import math

import ml_dtypes
import numpy as np
import pytest
from on_tiles import on_tiles

from nki_hf.chips import get_chip
from nki_hf.sim import SimOptions
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl


@pytest.mark.parametrize("how", ["tensor_copy", "dma_copy", "tensor_scalar", "activation"])
@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_float_to_integer_rounds_to_even_and_saturates(how, kind):
    info = np.iinfo(kind)
    values = np.array([[0.5, 1.5, 2.5, -0.5, -1.5, 3.7, -3.7, 1e20, -1e20, np.inf, -np.inf, float(info.max)]], np.float32)
    want = [[int(min(max(round(x) if math.isfinite(x) else math.copysign(1e30, x), info.min), info.max)) for x in values[0]]]

    def body(result, x):
        if how == "activation":
            nisa.activation(dst=result, op=nl.copy, data=x)
        elif how == "tensor_scalar":
            nisa.tensor_scalar(dst=result, data=x, op0=nl.add, operand0=0.0)
        else:
            getattr(nisa, how)(dst=result, src=x)

    assert on_tiles(body, values, out=(1, 12), dtype=kind).tolist() == want


def test_nan_becomes_the_integer_zero():
    values = np.array([[np.nan, 2.0]], np.float32)
    got = on_tiles(lambda result, x: nisa.tensor_copy(dst=result, src=x), values, out=(1, 2), dtype="int16")
    assert got.tolist() == [[0, 2]]


FP8 = {  # largest finite value, what lies beyond it, smallest subnormal: from the format definitions
    "float8_e4m3": (240.0, math.inf, 2.0**-9),
    "float8_e4m3fn": (448.0, math.nan, 2.0**-9),
    "float8_e5m2": (57344.0, math.inf, 2.0**-16),
}


@pytest.mark.parametrize("kind", FP8)
def test_float8_ranges_and_what_lies_beyond(kind):
    top, beyond, tiny = FP8[kind]
    values = np.array([[top, -top, top * 1.01, 2 * top, -2 * top, tiny, tiny / 2, 0.75 * tiny, np.nan]], np.float32)
    chip = SimOptions(chip=get_chip("trn3"))
    got = on_tiles(lambda result, x: nisa.tensor_copy(dst=result, src=x), values, out=(1, 9), dtype=kind, options=chip)
    want = [[top, -top, top, beyond, -beyond, tiny, 0.0, tiny, math.nan]]
    np.testing.assert_array_equal(got.astype(np.float64), want)


def test_float32_to_bfloat16_rounds_to_nearest_even():
    """Against a rounding done on the bits: 0x7fff plus the lowest kept bit, then cut."""
    words = np.random.default_rng(0).integers(0, 0x7F7FFFFF, (64, 64), np.uint32) | (np.arange(64, dtype=np.uint32) & 1) << 31
    words[:, :8] = (words[:, :8] & 0xFFFF0000) | 0x8000  # ties
    want = ((words.astype(np.uint64) + 0x7FFF + ((words >> 16) & 1)) >> 16).astype(np.uint16)
    for name in ("tensor_copy", "dma_copy"):
        call = getattr(nisa, name)
        got = on_tiles(
            lambda result, x, call=call: call(dst=result, src=x), words.view(np.float32), out=(64, 64), dtype="bfloat16"
        )
        np.testing.assert_array_equal(got.view(np.uint16), want)


def test_results_round_once_from_float32():
    """1 + 2**-8 rounds to 1 in bfloat16; had the first stage rounded, the second would see 1 and give 0."""
    values = np.array([[1.0]], ml_dtypes.bfloat16)

    def body(result, x):
        nisa.tensor_scalar(dst=result, data=x, op0=nl.add, operand0=2.0**-8, op1=nl.subtract, operand1=1.0)

    assert on_tiles(body, values, out=(1, 1), dtype="bfloat16").astype(float).tolist() == [[2.0**-8]]


def test_integers_above_2_to_24_are_exact_only_on_gpsimd():
    big = np.array([[2**24 + 1, 2**31 - 1, -(2**31), 123456789]], np.int32)
    one = np.array([[0, 1, -1, 3]], np.int32)
    exact = (big.astype(np.int64) + one + 2**31) % 2**32 - 2**31

    def add(result, x, y, engine=nisa.engine.unknown):
        nisa.tensor_tensor(dst=result, data1=x, data2=y, op=nl.add, engine=engine)

    assert on_tiles(add, big, one, out=(1, 4), dtype="int32").tolist() == exact.tolist()
    rounded = (big.astype(np.float32) + one.astype(np.float32)).astype(np.float64).clip(-(2**31), 2**31 - 1)
    for body, space in (
        (lambda result, x, y: add(result, x, y, nisa.engine.vector), "sbuf"),
        (add, "psum"),
    ):
        assert on_tiles(body, big, one, out=(1, 4), dtype="int32", space=space).tolist() == rounded.tolist()


@pytest.mark.parametrize("kind", ["uint8", "int16", "int32", "uint32"])
@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"])
def test_bitwise_operators_work_on_bit_patterns(kind, name):
    width = np.dtype(kind).itemsize
    x = np.random.default_rng(0).integers(0, 256, (8, 16 * width), np.uint8).view(kind)
    y = np.random.default_rng(1).integers(0, 8 * width + 2, (8, 16)).astype(kind)
    plain = np.vectorize(
        {
            "bitwise_and": lambda a, b: a & b,
            "bitwise_or": lambda a, b: a | b,
            "bitwise_xor": lambda a, b: a ^ b,
            "left_shift": lambda a, b: (a << b) % (1 << 8 * width),
            "right_shift": lambda a, b: a >> b,  # logical: the sign bit is a bit like the others
        }[name],
        otypes=[np.uint64],
    )
    bits = np.dtype(f"u{width}")
    pair = on_tiles(
        lambda result, a, b: nisa.tensor_tensor(dst=result, data1=a, data2=b, op=getattr(nl, name)),
        x,
        y,
        out=(8, 16),
        dtype=kind,
    )
    np.testing.assert_array_equal(pair.view(bits), plain(x.view(bits).astype(object), y.view(bits).astype(object)))
    two = on_tiles(
        lambda result, a: nisa.tensor_scalar(
            dst=result, data=a, op0=getattr(nl, name), operand0=3, op1=nl.bitwise_xor, operand1=1
        ),
        x,
        out=(8, 16),
        dtype=kind,
    )
    np.testing.assert_array_equal(two.view(bits), plain(x.view(bits).astype(object), 3) ^ 1)


def test_bitwise_not_and_reduction():
    x = np.random.default_rng(0).integers(0, 2**16, (8, 16)).astype(np.uint16)
    flipped = on_tiles(
        lambda result, a: nisa.tensor_scalar(dst=result, data=a, op0=nl.invert, operand0=0), x, out=(8, 16), dtype="uint16"
    )
    np.testing.assert_array_equal(flipped, 0xFFFF - x)
    for op, fold in ((nl.bitwise_and, np.bitwise_and), (nl.bitwise_or, np.bitwise_or), (nl.bitwise_xor, np.bitwise_xor)):
        reduced = on_tiles(
            lambda result, a, op=op: nisa.tensor_reduce(dst=result, op=op, data=a, axis=1), x, out=(8, 1), dtype="uint16"
        )
        np.testing.assert_array_equal(reduced[:, 0], fold.reduce(x, axis=1))


def test_high_precision_mode_keeps_low_precision_tiles_in_float32():
    x = np.array([[1.0, 2.0**-12]], np.float32)

    def body(result, x):
        low, other = nl.ndarray((1, 2), nl.bfloat16), nl.ndarray((1, 2), nl.float8_e4m3)
        nisa.tensor_scalar(dst=low, data=x, op0=nl.add, operand0=2.0**-10)
        nisa.tensor_copy(dst=other, src=low)
        nisa.tensor_copy(dst=result, src=other)

    want = x.astype(np.float64) + 2.0**-10
    assert on_tiles(body, x, out=(1, 2), options=SimOptions(precise=False)).tolist() == want.tolist()
    assert on_tiles(body, x, out=(1, 2)).tolist() == [[1.0, 2.0**-9]]  # 1.25 * 2**-10, between 0 and the smallest float8
