"""What a replay leaves out: moves that products look through, and what follows from constants and unchanged bounds alone."""

import numpy as np
import pytest

from nki_hf.lang import load
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl

ROWS = 128


def recorded(kernel, **inputs):
    return launch(kernel, (), {name: value.copy() for name, value in inputs.items()}, options=SimOptions(record=True))


def agree(kernel, *calls):
    """Replays of one recording equal fresh launches, bit by bit; returns the program and the last fresh outputs."""
    program = recorded(kernel, **calls[0]).program
    for inputs in calls:
        fresh = launch(kernel, (), {name: value.copy() for name, value in inputs.items()}).outputs
        for got, want in zip(program(inputs), fresh, strict=True):
            np.testing.assert_array_equal(got, want)
    return program, fresh


def arrays(seed, **shapes):
    draw = np.random.default_rng(seed)
    return {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def load_tile(given):
    tile = nl.ndarray(given.shape, dtype=given.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=given)
    return tile


def store(tile, dtype=nl.float32):
    out = nl.ndarray(tile.shape, dtype=dtype, buffer=nl.shared_hbm)
    copy = nl.ndarray(tile.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=copy, src=tile)
    nisa.dma_copy(dst=out, src=copy)
    return out


def turned_product(a, b, overwrite="nothing"):
    """a @ b by a transpose, two copies and a product; `overwrite` is written between the moves and the product."""
    left, right = load_tile(a), load_tile(b)
    bank = nl.ndarray((a.shape[1], 2 * ROWS), dtype=a.dtype, buffer=nl.psum)
    for n in range(2):
        nisa.nc_transpose(dst=bank[:, n * ROWS : (n + 1) * ROWS], data=left, engine=nisa.engine.tensor)
    turned = nl.ndarray((a.shape[1], 2 * ROWS), dtype=a.dtype, buffer=nl.sbuf)
    nisa.activation(dst=turned[:, 0:ROWS], op=nl.copy, data=bank[:, 0:ROWS])
    nisa.tensor_copy(dst=turned[:, ROWS : 2 * ROWS], src=bank[:, ROWS : 2 * ROWS])
    if overwrite == "source":
        nisa.memset(dst=left[0:32, 0:4], value=9.0)
    if overwrite == "copy":
        nisa.memset(dst=turned[0:32, ROWS : ROWS + 4], value=9.0)
    if overwrite == "bank":
        nisa.memset(dst=bank, value=9.0)
    result = nl.ndarray((ROWS, b.shape[1]), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=result, stationary=turned[:, ROWS : 2 * ROWS], moving=right)
    return store(result)


@pytest.mark.parametrize("overwrite", ["nothing", "source", "copy", "bank"])
def test_a_product_of_a_turned_tile_sees_what_was_turned_and_what_was_written_since(overwrite):
    def kernel(a, b):
        return turned_product(a, b, overwrite)

    calls = [arrays(seed, a=(ROWS, 64), b=(64, 8)) for seed in range(3)]
    program, (out,) = agree(kernel, *calls)
    want = calls[-1]["a"].T.astype(np.float64)
    if overwrite == "copy":
        want[0:32, 0:4] = 9.0
    np.testing.assert_allclose(out, want.T @ calls[-1]["b"].astype(np.float64), rtol=1e-4, atol=1e-4)
    left_out = len(recorded(kernel, **calls[0]).run.cores[0].actions) - program.instructions
    assert left_out == {"nothing": 4, "source": 1, "copy": 0, "bank": 5}[overwrite]  # moves, and a memset that nobody reads


def test_a_turned_tile_that_somebody_else_reads_is_turned():
    def kernel(a, b):
        left, right = load_tile(a), load_tile(b)
        bank = nl.ndarray((64, ROWS), dtype=a.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=bank, data=left, engine=nisa.engine.tensor)
        turned = nl.ndarray((64, ROWS), dtype=a.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=turned, src=bank)
        result = nl.ndarray((ROWS, 8), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=result, stationary=turned, moving=right)
        return store(result), store(turned)

    calls = [arrays(seed, a=(ROWS, 64), b=(64, 8)) for seed in range(2)]
    _, (product, turned) = agree(kernel, *calls)
    np.testing.assert_array_equal(turned, calls[-1]["a"].T)
    np.testing.assert_allclose(product, calls[-1]["a"].astype(np.float64) @ calls[-1]["b"], rtol=1e-4, atol=1e-4)


def test_a_tile_turned_back_in_a_loop_that_writes_its_source_is_the_old_one():
    def kernel(a, b):
        left, right = load_tile(a), load_tile(b)
        bank = nl.ndarray((64, ROWS), dtype=a.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=bank, data=left, engine=nisa.engine.tensor)
        turned = nl.ndarray((64, ROWS), dtype=a.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=turned, src=bank)
        total = nl.ndarray((ROWS, 8), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=total, value=0.0)
        for _ in nl.dynamic_range(0, 3):
            result = nl.ndarray((ROWS, 8), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=result, stationary=turned, moving=right, accumulate=False)
            nisa.tensor_tensor(dst=total, data1=total, data2=result, op=nl.add)
            nisa.memset(dst=left, value=0.0)
        return store(total)

    calls = [arrays(seed, a=(ROWS, 64), b=(64, 8)) for seed in range(2)]
    _, (out,) = agree(kernel, *calls)
    np.testing.assert_allclose(out, 3 * (calls[-1]["a"].astype(np.float64) @ calls[-1]["b"]), rtol=1e-4, atol=1e-3)


def masked(a, length, wide):
    """a where its column lies before `length`, else 0, on tiles of `wide` columns whose memory others use afterwards."""
    edge = load_tile(length)
    columns = nl.ndarray((ROWS, wide), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=columns, pattern=[[1, wide]], offset=0, channel_multiplier=0)
    end = nl.ndarray((ROWS, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=end, src=edge)
    seen = nl.ndarray((ROWS, wide), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=seen, data=columns, op0=nl.less, operand0=end)
    columns = None
    result = nl.ndarray((ROWS, wide), dtype=nl.float32, buffer=nl.sbuf)  # where the columns were, if that is used again
    nisa.dma_copy(dst=result, src=a)
    nisa.tensor_tensor(dst=result, data1=result, data2=seen, op=nl.multiply)
    return store(result)


@pytest.mark.parametrize("wide", [8, 512])
def test_what_follows_from_unchanged_bounds_is_left_out_and_from_changed_ones_is_not(wide):
    def kernel(a, length):
        return masked(a, length, wide)

    def call(seed, length):
        return {**arrays(seed, a=(ROWS, wide)), "length": np.full((ROWS, 1), length, np.int32)}

    calls = [call(0, 3), call(1, 3), call(2, 5), call(3, 5), call(4, 3)]
    program, (out,) = agree(kernel, *calls)
    np.testing.assert_array_equal(out, np.where(np.arange(wide) < 3, calls[-1]["a"], 0))
    assert len(program._again) < program.instructions


def test_a_register_that_two_bounds_use_in_turn_holds_each_when_it_is_used():
    def kernel(a, places):
        index = load_tile(places)
        out = nl.ndarray((2, 4), dtype=nl.float32, buffer=nl.shared_hbm)
        register = nisa.register_alloc()
        for n in range(2):
            nisa.register_load(dst=register, src=index[0:1, n : n + 1])
            row = nl.ndarray((1, 4), dtype=nl.float32, buffer=nl.sbuf)
            source = a.ap(pattern=[[4, 1], [1, 4]], offset=0, scalar_offset=register, indirect_dim=0)
            nisa.dma_copy(dst=row, src=source)
            nisa.dma_copy(dst=out[n : n + 1, :], src=row)
        return out

    calls = [{**arrays(seed, a=(9, 4)), "places": np.array([[2, 7]], np.int32)} for seed in range(3)]
    _, (out,) = agree(kernel, *calls)
    np.testing.assert_array_equal(out, calls[-1]["a"][[2, 7]])


def test_inputs_that_a_kernel_counts_up_are_counted_up_in_every_replay():
    def kernel(counts):
        tile = load_tile(counts)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1)
        nisa.dma_copy(dst=counts, src=tile)
        return store(tile, nl.int32)

    program = recorded(kernel, counts=np.zeros((4, 2), np.int32)).program
    given = np.zeros((4, 2), np.int32)
    for turn in range(1, 4):
        (out,) = program({"counts": given})
        np.testing.assert_array_equal(out, np.full((4, 2), turn))
        np.testing.assert_array_equal(given, out)


def test_an_interrupted_replay_settles_nothing(monkeypatch):
    def kernel(a, length):
        return masked(a, length, 8)

    call = {**arrays(0, a=(ROWS, 8)), "length": np.full((ROWS, 1), 3, np.int32)}
    other = {**call, "length": np.full((ROWS, 1), 6, np.int32)}
    program = recorded(kernel, **call).program
    actions = program.actions[0]

    def stop():
        raise KeyboardInterrupt

    program.actions = [[*actions[:2], stop]]
    with pytest.raises(KeyboardInterrupt):
        program(other)
    program.actions = [actions]
    np.testing.assert_array_equal(program(other)[0], np.where(np.arange(8) < 6, call["a"], 0))


def test_a_decode_step_neither_turns_its_keys_nor_makes_its_masks_again():
    kernel = load("nki_hf.kernels.flash_decode.kernel", "simulator").flash_decode
    draw = np.random.default_rng(0)
    shape = (1, 1, 2048, 64)
    inputs = {
        "q": draw.standard_normal((1, 2, 1, 64)).astype(np.float32),
        "k": draw.standard_normal(shape).astype(np.float32),
        "v": draw.standard_normal(shape).astype(np.float32),
        "lo": np.zeros((1, 1), np.int32),
        "hi": np.full((1, 1), 1500, np.int32),
    }
    program = launch(kernel, (), dict(inputs), options=SimOptions(record=True)).program
    kept, again = program.instructions, len(program._again)
    assert kept < len(program._keep[0].cores[0].actions) - 16  # the turns of 16 key tiles, and their copies
    assert again < kept - 20


@pytest.mark.parametrize("reader", [False, True])
def test_rows_that_a_load_leaves_out_are_cleared_in_every_replay(reader):
    """Two loads of 64 rows from run-time starts, in bounds or not; `reader` looks at the tile between them."""

    def kernel(table, starts):
        index = load_tile(starts)
        tile = nl.ndarray((ROWS, 4), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=tile, value=5.0)
        out = []
        for n in range(2):
            register = nisa.register_alloc()
            nisa.register_load(dst=register, src=index[0:1, n : n + 1])
            source = table.ap(pattern=[[4, 64], [1, 4]], offset=0, scalar_offset=register, indirect_dim=0)
            nisa.dma_copy(dst=tile[n * 64 : (n + 1) * 64, :], src=source, oob_mode=nisa.oob_mode.skip)
            if reader:
                out.append(store(tile))
        return (*out, store(tile))

    def call(seed, *starts):
        return {**arrays(seed, table=(200, 4)), "starts": np.array([starts], np.int32)}

    calls = [call(0, 0, 64), call(1, 9000, 3), call(2, 7, 9000), call(3, 9000, 9000), call(4, 136, 1)]
    program, _ = agree(kernel, *calls)
    for given in calls:
        want = np.full((ROWS, 4), 5.0, np.float32)
        for n, start in enumerate(given["starts"][0]):
            if start < 200:
                want[n * 64 : (n + 1) * 64] = given["table"][start : start + 64]
        np.testing.assert_array_equal(program(given)[-1], want)
    kinds = [type(action).__name__ for action in program.actions[0]]
    assert kinds.count("LoadOrClear") == (0 if reader else 2)


@pytest.mark.parametrize("same_tile", [True, False])
@pytest.mark.parametrize("length", [None, "bounds"])
def test_constants_that_follow_each_other_in_one_memory_are_each_there_when_they_are_read(same_tile, length):
    """A tile of 2 is read, and then written again with 5, or its memory goes to a tile of 5."""

    def times(a, tile, value):
        nisa.memset(dst=tile, value=value)
        product = nl.ndarray(a.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=product, data1=a, data2=tile, op=nl.multiply)
        return product

    def kernel(a, n):
        given = load_tile(a)
        if length is not None:
            given = masked_by(given, n)
        total = nl.ndarray(a.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=total, value=0.0)
        tile = nl.ndarray(a.shape, dtype=nl.float32, buffer=nl.sbuf)
        for value in (2.0, 5.0):
            if not same_tile:
                del tile
                tile = nl.ndarray(a.shape, dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=total, data1=total, data2=times(given, tile, value), op=nl.add)
        return store(total)

    def masked_by(given, n):
        count = load_tile(n)
        kept = nl.ndarray(given.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=kept, data=given, op0=nl.add, operand0=as_float(count))
        return kept

    def as_float(count):
        made = nl.ndarray(count.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=made, src=count)
        return made

    calls = [{**arrays(seed, a=(ROWS, 8)), "n": np.full((ROWS, 1), seed // 2, np.int32)} for seed in range(4)]
    _, (out,) = agree(kernel, *calls)
    np.testing.assert_allclose(out, 7 * (calls[-1]["a"] + (0 if length is None else 1)), rtol=1e-6, atol=1e-6)


def test_a_constant_that_something_nobody_needs_overwrites_is_made_again():
    """A cumulative sum whose carry starts as 0 and is written after the last tile as well, for a tile that does not come."""

    def kernel(a):
        given = load_tile(a)
        ones = nl.ndarray(a.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=ones, value=1.0)
        carry = nl.ndarray((ROWS, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=carry, value=0.0)
        sums = nl.ndarray(a.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor_scan(dst=sums, data0=ones, data1=given, initial=carry, op0=nl.multiply, op1=nl.add)
        nisa.tensor_copy(dst=carry, src=sums[:, 7:8])
        return store(sums)

    calls = [arrays(seed, a=(ROWS, 8)) for seed in range(3)]
    program, _ = agree(kernel, *calls)
    for given in calls:
        np.testing.assert_allclose(program(given)[0], np.cumsum(given["a"], 1), rtol=1e-5, atol=1e-5)


UNREAD = {
    "a tile that is never written": lambda tile: None,
    "a tile that is written and never read": lambda tile: nisa.memset(dst=tile, value=9.0),
}


@pytest.mark.parametrize("last", UNREAD)
@pytest.mark.parametrize("follows", ["constants", "bounds"])
def test_what_a_replay_need_not_compute_again_is_there_after_others_used_its_memory(follows, last):
    """Recording fills and writes tiles that no replay fills or writes; one of them comes to lie where the values were."""

    def kernel(a, lo):
        given = load_tile(a)
        base = nl.ndarray((ROWS, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=base, src=load_tile(lo)) if follows == "bounds" else nisa.memset(dst=base, value=2.0)
        fixed = nl.ndarray(a.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=fixed, value=1.0)
        nisa.tensor_scalar(dst=fixed, data=fixed, op0=nl.add, operand0=base)
        total = nl.ndarray(a.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=total, data1=given, data2=fixed, op=nl.multiply)
        result = store(total)
        del fixed
        UNREAD[last](nl.ndarray(a.shape, dtype=nl.float32, buffer=nl.sbuf))
        return result

    lo = np.full((ROWS, 1), 5, np.int32)
    calls = [{**arrays(seed, a=(ROWS, 1024)), "lo": lo} for seed in range(3)]
    agree(kernel, *calls)
    _, fresh = agree(kernel, *calls, {**calls[0], "lo": lo + 1}, calls[0])
    np.testing.assert_array_equal(fresh[0], calls[0]["a"] * np.float32(6 if follows == "bounds" else 3))


# ---- what engines hold beside memory ------------------------------------------------------------------------------------


def summed_in_steps(a):
    """A row's elements and three times them, summed by the Vector engine's accumulators; nobody reads the products."""
    tile, total = load_tile(a), nl.ndarray((ROWS, 1), dtype=nl.float32, buffer=nl.sbuf)
    for command, factor, result in ((nisa.reduce_cmd.reset_reduce, 1.0, None), (nisa.reduce_cmd.reduce, 3.0, total)):
        scratch = nl.ndarray(a.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar_reduce(
            dst=scratch, data=tile, op0=nl.multiply, operand0=factor, reduce_op=nl.add, reduce_res=result, reduce_cmd=command
        )
    return store(total)


def summed_by_activations(a):
    """The same by the Scalar engine's, which an instruction without a reduction reads out."""
    tile, total = load_tile(a), nl.ndarray((ROWS, 1), dtype=nl.float32, buffer=nl.sbuf)
    for command, factor, result in (
        (nisa.reduce_cmd.reset_reduce, 1.0, None),
        (nisa.reduce_cmd.reduce, 3.0, None),
        (nisa.reduce_cmd.idle, 1.0, total),
    ):
        scratch = nl.ndarray(a.shape, dtype=nl.float32, buffer=nl.sbuf)
        options = {} if command is nisa.reduce_cmd.idle else {"reduce_op": nl.add}
        nisa.activation(dst=scratch, op=nl.copy, data=tile, scale=factor, reduce_cmd=command, reduce_res=result, **options)
    return store(total)


@pytest.mark.parametrize("kernel", [summed_in_steps, summed_by_activations])
def test_a_sum_that_an_engine_holds_between_instructions_is_that_of_the_replayed_values(kernel):
    calls = [{"a": np.random.default_rng(seed).integers(-9, 10, (ROWS, 4)).astype(np.float32)} for seed in (0, 1)]
    program = recorded(kernel, **calls[0]).program
    for inputs in (*calls[::-1], calls[0]):
        np.testing.assert_array_equal(program(inputs)[0], 4 * inputs["a"].sum(1, keepdims=True))
