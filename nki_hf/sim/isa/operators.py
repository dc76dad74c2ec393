"""The operators of the language: what an instruction's `op=` names, each with its definition in NumPy.

An operator is compared by identity. Called like a function (`nl.add(x, y)`) it is tile math, which sim/language defines
on top of the instructions; here is only what the engines compute with it.

Source: operator and activation tables of the ISA's common fields (nki.api.shared, 2.32), docstrings of nki.language.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from nki_hf.sim.execution.issued import ISSUED
from nki_hf.sim.isa import functions as f

__all__ = [
    "OPERATORS", "Operator", "abs", "abs_max", "abs_min", "add", "arctan", "as_operator", "average", "bitwise_and",
    "bitwise_or", "bitwise_xor", "bypass", "ceil", "copy", "cos", "divide", "equal", "erf", "erf_dx", "exp", "floor",
    "fmod", "gelu", "gelu_apprx_sigmoid", "gelu_apprx_sigmoid_dx", "gelu_apprx_tanh", "gelu_dx", "greater",
    "greater_equal", "invert", "left_shift", "less", "less_equal", "log", "logical_and", "logical_not", "logical_or",
    "logical_xor", "maximum", "minimum", "mish", "mod", "multiply", "negative", "not_equal", "power", "prelu",
    "reciprocal", "relu", "right_shift", "rsqrt", "sigmoid", "sign", "silu", "silu_dx", "sin", "softplus", "sqrt",
    "square", "subtract", "tan", "tanh", "trunc",
]  # fmt: skip

Function = Callable[..., Any]


class Operator:
    """One operator.

    Attributes:
      name: public name in `nki.language`.
      kind: `arith`, `compare`, `logical`, `bitwise` or `activation`.
      arity: 1 or 2 operands.
      compute: its definition on float32 arrays: `compute(x[, y], out=None)`, float32 results (1.0 and 0.0 for compare and
        logical operators). Bitwise operators take unsigned integers instead.
      reduce: None, or the NumPy function whose `.reduce` it is along an axis.
      identity: start value of a reduction; None if it is not a reduction.
    """

    __slots__ = ("arity", "compute", "identity", "kind", "name", "reduce")

    def __init__(
        self, name: str, kind: str, arity: int, compute: Function, reduce: Any = None, identity: float | None = None
    ) -> None:
        self.name = name
        self.kind = kind
        self.arity = arity
        self.compute = compute
        self.reduce = reduce
        self.identity = identity

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def is_bitwise(self) -> bool:
        """True if it works on bit patterns of integers instead of float32 values."""
        return self.kind == "bitwise"

    def fold(self, values: Any) -> Any:
        """Reduction of the last axis, which stays with size 1; float32, or integers for bitwise operators.

        Raises:
          TypeError: the operator is not a reduction.
        """
        if self.reduce is None:
            raise TypeError(f"op=nl.{self.name} is not a reduction: it is one of {', '.join(_REDUCING)}.")
        if not isinstance(self.reduce, np.ufunc):
            result = values[..., :1]
            for index in range(1, values.shape[-1]):
                result = self.compute(result, values[..., index : index + 1])
            return result
        result = self.reduce.reduce(values, axis=-1, keepdims=True)
        return result.astype(np.float32) if result.dtype == np.bool_ else result

    def __repr__(self) -> str:
        return f"nl.{self.name}"

    @property
    def __signature__(self) -> inspect.Signature:
        """Parameters of the call: `(x, y, dtype=None)`, or `(x, dtype=None)` of a unary operator."""
        either = inspect.Parameter.POSITIONAL_OR_KEYWORD
        operands = [inspect.Parameter(name, either) for name in ("x", "y")[: self.arity]]
        return inspect.Signature([*operands, inspect.Parameter("dtype", either, default=None)])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Tile math: the operator applied to tiles or scalars, as a new tile (see sim/language/tile_math.py)."""
        return ISSUED.apply(self, *args, **kwargs)


OPERATORS: dict[str, Operator] = {}


def _define(name: str, kind: str, arity: int, compute: Function, reduce: Any = None, identity: float | None = None) -> Operator:
    OPERATORS[name] = Operator(name, kind, arity, compute, reduce, identity)
    return OPERATORS[name]


def _activation(name: str, compute: Function) -> Operator:
    return _define(name, "activation", 1, compute)


def _predicate(kind: str, name: str, arity: int = 2, identity: float | None = None) -> Operator:
    ufunc = getattr(np, name)
    return _define(name, kind, arity, f.as_float(ufunc), ufunc if identity is not None else None, identity)


