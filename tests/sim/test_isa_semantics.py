"""Semantics that are easy to get wrong, each against an independent computation."""

import math

import ml_dtypes
import numpy as np
import pytest

from nki_hf.chips import get_chip
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl

COMMANDS = nisa.reduce_cmd
FP32_MIN = np.finfo(np.float32).min


def on_tiles(body, *arrays, out, dtype="float32", options=None, space="sbuf"):
    """Load the arrays into SBUF, run `body(result, *tiles)` and return the result tile `[out]`."""

    def kernel(x0=None, x1=None, x2=None):
        tiles = []
        for array in (x0, x1, x2):
            if array is not None:
                tiles.append(nl.ndarray(array.shape, array.dtype))
                nisa.dma_copy(dst=tiles[-1], src=array)
        result = nl.ndarray(out, dtype, buffer=getattr(nl, space))
        body(result, *tiles)
        if space == "psum":
            staged, result = result, nl.ndarray(out, dtype)
            nisa.tensor_copy(dst=result, src=staged)
        hbm = nl.ndarray(out, result.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=hbm, src=result)
        return hbm

    return launch(kernel, arrays, options=options or SimOptions()).outputs[0]


# ---- casts ------------------------------------------------------------------------------------------------------------


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


# ---- reduce registers -------------------------------------------------------------------------------------------------


