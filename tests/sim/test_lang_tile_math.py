"""nl functions on tiles against NumPy in float64: values, shapes, dtypes, and the instructions they become."""

import math

import ml_dtypes
import numpy as np
import pytest

from nki_hf.chips import get_chip
from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl

_erf = np.vectorize(math.erf)


def run(body, *arrays, **options):
    """`body(*tiles)` on the arrays loaded into SBUF; its tiles as arrays."""

    def kernel(inputs):
        result = body(*[nl.load(a) for a in inputs])
        tiles = result if isinstance(result, tuple) else (result,)
        out = []
        for tile in tiles:
            if tile.space == "psum":
                tile = nl.copy(tile)
            out.append(nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm))
            nl.store(out[-1], tile)
        return tuple(out)

    outputs = launch(kernel, (tuple(arrays),), options=SimOptions(**options)).outputs
    return outputs if len(outputs) > 1 else outputs[0]


UNARY = {
    "exp": np.exp, "sin": np.sin, "cos": np.cos, "tan": np.tan, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc,
    "sign": np.sign, "abs": np.abs, "square": np.square, "negative": np.negative, "tanh": np.tanh, "erf": _erf,
    "reciprocal": lambda x: 1 / x, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2))), "silu": lambda x: x / (1 + np.exp(-x)),
    "softplus": lambda x: np.log1p(np.exp(x)), "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "erf_dx": lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x), "copy": lambda x: x,
    "gelu_apprx_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_apprx_sigmoid": lambda x: x / (1 + np.exp(-1.702 * x)),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(UNARY))
def test_unary_function(name, rng):
    x = (rng.standard_normal((64, 40)) * 4).astype(np.float32)
    x[np.abs(x % math.pi - math.pi / 2) < 0.05] = 0.5  # away from the poles of tan, where float32 arguments decide
    have = run(getattr(nl, name), x)
    assert have.dtype == np.float32
    np.testing.assert_allclose(have, UNARY[name](x.astype(np.float64)), rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("name", ["sqrt", "rsqrt", "log"])
def test_unary_function_of_positive_numbers(name, rng):
    x = (rng.random((64, 40)) * 10 + 0.01).astype(np.float32)
    reference = {"sqrt": np.sqrt, "log": np.log, "rsqrt": lambda v: 1 / np.sqrt(v)}[name]
    np.testing.assert_allclose(run(getattr(nl, name), x), reference(x.astype(np.float64)), rtol=1e-5, atol=1e-6)


def test_sine_and_cosine_reduce_their_argument_but_the_activation_does_not():
    x = np.array([[9.0, -50.0, 1000.0]], np.float32)
    sine, cosine = run(lambda t: (nl.sin(t), nl.cos(t)), x)
    np.testing.assert_allclose(sine, np.sin(x.astype(np.float64)), atol=2e-5)
    np.testing.assert_allclose(cosine, np.cos(x.astype(np.float64)), atol=2e-5)

    def raw(t):
        out = nl.ndarray(t.shape, nl.float32)
        nisa.activation(dst=out, op=nl.sin, data=t)
        return out

    assert run(raw, x)[0, 0] == pytest.approx(27.65, abs=0.01)  # the value the documentation gives for sin(9)


BINARY = ["add", "subtract", "multiply", "divide", "maximum", "minimum", "power"]
COMPARE = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]


@pytest.mark.parametrize("name", BINARY + COMPARE)
def test_binary_function_of_tiles_numbers_and_broadcast_tiles(name, rng):
    x, y = (rng.integers(1, 5, (32, 10)).astype(np.float32) for _ in range(2))
    column = y[:, :1].copy()
    function, reference = getattr(nl, name), getattr(np, name)
    tiles, right, left, spread = run(
        lambda a, b, c: (function(a, b), function(a, 3.0), function(2.0, b), function(a, c)), x, y, column
    )
    a, b = x.astype(np.float64), y.astype(np.float64)
    for have, want in (
        (tiles, reference(a, b)),
        (right, reference(a, 3.0)),
        (left, reference(2.0, b)),
        (spread, reference(a, b[:, :1])),
    ):
        np.testing.assert_allclose(have, want, rtol=1e-6)


@pytest.mark.parametrize("name", ["mod", "fmod"])
def test_remainders_differ_in_whose_sign_they_take(name):
    x, y = np.array([[-7.0, 7.0, -6.5]], np.float32), np.array([[3.0, -3.0, 2.0]], np.float32)
    np.testing.assert_allclose(run(getattr(nl, name), x, y), getattr(np, name)(x, y), rtol=1e-6)


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"])
def test_bitwise_function(name, rng):
    x = rng.integers(0, 2**31, (16, 8)).astype(np.uint32)
    y = rng.integers(0, 31, (16, 8)).astype(np.uint32)
    np.testing.assert_array_equal(run(getattr(nl, name), x, y), getattr(np, name)(x, y))


