"""torch's context parallelism, found by what it is, and the sdpa that the fallback calls.

`context_parallel` of torch puts a function of its own in the place of `F.scaled_dot_product_attention`, and handlers of its
own into DTensor's dispatcher. Others replace sdpa too (that is how attention libraries are installed), perhaps by a function
that calls this package: they are none of its business, and the fallback must not call them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CellType
from typing import Any

import torch
import torch.nn.functional as F

__all__ = ["context_parallel", "torch_sdpa"]

_OWN = torch._C._nn.scaled_dot_product_attention
_FLASH = torch.ops.aten._scaled_dot_product_flash_attention.default
_PACKAGE = "torch.distributed.tensor.experimental."
_DEPTH = 8  # wrappers of wrappers that are looked into


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator,unused-ignore]
def context_parallel() -> bool:
    """True while torch's context parallelism is on: a kernel would see the keys of its own shard only."""
    return _handlers_installed() or _replacement() is not None


def torch_sdpa() -> Callable[..., Any]:
    """Torch's own sdpa, whoever has replaced it; under context parallelism torch's replacement of it."""
    if torch.compiler.is_compiling():
        return F.scaled_dot_product_attention if context_parallel() else _OWN
    return _replacement() or _OWN


def _handlers_installed() -> bool:
    api = sys.modules.get("torch.distributed.tensor._api")
    if api is None:
        return False
    handlers = getattr(getattr(api.DTensor, "_op_dispatcher", None), "_custom_op_handlers", {})
    return _FLASH in handlers


def _replacement() -> Callable[..., Any] | None:
    """The function that context parallelism put in sdpa's place, also where somebody wrapped it again."""
    current = F.scaled_dot_product_attention
    if current is _OWN:
        return None
    seen: list[Any] = []
    waiting: list[tuple[Any, int]] = [(current, 0)]
    while waiting:
        function, depth = waiting.pop()
        if any(function is each for each in seen):
            continue
        seen.append(function)
        # Not `__module__`, which functools.wraps copies.
        if getattr(function, "__globals__", {}).get("__name__", "").startswith(_PACKAGE):
            return function
        if depth < _DEPTH:
            waiting.extend((inner, depth + 1) for inner in _wrapped(function))
    return None


def _wrapped(function: Any) -> Iterator[Any]:
    """Functions that a wrapper holds: its closure, what functools.wraps and partial keep, a bound method's function."""
    for name in ("__wrapped__", "func", "__func__"):
        inner = getattr(function, name, None)
        if callable(inner):
            yield inner
    for cell in getattr(function, "__closure__", None) or ():
        if isinstance(cell, CellType):
            try:
                inner = cell.cell_contents
            except ValueError:  # not filled yet
                continue
            if callable(inner) and not isinstance(inner, type):
                yield inner
