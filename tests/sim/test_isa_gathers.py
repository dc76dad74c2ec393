"""Gathers and searches against plain loops in NumPy."""

import numpy as np
import pytest
from hypothesis import strategies as st
from isa_operands import (
    DEFAULT_CASES,
    FLOATS,
    INTS,
    MANY_CASES,
    check,
    draw_free,
    draw_partitions,
    integers,
    operand,
    run,
    run_cases,
)

from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl

NAMES = (
    "nc_n_gather",
    "local_gather",
    "nc_find_index8",
    "nc_match_replace8",
    "sequence_bounds",
    "nonzero_with_count",
    "topk",
)


@check("nc_n_gather")
def nc_n_gather(data):
    partitions, free, count = draw_partitions(data), draw_free(data), draw_free(data)
    kind = data.draw(st.sampled_from([*FLOATS, *INTS]))
    operands = {
        "dst": operand(data, partitions, count, kind, reads=False),
        "data": operand(data, partitions, free, kind),
        "indices": operand(data, partitions, count, "uint32", fill=integers(0, int(np.prod(free)) - 1)),
    }
    run(
        data,
        lambda dst, data, indices: nisa.nc_n_gather(dst=dst, data=data, indices=indices),
        operands,
        lambda: {"dst": np.take_along_axis(operands["data"].raw, operands["indices"].values.astype(int), axis=1)},
        exact=("dst",),
    )


@check("local_gather")
def local_gather(data):
    groups, columns = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 4))
    run_length, elements = data.draw(st.sampled_from([1, 2, 4])), data.draw(st.integers(4, 32))
    valid = data.draw(st.sampled_from([None, 16 * columns, data.draw(st.integers(1, 16 * columns))]))
    count = valid or 16 * columns
    kind = data.draw(st.sampled_from(["float32", "bfloat16", "int32"]))
    operands = {
        "dst": operand(data, (0, 16 * groups), (count, run_length), kind, reads=False),
        "src": operand(data, (0, 16 * groups), (elements,), kind),
        "index": operand(data, (0, 16 * groups), (columns,), "uint16", fill=integers(0, elements - run_length)),
    }

    def expect():
        source, index = operands["src"].raw, operands["index"].values
        want = np.empty((16 * groups, count, run_length), source.dtype)
        for group in range(groups):
            rows = slice(16 * group, 16 * group + 16)
            chosen = index[rows].flatten(order="F")[:count]
            for position, first in enumerate(chosen):
                want[rows, position, :] = source[rows, int(first) : int(first) + run_length]
        return {"dst": want}

    run(
        data,
        lambda dst, src, index: nisa.local_gather(
            dst=dst, src_buffer=src, index=index, num_elem_per_idx=run_length, num_valid_indices=valid
        ),
        operands,
        expect,
        exact=("dst",),
    )


def _search_operands(data):
    """Data with many duplicates, and eight values of which some occur."""
    partitions = draw_partitions(data)
    free = data.draw(st.sampled_from([(8,), (13,), (40,), (3, 5), (4, 6)]))
    fill = data.draw(st.sampled_from([integers(0, 6), integers(0, 30)]))
    kind = data.draw(st.sampled_from(["float32", "bfloat16"]))
    return (
        {
            "data": operand(data, partitions, free, kind, fill=fill),
            "vals": operand(data, partitions, (8,), kind, fill=fill),
        },
        partitions,
        free,
        kind,
    )


@check("nc_find_index8")
def nc_find_index8(data):
    operands, partitions, _, _ = _search_operands(data)
    kind = data.draw(st.sampled_from(["uint32", "uint16"]))
    operands["dst"] = operand(data, partitions, (8,), kind, reads=False)

    def expect():
        want = np.full((partitions[1], 8), 0xFFFFFFFF if kind == "uint32" else 0xFFFF, np.int64)
        for row in range(partitions[1]):
            seen = {}
            for slot, value in enumerate(operands["vals"].values[row]):
                places = np.flatnonzero(operands["data"].values[row] == value)
                turn = seen.get(value, 0)
                if turn < len(places):
                    want[row, slot], seen[value] = places[turn], turn + 1
        return {"dst": want}

    run(data, lambda data, vals, dst: nisa.nc_find_index8(dst=dst, data=data, vals=vals), operands, expect, exact=("dst",))


@check("nc_match_replace8")
def nc_match_replace8(data):
    operands, partitions, free, kind = _search_operands(data)
    number = data.draw(st.sampled_from([-100.0, float("-inf"), 3.0]))
    with_index = data.draw(st.booleans())
    operands["dst"] = operand(data, partitions, free, kind, reads=False)
    operands["index"] = operand(data, partitions, (8,), "uint32", reads=False)

    def body(data, vals, dst, index):
        nisa.nc_match_replace8(dst=dst, data=data, vals=vals, imm=number, dst_idx=index if with_index else None)

    def expect():
        want = operands["data"].values.copy()
        index = np.full((partitions[1], 8), 0xFFFFFFFF, np.int64)
        for row in range(partitions[1]):
            free_places = {}
            for slot in range(7, -1, -1):
                value = operands["vals"].values[row, slot]
                places = free_places.setdefault(value, list(np.flatnonzero(operands["data"].values[row] == value)))
                if places:
                    index[row, slot] = places.pop(0)
                    want[row, index[row, slot]] = number
        return {"dst": want, "index": index} if with_index else {"dst": want}

    run(data, body, operands, expect, exact=("index",), rtol=0, atol=0)


