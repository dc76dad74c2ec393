"""Functions of the operator and activation tables that NumPy does not have, on float32 arrays with an optional `out`.

They are the exact functions, correct to float32; the chip approximates them with piecewise polynomials.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = [
    "abs_max", "abs_min", "as_float", "average", "bypass", "copy", "erf", "erf_dx", "gelu", "gelu_apprx_sigmoid",
    "gelu_apprx_sigmoid_dx", "gelu_apprx_tanh", "gelu_dx", "mish", "prelu", "relu", "rsqrt", "sigmoid", "silu", "silu_dx",
    "softplus",
]  # fmt: skip

Array = np.ndarray[Any, Any]
Out = Array | None

_ONE, _HALF, _ZERO = np.float32(1), np.float32(0.5), np.float32(0)
_LOWEST = np.finfo(np.float32).min
_GELU_SIGMOID = np.float32(1.702)
_GELU_TANH, _GELU_CUBIC = np.float32(math.sqrt(2 / math.pi)), np.float32(0.044715)


def as_float(compare: Callable[..., Any]) -> Callable[..., Array]:
    """A predicate as an operator: 1.0 where it holds, else 0.0."""

    def compute(*operands: Any, out: Out = None) -> Array:
        result = compare(*operands)
        if out is None:
            return result.astype(np.float32)
        out[...] = result
        return out

    return compute


def abs_max(x: Any, y: Any, out: Out = None) -> Array:
    """The operand of larger magnitude, with its sign; the second on a tie."""
    return _stored(np.where(np.abs(x) > np.abs(y), x, y), out)


def abs_min(x: Any, y: Any, out: Out = None) -> Array:
    """The operand of smaller magnitude, with its sign; the second on a tie."""
    return _stored(np.where(np.abs(x) < np.abs(y), x, y), out)


def average(x: Any, y: Any, out: Out = None) -> Array:
    """Half of the sum."""
    return np.multiply(np.add(x, y), _HALF, out=out)


def bypass(x: Any, y: Any = None, out: Out = None) -> Array:
    """The first operand."""
    return _stored(x, out)


def copy(x: Any, out: Out = None) -> Array:
    """The operand."""
    return _stored(x, out)


def rsqrt(x: Any, out: Out = None) -> Array:
    """1 / sqrt(x)."""
    return np.divide(_ONE, np.sqrt(x), out=out)


def sigmoid(x: Any, out: Out = None) -> Array:
    """1 / (1 + exp(-x)); exp(-|x|) cannot overflow, and a result near 0 keeps its digits."""
    small = np.exp(-np.abs(x))
    return np.divide(np.where(np.less(x, 0), small, _ONE), _ONE + small, out=out)


def relu(x: Any, out: Out = None) -> Array:
    """max(x, 0)."""
    return np.maximum(x, _ZERO, out=out)


def prelu(x: Any, slope: Any = _ZERO, out: Out = None) -> Array:
    """X where positive, else slope * x, which is 0 at -inf for slope 0."""
    scaled = np.multiply(np.where(np.equal(slope, 0), _above(x), x), slope)
    return _stored(np.where(np.greater(x, 0), x, scaled), out)


def softplus(x: Any, out: Out = None) -> Array:
    """log(1 + exp(x)) without overflow."""
    return np.logaddexp(x, _ZERO, out=out)


def mish(x: Any, out: Out = None) -> Array:
    """X * tanh(softplus(x))."""
    return np.multiply(_above(x), np.tanh(softplus(x)), out=out)


def silu(x: Any, out: Out = None) -> Array:
    """X * sigmoid(x)."""
    return np.multiply(_above(x), sigmoid(x), out=out)


def silu_dx(x: Any, out: Out = None) -> Array:
    """Derivative of silu."""
    s = sigmoid(x)
    return np.multiply(s, _ONE + _between(x) * (_ONE - s), out=out)


def erf(x: Any, out: Out = None) -> Array:
    """Error function, correct to float32."""
    return _stored(_erf(np.asarray(x, np.float64)).astype(np.float32), out)


def erf_dx(x: Any, out: Out = None) -> Array:
    """Derivative of the error function: 2 / sqrt(pi) * exp(-x^2)."""
    return np.multiply(np.exp(-np.square(x)), np.float32(2 / math.sqrt(math.pi)), out=out)


def gelu(x: Any, out: Out = None) -> Array:
    """X * Phi(x), Phi the standard normal distribution function."""
    wide = np.asarray(_above(x), np.float64)
    return _stored((wide * _phi(wide)).astype(np.float32), out)


def gelu_dx(x: Any, out: Out = None) -> Array:
    """Derivative of gelu: Phi(x) + x * phi(x)."""
    wide = np.asarray(_between(x), np.float64)
    density = np.exp(-0.5 * wide * wide) / math.sqrt(2 * math.pi)
    return _stored((_phi(wide) + wide * density).astype(np.float32), out)


def gelu_apprx_tanh(x: Any, out: Out = None) -> Array:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), where 0.5 (1 + tanh(y)) = sigmoid(2 y)."""
    inner = _GELU_TANH * (x + _GELU_CUBIC * x * x * x)
    return np.multiply(_above(x), sigmoid(inner + inner), out=out)


