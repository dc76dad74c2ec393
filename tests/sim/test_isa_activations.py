"""Scalar engine activations, and exponential, against float64 functions of the standard library."""

import math

import numpy as np
import pytest
from hypothesis import strategies as st
from isa_operands import (
    DEFAULT_CASES,
    FLOATS,
    MANY_CASES,
    check,
    column_operand,
    draw_free,
    draw_partitions,
    normal,
    operand,
    run,
    run_cases,
    uniform,
)

from nki_hf.chips import get_chip
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl

NAMES = ("activation", "activation_reduce", "activate2", "exponential")
COMMANDS = nisa.reduce_cmd


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def normal_cdf(x):
    return 0.5 * math.erfc(-x / math.sqrt(2))


def softplus(x):
    return math.log1p(math.exp(-abs(x))) + max(x, 0)


FUNCTIONS = {
    "copy": lambda x: x,
    "square": lambda x: x * x,
    "abs": abs,
    "sign": lambda x: math.copysign(1, x) if x else 0.0,
    "relu": lambda x: max(x, 0.0),
    "exp": math.exp,
    "tanh": math.tanh,
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "silu_dx": lambda x: sigmoid(x) * (1 + x * (1 - sigmoid(x))),
    "softplus": softplus,
    "mish": lambda x: x * math.tanh(softplus(x)),
    "erf": math.erf,
    "erf_dx": lambda x: 2 / math.sqrt(math.pi) * math.exp(-x * x),
    "gelu": lambda x: x * normal_cdf(x),
    "gelu_dx": lambda x: normal_cdf(x) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    "gelu_apprx_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_apprx_sigmoid": lambda x: x * sigmoid(1.702 * x),
    "gelu_apprx_sigmoid_dx": lambda x: sigmoid(1.702 * x) * (1 + 1.702 * x * (1 - sigmoid(1.702 * x))),
    "sin": math.sin,
    "arctan": math.atan,
}
POSITIVE = {"log": math.log, "sqrt": math.sqrt, "rsqrt": lambda x: 1 / math.sqrt(x), "reciprocal": lambda x: 1 / x}


def reference(name, x):
    function = {**FUNCTIONS, **POSITIVE}[name]
    return np.vectorize(lambda item: function(float(item)), otypes=[np.float64])(x)


def draw_function(data):
    name = data.draw(st.sampled_from([*FUNCTIONS, *POSITIVE]))
    return name, uniform(0.25, 1.5) if name in POSITIVE or name == "sin" else normal(1.5)


def draw_affine(data, name):
    """Immediates (None = the tile) for scale and bias that keep the function's argument in range."""
    positive = name in POSITIVE
    scale = data.draw(st.sampled_from([1.0, 0.5, None])) if name not in ("sign",) else 1.0
    bias = data.draw(st.sampled_from(["none", 0.0, 0.25, None])) if name not in ("sign",) else "none"
    return scale, bias, uniform(0.5, 1.0) if positive else uniform(-1, 1)


def affine(operands, scale, bias):
    x = operands["data"].values
    x = x * (operands["scale"].values if scale is None else scale)
    return x + (operands["bias"].values if bias is None else 0.0 if bias == "none" else bias)


def _activation(data, instruction):
    name, fill = draw_function(data)
    partitions, free = draw_partitions(data), draw_free(data)
    scale, bias, coefficient = draw_affine(data, name)
    kind, target = data.draw(st.sampled_from(FLOATS)), data.draw(st.sampled_from(FLOATS))
    command = COMMANDS.reset_reduce
    if instruction == "activation":
        command = data.draw(st.sampled_from([COMMANDS.idle, COMMANDS.reset_reduce, COMMANDS.reduce]))
    operands = {
        "dst": operand(data, partitions, free, target, reads=False, space=data.draw(st.sampled_from(["sbuf", "psum"]))),
        "data": operand(data, partitions, free, kind, fill=fill, space=data.draw(st.sampled_from(["sbuf", "psum"]))),
        "scale": column_operand(data, partitions, fill=coefficient),
        "bias": column_operand(data, partitions, data.draw(st.sampled_from(["float32", "bfloat16"])), fill=coefficient),
        "res": operand(data, partitions, (1,), reads=False),
    }
    chip = {"chip": get_chip("trn2")}

    def body(dst, data, scale_tile, bias_tile, res):
        arguments = {"op": getattr(nl, name), "data": data, "scale": scale_tile if scale is None else scale}
        if bias != "none":
            arguments["bias"] = bias_tile if bias is None else bias
        if instruction == "activation_reduce":
            nisa.activation_reduce(dst=dst, reduce_op=nl.add, reduce_res=res, **arguments)
        elif command is COMMANDS.idle:
            nisa.activation(dst=dst, **arguments)
        else:
            if command is COMMANDS.reduce:
                nisa.activation(dst=dst, **arguments, reduce_op=nl.add, reduce_cmd=COMMANDS.reset_reduce)
            nisa.activation(dst=dst, **arguments, reduce_op=nl.add, reduce_res=res, reduce_cmd=command)

    def expect():
        y = reference(name, affine(operands, scale, bias))
        outputs = {"dst": y}
        if command is not COMMANDS.idle:
            outputs["res"] = y.sum(axis=1) * (2 if command is COMMANDS.reduce else 1)
        return outputs

    call = lambda dst, data, scale, bias, res: body(dst, data, scale, bias, res)  # noqa: E731
    run(data, call, operands, expect, options=chip, rtol=5e-6, atol=2e-5)


