"""Copies, fills, transposes and DMA against NumPy, bit by bit where the types are the same."""

import gc
import weakref

import numpy as np
import pytest
from hypothesis import strategies as st
from isa_operands import (
    DEFAULT_CASES,
    FLOATS,
    INTS,
    MANY_CASES,
    Operand,
    bits,
    check,
    draw_free,
    draw_partitions,
    fill_for,
    integers,
    operand,
    run,
    run_cases,
)

from nki_hf.errors import KernelFault
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from nki_hf.sim import launch

NAMES = ("tensor_copy", "memset", "dma_copy", "dma_compute", "nc_transpose", "dma_transpose", "nc_stream_shuffle")
ANY = (*FLOATS, *INTS)


def any_bits(rng, size):
    """Small integers that every type holds."""
    return rng.integers(0, 3, size)


@check("tensor_copy")
def tensor_copy(data):
    partitions, free = draw_partitions(data), draw_free(data)
    kind = data.draw(st.sampled_from(ANY))
    target = kind if data.draw(st.booleans()) else data.draw(st.sampled_from(ANY))
    spaces = data.draw(st.sampled_from([("sbuf", "sbuf"), ("psum", "sbuf"), ("sbuf", "psum"), ("psum", "psum")]))
    other = data.draw(st.sampled_from([free, (int(np.prod(free)),)]))
    engine = data.draw(st.sampled_from([nisa.engine.unknown, nisa.engine.vector, nisa.engine.scalar]))
    operands = {
        "dst": operand(data, partitions, free, target, reads=False, space=spaces[0]),
        "src": operand(data, partitions, other, kind, space=spaces[1]),
    }
    run(
        data,
        lambda dst, src: nisa.tensor_copy(dst=dst, src=src, engine=engine),
        operands,
        lambda: {"dst": operands["src"].raw if kind == target else operands["src"].values},
        exact=("dst",) if kind == target else (),
        rtol=0,
        atol=0,
    )


@check("memset")
def memset(data):
    partitions, free = draw_partitions(data), draw_free(data)
    kind = data.draw(st.sampled_from(ANY))
    value = data.draw(st.sampled_from([0, 3, 100] if kind in INTS else [0.0, -1.5, 0.1, 3.3e38, float("-inf")]))
    engine = data.draw(st.sampled_from([nisa.engine.unknown, nisa.engine.vector, nisa.engine.gpsimd]))
    operands = {"dst": operand(data, partitions, free, kind, reads=False)}
    run(
        data,
        lambda dst: nisa.memset(dst=dst, value=value, engine=engine),
        operands,
        lambda: {"dst": np.full(operands["dst"].values.shape, float(np.float32(value)))},
        rtol=0,
        atol=0,
    )


