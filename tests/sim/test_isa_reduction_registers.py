"""Registers of reductions, by engine and by lane: what sets, resets and keeps them, and what they sum."""

import math

import ml_dtypes
import numpy as np
from on_tiles import on_tiles

from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl

COMMANDS = nisa.reduce_cmd
FP32_MIN = np.finfo(np.float32).min


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