@check("activation")
def activation(data):
    _activation(data, "activation")


@check("activation_reduce")
def activation_reduce(data):
    _activation(data, "activation_reduce")


@check("activate2")
def activate2(data):
    name = data.draw(st.sampled_from(["exp", "tanh", "gelu", "copy", "relu", "prelu"]))
    partitions, free = draw_partitions(data), draw_free(data)
    ops = data.draw(
        st.sampled_from(
            [
                ("multiply", "add"),
                ("multiply", "subtract"),
                ("multiply", "bypass"),
                ("add", "bypass"),
                ("subtract", "bypass"),
                ("bypass", "bypass"),
            ]
        )
    )
    reverse = [data.draw(st.booleans()) and op != "bypass" for op in ops]
    number = data.draw(st.sampled_from([None, 0.75]))
    reduce = data.draw(st.sampled_from(["add", "maximum", "minimum"]))
    operands = {
        "dst": operand(data, partitions, free, data.draw(st.sampled_from(FLOATS)), reads=False),
        "data": operand(data, partitions, free, data.draw(st.sampled_from(FLOATS))),
        "imm": column_operand(data, partitions),
        "res": operand(data, partitions, (1,), reads=False),
    }

    def body(dst, data, imm, res):
        value = imm if number is None else number
        nisa.activate2(
            dst=dst,
            op=getattr(nl, name),
            data=data,
            imm0=value,
            imm1=value,
            op0=getattr(nl, ops[0]),
            op1=getattr(nl, ops[1]),
            relu_param=0.125,
            reverse0=reverse[0],
            reverse1=reverse[1],
            reduce_op=getattr(nl, reduce),
            reduce_res=res,
            reduce_cmd=COMMANDS.reset_reduce,
        )

    def expect():
        x, y = operands["data"].values, operands["imm"].values if number is None else number
        apply = {"multiply": lambda a, b: a * b, "add": lambda a, b: a + b, "subtract": lambda a, b: a - b}
        for op, swap in zip(ops, reverse, strict=True):
            if op != "bypass":
                x = apply[op](y, x) if swap else apply[op](x, y)
        z = np.where(x > 0, x, 0.125 * x) if name == "prelu" else reference(name, x)
        combine = {"add": np.sum, "maximum": np.max, "minimum": np.min}[reduce]
        return {"dst": z, "res": combine(z, axis=1)}

    run(data, body, operands, expect, options={"chip": get_chip("trn3")}, rtol=5e-6, atol=2e-5)