@check("dma_copy")
def dma_copy(data):
    """Any HBM or SBUF view to any other of as many elements; by rows that an index names, on either side."""
    kind = data.draw(st.sampled_from(FLOATS + INTS))
    target = kind if data.draw(st.booleans()) else data.draw(st.sampled_from(FLOATS + INTS))
    form = data.draw(st.sampled_from(["direct", "reshape", "gather", "scatter", "scalar", "skip", "scatter skip"]))
    rows, free = data.draw(st.integers(1, 32)), draw_free(data)
    total = int(np.prod(free))
    if form in ("direct", "reshape"):
        sizes = (rows, total) if form == "direct" else (1, rows * total)
        operands = {
            "dst": operand(data, (0, rows), free, target, reads=False, space=data.draw(st.sampled_from(["sbuf", "hbm"]))),
            "src": operand(data, (0, sizes[0]), (sizes[1],), kind, space=data.draw(st.sampled_from(["sbuf", "hbm"]))),
        }
        run(
            data,
            lambda dst, src: nisa.dma_copy(dst=dst, src=src),
            operands,
            lambda: {"dst": (operands["src"].raw if kind == target else operands["src"].values).reshape(rows, -1)},
            exact=("dst",) if kind == target else (),
            rtol=0,
            atol=0,
        )
        return
    table_rows = data.draw(st.integers(rows, 40))
    table = operand(data, (0, table_rows), (total,), target if form[:7] == "scatter" else kind, space="hbm", plain=True)
    tile = operand(data, (0, rows), (total,), kind if form[:7] == "scatter" else target, plain=True)
    last = table_rows - 1 + (6 if "skip" in form else 0)
    unique = lambda rng, size: rng.permutation(last + 1)[:size]  # noqa: E731
    index = operand(data, (0, rows), (1,), "uint32", fill=unique, plain=True)
    pattern = [[total, rows], [1, total]]
    if form == "scalar":
        index = operand(data, (0, 1), (1,), "int32", fill=integers(0, table_rows - rows), plain=True)
    operands = {"table": table, "tile": tile, "index": index}

    def body(table, tile, index):
        offset = {"scalar_offset": index} if form == "scalar" else {"vector_offset": index}
        rows_of = table.ap(pattern=pattern, indirect_dim=0, **offset)
        dst, src = (rows_of, tile) if form[:7] == "scatter" else (tile, rows_of)
        nisa.dma_copy(dst=dst, src=src, oob_mode=nisa.oob_mode.skip if "skip" in form else nisa.oob_mode.error)

    def expect():
        chosen = operands["index"].values[:, 0].astype(int)
        source, destination = operands["table"].values, operands["tile"].values
        if form == "scalar":
            return {"tile": source[chosen[0] : chosen[0] + rows]}
        inside = chosen < table_rows
        if form[:7] == "scatter":
            want = source * 1.0
            want[chosen[inside]] = destination[inside]
            return {"table": want}
        return {"tile": np.where(inside[:, None], source[np.where(inside, chosen, 0)], destination)}

    run(data, body, operands, expect, rtol=0, atol=0)


@check("dma_compute")
def dma_compute(data):
    """A sum of views; a read-modify-write of rows in HBM (scatter) or from HBM (gather)."""
    form = data.draw(st.sampled_from(["direct", "scatter", "gather"]))
    rows, total = data.draw(st.integers(1, 32)), data.draw(st.integers(1, 16))
    kinds = [data.draw(st.sampled_from(FLOATS)) for _ in range(3)]
    if form == "direct":
        spaces = [data.draw(st.sampled_from(["sbuf", "hbm"])) for _ in range(3)]
        operands = {
            "dst": operand(data, (0, rows), (total,), kinds[0], reads=False, space=spaces[0]),
            "a": operand(data, (0, rows), (total,), kinds[1], space=spaces[1]),
            "b": operand(data, (0, rows), (total,), kinds[2], space=spaces[2]),
        }
        run(
            data,
            lambda dst, a, b: nisa.dma_compute(dst=dst, srcs=[a, b, a], reduce_op=nl.add),
            operands,
            lambda: {"dst": 2 * operands["a"].values + operands["b"].values},
        )
        return
    table_rows = data.draw(st.integers(rows, 40))
    skip = data.draw(st.booleans())
    last = table_rows + (20 if skip else 0)
    operands = {
        "table": operand(data, (0, table_rows), (total,), kinds[0], space="hbm", plain=True),
        "tile": operand(data, (0, rows), (total,), kinds[1], plain=True),
        "index": operand(data, (0, rows), (1,), "uint32", fill=lambda rng, size: rng.permutation(last)[:size], plain=True),
    }

    def body(table, tile, index):
        view = table.ap(pattern=[[total, rows], [1, total]], vector_offset=index, indirect_dim=0)
        mode = nisa.oob_mode.skip if skip else nisa.oob_mode.error
        if form == "scatter":
            nisa.dma_compute(dst=view, srcs=[view, tile], reduce_op=nl.add, oob_mode=mode)
        else:
            nisa.dma_compute(dst=tile, srcs=[tile, view], reduce_op=nl.add, scales=[1.0, 1.0], oob_mode=mode)

    def expect():
        chosen = operands["index"].values[:, 0].astype(int)
        inside = chosen < table_rows
        table, tile = operands["table"].values.copy(), operands["tile"].values.copy()
        if form == "gather":
            tile[inside] += table[chosen[inside]]
            return {"tile": tile}
        table[chosen[inside]] += tile[inside]
        return {"table": table}

    run(data, body, operands, expect)


