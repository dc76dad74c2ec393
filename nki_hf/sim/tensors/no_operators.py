"""What tensors of a kernel do not take: Python's operators and NumPy's functions, with the function to call instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from nki_hf.sim.execution.issued import ISSUED
from nki_hf.sim.faults import fault

__all__ = ["NoOperators"]


class NoOperators:
    """Faults for `a + b`, `a == b`, `np.sum(a)` and the like: the language has functions for them.

    Identity still holds: `a == a` is True, so that a list of tensors can be searched for one of its own, and nothing equals
    None.
    """

    __slots__ = ()

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        if other is None or other is Ellipsis or isinstance(other, str | type):
            return False
        _refuse(self, "==", "equal")

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(self, "as a NumPy array", "")

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> NoReturn:
        _refuse(self, f"in np.{function.__name__}", function.__name__)

    def __array_ufunc__(self, function: Any, method: str, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(self, f"in np.{function.__name__}", function.__name__)


_FUNCTIONS = {
    "+": "add", "-": "subtract", "*": "multiply", "/": "divide", "%": "mod", "**": "power", "@": "matmul", "//": "",
    "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal", "&": "bitwise_and", "|": "bitwise_or",
    "^": "bitwise_xor", "<<": "left_shift", ">>": "right_shift", "~": "invert", "abs()": "abs", "unary -": "negative",
}  # fmt: skip
_METHODS = {
    "+": ("add", "radd"), "-": ("sub", "rsub"), "*": ("mul", "rmul"), "/": ("truediv", "rtruediv"), "%": ("mod", "rmod"),
    "**": ("pow", "rpow"), "@": ("matmul", "rmatmul"), "//": ("floordiv", "rfloordiv"), "<": ("lt",), "<=": ("le",),
    ">": ("gt",), ">=": ("ge",), "&": ("and", "rand"), "|": ("or", "ror"), "^": ("xor", "rxor"), "<<": ("lshift", "rlshift"),
    ">>": ("rshift", "rrshift"), "~": ("invert",), "abs()": ("abs",), "unary -": ("neg",),
}  # fmt: skip


def _refuse(tensor: object, what: str, function: str) -> NoReturn:
    advice = f"Call nl.{function}" if function in ISSUED.functions else "Compute it with functions of nl and nisa"
    fault(
        "unsupported",
        "tensor",
        f"{tensor!r} is used {what}" if what.startswith(("in ", "as ")) else f"{what} on {tensor!r}",
        limit="tensors of a kernel take neither Python's operators nor NumPy's functions",
        advice=advice,
    )


def _operator(symbol: str) -> Callable[..., NoReturn]:
    def refused(self: Any, *others: Any) -> NoReturn:
        _refuse(self, symbol, _FUNCTIONS[symbol])

    return refused


for _symbol, _names in _METHODS.items():
    for _name in _names:
        setattr(NoOperators, f"__{_name}__", _operator(_symbol))
