"""Operators of `nki.language` that are called, on tiles of one or two operands."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from tools.fuzz.kernel_programs import Step
from tools.fuzz.rare_site import UNIT, Array, Draw, Rare, Seen, Site, typed

__all__ = ["OPERATORS", "TYPES"]

Result = tuple[Array, Any]
_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _as_float(compare: Any) -> Any:
    return lambda x, y: compare(x, y).astype(np.float64)


_BINARY: dict[str, Any] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide, "maximum": np.maximum,
    "minimum": np.minimum, "power": np.power, "equal": _as_float(np.equal), "not_equal": _as_float(np.not_equal),
    "less": _as_float(np.less), "less_equal": _as_float(np.less_equal), "greater": _as_float(np.greater),
    "greater_equal": _as_float(np.greater_equal), "logical_and": _as_float(np.logical_and),
    "logical_or": _as_float(np.logical_or), "logical_xor": _as_float(np.logical_xor), "fmod": np.fmod, "mod": np.mod,
    "abs_max": lambda x, y: np.where(np.abs(x) > np.abs(y), x, y),
    "abs_min": lambda x, y: np.where(np.abs(x) < np.abs(y), x, y),
}  # fmt: skip
_ROUNDED = ("power",)
_BITS: dict[str, Any] = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "left_shift": np.left_shift,
    "right_shift": np.right_shift,
}


def _phi(x: Array) -> Array:
    return 0.5 * _erfc(-x / math.sqrt(2))


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


_UNARY: dict[str, Any] = {
    "abs": np.abs, "negative": np.negative, "copy": lambda x: x, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc,
    "sign": np.sign, "square": np.square, "relu": lambda x: np.maximum(x, 0), "logical_not": lambda x: (x == 0) * 1.0,
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "reciprocal": lambda x: 1 / x,
    "tanh": np.tanh, "sigmoid": _sigmoid, "sin": np.sin, "cos": np.cos, "tan": np.tan, "arctan": np.arctan, "erf": _erf,
    "erf_dx": lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x), "gelu": lambda x: x * _phi(x),
    "gelu_dx": lambda x: _phi(x) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    "gelu_apprx_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_apprx_sigmoid": lambda x: x * _sigmoid(1.702 * x),
    "gelu_apprx_sigmoid_dx": lambda x: _sigmoid(1.702 * x) * (1 + 1.702 * x * (1 - _sigmoid(1.702 * x))),
    "silu": lambda x: x * _sigmoid(x), "silu_dx": lambda x: _sigmoid(x) * (1 + x * (1 - _sigmoid(x))),
    "softplus": lambda x: np.logaddexp(x, 0.0), "mish": lambda x: x * np.tanh(np.logaddexp(x, 0.0)),
}  # fmt: skip
_EXACT = ("abs", "negative", "copy", "floor", "ceil", "trunc", "sign", "relu", "logical_not")
_RANGE = {"floor": 2.0**30, "ceil": 2.0**30, "trunc": 2.0**30, "sin": 1e3, "cos": 1e3, "tan": 1.4}
"""What |x| may be: rounding goes through int32, and an angle far from 0 loses its digits."""
TYPES = (None, None, "bfloat16", "float16", "float32")


def _draw_binary(draw: Draw) -> Step:
    return {
        "form": draw.pick("tiles", "number", "reversed", "column", "bits", "mixed"),
        "alu": draw.pick(*_BINARY),
        "bits": draw.pick(*_BITS),
        "operand": draw.number(),
        "other": draw.reading(),
        "kind": draw.pick(*TYPES),
        "kinds": [draw.pick("float32", "bfloat16", "float16", "int32", "uint8") for _ in range(2)],
    }


def _issue_binary(site: Site) -> Any:
    step = site.step
    dtype = {} if step["kind"] is None else {"dtype": getattr(nl, step["kind"])}
    if step["form"] == "bits":
        one, two = site.ints(site.p, 8, 251, nl.uint16), site.ints(site.p, 8, 8, nl.uint16)
        return getattr(nl, step["bits"])(one, two)
    call = getattr(nl, step["alu"])
    if step["form"] == "mixed":
        return call(*(site.flat(name, getattr(nl, kind)) for name, kind in zip(("data", "other"), step["kinds"], strict=True)))
    one = site.flat()
    if step["form"] == "number":
        return call(one, step["operand"], **dtype)
    if step["form"] == "reversed":
        return call(step["operand"], one, **dtype)
    return call(one, site.operand("c0") if step["form"] == "column" else site.flat("other"), **dtype)


def _promoted(first: str, second: str) -> str:
    """A float before an integer, else the wider one; two types of one width give float32 or int32."""
    if first == second:
        return first
    floats = [kind for kind in (first, second) if "float" in kind]
    if len(floats) == 1:
        return floats[0]
    sizes = {"float32": 4, "bfloat16": 2, "float16": 2, "int32": 4, "uint8": 1}
    if sizes[first] == sizes[second]:
        return "float32" if floats else "int32"
    return first if sizes[first] > sizes[second] else second


def _model_binary(seen: Seen) -> Result:
    step, kind = seen.step, seen.step["kind"]
    if step["form"] == "bits":
        return _BITS[step["bits"]](*(seen.ints(seen.p, 8, below).astype(np.uint16) for below in (251, 8))), 0
    if step["form"] == "mixed":
        kinds = step["kinds"]
        one, two = (typed(seen.raw(name), kind) for name, kind in zip(("data", "other"), kinds, strict=True))
        kind = seen.kind = _promoted(*kinds)
        if kinds == ["int32", "int32"]:  # whole numbers are exact on GpSimd; shares of them are not
            if step["alu"] in ("divide", "power", "fmod", "mod"):
                return np.zeros((seen.p, seen.n)), np.full((seen.p, seen.n), np.inf)
            return _BINARY[step["alu"]](one.astype(np.int64), two.astype(np.int64)).astype(np.int64).astype(np.int32), 0
        one, two = (each.astype(np.float32).astype(np.float64) for each in (one, two))
    else:
        seen.kind = kind or "float32"
        one = seen.wide()
        two = seen.operand("c0").astype(np.float64) if step["form"] == "column" else np.full_like(one, step["operand"])
        two = seen.wide("other") if step["form"] == "tiles" else two
        if step["form"] == "reversed":
            one, two = two, one
    found = np.broadcast_to(_BINARY[step["alu"]](one, two), (seen.p, seen.n))
    if step["alu"] in _ROUNDED:
        return found, (16 * UNIT + (2.0**-7 if kind is not None else 0.0)) * np.abs(found) + 2.0**-126
    return (found if kind is None else typed(found, kind)), 0


def _draw_unary(draw: Draw) -> Step:
    return {"function": draw.pick(*_UNARY, "invert"), "kind": draw.pick(*TYPES), "spread": draw.pick(1.0, 0.1, 40.0)}


def _issue_unary(site: Site) -> Any:
    step = site.step
    if step["function"] == "invert":
        return nl.invert(site.ints(site.p, 8, 251, nl.uint16))
    data = site.flat()
    if step["function"] in ("log", "sqrt", "rsqrt", "reciprocal"):
        nisa.tensor_scalar(dst=data, data=data, op0=nl.abs_max if site.program["chip"] == "trn3" else nl.maximum, operand0=0.5)
    nisa.tensor_scalar(dst=data, data=data, op0=nl.multiply, operand0=step["spread"])
    return (
        getattr(nl, step["function"])(data)
        if step["kind"] is None
        else getattr(nl, step["function"])(data, dtype=getattr(nl, step["kind"]))
    )


def _model_unary(seen: Seen) -> Result:
    step, name = seen.step, seen.step["function"]
    if name == "invert":
        return ~seen.ints(seen.p, 8, 251).astype(np.uint16), 0
    seen.kind = step["kind"] or "float32"
    x = seen.data.astype(np.float32)
    if name in ("log", "sqrt", "rsqrt", "reciprocal"):
        half = np.float32(0.5)
        x = np.where(np.abs(x) > half, x, half) if step["chip"] == "trn3" else np.maximum(x, half)
    x = (x * np.float32(step["spread"])).astype(np.float64)
    found = _UNARY[name](x)
    if name in _EXACT:
        slack = np.zeros(found.shape)
    elif name in ("sin", "cos", "tan"):  # turns are taken off in float32
        slack = 64 * UNIT * (1 + np.abs(found)) ** 2 * (1 + np.abs(x))
    else:
        slack = 64 * UNIT * (np.abs(found) + np.minimum(np.abs(x), 30.0) * np.minimum(1.0, np.abs(found) + 0.1)) + 2.0**-126
    if step["kind"] in ("bfloat16", "float16"):
        slack = slack + 2.0 ** (-8 if step["kind"] == "bfloat16" else -11) * np.abs(found) * (name not in _EXACT)
    return found, np.where(np.abs(x) < _RANGE.get(name, 1e4), slack, np.inf)


OPERATORS = {
    "called": Rare(_draw_binary, _issue_binary, _model_binary),
    "called alone": Rare(_draw_unary, _issue_unary, _model_unary),
}
