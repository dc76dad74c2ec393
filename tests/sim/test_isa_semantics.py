"""Semantics of instructions that are easy to get wrong, each against an independent computation."""

import math

import numpy as np
from on_tiles import on_tiles

from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from nki_hf.sim import launch

COMMANDS = nisa.reduce_cmd
FP32_MIN = np.finfo(np.float32).min


def test_a_fully_masked_row_is_stable_in_bfloat16_scores_with_a_float32_maximum():
    """The fill becomes -inf in bfloat16, the maximum stays finite in float32: exp(-inf - max) is 0, not NaN."""
    x = np.ones((2, 8), np.float32)

    def body(result, x):
        low, high = nl.ndarray((2, 1), nl.float32), nl.ndarray((2, 1), nl.float32)
        nisa.memset(dst=low, value=0.0)
        nisa.iota(dst=high, pattern=[[0, 1]], channel_multiplier=8)  # row 0 sees nothing, row 1 everything
        scores, row_max, shift = nl.ndarray((2, 8), nl.bfloat16), nl.ndarray((2, 1), nl.float32), nl.ndarray((2, 1), nl.float32)
        nisa.range_select(
            dst=scores,
            on_true_tile=x,
            comp_op0=nl.greater_equal,
            comp_op1=nl.less,
            bound0=low,
            bound1=high,
            reduce_res=row_max,
            on_false_value=float(FP32_MIN),
        )
        nisa.tensor_scalar(dst=shift, data=row_max, op0=nl.multiply, operand0=-1.0)
        nisa.activation(dst=result[:, 0:8], op=nl.exp, data=scores, bias=shift)
        nisa.tensor_copy(dst=result[:, 8:9], src=row_max)
        nisa.tensor_copy(dst=result[:, 9:10], src=scores[:, 0:1])

    got = on_tiles(body, x, out=(2, 10))
    assert got[0].tolist() == [0.0] * 8 + [float(FP32_MIN), -math.inf]
    assert got[1].tolist() == [1.0] * 8 + [1.0, 1.0]


def test_nan_that_is_not_selected_does_not_leak():
    x = np.array([[np.nan, 1.0, np.nan, 2.0]], np.float32)
    mask = np.array([[0, 1, 0, 1]], np.uint8)

    def body(result, x, mask):
        nisa.select_reduce(
            dst=result[:, 0:4],
            predicate=mask,
            on_true=x,
            on_false=-5.0,
            reduce_res=result[:, 4:5],
            reduce_cmd=COMMANDS.reset_reduce,
        )
        nisa.memset(dst=result[:, 5:9], value=7.0)
        nisa.tensor_copy_predicated(dst=result[:, 5:9], src=x, predicate=mask)
        nisa.affine_select(
            dst=result[:, 9:11],
            pattern=[[1, 2]],
            channel_multiplier=0,
            on_true_tile=x[:, 0:2],
            on_false_value=-1.0,
            cmp_op=nl.greater,
        )

    got = on_tiles(body, x, mask, out=(1, 11))[0].tolist()
    assert got == [-5.0, 1.0, -5.0, 2.0, 2.0, 7.0, 1.0, 7.0, 2.0, -1.0, 1.0]


def test_the_sine_of_the_scalar_engine_extrapolates_beyond_pi():
    """Documented: no range reduction, sin(9) is about 27.65. Within [-pi, pi] it is the sine."""
    x = np.array([[9.0, -9.0, 1.0, -3.0, np.pi]], np.float32)
    got = on_tiles(lambda result, x: nisa.activation(dst=result, op=nl.sin, data=x), x, out=(1, 5))[0]
    np.testing.assert_allclose(got[:2], [27.65, -27.65], atol=0.01)
    np.testing.assert_allclose(got[2:], np.sin(x[0, 2:].astype(np.float64)), atol=1e-6)


def test_scale_comes_before_bias_and_function():
    x = np.array([[2.0]], np.float32)
    got = on_tiles(lambda result, x: nisa.activation(dst=result, op=nl.square, data=x, scale=3.0, bias=1.0), x, out=(1, 1))
    assert got.tolist() == [[49.0]]


def test_broadcast_reads_have_stride_zero(rng):
    x = rng.standard_normal((8, 3)).astype(np.float32)

    def body(result, x):
        repeated = x.ap(pattern=[[3, 8], [1, 3], [0, 4]])
        nisa.tensor_tensor(dst=result, data1=repeated, data2=repeated, op=nl.add)

    np.testing.assert_array_equal(on_tiles(body, x, out=(8, 12)), 2 * np.repeat(x, 4, axis=1))


def test_instructions_name_the_engine_that_executes_them():
    def kernel():
        x, ints = nl.ndarray((32, 32), nl.float32), nl.ndarray((32, 32), nl.int32)
        psum = nl.ndarray((32, 32), nl.float32, buffer=nl.psum)
        for tile in (x, ints):
            nisa.memset(dst=tile, value=1)
        nisa.nc_transpose(dst=psum, data=x)
        nisa.nc_transpose(dst=x, data=psum)
        nisa.tensor_tensor(dst=ints, data1=ints, data2=ints, op=nl.add)
        nisa.tensor_tensor(dst=x, data1=x, data2=x, op=nl.add)
        nisa.tensor_tensor(dst=x, data1=x, data2=x, op=nl.power)
        nisa.tensor_copy(dst=x, src=psum, engine=nisa.engine.scalar)
        nisa.activation(dst=x, op=nl.exp, data=psum)
        nisa.iota(dst=ints, pattern=[[1, 32]])
        nisa.nc_matmul(dst=psum, stationary=x, moving=x)

    engines = [event.engine for event in launch(kernel, ()).events]
    assert engines == [
        "vector",
        "vector",
        "tensor",
        "vector",
        "gpsimd",
        "vector",
        "gpsimd",
        "scalar",
        "scalar",
        "gpsimd",
        "tensor",
    ]


def test_events_carry_what_a_timing_model_needs():
    def kernel(x):
        tile, total = nl.ndarray((32, 32), nl.float32), nl.ndarray((32, 1), nl.float32)
        nisa.dma_copy(dst=tile, src=x, dge_mode=nisa.dge_mode.hwdge)
        nisa.activation(
            dst=tile,
            op=nl.exp,
            data=tile,
            bias=total,
            scale=0.5,
            reduce_op=nl.add,
            reduce_res=total,
            reduce_cmd=COMMANDS.reset_reduce,
        )
        psum = nl.ndarray((32, 32), nl.float32, buffer=nl.psum)
        first = nisa.nc_matmul(dst=psum, stationary=tile, moving=tile)
        nisa.nc_matmul(dst=psum, stationary=tile, moving=tile).depends_on(first)

    events = launch(kernel, (np.zeros((32, 32), np.float32),)).events
    copied, activated, first, second = events
    assert copied.attrs["dge_mode"] == "hwdge"
    assert {key: activated.attrs[key] for key in ("op", "reduce", "reduce_cmd", "scale", "bias")} == {
        "op": "exp",
        "reduce": "add",
        "reduce_cmd": "reset_reduce",
        "scale": True,
        "bias": True,
    }
    assert [len(activated.reads), len(activated.writes)] == [2, 2]
    assert (first.attrs["accumulate"], second.attrs["accumulate"]) == (False, True)
    assert second.attrs["depends_on"] == (first.index,)
