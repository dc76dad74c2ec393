"""Views of NkiTensor: shapes, strides and offsets as the public stub states them, values as NumPy, constraints as faults."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_hf.chips import get_chip
from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from nki_hf.sim.tensors.strides import reshaped_strides


def in_kernel(body, *arrays, **options):
    """Run `body(*tensors)` as a kernel and return what it returned (not necessarily tensors)."""
    seen = []

    def kernel(inputs):
        seen.append(body(*inputs))

    launch(kernel, (tuple(arrays),), options=SimOptions(**options))
    return seen[0]


def on_chip(shape, dtype=nl.float32, buffer=nl.sbuf):
    return nl.ndarray(shape, dtype, buffer=buffer)


@pytest.mark.parametrize(
    ("shape", "view", "expected"),
    [
        ((128, 4, 8), lambda t: t.permute((0, 2, 1)), ((128, 8, 4), (32, 1, 8), 0)),
        ((128, 1, 64), lambda t: t.broadcast(1, 8), ((128, 8, 64), (64, 0, 1), 0)),
        ((128, 64), lambda t: t.expand_dim(1), ((128, 1, 64), (64, 64, 1), 0)),
        ((128, 1, 64), lambda t: t.squeeze_dim(1), ((128, 64), (64, 1), 0)),
        ((128, 24), lambda t: t.reshape_dim(1, (4, -1)), ((128, 4, 6), (24, 6, 1), 0)),
        ((128, 2, 3, 4), lambda t: t.flatten_dims(1, 2), ((128, 6, 4), (24, 4, 1), 0)),
        ((128, 4, 6), lambda t: t.reshape((128, 2, 12)), ((128, 2, 12), (24, 12, 1), 0)),
        ((128, 24), lambda t: t.rearrange(("b", ("h", "w")), ("b", "w", "h"), {"h": 4}), ((128, 6, 4), (24, 1, 6), 0)),
        ((128, 64), lambda t: t.slice(1, 8, 24), ((128, 16), (64, 1), 8)),
        ((128, 64), lambda t: t.slice(1, 0, 64, 2), ((128, 32), (64, 2), 0)),
        ((128, 8, 64), lambda t: t.select(1, 3), ((128, 64), (512, 1), 192)),
        ((128, 64), lambda t: t.ap(pattern=[[64, 128], [1, 16]], offset=8), ((128, 16), (64, 1), 8)),
        ((128, 64), lambda t: t.view(nl.uint8), ((128, 256), (256, 1), 0)),
        ((128, 64), lambda t: t.view(nl.int32), ((128, 64), (64, 1), 0)),
        ((128, 64), lambda t: t[:, 4:].view(nl.bfloat16), ((128, 120), (128, 1), 8)),
        ((128, 64), lambda t: t[nl.ds(8, 4), ::2], ((4, 32), (64, 2), 512)),
        ((128, 64), lambda t: t[..., -1], ((128, 1), (64, 1), 63)),
        ((64, 64, 64), lambda t: t[0, 0, 10], ((1, 1), (4096, 1), 10)),
        ((64, 64, 64), lambda t: t[:, 0], ((64, 64), (4096, 1), 0)),
        ((64, 64, 64), lambda t: t[0, ..., :], ((1, 64, 64), (4096, 64, 1), 0)),
    ],
)
def test_view_has_the_documented_shape_strides_and_offset(shape, view, expected):
    have = in_kernel(lambda: (lambda v: (v.shape, v.strides, v.offset))(view(on_chip(shape))))
    strides = tuple(s for n, s in zip(have[0], have[1], strict=True) if n > 1)
    wanted = tuple(s for n, s in zip(expected[0], expected[1], strict=True) if n > 1)
    assert (have[0], strides, have[2]) == (expected[0], wanted, expected[2])


def test_integer_index_drops_the_axis_in_hbm_but_never_the_last_one(rng):
    a = rng.standard_normal((3, 4, 5)).astype(np.float32)
    shapes = in_kernel(lambda t: (t[1].shape, t[1, 2].shape, t[1, 2, 3].shape, t[-1].offset), a)
    assert shapes == ((4, 5), (5,), (1,), 40)


@pytest.mark.filterwarnings("ignore:ap")  # the open choice of the offset, reported in tests/sim/test_open_choices.py
def test_ap_addresses_the_storage_and_not_the_view(rng):
    a = np.arange(24, dtype=np.float32).reshape(4, 6)
    inner = in_kernel(lambda t: t.ap([[2, 3]]).ap([[6, 2], [1, 3]]).array().copy(), a)
    np.testing.assert_array_equal(inner, a[:2, :3])
    moved = in_kernel(lambda t: t[2:].ap([[1, 3]], offset=1).array().copy(), a)
    np.testing.assert_array_equal(moved, a[2, 1:4])


@pytest.mark.parametrize(
    ("shape", "view", "words"),
    [
        ((128, 8), lambda t: t.permute((1, 0)), "partition axis"),
        ((128, 8), lambda t: t.permute((0, 0)), "permutation"),
        ((1, 8), lambda t: t.broadcast(0, 4), "partition axis"),
        ((128, 8), lambda t: t.broadcast(1, 4), "size 1"),
        ((128, 8), lambda t: t.expand_dim(0), "partition axis"),
        ((1, 8), lambda t: t.squeeze_dim(0), "partition axis"),
        ((128, 8), lambda t: t.squeeze_dim(1), "size 1"),
        ((128, 8), lambda t: t.reshape_dim(1, (3, -1)), "product must be 8"),
        ((128, 8), lambda t: t.reshape_dim(0, (2, 64)), "partition axis"),
        ((128, 4, 8), lambda t: t.permute((0, 2, 1)).flatten_dims(1, 2), "contiguous"),
        ((128, 8), lambda t: t.flatten_dims(0, 1), "partition axis"),
        ((128, 8), lambda t: t.reshape((64, 16)), "partition axis"),
        ((128, 8), lambda t: t.reshape((128, 9)), "product"),
        ((128, 4, 8), lambda t: t.permute((0, 2, 1)).reshape((128, 32)), "memory layout"),
        ((128, 8), lambda t: t.rearrange(("a", "b"), ("a", "c")), "each of a, b once"),
        ((128, 8), lambda t: t.slice(1, 4, 4), "start < end"),
        ((128, 8), lambda t: t.slice(1, 0, 9), "<= 8"),
        ((128, 8), lambda t: t.select(1, 8), "0 to 7"),
        ((128, 8), lambda t: t[:, 9], "-8 to 7"),
        ((128, 8), lambda t: t[:, 0:9], "within 0:8"),
        ((128, 8), lambda t: t[:, 0, 0], "2 axes"),
        ((128, 8), lambda t: t.ap([[16, 64], [1, 8]]), "8 elements per partition"),
        ((128, 8), lambda t: t[:, ::2].view(nl.uint8), "contiguous"),
        ((128, 3), lambda t: t.view(nl.uint8)[:, 0:6].view(nl.float32), "multiple of 4|divide by 4"),
        ((128, 8), lambda t: t.vector_select(0, t[:, 0:1]), "HBM"),
        ((128, 8), lambda t: t.indirect(on_chip((128, 1), nl.int32)), "NeuronCore-v4"),
    ],
)
def test_broken_constraint_is_a_fault(shape, view, words):
    with pytest.raises(KernelFault, match=words):
        in_kernel(lambda: view(on_chip(shape)))


BEYOND = {
    "rows": ((128, 8), lambda t: t.ap([[8, 32], [1, 8]], offset=100 * 8), "it has 1,024"),
    "columns": ((128, 8), lambda t: t.ap([[8, 32], [1, 9]]), "a partition has 8"),
    "offset": ((128, 8), lambda t: t.ap([[8, 32], [1, 4]], offset=5), "a partition has 8"),
    "negative step": ((128, 8), lambda t: t.ap([[8, 32], [-1, 4]], offset=2), "a partition has 8|elements -1"),
    "part": ((128, 8), lambda t: t.ap([[8, 32], [1, 16]])[:, 4:12], "a partition has 8"),
    "rows and part": ((128, 8), lambda t: t.ap([[8, 64], [1, 16]])[32:64, 4:12], "a partition has 8"),
    "slice": ((128, 8), lambda t: t.ap([[8, 64], [1, 16]]).slice(1, 8, 12), "a partition has 8"),
    "reshaped": ((128, 8), lambda t: t.ap([[8, 32], [1, 16]]).reshape((32, 2, 8)), "a partition has 8"),
    "reinterpreted": ((128, 8), lambda t: t.ap([[8, 32], [1, 16]]).view(nl.uint8), "a partition has 32"),
    "permuted": ((128, 8), lambda t: t.ap([[8, 32], [8, 2], [1, 8]]).permute((0, 2, 1)), "a partition has 8"),
    "selected": ((128, 8), lambda t: t.ap([[8, 32], [8, 2], [1, 8]]).select(1, 1), "a partition has 8"),
}


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("case", BEYOND)
def test_a_view_that_leaves_its_tensor_is_judged_when_an_instruction_uses_it(case, values):
    """Public kernels build such views (one per case of a loop) and use only those that fit."""
    shape, view, words = BEYOND[case]
    options = SimOptions(values=values)

    def kernel(used):
        beyond = view(on_chip(shape))
        if used:
            nisa.tensor_copy(dst=nl.ndarray(beyond.shape, beyond.dtype), src=beyond)

    launch(kernel, (False,), options=options)
    for checks in (True, False):
        with pytest.raises(KernelFault, match=words) as caught:
            launch(kernel, (True,), options=replace(options, checks=checks))
        assert caught.value.record.kind == "bounds"
        assert caught.value.record.line == kernel.__code__.co_firstlineno + 3


def test_the_part_of_a_view_that_stays_inside_is_used_and_one_beyond_hbm_is_refused(rng):
    data = rng.standard_normal((32, 8)).astype(np.float32)

    def kernel(a, rows):
        tile = nl.ndarray((32, 8), nl.float32)
        beyond = a.ap([[8, 64], [1, 8]])  # twice as many rows as there are
        nisa.dma_copy(dst=tile, src=beyond[0:rows] if rows == 32 else beyond.slice(0, 1, 33))
        out = nl.ndarray((32, 8), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        return out

    np.testing.assert_array_equal(launch(kernel, (data, 32)).outputs[0], data)
    with pytest.raises(KernelFault, match="it has 256"):
        launch(kernel, (data, 33))


@pytest.mark.parametrize("size", [0, -1])
def test_counts_of_views_are_one_or_more(size):
    on_trn3 = SimOptions(chip=get_chip("trn3"))
    views = {
        "broadcast": lambda: on_chip((16, 1)).broadcast(1, size),
        "indirect": lambda: on_chip((16, 8)).indirect(on_chip((16, 1), nl.int32), num_elem=size),
        "ap": lambda: on_chip((16, 8)).ap([[8, 16], [1, size]]),
    }
    for view in views.values():
        with pytest.raises(KernelFault, match="1 or more"):
            launch(view, (), options=on_trn3)


def _gather(source, rows, skip=False):
    def body(data, index):
        tile = on_chip((index.shape[0], 1), nl.int32)
        nisa.dma_copy(dst=tile, src=index)
        out = nl.zeros((index.shape[0], data.shape[1]), nl.float32)
        mode = nisa.oob_mode.skip if skip else nisa.oob_mode.error
        nisa.dma_copy(dst=out, src=data.vector_select(0, tile), oob_mode=mode)
        return out.array().copy()

    return in_kernel(body, source, rows)


def test_vector_select_gathers_a_row_per_partition(rng):
    data, rows = rng.standard_normal((50, 6)).astype(np.float32), rng.integers(0, 50, (32, 1)).astype(np.int32)
    np.testing.assert_array_equal(_gather(data, rows), data[rows[:, 0]])


@pytest.mark.parametrize("bad", [-1, 50])
def test_index_out_of_bounds_is_a_fault_or_keeps_the_destination(rng, bad):
    data, rows = rng.standard_normal((50, 6)).astype(np.float32), np.array([[3], [bad], [7]], np.int32)
    with pytest.raises(KernelFault, match=f"index {bad} .entry 1") as caught:
        _gather(data, rows)
    assert caught.value.record.file == __file__
    kept = np.where(rows == bad, np.float32(0), data[np.where(rows == bad, 0, rows)[:, 0]])
    np.testing.assert_array_equal(_gather(data, rows, skip=True), kept)


def test_dynamic_select_reads_the_index_when_the_instruction_runs(rng):
    data = rng.standard_normal((4, 8, 16)).astype(np.float32)

    def kernel(data, index):
        tile = on_chip((1, 1), nl.int32)
        nisa.dma_copy(dst=tile, src=index)
        out = nl.ndarray((8, 16), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=data.select(0, tile))
        return out

    program = launch(kernel, (data, np.array([[1]], np.int32)), options=SimOptions(record=True)).program
    for row in range(4):
        have = program({"data": data, "index": np.array([[row]], np.int32)})[0]
        np.testing.assert_array_equal(have, data[row])


def test_only_one_run_time_index_per_view():
    def body(data):
        index = on_chip((1, 1), nl.int32)
        data.select(0, index).select(0, index)

    with pytest.raises(KernelFault, match="one run-time index only"):
        in_kernel(body, np.zeros((4, 5, 6), np.float32))


def test_scalar_offset_counts_in_rows_of_the_base_and_adds_to_the_static_offset():
    data = np.arange(60, dtype=np.float32).reshape(10, 6)

    def body(data):
        index = nl.full((1, 1), 4, nl.int32)
        out = on_chip((2, 3))
        nisa.dma_copy(dst=out, src=data.ap([[6, 2], [1, 3]], offset=2, scalar_offset=index, indirect_dim=0))
        return out.array().copy()

    np.testing.assert_array_equal(in_kernel(body, data), data[4:6, 2:5])


def test_vector_offset_of_several_columns_is_read_column_by_column(rng):
    data, index = rng.standard_normal((40, 5)).astype(np.float32), rng.integers(0, 40, (4, 2)).astype(np.int32)

    def body(data, index):
        tile = on_chip((4, 2), nl.int32)
        nisa.dma_copy(dst=tile, src=index)
        out = nl.ndarray((7, 5), nl.float32, buffer=nl.hbm)
        nisa.dma_copy(dst=out, src=data.ap([[5, 7], [1, 5]], vector_offset=tile, indirect_dim=0))
        return out.array().copy()

    np.testing.assert_array_equal(in_kernel(body, data, index), data[index.T.flatten()[:7]])


def test_tensor_indirection_reads_offsets_in_snake_order_of_each_group(rng):
    data, index = rng.standard_normal((32, 9)).astype(np.float32), rng.integers(0, 9, (32, 2)).astype(np.int32)

    def body(data, index):
        tile, offsets, out = on_chip((32, 9)), on_chip((32, 2), nl.int32), on_chip((32, 20))
        nisa.dma_copy(dst=tile, src=data)
        nisa.dma_copy(dst=offsets, src=index)
        nisa.tensor_copy(dst=out, src=tile.indirect(offsets, 20))
        return out.array().copy()

    have = in_kernel(body, data, index, chip=get_chip("trn3"))
    for partition in range(32):
        group = partition // 16 * 16
        for i in range(20):
            assert have[partition, i] == data[partition, index[group + i % 16, i // 16]]


@st.composite
def strided(draw):
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    array = np.arange(int(np.prod(sizes))).reshape(sizes).transpose(draw(st.permutations(range(len(sizes)))))
    array = array[tuple(slice(None, None, draw(st.integers(1, 2))) for _ in sizes)]
    count, wanted = array.size, []
    while count > 1 and draw(st.booleans()):
        factor = draw(st.sampled_from([d for d in range(1, count + 1) if count % d == 0]))
        wanted.append(factor)
        count //= factor
    return array, (*wanted, count)


@given(strided())
@settings(max_examples=300, deadline=None)
def test_reshape_strides_agree_with_numpy(case):
    array, wanted = case
    steps = tuple(s // array.itemsize for s in array.strides)
    have = reshaped_strides(array.shape, steps, wanted)
    reference = array.reshape(wanted)
    if have is None:
        assert not np.shares_memory(reference, array)
    else:
        assert np.shares_memory(reference, array)
        base = np.lib.stride_tricks.as_strided(array, wanted, [s * array.itemsize for s in have])
        np.testing.assert_array_equal(base, reference)
