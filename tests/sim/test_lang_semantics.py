"""Semantics between instructions and memories that are easy to get wrong: types, views, memories, cores, order."""

import ml_dtypes
import numpy as np
import pytest

from nki_hf.chips import get_chip
from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions, launch, simulate
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl


def stored(tile, space=nl.shared_hbm):
    """The tile copied to a new tensor in HBM."""
    if tile.space == "psum":
        staged = nl.ndarray(tile.shape, tile.dtype)
        nisa.tensor_copy(dst=staged, src=tile)
        tile = staged
    out = nl.ndarray(tile.shape, tile.dtype, buffer=space)
    nisa.dma_copy(dst=out, src=tile)
    return out


# ---- types --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "storage"),
    [
        ("float32", np.float32),
        ("bfloat16", ml_dtypes.bfloat16),
        ("float16", np.float16),
        ("int8", np.int8),
        ("uint16", np.uint16),
        ("int32", np.int32),
        ("float8_e4m3", ml_dtypes.float8_e4m3),
        ("float8_e4m3fn", ml_dtypes.float8_e4m3fn),
        ("float8_e5m2", ml_dtypes.float8_e5m2),
        ("bool_", np.bool_),
    ],
)
def test_a_dtype_is_its_name_a_dictionary_key_and_a_numpy_type(name, storage):
    dtype = getattr(nl, name)
    assert str(dtype) == name.rstrip("_")
    assert dtype == str(dtype)
    assert {dtype: 1}[getattr(nl, name)] == 1
    assert np.zeros(2, dtype=dtype).dtype == storage
    assert dtype == np.dtype(storage)
    assert launch(lambda: stored(nl.zeros((2, 2), str(dtype))), ()).outputs[0].dtype == storage


def test_the_printed_names_of_float8_types_are_names_too():
    assert nl.float8_e4m3 == "float8e4"
    assert nl.float8_e5m2 == "float8e5"
    assert nl.float8_e4m3 != nl.float8_e4m3fn
    assert launch(lambda: stored(nl.zeros((2, 2), "float8e5")), ()).outputs[0].dtype == ml_dtypes.float8_e5m2


@pytest.mark.parametrize("kind", [nl.float32, nl.bfloat16, nl.uint8, nl.int32])
def test_comparisons_and_logic_give_ones_and_zeros_in_any_type(kind):
    x, y = np.array([[-1.5, 0.0, 2.0, 3.0]], np.float32), np.array([[0.0, 0.0, 2.5, 3.0]], np.float32)

    def kernel(x, y):
        results = []
        a, b = nl.load(x), nl.load(y)
        for op in (nl.greater_equal, nl.logical_and, nl.logical_or):
            dst = nl.ndarray((1, 4), kind)
            nisa.tensor_tensor(dst=dst, data1=a, data2=b, op=op)
            results.append(stored(dst))
        return tuple(results)

    have = [output.astype(np.float64).tolist() for output in launch(kernel, (x, y)).outputs]
    assert have == [[[0, 1, 0, 1]], [[0, 0, 1, 1]], [[1, 0, 1, 1]]]


def test_tensor_scalar_computes_integers_in_float32():
    """2**24 + 1 has no float32: it becomes 2**24 before 1 is added, and the sum is even."""
    x = np.array([[2**24 + 1, 2**24 - 1, -(2**24) - 3]], np.int32)

    def kernel(x):
        tile = nl.load(x)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
        return stored(tile)

    want = (x.astype(np.float32) + np.float32(1)).astype(np.int32)
    np.testing.assert_array_equal(launch(kernel, (x,)).outputs[0], want)
    assert want[0, 0] != x[0, 0] + 1


# ---- views --------------------------------------------------------------------------------------------------------------


def test_operands_need_equal_elements_per_partition_and_not_equal_shapes(rng):
    x, y = rng.standard_normal((16, 24)).astype(np.float32), rng.standard_normal((16, 24)).astype(np.float32)

    def kernel(x, y):
        a, b, dst = nl.load(x), nl.load(y), nl.ndarray((16, 4, 6), nl.float32)
        nisa.tensor_tensor(dst=dst, data1=a.reshape((16, 1, 24)), data2=b.reshape((16, 2, 3, 4)), op=nl.subtract)
        return stored(dst)

    np.testing.assert_array_equal(launch(kernel, (x, y)).outputs[0].reshape(16, 24), x - y)

    def unequal(x, y):
        nisa.tensor_tensor(dst=nl.ndarray((16, 24), nl.float32), data1=nl.load(x), data2=nl.load(y)[:, 0:23], op=nl.add)

    with pytest.raises(KernelFault, match="tensor_tensor"):
        launch(unequal, (x, y))


