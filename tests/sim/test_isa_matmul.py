"""Tensor engine against NumPy in float64: nc_matmul with every accumulation rule, MX formats."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st
from isa_operands import (
    DEFAULT_CASES,
    MANY_CASES,
    assert_close,
    bits,
    check,
    operand,
    run,
    run_cases,
)

from nki_hf.chips import get_chip
from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl

pytestmark = pytest.mark.filterwarnings("ignore:quantize_mx")  # its scale is a choice that every use is warned about
NAMES = ("nc_matmul", "nc_matmul_mx", "quantize_mx")
TRN3 = {"chip": get_chip("trn3")}


@check("nc_matmul")
def nc_matmul(data):
    """Two products into one PSUM tile, with each way to say whether the second is added."""
    rows = data.draw(st.integers(1, 128))
    columns, width = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    double = data.draw(st.booleans())
    kinds = data.draw(
        st.sampled_from(
            [("float8_e4m3", "float8_e5m2")]
            if double
            else [("float32", "float32"), ("bfloat16", "float16"), ("bfloat16", "bfloat16"), ("float8_e4m3", "bfloat16")]
        )
    )
    accumulate = data.draw(st.sampled_from([None, True, False]))
    pair = (2,) if double else ()
    operands = {
        "dst": operand(data, (0, columns), (width,), reads=False, plain=True),
        "s": operand(data, (0, rows), (*pair, columns), kinds[0]),
        "m": operand(data, (0, rows), (*pair, width), kinds[1]),
    }
    mode = nisa.matmul_perf_mode.double_row if double else nisa.matmul_perf_mode.none

    def body(dst, s, m):
        psum = nl.ndarray((columns, width), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=psum, stationary=s, moving=m, perf_mode=mode, accumulate=None if accumulate is None else False)
        nisa.nc_matmul(dst=psum, stationary=s, moving=m, perf_mode=mode, accumulate=accumulate)
        nisa.tensor_copy(dst=dst, src=psum)

    def expect():
        s, m = (operands[key].values.reshape(rows * len(pair or (1,)) * (2 if double else 1), -1) for key in ("s", "m"))
        return {"dst": s.T @ m * (1 if accumulate is False else 2)}

    run(data, body, operands, expect, rtol=1e-5, atol=1e-4)


def test_the_performance_mode_may_be_passed_by_its_value(rng):
    x, y = rng.integers(-3, 4, (32, 2, 16)), rng.integers(-3, 4, (32, 2, 24))

    def kernel(a, b):
        psum = nl.ndarray((16, 24), nl.float32, buffer=nl.psum)
        left, right = nl.load(a, dtype=nl.float8_e4m3), nl.load(b, dtype=nl.float8_e4m3)
        nisa.nc_matmul(dst=psum, stationary=left, moving=right, perf_mode="double_row")
        out = nl.ndarray((16, 24), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, nl.copy(psum))
        return out

    got = launch(kernel, (x.astype(np.float32), y.astype(np.float32))).outputs[0]
    np.testing.assert_array_equal(got, np.einsum("pkm,pkn->mn", x, y))


@check("quantize_mx")
def quantize_mx(data):
    rows, columns = 32 * data.draw(st.integers(1, 4)), data.draw(st.integers(1, 12))
    element = data.draw(st.sampled_from(["float8_e4m3fn", "float8_e5m2"]))
    scale_type = data.draw(st.sampled_from(["uint8", "float8_e8m0fnu"]))
    spread = lambda rng, size: rng.standard_normal(size) * np.exp2(rng.integers(-20, 12, size)) * (rng.random(size) < 0.7)  # noqa: E731
    operands = {
        "dst": operand(data, (0, rows), (columns,), "uint32", reads=False, plain=True),
        "scale": operand(data, (0, rows), (columns,), "uint8", reads=False, plain=True),
        "src": operand(data, (0, rows), (4 * columns,), data.draw(st.sampled_from(["bfloat16", "float16"])), fill=spread),
    }

    def body(dst, scale, src):
        packed = nl.ndarray((rows, columns), f"{element}_x4")
        scales = nl.ndarray((rows, columns), scale_type)
        nisa.dma_copy(dst=scales.view(nl.uint8), src=scale)
        nisa.quantize_mx(dst=packed, src=src, dst_scale=scales)
        nisa.tensor_copy(dst=dst, src=packed.view(nl.uint32))
        nisa.tensor_copy(dst=scale, src=scales.view(nl.uint8))

    def expect():
        source = operands["src"].values.reshape(rows, columns, 4)
        emax = 8 if element == "float8_e4m3fn" else 15
        codes, scales = np.zeros((rows, columns, 4), np.uint8), operands["scale"].values.copy()
        for group in range(rows // 8):
            for column in range(columns):
                block = source[8 * group : 8 * group + 8, column]
                largest = np.abs(block).max()
                exponent = int(np.floor(np.log2(largest))) - (emax - 1) if largest > 0 else -127
                scaled = (block / 2.0**exponent).astype(np.float32).astype(getattr(ml_dtypes, element))
                codes[8 * group : 8 * group + 8, column] = scaled.view(np.uint8)
                scales[group // 4 * 32 + group % 4, column] = exponent + 127
        return {"dst": codes.reshape(rows, -1).view(np.uint32), "scale": scales}

    run(data, body, operands, expect, options=TRN3, exact=("dst", "scale"))


@check("nc_matmul_mx")
def nc_matmul_mx(data):
    rows = 32 * data.draw(st.integers(1, 4))
    columns, width = 2 * data.draw(st.integers(1, 8)), 2 * data.draw(st.integers(1, 8))
    elements = [data.draw(st.sampled_from(["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"])) for _ in range(2)]
    scale_type, target = (
        data.draw(st.sampled_from(["uint8", "float8_e8m0fnu"])),
        data.draw(st.sampled_from([nl.float32, nl.bfloat16])),
    )

    def packed(element, count):
        """Random finite codes, packed four to a word."""

        def fill(rng, size):
            if element == "float4_e2m1fn":
                return rng.integers(0, 1 << 16, size)
            codes = rng.integers(0, 0x48, (size, 4), np.uint8) | (rng.integers(0, 2, (size, 4), np.uint8) << 7)
            return codes.astype(np.uint8).view(np.uint32)[:, 0]

        return operand(data, (0, rows), (count,), "uint16" if element == "float4_e2m1fn" else "uint32", fill=fill, plain=True)

    scales = lambda rng, size: rng.integers(124, 130, size)  # noqa: E731
    operands = {
        "dst": operand(data, (0, columns), (width,), target.name, reads=False, plain=True),
        "s": packed(elements[0], columns),
        "m": packed(elements[1], width),
        "s_scale": operand(data, (0, rows), (columns,), "uint8", fill=scales, plain=True),
        "m_scale": operand(data, (0, rows), (width,), "uint8", fill=scales, plain=True),
    }

    def body(dst, s, m, s_scale, m_scale):
        psum = nl.ndarray((columns, width), target, buffer=nl.psum)
        nisa.nc_matmul_mx(
            dst=psum,
            stationary=s.view(getattr(nl, f"{elements[0]}_x4")),
            moving=m.view(getattr(nl, f"{elements[1]}_x4")),
            stationary_scale=s_scale.view(getattr(nl, scale_type)),
            moving_scale=m_scale.view(getattr(nl, scale_type)),
        )
        nisa.tensor_copy(dst=dst, src=psum)

    def unpack(item, element, count):
        words = item.raw
        if element == "float4_e2m1fn":
            codes = np.stack([(words >> (4 * slot)) & 15 for slot in range(4)], axis=-1).astype(np.uint8)
        else:
            codes = words.copy().view(np.uint8).reshape(rows, count, 4)
        return codes.view(getattr(ml_dtypes, element)).astype(np.float64)

    def expect():
        sides = []
        for key, element, count in (("s", elements[0], columns), ("m", elements[1], width)):
            values = unpack(operands[key], element, count)
            scale = operands[f"{key}_scale"].values.astype(np.float64)
            for row in range(rows):
                values[row] *= 2.0 ** (scale[row // 32 * 32 + row % 32 // 8] - 127)[:, None]
            sides.append(values)
        return {"dst": np.einsum("pmj,pnj->mn", *sides)}

    run(data, body, operands, expect, options=TRN3, rtol=1e-5, atol=1e-2)


def through_psum(body, shape, *arrays, dtype=nl.float32, options=None):
    """Run `body(psum, *tiles)` and return what is in PSUM then."""

    def kernel(x0, x1=None, x2=None):
        tiles = []
        for array in (x0, x1, x2):
            if array is not None:
                tiles.append(nl.ndarray(array.shape, array.dtype))
                nisa.dma_copy(dst=tiles[-1], src=array)
        psum = nl.ndarray(shape, dtype, buffer=nl.psum)
        body(psum, *tiles)
        staged, out = nl.ndarray(shape, dtype), nl.ndarray(shape, dtype, buffer=nl.shared_hbm)
        nisa.tensor_copy(dst=staged, src=psum)
        nisa.dma_copy(dst=out, src=staged)
        return out

    return launch(kernel, arrays, options=options or SimOptions()).outputs[0]


def test_accumulation_is_per_element_of_the_allocation(rng):
    """Overlapping destinations: elements written before are added to, the others overwritten."""
    s, m = rng.standard_normal((16, 8)).astype(np.float32), rng.standard_normal((16, 12)).astype(np.float32)

    def body(psum, s, m):
        nisa.nc_matmul(dst=psum[:, 0:12], stationary=s, moving=m)
        nisa.nc_matmul(dst=psum[:, 8:20], stationary=s, moving=m)

    product = s.T.astype(np.float64) @ m
    want = np.zeros((8, 20))
    want[:, 0:12] += product
    want[:, 8:20] += product
    assert_close(through_psum(body, (8, 20), s, m), want, "float32", atol=1e-5)


def test_a_new_ndarray_at_the_same_address_starts_afresh(rng):
    s, m = rng.standard_normal((16, 8)).astype(np.float32), rng.standard_normal((16, 12)).astype(np.float32)

    def body(psum, s, m):
        for _ in range(2):
            tile = nl.ndarray((8, 12), nl.float32, buffer=nl.psum, address=(0, 2048))
            nisa.nc_matmul(dst=tile, stationary=s, moving=m)
            copied = nl.ndarray((8, 12), nl.float32)
            nisa.tensor_copy(dst=copied, src=tile)
        nisa.tensor_copy(dst=psum, src=copied)

    assert_close(through_psum(body, (8, 12), s, m), s.T.astype(np.float64) @ m, "float32", atol=1e-5)


@pytest.mark.parametrize("first", ["memset", "tensor_copy", "nc_matmul"])
def test_a_product_is_added_to_what_any_instruction_wrote_before(rng, first):
    s, m = rng.standard_normal((16, 8)).astype(np.float32), rng.standard_normal((16, 12)).astype(np.float32)
    before = rng.standard_normal((8, 12)).astype(np.float32)

    def body(psum, s, m, before):
        if first == "memset":
            nisa.memset(dst=psum, value=0.0)
        elif first == "tensor_copy":
            nisa.tensor_copy(dst=psum, src=before)
        else:
            nisa.nc_matmul(dst=psum, stationary=s, moving=m)
        nisa.nc_matmul(dst=psum, stationary=s, moving=m, accumulate=True)

    product = s.T.astype(np.float64) @ m
    want = {"memset": product, "tensor_copy": product + before, "nc_matmul": 2 * product}[first]
    # trn3: before the fourth generation only a product may start an accumulation (test_accumulation.py)
    options = SimOptions(third_party=True, chip=get_chip("trn3"))
    with np.errstate(all="ignore"):
        got = through_psum(body, (8, 12), s, m, before, options=options)
    assert_close(got, want, "float32", atol=1e-5)


def test_reads_and_copies_do_not_reset_the_accumulation(rng):
    s, m = rng.standard_normal((16, 8)).astype(np.float32), rng.standard_normal((16, 12)).astype(np.float32)

    def body(psum, s, m):
        nisa.nc_matmul(dst=psum, stationary=s, moving=m)
        read = nl.ndarray((8, 12), nl.float32)
        nisa.tensor_copy(dst=read, src=psum)
        nisa.nc_matmul(dst=psum, stationary=s, moving=m)

    assert_close(through_psum(body, (8, 12), s, m), 2 * (s.T.astype(np.float64) @ m), "float32", atol=1e-5)


def test_float32_operands_are_not_rounded_to_bfloat16(rng):
    s, m = rng.standard_normal((64, 8)).astype(np.float32), rng.standard_normal((64, 12)).astype(np.float32)
    got = through_psum(lambda psum, s, m: nisa.nc_matmul(dst=psum, stationary=s, moving=m), (8, 12), s, m)
    exact = s.T.astype(np.float64) @ m
    assert np.abs(got - exact).max() < 1e-5
    rounded = s.astype(ml_dtypes.bfloat16).astype(np.float64).T @ m.astype(ml_dtypes.bfloat16).astype(np.float64)
    assert np.abs(rounded - exact).max() > 1e-3


def test_tfloat32_operands_keep_ten_mantissa_bits():
    values = np.array([[1 + 2.0**-10, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-12]], np.float32)

    def body(psum, x):
        tile, one = nl.ndarray((1, 4), nl.tfloat32), nl.ndarray((1, 1), nl.tfloat32)
        nisa.tensor_copy(dst=tile, src=x)
        nisa.memset(dst=one, value=1.0)
        nisa.nc_matmul(dst=psum, stationary=one, moving=tile)

    got = through_psum(body, (1, 4), values)
    assert got.tolist() == [[1 + 2.0**-10, 1.0, 1 + 2.0**-9, 1.0]]  # ties to even


def test_bfloat16_psum_adds_in_float32_and_rounds_each_write():
    """NeuronCore-v4: 256 + 0.5 is lost twice when each write rounds to bfloat16, where float32 would keep 1."""
    s, m = np.ones((1, 1), np.float32), np.array([[256.0, 256.0, 0.5, 0.5]], np.float32)

    def body(psum, s, m):
        for column in (0, 2, 2):
            nisa.nc_matmul(dst=psum, stationary=s, moving=m[:, column : column + 2])

    on_trn3 = SimOptions(chip=get_chip("trn3"))
    assert through_psum(body, (1, 2), s, m, dtype=nl.bfloat16, options=on_trn3).tolist() == [[256.0, 256.0]]
    assert through_psum(body, (1, 2), s, m, options=on_trn3).tolist() == [[257.0, 257.0]]


@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
def test_transpose_mode_passes_bits_through_a_permutation(kind):
    data = np.random.default_rng(0).integers(0, 256, (16, 8 * (2 if kind == "bfloat16" else 4)), np.uint8)
    data = data.view(getattr(nl, kind).dtype)
    order = np.random.default_rng(1).permutation(16)
    permutation = np.eye(16)[:, order].astype(data.dtype)

    def body(psum, data, permutation):
        nisa.nc_matmul(dst=psum, stationary=data, moving=permutation, is_transpose=True)

    got = through_psum(body, (8, 16), data, permutation, dtype=getattr(nl, kind))
    np.testing.assert_array_equal(bits(got), bits(data[order].T))


def test_nan_outside_of_the_operands_does_not_reach_the_product(rng):
    """Unused rows and columns of SBUF tiles hold NaN; slices keep them out."""
    s, m = rng.standard_normal((16, 8)).astype(np.float32), rng.standard_normal((16, 12)).astype(np.float32)

    def body(psum, s, m):
        padded = nl.ndarray((128, 64), nl.float32)
        nisa.tensor_copy(dst=padded[0:16, 0:8], src=s)
        nisa.nc_matmul(dst=psum, stationary=padded[0:16, 0:8], moving=m)

    assert_close(through_psum(body, (8, 12), s, m), s.T.astype(np.float64) @ m, "float32", atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_equals_numpy_on_random_operands(name):
    run_cases(name, DEFAULT_CASES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_equals_numpy_on_many_random_operands(name):
    run_cases(name, MANY_CASES)


@pytest.mark.parametrize("rows", [32, 64, 128])
def test_only_the_rows_of_a_scale_tensor_that_hold_scales_must_have_been_written(rows, rng):
    """4 of each 32; what `quantize_mx` leaves of its scale tensor is never looked at."""
    x, y = (rng.standard_normal((rows, 64)).astype(np.float32) for _ in range(2))

    def kernel(x, y, given):
        out = nl.ndarray((16, 16), nl.float32, buffer=nl.shared_hbm)
        sides = []
        for number, source in enumerate((x, y)):
            tile = nl.ndarray((rows, 64), nl.bfloat16, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=source)
            data, scale = (nl.ndarray((rows, 16), kind, buffer=nl.sbuf) for kind in (nl.float8_e4m3fn_x4, nl.uint8))
            if number < given:
                nisa.quantize_mx(dst=data, src=tile, dst_scale=scale)
            else:  # the scales of the first row of the last quadrant are missing
                other = nl.ndarray((rows, 16), nl.uint8, buffer=nl.sbuf)
                nisa.quantize_mx(dst=data, src=tile, dst_scale=other)
                nisa.memset(dst=scale[0 : rows - 32, :], value=127) if rows > 32 else None
                nisa.tensor_copy(dst=scale[rows - 32 : rows - 31, :], src=other[rows - 32 : rows - 31, :])
            sides.append((data, scale))
        psum = nl.ndarray((16, 16), nl.float32, buffer=nl.psum)
        (a, a_scale), (b, b_scale) = sides
        nisa.nc_matmul_mx(dst=psum, stationary=a, moving=b, stationary_scale=a_scale, moving_scale=b_scale)
        tile = nl.ndarray((16, 16), nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=tile, src=psum)
        nisa.dma_copy(dst=out, src=tile)
        return out

    options = SimOptions(chip=get_chip("trn3"), uninitialized="error")
    have = launch(kernel, (x, y), {"given": 2}, options=options).outputs[0]
    want = np.einsum("pmi,pni->mn", *(side.reshape(rows, 16, 4).astype(np.float64) for side in (x, y)))
    np.testing.assert_allclose(have, want, atol=0.1 * np.abs(want).max())
    with pytest.raises(KernelFault, match=f"the first at .{rows - 31}, 0"):
        launch(kernel, (x, y), {"given": 1}, options=options)
