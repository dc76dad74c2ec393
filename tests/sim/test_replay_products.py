"""Products that a replay does together have the bits that they have alone."""

import numpy as np
import pytest

from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from nki_hf.sim.execution import products
from nki_hf.sim.execution.products import Product, joined, multiplied, sums_alike_everywhere
from nki_hf.sim.isa.tensor_engine import nc_matmul

TILES = 6


def score_like(a, b, dtype, depth):
    """Columns of one tile, one product each, added to a first product: [keys, rows, tile]."""
    rows = b.shape[1]
    left = load_tile(a, dtype)
    right = load_tile(b, dtype)
    bank = nl.ndarray((128, rows, TILES), dtype=nl.float32, buffer=nl.psum)
    start = nl.ndarray((depth, rows * TILES), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=start, value=0.5)
    nc_matmul(dst=bank, stationary=left[0:depth, 0:128], moving=start)
    for n in range(TILES):
        nc_matmul(dst=bank[0:128, 0:rows, n], stationary=left[0:depth, n * 128 : (n + 1) * 128], moving=right)
    return store(bank)


def output_like(a, b, dtype, depth):
    """A sum over products of strided columns and of tiles."""
    rows = b.shape[1]
    left = load_tile(a, dtype)
    probs = nl.ndarray((depth, rows, TILES), dtype=dtype, buffer=nl.sbuf)
    right = load_tile(b, dtype)
    for n in range(TILES):
        nisa.tensor_scalar(dst=probs[0:depth, 0:rows, n], data=right, op0=nl.multiply, operand0=1.0 + n)
    bank = nl.ndarray((rows, 129), dtype=nl.float32, buffer=nl.psum)
    for n in range(TILES):
        nc_matmul(dst=bank[0:rows, 0:128], stationary=probs[0:depth, 0:rows, n], moving=left[0:depth, n * 128 : (n + 1) * 128])
    nc_matmul(dst=bank[0:rows, 128:129], stationary=right, moving=right[0:depth, 0:1])
    return store(bank)


def load_tile(given, dtype):
    tile = nl.ndarray(given.shape, dtype=given.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=given)
    cast = nl.ndarray(given.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=cast, src=tile)
    return cast


def store(tile):
    out = nl.ndarray(tile.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    copy = nl.ndarray(tile.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=copy, src=tile)
    nisa.dma_copy(dst=out, src=copy)
    return out


@pytest.mark.parametrize("body", [score_like, output_like])
@pytest.mark.parametrize("dtype", [nl.float32, nl.bfloat16, nl.float16], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 8, 33])
@pytest.mark.parametrize("depth", [128, 96])
def test_products_done_together_have_the_bits_of_a_fresh_run(body, dtype, rows, depth):
    def kernel(a, b):
        return body(a, b, dtype, depth)

    def call(seed):
        draw = np.random.default_rng(seed)
        return {
            "a": draw.standard_normal((depth, 128 * TILES)).astype(np.float32),
            "b": draw.standard_normal((depth, rows)).astype(np.float32),
        }

    program = launch(kernel, (), call(0), options=SimOptions(record=True)).program
    kinds = [type(action).__name__ for action in program.actions[0]]
    assert "_Stack" in kinds
    for seed in (1, 2):
        np.testing.assert_array_equal(program(call(seed))[0], launch(kernel, (), call(seed)).outputs[0])


def product(left, right, target, adds=True):
    def action():
        value = left.T @ right
        target[...] = target + value if adds else value

    return Product(action, left, right, target, adds)


def counted(actions):
    return [type(action).__name__ for action in joined(actions)].count("_Stack")


def test_products_that_read_what_another_writes_stay_alone():
    memory = np.random.default_rng(0).standard_normal((8, 4, 4)).astype(np.float32)
    chain = [product(memory[n], memory[n], memory[n + 1], adds=False) for n in range(7)]
    assert counted(chain) == 0
    apart = np.zeros((8, 4, 4), np.float32)
    assert counted([product(memory[n], memory[n], apart[n], adds=False) for n in range(8)]) == 1