def test_a_partition_step_of_zero_in_hbm_loads_one_row_into_every_partition(rng):
    x = rng.standard_normal((3, 8)).astype(np.float32)

    def kernel(x):
        tile = nl.ndarray((128, 8), nl.float32)
        nisa.dma_copy(dst=tile, src=x.ap(pattern=[[0, 128], [1, 8]], offset=8))
        return stored(tile)

    np.testing.assert_array_equal(launch(kernel, (x,)).outputs[0], np.tile(x[1], (128, 1)))


@pytest.mark.filterwarnings("ignore:ap")  # the open choice of the offset, reported in tests/sim/test_open_choices.py
def test_ap_starts_at_the_view_and_counts_in_the_type_it_reads(rng):
    x = rng.standard_normal((4, 16)).astype(np.float32)

    def kernel(x):
        tile = nl.load(x)
        half = tile[:, 8:].ap(pattern=((32, 4), (2, 8)), offset=1, dtype=nl.uint16)  # the upper halves of eight floats
        return stored(half)

    want = np.ascontiguousarray(x[:, 8:]).view(np.uint16)[:, 1::2]
    np.testing.assert_array_equal(launch(kernel, (x,)).outputs[0], want)


# ---- transposes ---------------------------------------------------------------------------------------------------------


def test_a_transpose_overwrites_what_a_product_left_and_the_next_product_adds_to_it(rng):
    x = rng.integers(-4, 5, (32, 32)).astype(np.float32)

    def kernel(x):
        tile, psum = nl.load(x), nl.ndarray((32, 32), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=psum, stationary=tile, moving=tile)
        nisa.nc_transpose(dst=psum, data=tile)
        turned = stored(psum)
        nisa.nc_matmul(dst=psum, stationary=tile, moving=tile)
        return turned, stored(psum)

    turned, added = launch(kernel, (x,)).outputs
    np.testing.assert_array_equal(turned, x.T)
    np.testing.assert_array_equal(added, x.T + x.T @ x)


@pytest.mark.parametrize("shape", [(32, 1), (1, 32), (32, 32), (7, 20)])
@pytest.mark.parametrize("kind", [np.float32, np.int32, np.uint32])
def test_the_vector_engine_transposes_up_to_32_by_32_bit_for_bit(shape, kind, rng):
    x = rng.integers(0, 2**31 - 1, shape).astype(np.uint32).view(kind)

    def kernel(x):
        dst = nl.ndarray(shape[::-1], x.dtype)
        nisa.nc_transpose(dst=dst, data=nl.load(x), engine=nisa.engine.vector)
        return stored(dst)

    np.testing.assert_array_equal(launch(kernel, (x,)).outputs[0].view(np.uint32), x.view(np.uint32).T)


# ---- memories -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "fill"), [(nl.float32, np.nan), (nl.bfloat16, np.nan), (nl.int32, 4), (nl.uint8, 4)])
@pytest.mark.parametrize("space", ["sbuf", "psum", "hbm"])
def test_unwritten_memory_is_nan_or_four_and_moving_it_raises_nothing(kind, fill, space):
    def kernel():
        source = nl.ndarray((8, 8), kind, buffer=getattr(nl, space))
        moved = nl.ndarray((8, 8), kind)
        (nisa.dma_copy if space == "hbm" else nisa.tensor_copy)(dst=moved, src=source)
        turned, most = nl.ndarray((8, 8), kind, buffer=nl.psum), nl.ndarray((8, 1), nl.float32)
        if kind is not nl.uint8:
            nisa.nc_transpose(dst=turned, data=moved)
            nisa.tensor_reduce(dst=most, op=nl.maximum, data=moved, axis=1)
        return stored(moved)

    with np.errstate(all="raise"):
        (have,) = launch(kernel, ()).outputs
    np.testing.assert_array_equal(have.astype(np.float64), np.full((8, 8), fill, np.float64))


def test_an_output_may_be_read_back_and_an_input_written_in_place_is_returned_as_itself(rng):
    cache, row = rng.standard_normal((6, 8)).astype(np.float32), rng.standard_normal((1, 8)).astype(np.float32)
    before = cache.copy()

    def kernel(cache, row):
        nisa.dma_copy(dst=cache[2:3, :], src=row)
        out = nl.ndarray((6, 8), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=cache)
        again = nl.load(out)  # an output is ordinary memory
        nisa.tensor_scalar(dst=again, data=again, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out, src=again)
        return out, cache

    out, same = simulate(kernel)(cache, row)
    want = before.copy()
    want[2] = row[0]
    assert same is cache
    np.testing.assert_array_equal(cache, want)
    np.testing.assert_array_equal(out, 2 * want)