def test_scalar_and_vector_engines_keep_separate_registers(rng):
    """A Vector reduction between two Scalar ones does not disturb their running sum, nor the reverse."""
    x = rng.standard_normal((16, 8)).astype(np.float32)

    def body(result, x):
        scratch = nl.ndarray((16, 8), nl.float32)
        act = {"dst": scratch, "op": nl.copy, "data": x, "reduce_op": nl.add}
        dve = {"dst": scratch, "data": x, "op0": nl.add, "operand0": 0.0, "reduce_op": nl.maximum}
        nisa.activation(**act, reduce_cmd=COMMANDS.reset_reduce)
        nisa.tensor_scalar_reduce(**dve)
        nisa.activation(**act, reduce_cmd=COMMANDS.reduce, reduce_res=result[:, 0:1])
        nisa.tensor_scalar_reduce(**dve, reduce_cmd=COMMANDS.reduce, reduce_res=result[:, 1:2])

    got = on_tiles(body, x, out=(16, 2))
    np.testing.assert_allclose(got[:, 0], 2 * x.astype(np.float64).sum(axis=1), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(got[:, 1], x.max(axis=1))


def test_vector_instructions_share_their_registers(rng):
    """range_select leaves a maximum in the registers; tensor_scalar_reduce goes on from it."""
    x, y = (rng.standard_normal((16, 8)).astype(np.float32) for _ in range(2))

    def body(result, x, y):
        scratch, low, high = nl.ndarray((16, 8), nl.float32), nl.ndarray((16, 1), nl.float32), nl.ndarray((16, 1), nl.float32)
        nisa.memset(dst=low, value=0.0)
        nisa.memset(dst=high, value=4.0)
        nisa.range_select(
            dst=scratch,
            on_true_tile=x,
            comp_op0=nl.greater_equal,
            comp_op1=nl.less,
            bound0=low,
            bound1=high,
            on_false_value=float(FP32_MIN),
        )
        nisa.tensor_scalar_reduce(
            dst=scratch, data=y, op0=nl.add, operand0=0.0, reduce_op=nl.maximum, reduce_cmd=COMMANDS.reduce, reduce_res=result
        )

    want = np.maximum(x[:, :4].max(axis=1), y.max(axis=1))
    np.testing.assert_array_equal(on_tiles(body, x, y, out=(16, 1))[:, 0], want)


def test_reset_only_clears_the_registers(rng):
    x = rng.standard_normal((16, 8)).astype(np.float32)

    def body(result, x):
        scratch = nl.ndarray((16, 8), nl.float32)
        act = {"dst": scratch, "op": nl.copy, "data": x, "reduce_op": nl.add}
        nisa.activation(**act, reduce_cmd=COMMANDS.reset_reduce)
        nisa.activation(**act, reduce_cmd=COMMANDS.reset, reduce_res=result[:, 0:1])
        nisa.activation(**act, reduce_cmd=COMMANDS.reduce)
        nisa.activation(**act, reduce_cmd=COMMANDS.idle, reduce_res=result[:, 1:2])

    got = on_tiles(body, x, out=(16, 2))
    assert (got[:, 0] == 0).all()
    np.testing.assert_allclose(got[:, 1], x.astype(np.float64).sum(axis=1), rtol=1e-5, atol=1e-5)


def test_registers_that_were_never_set_start_from_zero_in_replays_too(rng):
    def kernel(x):
        tile, total = nl.ndarray((16, 8), nl.float32), nl.ndarray((16, 1), nl.float32)
        nisa.dma_copy(dst=tile, src=x)
        nisa.activation(dst=tile, op=nl.copy, data=tile, reduce_op=nl.add, reduce_cmd=COMMANDS.reduce, reduce_res=total)
        out = nl.ndarray((16, 1), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=total)
        return out

    x = rng.standard_normal((16, 8)).astype(np.float32)
    result = launch(kernel, (x,), options=SimOptions(record=True))
    for got in (result.outputs[0], result.program({"x": x})[0]):
        np.testing.assert_allclose(got[:, 0], x.sum(axis=1, dtype=np.float64), rtol=1e-5, atol=1e-5)


def test_registers_belong_to_the_lane_of_the_partition(rng):
    """Sums over partitions 0-31 and 32-63 live in different registers; one read over both gives both."""
    x = rng.standard_normal((64, 8)).astype(np.float32)

    def body(result, x):
        scratch = nl.ndarray((64, 8), nl.float32)
        for part in (slice(0, 32), slice(32, 64)):
            nisa.activation(
                dst=scratch[part, :], op=nl.copy, data=x[part, :], reduce_op=nl.add, reduce_cmd=COMMANDS.reset_reduce
            )
        nisa.activation(dst=scratch, op=nl.copy, data=x, reduce_op=nl.add, reduce_res=result)

    np.testing.assert_allclose(on_tiles(body, x, out=(64, 1))[:, 0], x.sum(axis=1, dtype=np.float64), rtol=1e-5, atol=1e-5)


def test_reduce_res_may_alias_dst(rng):
    """The read-out comes after the elements: the first column of dst ends as the sum."""
    x = rng.standard_normal((16, 8)).astype(np.float32)

    def body(result, x):
        nisa.activation(
            dst=result, op=nl.exp, data=x, reduce_op=nl.add, reduce_res=result[:, 0:1], reduce_cmd=COMMANDS.reset_reduce
        )

    got, exact = on_tiles(body, x, out=(16, 8)), np.exp(x.astype(np.float64))
    np.testing.assert_allclose(got[:, 0], exact.sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(got[:, 1:], exact[:, 1:], rtol=1e-5)


def test_reductions_take_values_before_they_are_rounded():
    """exp of 512 ones summed: the sum of bfloat16 results would be 512 * bf16(e), 0.2 % off."""
    x = np.ones((1, 512), np.float32)
    rounded = 512 * float(ml_dtypes.bfloat16(math.e))

    def body(result, x):
        low = nl.ndarray((1, 512), nl.bfloat16)
        nisa.activation(dst=low, op=nl.exp, data=x, reduce_op=nl.add, reduce_res=result, reduce_cmd=COMMANDS.reset_reduce)

    got = on_tiles(body, x, out=(1, 1))[0, 0]
    assert abs(got - 512 * math.e) < 1e-3
    assert abs(rounded - 512 * math.e) > 0.1


# ---- selections and activations ----------------------------------------------------------------------------------------


def test_a_fully_masked_row_is_stable_in_bfloat16_scores_with_a_float32_maximum():
    """The fill becomes -inf in bfloat16, the maximum stays finite in float32: exp(-inf - max) is 0, not NaN."""
    x = np.ones((2, 8), np.float32)

    def body(result, x):
        low, high = nl.ndarray((2, 1), nl.float32), nl.ndarray((2, 1), nl.float32)
        nisa.memset(dst=low, value=0.0)
        nisa.iota(dst=high, pattern=[[0, 1]], channel_multiplier=8)  # row 0 sees nothing, row 1 everything
        scores, row_max, shift = nl.ndarray((2, 8), nl.bfloat16), nl.ndarray((2, 1), nl.float32), nl.ndarray((2, 1), nl.float32)
        nisa.range_select(
            dst=scores,
            on_true_tile=x,
            comp_op0=nl.greater_equal,
            comp_op1=nl.less,
            bound0=low,
            bound1=high,
            reduce_res=row_max,
            on_false_value=float(FP32_MIN),
        )
        nisa.tensor_scalar(dst=shift, data=row_max, op0=nl.multiply, operand0=-1.0)
        nisa.activation(dst=result[:, 0:8], op=nl.exp, data=scores, bias=shift)
        nisa.tensor_copy(dst=result[:, 8:9], src=row_max)
        nisa.tensor_copy(dst=result[:, 9:10], src=scores[:, 0:1])

    got = on_tiles(body, x, out=(2, 10))
    assert got[0].tolist() == [0.0] * 8 + [float(FP32_MIN), -math.inf]
    assert got[1].tolist() == [1.0] * 8 + [1.0, 1.0]


def test_nan_that_is_not_selected_does_not_leak():
    x = np.array([[np.nan, 1.0, np.nan, 2.0]], np.float32)
    mask = np.array([[0, 1, 0, 1]], np.uint8)

    def body(result, x, mask):
        nisa.select_reduce(
            dst=result[:, 0:4],
            predicate=mask,
            on_true=x,
            on_false=-5.0,
            reduce_res=result[:, 4:5],
            reduce_cmd=COMMANDS.reset_reduce,
        )
        nisa.memset(dst=result[:, 5:9], value=7.0)
        nisa.tensor_copy_predicated(dst=result[:, 5:9], src=x, predicate=mask)
        nisa.affine_select(
            dst=result[:, 9:11],
            pattern=[[1, 2]],
            channel_multiplier=0,
            on_true_tile=x[:, 0:2],
            on_false_value=-1.0,
            cmp_op=nl.greater,
        )

    got = on_tiles(body, x, mask, out=(1, 11))[0].tolist()
    assert got == [-5.0, 1.0, -5.0, 2.0, 2.0, 7.0, 1.0, 7.0, 2.0, -1.0, 1.0]


def test_the_sine_of_the_scalar_engine_extrapolates_beyond_pi():
    """Documented: no range reduction, sin(9) is about 27.65. Within [-pi, pi] it is the sine."""
    x = np.array([[9.0, -9.0, 1.0, -3.0, np.pi]], np.float32)
    got = on_tiles(lambda result, x: nisa.activation(dst=result, op=nl.sin, data=x), x, out=(1, 5))[0]
    np.testing.assert_allclose(got[:2], [27.65, -27.65], atol=0.01)
    np.testing.assert_allclose(got[2:], np.sin(x[0, 2:].astype(np.float64)), atol=1e-6)


def test_scale_comes_before_bias_and_function():
    x = np.array([[2.0]], np.float32)
    got = on_tiles(lambda result, x: nisa.activation(dst=result, op=nl.square, data=x, scale=3.0, bias=1.0), x, out=(1, 1))
    assert got.tolist() == [[49.0]]


def test_broadcast_reads_have_stride_zero(rng):
    x = rng.standard_normal((8, 3)).astype(np.float32)

    def body(result, x):
        repeated = x.ap(pattern=[[3, 8], [1, 3], [0, 4]])
        nisa.tensor_tensor(dst=result, data1=repeated, data2=repeated, op=nl.add)

    np.testing.assert_array_equal(on_tiles(body, x, out=(8, 12)), 2 * np.repeat(x, 4, axis=1))


# ---- high-precision mode ----------------------------------------------------------------------------------------------


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


# ---- events -----------------------------------------------------------------------------------------------------------


def test_instructions_name_the_engine_that_executes_them():
    def kernel():
        x, ints = nl.ndarray((32, 32), nl.float32), nl.ndarray((32, 32), nl.int32)
        psum = nl.ndarray((32, 32), nl.float32, buffer=nl.psum)
        for tile in (x, ints):
            nisa.memset(dst=tile, value=1)
        nisa.nc_transpose(dst=psum, data=x)
        nisa.nc_transpose(dst=x, data=psum)
        nisa.tensor_tensor(dst=ints, data1=ints, data2=ints, op=nl.add)
        nisa.tensor_tensor(dst=x, data1=x, data2=x, op=nl.add)
        nisa.tensor_tensor(dst=x, data1=x, data2=x, op=nl.power)
        nisa.tensor_copy(dst=x, src=psum, engine=nisa.engine.scalar)
        nisa.activation(dst=x, op=nl.exp, data=psum)
        nisa.iota(dst=ints, pattern=[[1, 32]])
        nisa.nc_matmul(dst=psum, stationary=x, moving=x)

    engines = [event.engine for event in launch(kernel, ()).events]
    assert engines == [
        "vector",
        "vector",
        "tensor",
        "vector",
        "gpsimd",
        "vector",
        "gpsimd",
        "scalar",
        "scalar",
        "gpsimd",
        "tensor",
    ]


def test_events_carry_what_a_timing_model_needs():
    def kernel(x):
        tile, total = nl.ndarray((32, 32), nl.float32), nl.ndarray((32, 1), nl.float32)
        nisa.dma_copy(dst=tile, src=x, dge_mode=nisa.dge_mode.hwdge)
        nisa.activation(
            dst=tile,
            op=nl.exp,
            data=tile,
            bias=total,
            scale=0.5,
            reduce_op=nl.add,
            reduce_res=total,
            reduce_cmd=COMMANDS.reset_reduce,
        )
        psum = nl.ndarray((32, 32), nl.float32, buffer=nl.psum)
        first = nisa.nc_matmul(dst=psum, stationary=tile, moving=tile)
        nisa.nc_matmul(dst=psum, stationary=tile, moving=tile).depends_on(first)

    events = launch(kernel, (np.zeros((32, 32), np.float32),)).events
    copied, activated, first, second = events
    assert copied.attrs["dge_mode"] == "hwdge"
    assert {key: activated.attrs[key] for key in ("op", "reduce", "reduce_cmd", "scale", "bias")} == {
        "op": "exp",
        "reduce": "add",
        "reduce_cmd": "reset_reduce",
        "scale": True,
        "bias": True,
    }
    assert [len(activated.reads), len(activated.writes)] == [2, 2]
    assert (first.attrs["accumulate"], second.attrs["accumulate"]) == (False, True)
    assert second.attrs["depends_on"] == (first.index,)