@check("sequence_bounds")
def sequence_bounds(data):
    n, kind = data.draw(st.integers(1, 40)), data.draw(st.sampled_from(["int32", "float32"]))
    operands = {
        "dst": operand(data, (0, 1), (2, n), kind, reads=False),
        "ids": operand(data, (0, 1), (n,), kind, fill=lambda rng, size: np.repeat(rng.integers(0, 4, size), 3)[:size]),
    }

    def expect():
        ids = operands["ids"].values[0]
        start, end = np.empty(n), np.empty(n)
        for i in range(n):
            low = high = i
            while low > 0 and ids[low - 1] == ids[i]:
                low -= 1
            while high + 1 < n and ids[high + 1] == ids[i]:
                high += 1
            start[i], end[i] = (low, high + 1) if ids[i] != 0 else (n, -1)
        return {"dst": np.stack([start, end])}

    run(data, lambda dst, ids: nisa.sequence_bounds(dst=dst, segment_ids=ids), operands, expect)


@check("nonzero_with_count")
def nonzero_with_count(data):
    rows, width = data.draw(st.sampled_from([1, 16, 17, 128])), data.draw(st.integers(1, 24))
    offset, padding = data.draw(st.integers(0, 100)), data.draw(st.sampled_from([-1, 7]))
    operands = {
        "dst": operand(data, (0, rows), (width + 1,), "int32", reads=False),
        "src": operand(data, (0, rows), (width,), data.draw(st.sampled_from(["int32", "float32"])), fill=integers(-1, 1)),
    }

    def expect():
        want = operands["dst"].values.copy()
        for row in range(0, rows, 16):
            found = [i + offset for i, value in enumerate(operands["src"].values[row]) if value != 0]
            want[row] = found + [padding] * (width - len(found)) + [len(found)]
        return {"dst": want}

    run(
        data,
        lambda dst, src: nisa.nonzero_with_count(dst=dst, src=src, index_offset=offset, padding_val=padding),
        operands,
        expect,
    )