@check("exponential")
def exponential(data):
    partitions, free = draw_partitions(data), draw_free(data)
    command = data.draw(st.sampled_from([COMMANDS.idle, COMMANDS.reset_reduce, COMMANDS.reduce, COMMANDS.load_reduce]))
    number = data.draw(st.sampled_from([None, 0.0, 0.5]))
    operands = {
        "dst": operand(data, partitions, free, data.draw(st.sampled_from(FLOATS)), reads=False),
        "src": operand(data, partitions, free, data.draw(st.sampled_from(FLOATS))),
        "shift": column_operand(data, partitions),
        "init": column_operand(data, partitions),
        "res": operand(data, partitions, (1,), reads=False),
    }

    def body(dst, src, shift, init, res):
        value = shift if number is None else number
        if command is COMMANDS.idle:
            nisa.exponential(dst=dst, src=src, max_value=value)
            return
        if command is COMMANDS.reduce:
            nisa.exponential(dst=dst, src=src, max_value=value, reduce_cmd=COMMANDS.reset_reduce)
        extra = {"reduce_init": init} if command is COMMANDS.load_reduce else {}
        nisa.exponential(dst=dst, src=src, max_value=value, reduce_res=res, reduce_cmd=command, **extra)

    def expect():
        y = np.exp(operands["src"].values - (operands["shift"].values if number is None else number))
        total = y.sum(axis=1, keepdims=True) * (2 if command is COMMANDS.reduce else 1)
        if command is COMMANDS.load_reduce:
            total = total + operands["init"].values
        return {"dst": y} if command is COMMANDS.idle else {"dst": y, "res": total}

    run(data, body, operands, expect, options={"chip": get_chip("trn3")}, rtol=5e-6, atol=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_equals_numpy_on_random_operands(name):
    run_cases(name, DEFAULT_CASES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_equals_numpy_on_many_random_operands(name):
    run_cases(name, MANY_CASES)


def _mish(x):
    return x * np.tanh(np.logaddexp(x, 0))


def _sigmoid(x):
    return 0.5 + 0.5 * np.tanh(x / 2)


# at infinities the limits, which these formulas in float64 reach at +-600 (every exponential there is 0 or infinite)
FORMULAS = {
    "silu": lambda x: x * _sigmoid(x), "mish": _mish, "gelu_apprx_sigmoid": lambda x: x * _sigmoid(1.702 * x),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_apprx_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu_dx": lambda x: _sigmoid(x) * (1 + x * (1 - _sigmoid(x))),
    "gelu_dx": lambda x: 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    "gelu_apprx_sigmoid_dx": lambda x: _sigmoid(1.702 * x) * (1 + 1.702 * x * (1 - _sigmoid(1.702 * x))),
    "sigmoid": _sigmoid, "tanh": np.tanh, "softplus": lambda x: np.logaddexp(x, 0), "relu": lambda x: np.maximum(x, 0),
    "erf": np.vectorize(math.erf), "erf_dx": lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x), "exp": np.exp,
    "square": np.square, "abs": np.abs, "sign": np.sign, "copy": lambda x: x, "arctan": np.arctan,
}  # fmt: skip
UNBOUNDED = (
    "silu",
    "mish",
    "gelu",
    "gelu_apprx_tanh",
    "gelu_apprx_sigmoid",
    "softplus",
    "relu",
    "exp",
    "square",
    "abs",
    "copy",
)


@pytest.mark.parametrize("name", FORMULAS)
def test_functions_take_their_limits_at_infinity_and_pass_nan_on(name):
    """Documented input range of these functions: [-inf, inf]."""
    x = np.array([[-np.inf, np.inf, np.nan, 0.0, -3e38, 3e38, -1e4, -0.5, 1.5]], np.float32)

    def kernel(x):
        tile, out = nl.ndarray(x.shape, nl.float32), nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=tile, src=x)
        nisa.activation(dst=tile, op=getattr(nl, name), data=tile)
        nisa.dma_copy(dst=out, src=tile)
        return out

    got = launch(kernel, (x,)).outputs[0][0]
    with np.errstate(all="ignore"):
        far = FORMULAS[name](np.array([-600.0, 600.0]))
        wanted = FORMULAS[name](x.astype(np.float64))[0].astype(np.float32)
    even = name in ("square", "abs")  # and identity: what grows at both ends
    wanted[0] = np.inf if even else -np.inf if name == "copy" else far[0]
    wanted[1] = np.inf if name in UNBOUNDED else far[1]
    np.testing.assert_allclose(got[:2], wanted[:2], rtol=0.003 if name == "arctan" else 1e-6, atol=1e-30)
    assert np.isnan(got[2])
    finite = np.isfinite(wanted[3:])
    np.testing.assert_allclose(got[3:][finite], wanted[3:][finite], rtol=2e-6, atol=1e-7)
    assert not np.isnan(got[3:]).any()


@pytest.mark.parametrize("slope", [0.0, 0.25])
def test_prelu_takes_its_limits_at_infinity(slope):
    x = np.array([[-np.inf, np.inf, np.nan, -2.0, 3.0]], np.float32)

    def kernel(x):
        tile, out = nl.ndarray(x.shape, nl.float32), nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=tile, src=x)
        nisa.activate2(dst=tile, op=nl.prelu, data=tile, imm0=0.0, imm1=0.0, op0=nl.bypass, op1=nl.bypass, relu_param=slope)
        nisa.dma_copy(dst=out, src=tile)
        return out

    got = launch(kernel, (x,), options=SimOptions(chip=get_chip("trn3"))).outputs[0][0]
    np.testing.assert_array_equal(got, [-np.inf if slope else 0.0, np.inf, np.nan, -2 * slope, 3.0])


def _exact_sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


TAILS = {
    "sigmoid": (_exact_sigmoid, lambda x: x),
    "silu": (lambda x: x * _exact_sigmoid(x), lambda x: x),
    "gelu_apprx_sigmoid": (lambda x: x * _exact_sigmoid(1.702 * x), lambda x: 1.702 * x),
    "gelu_apprx_tanh": (
        lambda x: x * _exact_sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
        lambda x: 1.6 * x + 0.0714 * x**3,
    ),
    "gelu": (lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2)), lambda x: x),
    "softplus": (lambda x: max(x, 0) + math.log1p(math.exp(-abs(x))), lambda x: x),
}
"""Functions with a result near 0 far below 0: by formulas that keep its digits, with the exponent that float32 rounds."""


@pytest.mark.parametrize("name", TAILS)
def test_a_result_near_zero_keeps_its_digits(name):
    """log(sigmoid(-30)) is -30, and not -inf."""
    x = np.linspace(-12, 12, 481, dtype=np.float32)[None]
    formula, exponent = TAILS[name]

    def kernel(x):
        tile, out = nl.ndarray(x.shape, nl.float32), nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=tile, src=x)
        nisa.activation(dst=tile, op=getattr(nl, name), data=tile)
        nisa.dma_copy(dst=out, src=tile)
        return out

    got = launch(kernel, (x,)).outputs[0][0]
    for value, found in zip(x[0].tolist(), got.tolist(), strict=True):
        wanted = formula(value)
        allowed = 2**-22 * (2 + abs(exponent(value))) * abs(wanted)
        assert abs(found - wanted) <= allowed + 1e-37, (value, found, wanted)
