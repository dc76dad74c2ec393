"""Grid views of NKI 0.7: every selection shows the elements that NumPy picks by listing them."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_hf.errors import KernelFault
from nki_hf.sim import as_nki, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl


def in_kernel(body, *arrays):
    """What `body` returns, run inside a kernel on the arrays."""
    kept = []
    launch(lambda *tensors: kept.append(body(*tensors)), arrays)
    return kept[0]


def cells(extent, size):
    """The elements of each cell of `size` along an axis, the last one cut by the end."""
    return [list(range(start, min(start + size, extent))) for start in range(0, extent, size)]


class Listed:
    """The reference: along each axis the chosen cells, as lists of elements."""

    def __init__(self, axes, tiled):
        self.axes, self.tiled, self.fixed = axes, tiled, [False] * len(axes)

    def index(self, keys):
        free = [i for i, fixed in enumerate(self.fixed) if not fixed]
        for position, key in zip(free, keys, strict=False):
            picked = self.axes[position][key]
            self.fixed[position] = not isinstance(key, slice)
            self.axes[position] = picked if isinstance(key, slice) else [picked]

    @property
    def shape(self):
        return tuple(len(axis) for axis, fixed in zip(self.axes, self.fixed, strict=True) if not fixed)

    def elements(self):
        return [[element for cell in axis for element in cell] for axis in self.axes]

    def values(self, array):
        drop = tuple(i for i, fixed in enumerate(self.fixed) if fixed and not self.tiled[i])
        return array[np.ix_(*self.elements())].squeeze(drop)

    def is_one_pattern(self):
        return all(len(set(np.diff(axis))) <= 1 for axis in self.elements())


def draw_key(data, count):
    if data.draw(st.integers(0, 3)) == 0:
        return data.draw(st.integers(-count, count - 1))
    start = data.draw(st.integers(0, (count - 1) // 3))
    return slice(start, data.draw(st.integers(start + count // 2 + 1, count + 1)), data.draw(st.sampled_from([None, 1, 2, 3])))


@settings(max_examples=120, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_any_selection_of_a_tensor_in_hbm_shows_what_numpy_picks(data):
    leading = data.draw(st.integers(0, 2))
    rank = data.draw(st.integers(2, 3))
    shape = tuple(data.draw(st.integers(1, 4 if i < leading else 20)) for i in range(leading + rank))
    sizes = tuple(data.draw(st.integers(1, 3)) for _ in range(rank))
    groups = tuple(data.draw(st.integers(1, 3)) for _ in range(rank)) if data.draw(st.booleans()) else None
    widths = [size * group for size, group in zip(sizes, groups or (1,) * rank, strict=True)]
    array = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    want = Listed(
        [cells(size, 1) for size in shape[:leading]] + [cells(*pair) for pair in zip(shape[leading:], widths, strict=True)],
        [False] * leading + [True] * rank,
    )

    def body(source):
        if groups is None:
            grid = nl.tiles(source, tile_shape=sizes)
        else:
            grid = nl.blocks(source, tile_shape=sizes, block_shape=groups)
        for _ in range(2):
            free = want.shape
            keys = tuple(draw_key(data, count) for count in free[: data.draw(st.integers(1, max(1, len(free))))])
            if keys:
                grid = grid[keys if len(keys) > 1 else keys[0]]
                want.index(keys)
        lengths = [len(axis) for axis in want.elements()]
        assert grid.shape == want.shape
        assert grid.tile_shape == sizes
        assert grid.dtype == nl.float32
        assert grid.element_shape == tuple(
            length for length, fixed, tiled in zip(lengths, want.fixed, want.tiled, strict=True) if tiled or not fixed
        )
        assert grid.is_remainder == any(len(axis[-1]) < width for axis, width in zip(want.axes[leading:], widths, strict=True))
        assert grid.index_step_elements == tuple(
            axis[1][0] - axis[0][0] if len(axis) > 1 else step
            for axis, step, fixed in zip(want.axes, grid_steps(grid, want), want.fixed, strict=True)
            if not fixed
        )
        assert grid.is_data_representable == want.is_one_pattern()
        if grid.is_data_representable:
            np.testing.assert_array_equal(grid.data.array(), want.values(array))
        assert groups is None or grid.block_shape == groups

    in_kernel(body, array)


def grid_steps(grid, want):
    """The grid's own steps by axis, for coordinates with a single cell, where there is none to compare."""
    steps = iter(grid.index_step_elements)
    return [None if fixed else next(steps) for fixed in want.fixed]


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_the_tiles_of_a_selected_block_are_its_own(data):
    shape = (data.draw(st.integers(1, 20)), data.draw(st.integers(1, 20)))
    sizes, groups = (3, 2), (2, 3)
    array = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)

    def body(source):
        grid = nl.blocks(source, tile_shape=sizes, block_shape=groups)
        at = tuple(data.draw(st.integers(0, count - 1)) for count in grid.shape)
        block = array[at[0] * 6 : at[0] * 6 + 6, at[1] * 6 : at[1] * 6 + 6]
        tiles = nl.tiles(grid[at])
        assert tiles.shape == (-(-block.shape[0] // 3), -(-block.shape[1] // 2))
        assert tiles.tile_shape == sizes
        for i in range(tiles.shape[0]):
            for j in range(tiles.shape[1]):
                np.testing.assert_array_equal(tiles[i, j].data.array(), block[i * 3 : i * 3 + 3, j * 2 : j * 2 + 2])
        again = nl.blocks(tiles, block_shape=groups)
        assert again.shape == (1, 1)
        assert isinstance(again, nl.NkiBlockGrid)
        assert isinstance(tiles, nl.NkiGrid)
        np.testing.assert_array_equal(again[0, 0].data.array(), block)

    in_kernel(body, array)


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
@pytest.mark.parametrize("elements", [(256, 512), (200, 300), (64, 130), (128, 128), (300, 7)])
def test_tiles_on_chip_hold_their_own_values_and_their_row_is_one_operand(buffer, elements):
    def kernel():
        grid = nl.alloc_tiles(tile_shape=(128, 128), element_shape=elements, buffer=buffer, dtype=nl.float32)
        out = nl.ndarray(elements, dtype=nl.float32, buffer=nl.shared_hbm)
        result = nl.tiles(out, tile_shape=(128, 128))
        assert grid.shape == result.shape
        assert grid.element_shape == elements
        for i in range(grid.shape[0]):
            for j in range(grid.shape[1]):
                nisa.memset(dst=grid[i, j].data, value=float(10 * i + j))
        for i in range(grid.shape[0]):
            assert not grid.is_data_representable or grid.shape[0] == 1
            row = nl.empty_like(grid[i, :], buffer=nl.sbuf)
            assert row.shape == grid.shape[1:]
            assert row.element_shape == grid[i, :].element_shape
            nisa.tensor_copy(dst=row.data, src=grid[i].data)
            for j in range(row.shape[0]):
                nisa.dma_copy(dst=result[i, j].data, src=row[j].data)
        return out

    (have,) = launch(kernel, ()).outputs
    rows, columns = np.indices(elements)
    np.testing.assert_array_equal(have, 10 * (rows // 128) + columns // 128)


@pytest.mark.parametrize(("m", "k", "n"), [(256, 256, 512), (200, 300, 700), (1, 130, 513)])
def test_a_blocked_matmul_with_remainders_equals_numpy(m, k, n, rng):
    left, right = rng.standard_normal((k, m)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)

    def kernel(lhs, rhs):
        out = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.shared_hbm)
        a, b = nl.tiles(lhs, tile_shape=(128, 128)), nl.tiles(rhs, tile_shape=(128, 512))
        blocks = nl.blocks(out, tile_shape=(128, 512), block_shape=(2, 1))
        for bi in range(blocks.shape[0]):
            for bj in range(blocks.shape[1]):
                block = nl.tiles(blocks[bi, bj])
                sums = nl.alloc_tiles(
                    tile_shape=(128, 512), element_shape=block.element_shape, buffer=nl.psum, dtype=nl.float32
                )
                for i in range(sums.shape[0]):
                    for step in range(a.shape[0]):
                        x, y = nl.empty_like(a[step, 2 * bi + i], buffer=nl.sbuf), nl.empty_like(b[step, bj], buffer=nl.sbuf)
                        nisa.dma_copy(dst=x.data, src=a[step, 2 * bi + i].data)
                        nisa.dma_copy(dst=y.data, src=b[step, bj].data)
                        nisa.nc_matmul(dst=sums[i, 0].data, stationary=x.data, moving=y.data)
                    done = nl.empty_like(sums[i, 0], buffer=nl.sbuf)
                    nisa.tensor_copy(dst=done.data, src=sums[i, 0].data)
                    nisa.dma_copy(dst=block[i, 0].data, src=done.data)
        return out

    (have,) = launch(kernel, (left, right)).outputs
    np.testing.assert_allclose(have, left.T.astype(np.float64) @ right, rtol=1e-4, atol=1e-4 * math.sqrt(k))


def test_blocks_on_chip_are_filled_by_tile_and_stored_by_row_of_tiles(rng):
    array = rng.standard_normal((300, 600)).astype(np.float32)

    def kernel(source):
        out = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.shared_hbm)
        shape = {"tile_shape": (128, 100), "block_shape": (2, 3)}
        from_blocks, to_blocks = nl.blocks(source, **shape), nl.blocks(out, **shape)
        staged = nl.alloc_blocks(**shape, element_shape=source.shape, buffer=nl.sbuf, dtype=source.dtype)
        assert staged.shape == from_blocks.shape == (2, 2)
        for i in range(2):
            for j in range(2):
                there, here, back = nl.tiles(from_blocks[i, j]), nl.tiles(staged[i, j]), nl.tiles(to_blocks[i, j])
                for row in range(there.shape[0]):
                    nisa.dma_copy(dst=here[row, :].data, src=there[row, :].data)
                    nisa.dma_copy(dst=back[row, :].data, src=here[row, :].data)
        return out

    np.testing.assert_array_equal(launch(kernel, (array,)).outputs[0], array)


def test_a_slice_with_gaps_is_packed_by_empty_like(rng):
    array = rng.standard_normal((64, 1000)).astype(np.float32)

    def kernel(source):
        odd = nl.tiles(source, tile_shape=(64, 96))[:, 1::2]
        packed = nl.empty_like(odd, buffer=nl.sbuf)
        assert odd.shape == packed.shape == (1, 5)
        assert not odd.is_data_representable
        assert packed.is_data_representable
        for j in range(odd.shape[1]):
            nisa.dma_copy(dst=packed[0, j].data, src=odd[0, j].data)
        out = nl.ndarray(packed.element_shape, dtype=source.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=packed.data)
        return out

    want = np.concatenate([array[:, start : start + 96] for start in range(96, 1000, 192)], axis=1)
    np.testing.assert_array_equal(launch(kernel, (array,)).outputs[0], want)


def test_empty_like_shapes_the_destination_of_a_transpose(rng):
    array = rng.standard_normal((100, 256)).astype(np.float16)

    def kernel(source):
        grid = nl.tiles(source, tile_shape=(64, 128))
        turned = nl.empty_like(grid[0, 1], buffer=nl.sbuf, transpose_axes=(1, 0))
        assert turned.tile_shape == (128, 64)
        assert turned.element_shape == (128, 64)
        nisa.dma_transpose(dst=turned.data, src=grid[0, 1].data)
        plain = nl.empty_like(source[:, 0:128], buffer=nl.sbuf, transpose_axes=(1, 0))
        nisa.dma_transpose(dst=plain, src=source[:, 0:128])
        outs = []
        for tile in (turned, plain):
            outs.append(nl.ndarray(tile.data.shape, dtype=source.dtype, buffer=nl.shared_hbm))
            nisa.dma_copy(dst=outs[-1], src=tile.data)
        return tuple(outs)

    have = launch(kernel, (array,)).outputs
    np.testing.assert_array_equal(have[0], array[0:64, 128:256].T)
    np.testing.assert_array_equal(have[1], array[:, 0:128].T)


def test_a_grid_kernel_runs_under_the_name_nki():
    with as_nki():
        import nki

        @nki.jit
        def scale(source):
            out = nki.language.ndarray(source.shape, dtype=source.dtype, buffer=nki.language.shared_hbm)
            before, after = (nki.language.tiles(item, tile_shape=(128, 64)) for item in (source, out))
            for i in range(before.shape[0]):
                for j in range(before.shape[1]):
                    tile = nki.language.ndarray(before[i, j].element_shape, dtype=source.dtype, buffer=nki.language.sbuf)
                    nki.isa.dma_copy(dst=tile.data, src=before[i, j].data)
                    nki.isa.tensor_scalar(dst=tile, data=tile, op0=nki.language.multiply, operand0=2.0)
                    nki.isa.dma_copy(dst=after[i, j].data, src=tile)
            return out

        array = np.arange(200 * 100, dtype=np.float32).reshape(200, 100)
        np.testing.assert_array_equal(nki.simulate(scale)(array), 2 * array)


WRONG = {
    "one-entry": (lambda s: nl.tiles(s, tile_shape=(4,)), "two entries or more"),
    "too many entries": (lambda s: nl.tiles(s, tile_shape=(1, 2, 3)), "at most the 2 entries"),
    "list": (lambda s: nl.tiles(s, tile_shape=[4, 4]), "must be a tuple of integers"),
    "zero": (lambda s: nl.tiles(s, tile_shape=(4, 0)), "every entry must be 1 or more"),
    "no tile shape": (lambda s: nl.tiles(s), "no tile shape of its own"),
    "blocks of another rank": (lambda s: nl.blocks(s, tile_shape=(4, 4), block_shape=(2, 2, 2)), "must have the 2 entries"),
    "outside": (lambda s: nl.tiles(s, tile_shape=(4, 4))[0, 3], "must be -3 to 2"),
    "third subscript": (lambda s: nl.tiles(s, tile_shape=(4, 4))[0, 0, 0], "it has 2 free coordinates"),
    "used-up coordinate": (lambda s: nl.tiles(s, tile_shape=(4, 4))[0, 0][0], "it has 0 free coordinates"),
    "backwards": (lambda s: nl.tiles(s, tile_shape=(4, 4))[::-1], "steps must be 1 or more"),
    "nothing": (lambda s: nl.tiles(s, tile_shape=(4, 4))[2:2], "at least one of"),
    "not a number": (lambda s: nl.tiles(s, tile_shape=(4, 4))[1.0], "coordinates are integers or slices"),
    "gaps": (lambda s: nl.tiles(s, tile_shape=(4, 4))[:, ::2].data, "Index down to one tile"),
    "gaps divided anew": (
        lambda s: nl.tiles(nl.blocks(s, tile_shape=(4, 2), block_shape=(1, 2))[:, ::2]),
        "Choose the cells after dividing",
    ),
    "as an operand": (
        lambda s: nisa.dma_copy(dst=nl.ndarray((4, 4), nl.float32), src=nl.tiles(s, tile_shape=(4, 4))[0, 0]),
        "Pass its .data",
    ),
    "as a scalar operand": (
        lambda s: nisa.tensor_scalar(
            dst=nl.zeros((4, 4), nl.float32),
            data=nl.zeros((4, 4), nl.float32),
            op0=nl.add,
            operand0=nl.tiles(s, tile_shape=(4, 1))[0, 0],
        ),
        "operand0 is .* Pass its .data",
    ),
    "constructed": (lambda s: nl.NkiTileGrid(), "come from nl.tiles"),
    "rows on chip": (
        lambda s: nl.alloc_tiles(tile_shape=(64, 4), element_shape=(100, 4), buffer=nl.sbuf, dtype=nl.float32).data,
        "more than one tile along the partition axis",
    ),
    "partitions": (
        lambda s: nl.alloc_tiles(tile_shape=(256, 4), element_shape=(256, 4), buffer=nl.sbuf, dtype=nl.float32),
        "at most 128 partitions",
    ),
    "untiled axes on chip": (
        lambda s: nl.alloc_tiles(tile_shape=(4, 4), element_shape=(2, 4, 4), buffer=nl.sbuf, dtype=nl.float32),
        "on chip",
    ),
    "transpose in HBM": (lambda s: nl.empty_like(s, transpose_axes=(1, 0)), "the destination is in SBUF"),
    "another order": (lambda s: nl.empty_like(s, buffer=nl.sbuf, transpose_axes=(0, 1)), "must be one of"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_is_a_fault_that_says_what_is_allowed(case):
    use, text = WRONG[case]
    with pytest.raises(KernelFault, match=text):
        in_kernel(use, np.zeros((12, 12), np.float32))


@pytest.mark.parametrize("name", ["alloc_tiles", "alloc_blocks"])
@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"tile_shape": [4, 8]}, TypeError),
        ({"tile_shape": (4.0, 8)}, TypeError),
        ({"element_shape": (True, 8)}, TypeError),
        ({"buffer": "sbuf"}, TypeError),
        ({"tile_shape": (4, 0)}, ValueError),
        ({"element_shape": (-8, 8)}, ValueError),
        ({"tile_shape": (4,)}, ValueError),
        ({"tile_shape": (1, 4, 8)}, ValueError),
    ],
)
def test_wrong_arguments_raise_the_documented_type_and_are_faults(name, changes, kind):
    """Documented at alloc_tiles: TypeError for what is no tuple of ints or no region, ValueError for sizes and ranks."""
    given = {"tile_shape": (4, 8), "element_shape": (8, 8), "buffer": nl.sbuf, "dtype": nl.float32, **changes}
    if name == "alloc_blocks":
        given["block_shape"] = (1,) * len(given["tile_shape"])
    with pytest.raises(kind) as caught:
        in_kernel(lambda: getattr(nl, name)(**given))
    assert isinstance(caught.value, KernelFault)