def gelu_apprx_sigmoid(x: Any, out: Out = None) -> Array:
    """X * sigmoid(1.702 x)."""
    return np.multiply(_above(x), sigmoid(_GELU_SIGMOID * x), out=out)


def gelu_apprx_sigmoid_dx(x: Any, out: Out = None) -> Array:
    """Derivative of gelu_apprx_sigmoid."""
    s = sigmoid(_GELU_SIGMOID * x)
    return np.multiply(s, _ONE + _GELU_SIGMOID * _between(x) * (_ONE - s), out=out)


def _above(x: Any) -> Any:
    # -inf as the lowest number, whose product with the factor 0 is the limit 0 and not NaN
    return np.maximum(x, _LOWEST)


def _between(x: Any) -> Any:
    # both infinities as the outermost numbers, scaled so that a product with a constant stays finite
    return np.clip(x, _LOWEST / 2, -_LOWEST / 2)


def _stored(values: Any, out: Out) -> Array:
    if out is None:
        return np.asarray(values)
    if out is not values:
        out[...] = values
    return out


def _phi(x: Array) -> Array:
    # By the complement, for 1 + erf(x) has no digits left where erf(x) is near -1.
    return 0.5 * _erfc(-x / math.sqrt(2))


# Rational approximations of W. J. Cody, Mathematics of Computation 23 (1969), for |x| <= 0.46875 and up to 4; beyond, the
# complement is a continued fraction (Abramowitz and Stegun, 7.1.14).
_NEAR = (
    (1.85777706184603153e-1, 3.16112374387056560e0, 1.13864154151050156e2, 3.77485237685302021e2, 3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3),
)
_FAR = (
    (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e0, 6.61191906371416295e1, 2.98635138197400131e2,
     8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3, 1.23033935479799725e3),
    (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3, 3.29079923573345963e3,
     4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3),
)  # fmt: skip


def _erf(x: Array) -> Array:
    square = np.minimum(x * x, 1.0)
    near = x * np.polyval(_NEAR[0], square) / np.polyval(_NEAR[1], square)
    return np.where(np.abs(x) <= 0.46875, near, np.copysign(1.0 - _erfc_above(np.abs(x)), x))


def _erfc(x: Array) -> Array:
    """1 - erf(x), with its digits where it is near 0."""
    return np.where(x <= 0.46875, 1.0 - _erf(x), _erfc_above(x))


def _erfc_above(x: Array) -> Array:
    """1 - erf(x) from 0.46875 on."""
    middle = np.clip(x, 0.46875, 4.0)
    rational = np.polyval(_FAR[0], middle) / np.polyval(_FAR[1], middle)
    far = np.maximum(x, 4.0)
    fraction = far
    for term in range(_TERMS, 0, -1):
        fraction = far + 0.5 * term / fraction
    return np.exp(-x * x) * np.where(x <= 4.0, rational, 1.0 / (math.sqrt(math.pi) * fraction))


_TERMS = 24
"""Of the continued fraction: enough for 1e-14 from 4 on."""