# ---- two cores ----------------------------------------------------------------------------------------------------------


def test_each_core_has_private_memory_and_the_nth_shared_tensor_is_one(rng):
    x = rng.standard_normal((2, 4, 8)).astype(np.float32)

    def kernel(x):
        core = nl.program_id(0)
        private = nl.ndarray((4, 8), nl.float32, buffer=nl.private_hbm)
        first, second = (nl.ndarray((2, 4, 8), nl.float32, buffer=nl.shared_hbm) for _ in range(2))
        nl.store(private, nl.load(x[core]))  # were it shared, core 1 would overwrite what core 0 kept
        nisa.core_barrier(data=first, cores=(0, 1))
        nl.store(first[core], nl.load(private))
        nl.store(second[1 - core], nl.load(private))
        return first, second

    first, second = simulate(kernel)[2](x)
    np.testing.assert_array_equal(first, x)
    np.testing.assert_array_equal(second, x[::-1])


def test_the_return_value_is_that_of_core_0():
    assert simulate(lambda: ("core", nl.program_id(0)))[2]() == ("core", 0)


def test_exchanges_pair_by_pipe_and_within_a_pipe_by_order_also_if_a_core_does_more_work(rng):
    x = rng.standard_normal((2, 3, 4, 8)).astype(np.float32)

    def kernel(x):
        core = nl.program_id(0)
        out = nl.ndarray((2, 3, 4, 8), nl.float32, buffer=nl.shared_hbm)
        for extra in range(2 * core):  # an odd batch: core 1 has items of its own first
            nl.store(out[1, extra], nl.load(x[1, extra]))
        for number, pipe in enumerate((5, 9, 5)):
            mine, other = nl.load(x[core, number]), nl.ndarray((4, 8), nl.float32)
            nisa.sendrecv(src=mine, dst=other, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=pipe)
            nl.store(out[core, number], other)
        return out

    np.testing.assert_array_equal(simulate(kernel)[2](x), x[::-1])


# ---- what changes nothing -----------------------------------------------------------------------------------------------


def test_names_engines_priorities_and_orders_have_no_effect_on_values(rng):
    x = rng.standard_normal((16, 16)).astype(np.float32)

    def plain(x):
        tile, other = nl.load(x), nl.ndarray((16, 16), nl.float32)
        nisa.tensor_copy(dst=other, src=tile)
        nisa.tensor_tensor(dst=other, data1=other, data2=tile, op=nl.multiply)
        return stored(other)

    def told(x):
        tile = nl.ndarray((16, 16), nl.float32, name="tile")
        other = nl.ndarray((16, 16), nl.float32, name="tile")  # the same name twice
        with nl.no_reorder():
            how = {"priority": 3, "dge_mode": nisa.dge_mode.hwdge, "engine": nisa.engine.sync}
            first = nisa.dma_copy(dst=tile, src=x, name="a", **how)
            for _ in nl.affine_range(1):
                second = nisa.tensor_copy(dst=other, src=tile, engine=nisa.engine.gpsimd, name="a")
            assert second.depends_on(first) is second
            nisa.tensor_tensor(dst=other, data1=other, data2=tile, op=nl.multiply, engine=nisa.engine.gpsimd, name="a")
        return stored(other)

    trn3 = SimOptions(chip=get_chip("trn3"))  # the first chip with priorities
    np.testing.assert_array_equal(launch(told, (x,), options=trn3).outputs[0], launch(plain, (x,)).outputs[0])
    np.testing.assert_array_equal(launch(plain, (x,)).outputs[0], x * x)


@pytest.mark.parametrize("ranges", [nl.affine_range, nl.sequential_range, nl.static_range, nl.range])
def test_ranges_run_in_order(ranges):
    assert launch(lambda: list(ranges(2, 11, 3)), ()).returned == [2, 5, 8]


@pytest.mark.parametrize("chip", ["trn2", "trn3"])
def test_the_generations_compare_in_order(chip):
    def kernel():
        version = nisa.get_nc_version()
        return version >= nisa.nc_version.gen3, version < nisa.nc_version.gen4

    assert launch(kernel, (), options=SimOptions(chip=get_chip(chip))).returned == (True, chip == "trn2")