def test_invert_flips_bits_and_logical_not_truth(rng):
    x = rng.integers(-1000, 1000, (16, 8)).astype(np.int32)
    np.testing.assert_array_equal(run(nl.invert, x), ~x)
    truth = rng.integers(0, 2, (16, 8)).astype(np.float32)
    np.testing.assert_array_equal(run(nl.logical_not, truth), 1 - truth)
    for name in ("logical_and", "logical_or", "logical_xor"):
        other = rng.integers(0, 2, (16, 8)).astype(np.float32)
        np.testing.assert_array_equal(run(getattr(nl, name), truth, other), getattr(np, name)(truth, other))


def test_the_one_of_larger_magnitude_keeps_its_sign_and_ties_give_the_second():
    x, y = np.array([[-5.0, 1.0, 2.0]], np.float32), np.array([[3.0, -1.0, -4.0]], np.float32)
    larger, smaller = run(lambda a, b: (nl.abs_max(a, b), nl.abs_min(a, b)), x, y, chip=get_chip("trn3"))
    np.testing.assert_array_equal(larger, [[-5, -1, -4]])
    np.testing.assert_array_equal(smaller, [[3, -1, 2]])


@pytest.mark.parametrize("name", ["abs_max", "abs_min"])
def test_comparing_by_magnitude_is_refused_before_the_chip_that_has_it(name):
    x = np.ones((2, 4), np.float32)
    with pytest.raises(KernelFault, match=rf"{name} on trn2") as caught:
        run(getattr(nl, name), x, x, chip=get_chip("trn2"))
    assert caught.value.record.kind == "generation"


@pytest.mark.parametrize(
    ("first", "second", "result"),
    [
        ("float32", "bfloat16", "float32"),
        ("bfloat16", "bfloat16", "bfloat16"),
        ("bfloat16", "float16", "float32"),
        ("int32", "bfloat16", "bfloat16"),
        ("int8", "int32", "int32"),
        ("int8", "uint8", "int32"),
    ],
)
def test_result_type_of_two_tiles(first, second, result):
    arrays = [np.ones((4, 4), getattr(nl, name).dtype) for name in (first, second)]
    assert run(nl.add, *arrays).dtype == getattr(nl, result).dtype
    assert run(lambda a, b: nl.add(a, b, dtype=nl.float16), *arrays).dtype == np.float16


def test_comparison_takes_the_type_of_the_tile_unless_told_otherwise():
    x = np.ones((2, 2), ml_dtypes.bfloat16)
    assert run(lambda t: nl.equal(t, 1.0), x).dtype == ml_dtypes.bfloat16
    assert run(lambda t: nl.equal(t, 1.0, dtype=nl.uint8), x).dtype == np.uint8


REDUCTIONS = {"sum": np.sum, "max": np.max, "min": np.min, "mean": np.mean, "prod": np.prod}


@pytest.mark.parametrize("name", sorted(REDUCTIONS))
@pytest.mark.parametrize(("axis", "shape"), [(2, (16, 3)), (-1, (16, 3)), ([1, 2], (16, 1)), ((2, 1), (16, 1))])
def test_reduction_over_trailing_axes(name, axis, shape, rng):
    x = (rng.random((16, 3, 4)) + 0.5).astype(np.float32)
    axes = tuple(axis) if isinstance(axis, list | tuple) else axis
    want = REDUCTIONS[name](x.astype(np.float64), axis=axes, keepdims=True)
    kept, dropped = run(lambda t: (getattr(nl, name)(t, axis, keepdims=True), getattr(nl, name)(t, axis)), x)
    np.testing.assert_allclose(kept, want, rtol=1e-5)
    assert dropped.shape == shape
    np.testing.assert_array_equal(dropped.reshape(-1), kept.reshape(-1))


def test_variance_and_all(rng):
    x = (rng.standard_normal((16, 30)) + 100).astype(np.float32)
    np.testing.assert_allclose(run(lambda t: nl.var(t, 1), x), x.astype(np.float64).var(1, keepdims=True), rtol=1e-4)
    truth = np.array([[1, 1, 1], [1, 0, 1]], np.float32)
    np.testing.assert_array_equal(run(lambda t: nl.all(t, 1), truth), [[1], [0]])


@pytest.mark.parametrize("axis", [0, (0, 1), 1, [0, 2]])
def test_only_trailing_free_axes_can_be_reduced(axis):
    with pytest.raises(KernelFault, match="last free axis"):
        run(lambda t: nl.sum(t, axis), np.ones((4, 3, 2), np.float32))