add = _define("add", "arith", 2, np.add, np.add, 0.0)
subtract = _define("subtract", "arith", 2, np.subtract, np.subtract, 0.0)
multiply = _define("multiply", "arith", 2, np.multiply, np.multiply, 1.0)
divide = _define("divide", "arith", 2, np.divide)
maximum = _define("maximum", "arith", 2, np.maximum, np.maximum, -np.inf)
minimum = _define("minimum", "arith", 2, np.minimum, np.minimum, np.inf)
abs_max = _define("abs_max", "arith", 2, f.abs_max, f.abs_max, 0.0)
abs_min = _define("abs_min", "arith", 2, f.abs_min, f.abs_min, np.inf)
average = _define("average", "arith", 2, f.average)
power = _define("power", "arith", 2, np.power)
mod = _define("mod", "arith", 2, np.mod)
fmod = _define("fmod", "arith", 2, np.fmod)
bypass = _define("bypass", "arith", 2, f.bypass)

equal = _predicate("compare", "equal")
not_equal = _predicate("compare", "not_equal")
less = _predicate("compare", "less")
less_equal = _predicate("compare", "less_equal")
greater = _predicate("compare", "greater")
greater_equal = _predicate("compare", "greater_equal")

logical_and = _predicate("logical", "logical_and", identity=1.0)
logical_or = _predicate("logical", "logical_or", identity=0.0)
logical_xor = _predicate("logical", "logical_xor", identity=0.0)
logical_not = _predicate("logical", "logical_not", arity=1)

bitwise_and = _define("bitwise_and", "bitwise", 2, np.bitwise_and, np.bitwise_and, -1.0)
bitwise_or = _define("bitwise_or", "bitwise", 2, np.bitwise_or, np.bitwise_or, 0.0)
bitwise_xor = _define("bitwise_xor", "bitwise", 2, np.bitwise_xor, np.bitwise_xor, 0.0)
invert = _define("invert", "bitwise", 1, np.invert)
left_shift = _define("left_shift", "bitwise", 2, np.left_shift)
right_shift = _define("right_shift", "bitwise", 2, np.right_shift)

abs = _activation("abs", np.abs)
negative = _activation("negative", np.negative)
square = _activation("square", np.square)
sign = _activation("sign", np.sign)
reciprocal = _activation("reciprocal", np.reciprocal)
sqrt = _activation("sqrt", np.sqrt)
rsqrt = _activation("rsqrt", f.rsqrt)
exp = _activation("exp", np.exp)
log = _activation("log", np.log)
sin = _activation("sin", np.sin)
cos = _activation("cos", np.cos)
tan = _activation("tan", np.tan)
arctan = _activation("arctan", np.arctan)
tanh = _activation("tanh", np.tanh)
sigmoid = _activation("sigmoid", f.sigmoid)
relu = _activation("relu", f.relu)
prelu = _activation("prelu", f.prelu)
gelu = _activation("gelu", f.gelu)
gelu_dx = _activation("gelu_dx", f.gelu_dx)
gelu_apprx_tanh = _activation("gelu_apprx_tanh", f.gelu_apprx_tanh)
gelu_apprx_sigmoid = _activation("gelu_apprx_sigmoid", f.gelu_apprx_sigmoid)
gelu_apprx_sigmoid_dx = _activation("gelu_apprx_sigmoid_dx", f.gelu_apprx_sigmoid_dx)
silu = _activation("silu", f.silu)
silu_dx = _activation("silu_dx", f.silu_dx)
softplus = _activation("softplus", f.softplus)
mish = _activation("mish", f.mish)
erf = _activation("erf", f.erf)
erf_dx = _activation("erf_dx", f.erf_dx)
copy = _activation("copy", f.copy)
ceil = _activation("ceil", np.ceil)
floor = _activation("floor", np.floor)
trunc = _activation("trunc", np.trunc)

_REDUCING = tuple(f"nl.{key}" for key, value in OPERATORS.items() if value.reduce is not None)
_REDUCTIONS = {"max": "maximum", "min": "minimum", "sum": "add", "prod": "multiply", "all": "logical_and"}


def as_operator(value: Any) -> Operator:
    """The operator that `value` stands for: itself, or the operator behind a reduction such as `nl.max`.

    Raises:
      TypeError: it is neither; the message lists the known operators.
    """
    if isinstance(value, Operator):
        return value
    name = getattr(value, "__name__", None)
    if name in _REDUCTIONS and callable(value):
        return OPERATORS[_REDUCTIONS[name]]
    raise TypeError(f"op={value!r} is not an operator: it is one of {', '.join(f'nl.{key}' for key in OPERATORS)}.")