@check("topk")
def topk(data):
    groups, n = data.draw(st.integers(1, 4)), data.draw(st.integers(8, 80))
    k, columns = data.draw(st.integers(1, min(n, 16))), -(-n // 16)
    distinct = lambda rng, size: rng.permutation(200)[:size] - 100 if size <= 200 else rng.integers(-100, 100, size)  # noqa: E731
    operands = {
        "values": operand(data, (0, 16 * groups), (k,), "bfloat16", reads=False),
        "indices": operand(data, (0, 16 * groups), (k,), "uint32", reads=False),
        "src": operand(data, (0, 16 * groups), (columns,), "bfloat16", fill=distinct),
    }

    def expect():
        source = operands["src"].values
        values, indices = np.empty((16 * groups, k)), np.empty((16 * groups, k))
        for group in range(groups):
            snake = [(source[16 * group + e % 16, e // 16], e) for e in range(n)]
            best = sorted(sorted(snake, key=lambda item: (-item[0], item[1]))[:k])
            values[16 * group : 16 * group + 16] = [value for value, _ in best]
            indices[16 * group : 16 * group + 16] = [index for _, index in best]
        return {"values": values, "indices": indices}

    run(
        data,
        lambda values, indices, src: nisa.topk(val_dst=values, idx_dst=indices, src=src, n=n),
        operands,
        expect,
        options={"third_party": True},
    )


def test_find_and_replace_pair_duplicates_as_documented():
    """The example in the docstrings: seven equal values, ascending for find, descending for replace."""
    row = np.array([[1, 2, 3, 4, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    vals = np.array([[3, 8, 8, 8, 8, 8, 8, 8]], np.float32)

    def kernel(x, v):
        data, values = nl.ndarray((1, 11), nl.float32), nl.ndarray((1, 8), nl.float32)
        nisa.dma_copy(dst=data, src=x)
        nisa.dma_copy(dst=values, src=v)
        found, struck = nl.ndarray((1, 8), nl.uint32), nl.ndarray((1, 8), nl.uint32)
        nisa.nc_find_index8(dst=found, data=data, vals=values)
        nisa.nc_match_replace8(dst=data, data=data, vals=values, imm=0.0, dst_idx=struck)
        out = nl.ndarray((2, 8), nl.uint32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out[0:1, :], src=found)
        nisa.dma_copy(dst=out[1:2, :], src=struck)
        return out

    assert launch(kernel, (row, vals)).outputs[0].tolist() == [[2, 4, 5, 6, 7, 8, 9, 10], [2, 10, 9, 8, 7, 6, 5, 4]]


@pytest.mark.parametrize("name", ["nc_n_gather", "local_gather"])
def test_an_index_out_of_bounds_is_a_fault_at_the_gather(name):
    def kernel(x, i):
        data, index = nl.ndarray((16, 4), nl.float32), nl.ndarray((16, 1), i.dtype)
        nisa.dma_copy(dst=data, src=x)
        nisa.dma_copy(dst=index, src=i)
        if name == "nc_n_gather":
            nisa.nc_n_gather(dst=nl.ndarray((16, 1), nl.float32), data=data, indices=index)
        else:
            nisa.local_gather(dst=nl.ndarray((16, 16), nl.float32), src_buffer=data, index=index)

    index = np.full((16, 1), 4, np.uint32 if name == "nc_n_gather" else np.uint16)
    with pytest.raises(KernelFault, match=f"{name}: .* holds 4, must be 0 to 3") as caught:
        launch(kernel, (np.zeros((16, 4), np.float32), index))
    assert caught.value.record.kind == "bounds"
    assert caught.value.record.file == __file__


@pytest.mark.parametrize("name", NAMES)
def test_equals_numpy_on_random_operands(name):
    run_cases(name, DEFAULT_CASES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_equals_numpy_on_many_random_operands(name):
    run_cases(name, MANY_CASES)


def _local_gather(**changes):
    def kernel():
        nisa.local_gather(
            dst=nl.ndarray((32, 16), nl.float32),
            src_buffer=nl.ndarray((32, 16), nl.float32),
            index=nl.ndarray((32, 1), nl.uint16),
            **changes,
        )

    return kernel


def _topk(n):
    def kernel():
        nisa.topk(
            val_dst=nl.ndarray((32, 8), nl.bfloat16),
            idx_dst=nl.ndarray((32, 8), nl.uint32),
            src=nl.ndarray((32, 16), nl.bfloat16),
            n=n,
        )

    return kernel


def _iota(pattern):
    return lambda: nisa.iota(dst=nl.ndarray((32, 16), nl.int32), pattern=pattern)


def _affine_select(pattern):
    def kernel():
        nisa.affine_select(
            dst=nl.ndarray((32, 16), nl.float32),
            pattern=pattern,
            channel_multiplier=1,
            on_true_tile=nl.ndarray((32, 16), nl.float32),
            on_false_value=0.0,
            cmp_op=nl.greater_equal,
        )

    return kernel


COUNTS = [
    *((_local_gather(num_valid_indices=n), "num_valid_indices") for n in (0, -1, 17, 4097, 2.5, "3")),
    *((_local_gather(num_elem_per_idx=n), "num_elem_per_idx") for n in (0, -1, 3, 64, 1.5)),
    *((_topk(n), "n=") for n in (0, -1, 7, 65_536, 257, 42.0)),
    *(
        (make(pattern), "pattern")
        for make in (_iota, _affine_select)
        for pattern in ([[1, 0]], [[1, -16]], [[1, -4], [1, -4]], [[1, 17]], [[1, 16.0]], [])
    ),
]


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize(("kernel", "words"), COUNTS)
def test_counts_of_nothing_negative_or_beyond_are_refused(kernel, words, values):
    with pytest.raises(KernelFault, match=words) as caught:
        launch(kernel, (), options=SimOptions(values=values))
    assert caught.value.record.kind in ("argument", "shape")


@pytest.mark.parametrize("count", [1, 5, 16, None])
def test_local_gather_takes_as_many_indices_as_it_is_told(count, rng):
    data = rng.standard_normal((16, 16)).astype(np.float32)
    index = rng.integers(0, 16, (16, 1)).astype(np.uint16)
    width = 16 if count is None else count

    def kernel(data, index):
        result = nl.ndarray((16, width), nl.float32)
        nisa.local_gather(dst=result, src_buffer=nl.load(data), index=nl.load(index), num_valid_indices=count)
        out = nl.ndarray((16, width), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, result)
        return out

    np.testing.assert_array_equal(launch(kernel, (data, index)).outputs[0], data[:, index[:width, 0]])


def test_a_shuffle_looks_at_the_partitions_of_its_mask_alone(rng):
    x = rng.standard_normal((32, 8)).astype(np.float32)

    def kernel(x, source):
        tile = nl.ndarray((32, 8), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile[0:1, :], src=x[0:1, :])
        nisa.nc_stream_shuffle(dst=tile, src=tile, shuffle_mask=[source] * 32)
        out = nl.ndarray((32, 8), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        return out

    options = SimOptions(uninitialized="error")
    np.testing.assert_array_equal(launch(kernel, (x, 0), options=options).outputs[0], np.broadcast_to(x[:1], x.shape))
    with pytest.raises(KernelFault, match=r"never written, the first at \[1, 0\]"):
        launch(kernel, (x, 1), options=options)
