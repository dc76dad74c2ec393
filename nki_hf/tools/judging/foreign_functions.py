"""Functions of Python, NumPy or torch in place of an operator of the language (`op=np.exp`): what they are, what to give."""

from __future__ import annotations

from typing import Any

from nki_hf.sim import language
from nki_hf.sim.isa.operators import Operator

__all__ = ["foreign"]

_SPACES = {
    "numpy": "a NumPy function",
    "math": "a function of Python's math",
    "cmath": "a function of Python's cmath",
    "operator": "a function of Python's operator",
    "_operator": "a function of Python's operator",
    "builtins": "a function of Python",
    "torch": "a torch function",
    "jax": "a JAX function",
    "scipy": "a SciPy function",
}
_CALLED = {
    "max": "maximum", "min": "minimum", "amax": "maximum", "amin": "minimum", "fmax": "maximum", "fmin": "minimum",
    "sum": "add", "fsum": "add", "prod": "multiply", "mul": "multiply", "sub": "subtract", "div": "divide",
    "truediv": "divide", "true_divide": "divide", "neg": "negative", "absolute": "abs", "fabs": "abs", "pow": "power",
    "float_power": "power", "remainder": "mod", "atan": "arctan", "positive": "copy", "pos": "copy", "lt": "less",
    "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal", "and_": "bitwise_and",
    "or_": "bitwise_or", "xor": "bitwise_xor", "inv": "invert", "bitwise_not": "invert", "bitwise_invert": "invert",
    "not_": "logical_not", "lshift": "left_shift", "rshift": "right_shift", "bitwise_left_shift": "left_shift",
    "bitwise_right_shift": "right_shift",
}  # fmt: skip
"""Name elsewhere -> the operator's own, where they differ."""


def foreign(value: Any, word: str) -> tuple[str, str]:
    """What a function is that was given as an operand, and what to give instead; empty words for what is no function.

    Args:
      value: the operand.
      word: the parameter that it was given for; empty if unknown.
    """
    if not callable(value):
        return "", ""
    name = str(getattr(value, "__name__", type(value).__name__))
    module = getattr(value, "__module__", None) or type(value).__module__
    space = _SPACES.get(str(module).partition(".")[0], "a Python function")
    shown = "a lambda" if name == "<lambda>" else str(value) if " at 0x" not in str(value) else f"<function {name}>"
    what = f"{word}={shown}" if word and name != "<lambda>" else f"{word} is a lambda," if word else shown
    right = _CALLED.get(name, name)
    own = isinstance(getattr(language, right, None), Operator)
    given = f"{word}=nl.{right}" if word else f"nl.{right}"
    said = f"{what} {'' if name == '<lambda>' else 'is '}{space}, which no engine has"
    if own and space != "a Python function":
        return said, f"Use nl.{right}: {given}."
    return said, "Operators are names of the language: nl.add, nl.multiply, nl.maximum, nl.exp and so on (docs/nki_surface.md)."