def test_softmax_and_rms_norm(rng):
    x, w = ((rng.standard_normal((16, 6, 8)) * 5).astype(np.float32) for _ in range(2))
    a, b = x.astype(np.float64), w.astype(np.float64)
    soft, norm = run(lambda t, v: (nl.softmax(t, axis=[1, 2]), nl.rms_norm(t, v, axis=2, n=8, epsilon=1e-3)), x, w)
    power = np.exp(a - a.max((1, 2), keepdims=True))
    np.testing.assert_allclose(soft, power / power.sum((1, 2), keepdims=True), rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(norm, a / np.sqrt((a * a).mean(2, keepdims=True) + 1e-3) * b, rtol=1e-5, atol=1e-6)


def test_where_takes_tiles_and_numbers_and_lets_no_nan_through():
    condition = np.array([[1, 0, 2]], np.float32)
    x, y = np.array([[1, np.nan, 3]], np.float32), np.array([[np.nan, 5, np.nan]], np.float32)
    tiles, number = run(lambda c, a, b: (nl.where(c, a, b), nl.where(c, -1.0, b)), condition, x, y)
    np.testing.assert_array_equal(tiles, [[1, 5, 3]])
    np.testing.assert_array_equal(number, [[-1, 5, -1]])


@pytest.mark.parametrize("transpose_x", [False, True])
def test_matmul_and_transpose(transpose_x, rng):
    x, y = rng.standard_normal((48, 32)).astype(np.float32), rng.standard_normal((32, 70)).astype(np.float32)
    given = x.T.copy() if transpose_x else x
    product = run(lambda a, b: nl.matmul(a, b, transpose_x=transpose_x), given, y)
    np.testing.assert_allclose(product, x.astype(np.float64) @ y, atol=1e-4)
    np.testing.assert_array_equal(run(nl.transpose, x), x.T)


def test_loads_stores_and_gathers(rng):
    x = rng.standard_normal((30, 50)).astype(np.float32)
    index = rng.integers(0, 50, (30, 20)).astype(np.int32)

    def kernel(x, index):
        turned, half = nl.load_transpose2d(x), nl.load(x, dtype=nl.bfloat16)
        gathered = nl.gather_flattened(nl.load(x), nl.load(index))
        out = [nl.ndarray(t.shape, t.dtype, buffer=nl.shared_hbm) for t in (turned, half, gathered)]
        for target, tile in zip(out, (turned, half, gathered), strict=True):
            nl.store(target, tile)
        return tuple(out)

    turned, half, gathered = launch(kernel, (x, index)).outputs
    np.testing.assert_array_equal(turned, x.T)
    np.testing.assert_array_equal(half, x.astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(gathered, np.take_along_axis(x, index.astype(np.int64), 1))


@pytest.mark.parametrize("shape", [(1, 5, 1), (70, 1, 3), (70, 5, 3)])
def test_broadcast_to_repeats_free_axes_and_the_partition(shape, rng):
    x = rng.standard_normal(shape).astype(np.float32)
    have = run(lambda t: nl.copy(nl.broadcast_to(t, (70, 5, 3))), x)
    np.testing.assert_array_equal(have, np.broadcast_to(x, (70, 5, 3)))


@pytest.mark.parametrize("shape", [(1, 5), (1, 512), (1, 513), (1, 3, 700), (1, 1, 1200), (1, 600, 3)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32"])
def test_broadcast_to_over_partitions_is_a_product_with_ones_for_floats_and_exact_for_all(shape, dtype, rng):
    """The architecture guide: broadcast_to over partitions is a matmul with a row of ones; integers are shuffled."""
    x = (rng.standard_normal(shape) * 1000).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    wanted = (100, *shape[1:])

    def kernel(a):
        tile, out = nl.load(a), nl.ndarray(wanted, a.dtype, buffer=nl.shared_hbm)
        for _ in range(2):  # the ones are made once
            spread = nl.broadcast_to(tile, wanted)
            assert spread.buffer == nl.sbuf
        nl.store(out, spread)
        return out

    found = launch(kernel, (x,))
    np.testing.assert_array_equal(found.outputs[0], np.broadcast_to(x, wanted))
    opcodes = [event.opcode for event in found.events]
    assert ("nc_matmul" in opcodes) == (dtype != "int32") != ("nc_stream_shuffle" in opcodes)
    assert opcodes.count("memset") == (dtype != "int32")
    assert all(e.attrs["onezero"] for e in found.events if e.opcode == "nc_matmul")


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum, nl.hbm, nl.shared_hbm])
def test_creation_in_every_memory(buffer):
    def kernel(a):
        made = nl.full((60, 7), 2.5, nl.float32, buffer=buffer), nl.ones((60, 7), nl.float32, buffer=buffer)
        made += (nl.zeros_like(made[0]), nl.empty_like(made[0], dtype=nl.int32))
        assert all(t.buffer == buffer and t.shape == (60, 7) for t in made)
        return [float(t.array().mean()) for t in made[:3]] + [str(made[3].dtype)]

    assert launch(kernel, (np.zeros(1, np.float32),)).returned == [2.5, 1.0, 0.0, "int32"]


def test_constants(tmp_path, rng):
    x = rng.standard_normal((4, 6)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    given, read, identity = run(
        lambda t: (
            nl.load(nl.shared_constant(x)),
            nl.load(nl.shared_constant(str(tmp_path / "x.npy"))),
            nl.shared_identity_matrix(16, nl.float32),
        ),
        x,
    )
    np.testing.assert_array_equal(given, x)
    np.testing.assert_array_equal(read, x)
    np.testing.assert_array_equal(identity, np.eye(16))


def test_random_tiles_are_uniform_and_a_seed_repeats_them():
    def body(_):
        seed = nl.full((1, 1), 42, nl.int32)
        nl.random_seed(seed)
        first = nl.rand((128, 200), nl.float32)
        second = nl.rand((128, 200), nl.float32)
        nl.random_seed(seed)
        return first, second, nl.rand((128, 200), nl.float32), nl.dropout(nl.ones((128, 200), nl.float32), 0.25)

    first, second, again, kept = run(body, np.zeros((1, 1), np.float32))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, second)
    assert first.min() >= 0
    assert first.max() < 1
    counts, _ = np.histogram(first, 10, (0, 1))
    assert np.abs(counts - 2560).max() < 5 * math.sqrt(2560)
    assert set(np.unique(kept)) == {0, 1}
    assert abs(1 - kept.mean() - 0.25) < 5 * math.sqrt(0.25 * 0.75 / kept.size)


def test_tile_math_issues_real_instructions():
    def kernel(a):
        nl.exp(nl.add(nl.load(a), 1.0))
        return a

    events = launch(kernel, (np.zeros((4, 4), np.float32),)).events
    assert [(e.opcode, e.engine) for e in events] == [
        ("dma_copy", "dma"),
        ("tensor_scalar", "vector"),
        ("activation", "scalar"),
    ]
    assert all(e.file == __file__ for e in events)


def test_operators_that_are_no_functions_say_so():
    with pytest.raises(TypeError, match=r"nl\.prelu is only an op"):
        run(lambda t: nl.prelu(t), np.zeros((2, 2), np.float32))


def test_hbm_tensors_are_no_tiles():
    with pytest.raises(KernelFault, match="Load it first"):
        launch(lambda a: nl.exp(a), (np.zeros((2, 2), np.float32),))


def test_assignment_copies_and_fills(rng):
    x = rng.standard_normal((4, 6)).astype(np.float32)

    def body(t):
        out = nl.zeros((4, 6), nl.float32)
        out[:, 2:4] = t[:, 2:4]
        out[0:2, 5:6] = 3.0
        return out

    want = np.zeros_like(x)
    want[:, 2:4] = x[:, 2:4]
    want[0:2, 5] = 3
    np.testing.assert_array_equal(run(body, x), want)


def test_ranges_are_pythons():
    for name in ("affine_range", "sequential_range", "static_range", "range"):
        assert list(getattr(nl, name)(3)) == [0, 1, 2]
        assert list(getattr(nl, name)(1, 8, 3)) == [1, 4, 7]


@pytest.mark.parametrize(("chip", "bytes_"), [("trn1", 192 * 1024), ("trn2", 224 * 1024), ("trn3", 256 * 1024)])
def test_tile_size_is_that_of_the_running_chip(chip, bytes_):
    def kernel(a):
        size = nl.tile_size
        return (size.pmax, size.psum_bank_fmax, size.gemm_stationary_fmax, size.gemm_moving_fmax, size.sbuf_size_bytes)

    have = launch(kernel, (np.zeros(1, np.float32),), options=SimOptions(chip=get_chip(chip))).returned
    assert have == (128, 512, 128, 512, 128 * bytes_)


def test_memory_predicates():
    assert [nl.is_hbm(b) for b in (nl.hbm, nl.private_hbm, nl.shared_hbm, nl.sbuf, nl.psum)] == [True] * 3 + [False] * 2
    assert [nl.is_on_chip(b) for b in (nl.sbuf, nl.psum, nl.hbm)] == [True, True, False]
    assert (nl.is_psum(nl.psum), nl.is_sbuf(nl.psum), nl.is_sbuf("sbuf")) == (True, False, True)
    assert nl.hbm is nl.private_hbm