@check("nc_transpose")
def nc_transpose(data):
    kind = data.draw(st.sampled_from(ANY))
    vector = data.draw(st.booleans())
    limit = 32 if vector else 128
    # the Tensor engine writes whole words of PSUM: of 8-bit elements four at a time
    rows = data.draw(st.integers(1, limit)) if vector else 4 * data.draw(st.integers(1, limit // 4))
    columns = data.draw(st.sampled_from([(7,), (32,), (4, 5), (2, 3, 4)] if vector else [(7,), (128,), (4, 5), (8, 16)]))
    spaces = data.draw(st.sampled_from([("sbuf", "sbuf"), ("sbuf", "psum"), ("psum", "sbuf")])) if vector else ("psum", "sbuf")
    operands = {
        "dst": operand(data, (0, int(np.prod(columns))), (rows,), kind, fill=any_bits, reads=False, space=spaces[0]),
        "data": operand(data, (0, rows), columns, kind, space=spaces[1]),
    }
    engine = nisa.engine.vector if vector else nisa.engine.tensor
    run(
        data,
        lambda dst, data: nisa.nc_transpose(dst=dst, data=data, engine=engine),
        operands,
        lambda: {"dst": operands["data"].raw.T},
        exact=("dst",),
    )


@check("dma_transpose")
def dma_transpose(data):
    """Permutations of rank 2 to 4, and the gathered transpose of rows of HBM that an index names."""
    kind = data.draw(st.sampled_from(["bfloat16", "float16", "uint16"]))
    if data.draw(st.booleans()):
        count, width, table_rows = data.draw(st.sampled_from([16, 32, 128])), data.draw(st.integers(1, 64)), 130
        skip = data.draw(st.booleans())
        last = table_rows - 1 + (40 if skip else 0)
        operands = {
            "dst": operand(data, (0, width), (count,), kind, reads=False, plain=True),
            "table": operand(data, (0, table_rows), (width,), kind, space="hbm", plain=True),
            "index": operand(data, (0, count), (1,), "uint32", fill=integers(0, last), plain=True),
        }

        def body(dst, table, index):
            source = table.ap(pattern=[[width, count], [1, width]], vector_offset=index, indirect_dim=0)
            nisa.dma_transpose(dst=dst, src=source, axes=(1, 0), oob_mode=nisa.oob_mode.skip if skip else nisa.oob_mode.error)

        def expect():
            chosen = operands["index"].values[:, 0].astype(int)
            inside = chosen < table_rows
            gathered = operands["table"].raw[np.where(inside, chosen, 0)].T
            return {"dst": np.where(inside, gathered, operands["dst"].raw)}

        run(data, body, operands, expect, exact=("dst",))
        return
    permutation = data.draw(st.sampled_from([(1, 0), (2, 1, 0), (3, 1, 2, 0)]))
    sizes = [data.draw(st.sampled_from([1, 2, 4, 8, 16])) for _ in permutation]
    sizes[0] = 16
    strides = [int(np.prod(sizes[axis + 1 :])) for axis in range(len(sizes))]
    source = Operand(
        (16, strides[0]),
        kind,
        [[stride, size] for stride, size in zip(strides, sizes, strict=True)],
        0,
        fill_for(kind),
        data.draw(st.sampled_from(["sbuf", "hbm"])),
    )
    shape = [sizes[axis] for axis in permutation]
    operands = {"dst": operand(data, (0, shape[0]), shape[1:], kind, reads=False, plain=True), "src": source}
    run(
        data,
        lambda dst, src: nisa.dma_transpose(dst=dst, src=src, axes=data.draw(st.sampled_from([None, permutation]))),
        operands,
        lambda: {"dst": operands["src"].raw.reshape(sizes).transpose(permutation).reshape(shape[0], -1)},
        exact=("dst",),
    )


@check("nc_stream_shuffle")
def nc_stream_shuffle(data):
    quadrants, free = data.draw(st.integers(1, 4)), draw_free(data)
    kind = data.draw(st.sampled_from(ANY))
    mask = [data.draw(st.sampled_from([*range(32), 255])) for _ in range(32)]
    rows = 32 * quadrants
    operands = {
        "dst": operand(data, (0, rows), free, kind, reads=False),
        "src": operand(data, (0, rows), free, kind),
    }
    in_place = data.draw(st.booleans())

    def expect():
        source = operands["dst" if in_place else "src"].raw
        want = operands["dst"].raw.copy()
        for row in range(rows):
            if mask[row % 32] != 255:
                want[row] = source[row // 32 * 32 + mask[row % 32]]
        return {"dst": want}

    run(
        data,
        lambda dst, src: nisa.nc_stream_shuffle(dst=dst, src=dst if in_place else src, shuffle_mask=mask),
        operands,
        expect,
        exact=("dst",),
    )


@pytest.mark.parametrize("form", ["gather", "scatter", "transpose", "compute"])
def test_a_row_out_of_bounds_is_a_fault_unless_it_is_skipped(form):
    def kernel(x, i):
        tile, index = nl.ndarray((16, 8), x.dtype), nl.ndarray((16, 1), nl.uint32)
        table = nl.ndarray((16, 8), x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=table, src=x)
        nisa.dma_copy(dst=tile, src=x)
        nisa.dma_copy(dst=index, src=i)
        rows = table.ap(pattern=[[8, 16], [1, 8]], vector_offset=index, indirect_dim=0)
        if form == "transpose":
            nisa.dma_transpose(dst=nl.ndarray((8, 16), x.dtype), src=rows)
        elif form == "compute":
            nisa.dma_compute(dst=tile, srcs=[tile, rows], reduce_op=nl.add)
        else:
            nisa.dma_copy(dst=tile if form == "gather" else rows, src=rows if form == "gather" else tile)

    index = np.arange(16, dtype=np.uint32)[:, None]
    index[5] = 16
    with pytest.raises(KernelFault, match=r"run-time index 16 \(entry 5\) leaves") as caught:
        launch(kernel, (np.zeros((16, 8), np.float16), index))
    assert (caught.value.record.kind, caught.value.record.details["entry"]) == ("bounds", 5)


def test_no_tile_outlives_its_launch():
    def kernel(x):
        a, b = nl.ndarray((16, 8), nl.float32), nl.ndarray((16, 8), nl.float32)
        nisa.dma_copy(dst=a, src=x)
        nisa.dma_compute(dst=b, srcs=[a, a], reduce_op=nl.add)
        alive.append(weakref.ref(a.storage))

    alive = []
    launch(kernel, (np.zeros((16, 8), np.float32),))
    gc.collect()
    assert alive[0]() is None


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2", "int32"])
def test_copies_and_transposes_keep_every_bit(kind):
    """All bit patterns, NaN payloads and infinities included, through each way of moving data of one type."""
    width = {"float32": 4, "int32": 4, "bfloat16": 2, "float16": 2}.get(kind, 1)
    storage = getattr(nl, kind).dtype
    source = np.random.default_rng(0).integers(0, 256, (64, 32 * width), np.uint8).view(storage)

    def kernel(x):
        a, b = nl.ndarray((64, 32), kind, buffer=nl.sbuf), nl.ndarray((64, 32), kind, buffer=nl.psum)
        nisa.dma_copy(dst=a, src=x)
        nisa.tensor_copy(dst=b, src=a)
        c, d = nl.ndarray((64, 32), kind, buffer=nl.sbuf), nl.ndarray((32, 64), kind, buffer=nl.psum)
        ones = nl.ndarray((64, 32), nl.uint8, buffer=nl.sbuf)
        nisa.memset(dst=ones, value=1)
        nisa.tensor_copy_predicated(dst=c, src=b, predicate=ones)
        nisa.affine_select(dst=c, pattern=[[0, 32]], channel_multiplier=0, on_true_tile=c, on_false_value=0.0)
        nisa.nc_transpose(dst=d, data=c)
        e = nl.ndarray((32, 64), kind, buffer=nl.sbuf)
        nisa.tensor_copy(dst=e, src=d)
        out = nl.ndarray((32, 64), kind, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=e)
        return out

    np.testing.assert_array_equal(bits(launch(kernel, (source,)).outputs[0]), bits(source.T))


@pytest.mark.parametrize("name", NAMES)
def test_equals_numpy_on_random_operands(name):
    run_cases(name, DEFAULT_CASES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_equals_numpy_on_many_random_operands(name):
    run_cases(name, MANY_CASES)
