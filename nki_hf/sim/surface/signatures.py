"""The signature of an object of the simulated language, in the words of the lists."""

from __future__ import annotations

import inspect
from enum import Enum
from typing import Any

import numpy as np

from nki_hf.sim.dtypes import ALL_DTYPES, DType
from nki_hf.sim.isa.operators import Operator

__all__ = ["signature_text"]


def signature_text(value: Any) -> str:
    """`{a=1, b=2}` for an enumeration, `(a, b=0)` for a function, an operator or a class, and nothing for other values."""
    if isinstance(value, type):
        if not issubclass(value, Enum):
            return _signature(value.__init__)
        return "{" + ", ".join(f"{item.name}={_text(item.value)}" for item in value) + "}"
    if not callable(value) or isinstance(value, DType):
        return ""
    return _signature(value)


def _signature(function: Any) -> str:
    parts: list[str] = []
    starred = False
    for item in inspect.signature(function).parameters.values():
        if item.kind is item.KEYWORD_ONLY and not starred:
            parts.append("*")
        starred = starred or item.kind in (item.KEYWORD_ONLY, item.VAR_POSITIONAL)
        if item.name != "self":
            parts.append(_parameter(item))
    return "(" + ", ".join(parts) + ")"


def _parameter(item: inspect.Parameter) -> str:
    stars = "*" if item.kind is item.VAR_POSITIONAL else "**" if item.kind is item.VAR_KEYWORD else ""
    default = "" if item.default is inspect.Parameter.empty else f"={_text(item.default)}"
    return f"{stars}{item.name}{default}"


def _text(value: Any) -> str:
    if isinstance(value, Enum | Operator | DType):
        return value.name
    if isinstance(value, str):
        return value if value in ALL_DTYPES else f'"{value}"'
    if isinstance(value, float) and value == float(np.finfo(np.float32).min):
        return "FP32_MIN"
    return repr(value)