def test_targets_that_overlap_are_written_one_after_the_other():
    memory, flat = np.ones((8, 4, 4), np.float32), np.zeros(64, np.float32)
    targets = [flat[8 * n : 8 * n + 16].reshape(4, 4) for n in range(6)]
    assert counted([product(memory[n], memory[n], target) for n, target in enumerate(targets)]) == 0


def test_a_sum_begins_anew_where_a_product_overwrites():
    memory, target = np.ones((9, 4, 4), np.float32), np.zeros((4, 4), np.float32)
    actions = joined([product(memory[n], memory[n], target, adds=n % 4 != 0) for n in range(8)])
    assert len(actions) == 2
    for action in actions:
        action()
    np.testing.assert_array_equal(target, np.full((4, 4), 16.0))


def test_uneven_distances_and_sums_of_single_elements_stay_alone():
    memory, targets = np.ones((16, 4, 4), np.float32), np.zeros((16, 4, 4), np.float32)
    assert counted([product(memory[n * n], memory[0], targets[n]) for n in range(4)]) == 0
    one = np.zeros((1, 1), np.float32)
    assert counted([product(memory[n, :, :1], memory[0, :, :1], one) for n in range(9)]) == 0


def _lies(values, how):
    """The same matrix in memory row by row, column by column, or with gaps both ways."""
    if how == "gaps":
        wide = np.zeros((2 * values.shape[0], 2 * values.shape[1]), np.float32)
        wide[::2, ::2] = values
        return wide[::2, ::2]
    return np.array(values, order=how)


@pytest.fixture(params=["as this processor sums", "in float64"])
def sums(request, monkeypatch):
    """How products are summed: as the library of this processor needs it, and as others need it."""
    if request.param == "in float64":
        monkeypatch.setattr(products, "sums_alike", lambda: False)


@pytest.mark.parametrize("right_lies", ["C", "F", "gaps"])
@pytest.mark.parametrize("left_lies", ["C", "F", "gaps"])
def test_an_element_has_the_same_bits_however_wide_its_tile_is_and_its_operands_lie(left_lies, right_lies, sums):
    # NumPy multiplies a matrix by a vector, and small matrices of which the left one lies row by row, in other orders of sums.
    rng = np.random.default_rng(3)
    for depth in (1, 2, 7, 16, 64, 100, 128):
        left, right = (rng.standard_normal((depth, width)).astype(np.float32) for width in (128, 512))
        wide = multiplied(left.T, right)
        exact = left.T.astype(np.float64) @ right
        assert np.abs(wide - exact).max() <= depth * 2.0**-24 * (np.abs(left).T.astype(np.float64) @ np.abs(right)).max()
        for rows in (1, 2, 3, 17, 33, 128):
            for columns in (1, 2, 3, 5, 17, 64, 500):
                one, other = _lies(left[:, :rows].T, left_lies), _lies(right[:, :columns], right_lies)
                assert np.array_equal(multiplied(one, other), wide[:rows, :columns])
                out = np.empty((3, rows, columns), np.float32)
                multiplied(np.stack([one] * 3), other, out=out)
                assert (out == wide[:rows, :columns]).all()
                stack = np.stack([_lies(one.T, left_lies)] * 3).swapaxes(-1, -2)
                assert (multiplied(stack, np.stack([other] * 3)) == wide[:rows, :columns]).all()


def _in_halves(left, right, where):
    """Elements for which `where` is true are summed in two halves, as some processors' routines do."""
    half = left.shape[1] // 2
    row, column = np.ogrid[: left.shape[0], : right.shape[1]]
    exact = left.astype(np.float64), right.astype(np.float64)
    plain, first, second = (
        (exact[0][:, part] @ exact[1][part]).astype(np.float32) for part in (slice(None), slice(half), slice(half, None))
    )
    return np.where(where(row, column), first + second, plain)


@pytest.mark.parametrize("width", [8, 12, 16, 48])
@pytest.mark.parametrize("of_rows", [False, True])
def test_a_library_that_sums_otherwise_at_some_places_is_noticed(width, of_rows):
    def where(row, column):
        return (row if of_rows else column) % width >= width - 4

    assert not sums_alike_everywhere(lambda left, right: _in_halves(left, right, where))
    for alike in (True, False):
        assert sums_alike_everywhere(lambda left, right, alike=alike: _in_halves(left, right, lambda *_: np.array(alike)))
