"""Calls: functions and classes of kernel code, Python's own functions, allocations of the language."""

from __future__ import annotations

import ast
import builtins
import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nki_hf.tools.kernel_lint.evaluation import running
from nki_hf.tools.kernel_lint.evaluation.operators import CHANGING, contains_unknown, fresh, key_of, unknown
from nki_hf.tools.kernel_lint.evaluation.paths import Ended
from nki_hf.tools.kernel_lint.evaluation.tile import Tile, whole_steps
from nki_hf.tools.kernel_lint.evaluation.values import (
    Class,
    Dictionary,
    Host,
    Instance,
    Language,
    Listed,
    Partial,
    Unknown,
)

if TYPE_CHECKING:
    from nki_hf.tools.kernel_lint.evaluation.machine import Machine

__all__ = ["ALLOCATORS", "PYTHON", "RANGES", "allocated", "hosted", "ranged"]

ALLOCATORS = ("ndarray", "zeros", "ones", "full")
PYTHON = frozenset(dir(builtins))
RANGES = ("range", "affine_range", "sequential_range", "static_range", "dynamic_range")
_GROWING = ("factorial", "comb", "perm", "prod", "sumprod", "pow")
_EXACT = {
    "builtins": ("abs", "bool", "divmod", "float", "int", "str", "round", "ord", "chr"),
    "math": tuple(name for name in dir(math) if not name.startswith("_") and name not in _GROWING),
    "operator": ("add", "sub", "mul", "floordiv", "mod", "neg", "eq", "ne", "lt", "le", "gt", "ge", "and_", "or_"),
}
"""Functions of Python that are called as they are, if every argument is known."""


def allocated(name: str, given: dict[str, Any], place: ast.AST, turn: int) -> Tile:
    """The tile of `nl.ndarray(...)` and its like.

    Args:
      name: the function.
      given: its arguments by name.
      place: where it is called.
      turn: tells apart what the same place allocates.
    """
    buffer, dtype, shape = given.get("buffer"), given.get("dtype"), given.get("shape")
    sizes = tuple(shape) if isinstance(shape, tuple | list) and not getattr(shape, "loose", False) else None
    if isinstance(shape, int | Unknown):
        sizes = (shape,) if isinstance(shape, int) else None
    turned = any(isinstance(each, Unknown) and each.key.startswith("nl.par_dim") for each in sizes or ())
    text = buffer.text.rpartition(".")[2] if isinstance(buffer, Language) else "" if buffer is not None else "sbuf"
    return Tile(
        name=f"{name}@{getattr(place, 'lineno', 0)}#{turn}",
        buffer=text,
        dtype=dtype.text.rpartition(".")[2] if isinstance(dtype, Language) else "",
        shape=sizes,
        steps=None if sizes is None or turned else whole_steps(sizes),
        start=None if turned else 0,
        offset=None if turned else 0,
    )


def ranged(machine: Machine, given: list[Any]) -> Any:
    """`range(...)`; unknown with its first number and step if its length is not known."""
    first, stop, step = (0, given[0], 1) if len(given) == 1 else (*given, 1)[:3] if given else (0, 0, 1)
    if all(type(each) is int for each in (first, stop, step)) and step:
        return range(first, stop, step)
    key = f"range({key_of(first)}, {key_of(stop)}, {key_of(step)})"
    if isinstance(first, int) and isinstance(step, int) and step > 0:
        high = machine.path.range_of(stop)[1]
        if high is not None and high <= first:
            return range(0)
    return Unknown(key, test=("range", first, step))


def hosted(machine: Machine, name: str, given: list[Any], words: dict[str, Any]) -> Any:
    """What a function of Python or of its library gives."""
    module, _, short = name.rpartition(".")
    own = _OWN.get(short) if module in ("builtins", "functools", "itertools", "dataclasses", "copy") else None
    if own is not None:
        made = own(machine, given, words)
        if made is not NotImplemented:
            return made
    elif short in _EXACT.get(module, ()) and not contains_unknown([*given, *words.values()]):
        function = getattr(__import__(module), short, None)
        try:
            return function(*given, **words) if callable(function) else function
        except Exception as error:  # as the kernel's line would raise it
            raise Ended(repr(error)) from error
    elif module == "itertools" and not words and all(isinstance(each, list | tuple | range) for each in given):
        function = getattr(itertools, short, None)
        if short in ("product", "chain", "permutations", "combinations", "zip_longest") and function is not None:
            return Listed(itertools.islice(function(*given), 4096))
    key = f"{name}({', '.join(map(key_of, given))})"
    return fresh(key) if short in CHANGING else unknown(key)


def _least(most: bool) -> Callable[..., Any]:
    def find(machine: Machine, given: list[Any], words: dict[str, Any]) -> Any:
        items = machine.items(given[0]) if len(given) == 1 else given
        if items is None or set(words) - {"default"}:
            return NotImplemented
        if not items:
            return words.get("default", NotImplemented)
        if not contains_unknown(items):
            try:
                return max(items) if most else min(items)
            except TypeError as error:
                raise Ended(repr(error)) from error
        bounds = [machine.path.range_of(each) for each in items]
        for each, (low, high) in zip(items, bounds, strict=True):
            limit, others = (low, [b[1] for b in bounds]) if most else (high, [b[0] for b in bounds])
            if limit is not None and None not in others:
                if all(limit >= o if most else limit <= o for o in others):  # type: ignore[operator]
                    return each
        lows, highs = [b[0] for b in bounds], [b[1] for b in bounds]
        told_low, told_high = [e for e in lows if e is not None], [e for e in highs if e is not None]
        low = (max(told_low, default=None)) if most else (min(told_low) if len(told_low) == len(lows) else None)
        high = (min(told_high, default=None)) if not most else (max(told_high) if len(told_high) == len(highs) else None)
        word = "max" if most else "min"
        return unknown(f"{word}({', '.join(map(key_of, items))})", low=low, high=high)

    return find


def _length(machine: Machine, given: list[Any], words: dict[str, Any]) -> Any:
    whole = given[0] if given else None
    if isinstance(whole, Tile) and whole.shape:
        return whole.shape[0] if not isinstance(whole.shape[0], Unknown) else unknown(f"{whole.key}.shape[0]", low=0)
    if isinstance(whole, list | tuple | dict | str | range | set) and not getattr(whole, "loose", False):
        return len(whole)
    return unknown(f"len({key_of(whole)})", low=0)


def _listed(machine: Machine, given: list[Any], words: dict[str, Any]) -> Any:
    items = machine.items(given[0]) if given else []
    return NotImplemented if items is None else Listed(items)


def _tupled(machine: Machine, given: list[Any], words: dict[str, Any]) -> Any:
    items = machine.items(given[0]) if given else []
    return NotImplemented if items is None else tuple(items)


def _numbered(machine: Machine, given: list[Any], words: dict[str, Any]) -> Any:
    items = machine.items(given[0]) if given else None
    start = words.get("start", given[1] if len(given) > 1 else 0)
    return NotImplemented if items is None or not isinstance(start, int) else Listed(enumerate(items, start))


def _zipped(machine: Machine, given: list[Any], words: dict[str, Any]) -> Any:
    columns = [machine.items(each) for each in given]
    return NotImplemented if any(each is None for each in columns) else Listed(zip(*columns, strict=False))


def _reversed(machine: Machine, given: list[Any], words: dict[str, Any]) -> Any:
    items = machine.items(given[0])
    return NotImplemented if items is None else Listed(reversed(items))


def _sorted(machine: Machine, given: list[Any], words: dict[str, Any]) -> Any:
    items = machine.items(given[0])
    if items is None or contains_unknown(items) or "key" in words:
        return NotImplemented
    try:
        return Listed(sorted(items, reverse=bool(words.get("reverse"))))
    except TypeError as error:
        raise Ended(repr(error)) from error


def _summed(machine: Machine, given: list[Any], words: dict[str, Any]) -> Any:
    items = machine.items(given[0])
    return NotImplemented if items is None or not all(isinstance(each, int | float) for each in items) else sum(items)


def _mapped(machine: Machine, given: list[Any], words: dict[str, Any]) -> Any:
    columns = [machine.items(each) for each in given[1:]]
    if any(each is None for each in columns):
        return NotImplemented
    return Listed(running.run(machine, given[0], list(row), {}) for row in zip(*columns, strict=False))


def _reduced(machine: Machine, given: list[Any], words: dict[str, Any]) -> Any:
    items = machine.items(given[1]) if len(given) > 1 else None
    if items is None or not (items or len(given) > 2):
        return NotImplemented
    made = given[2] if len(given) > 2 else items.pop(0)
    for each in items:
        made = running.run(machine, given[0], [made, each], {})
    return made


def _dictionary(machine: Machine, given: list[Any], words: dict[str, Any]) -> Any:
    made = Dictionary()
    if given:
        pairs = given[0].items() if isinstance(given[0], dict) else machine.items(given[0])
        if pairs is None:
            return NotImplemented
        made.update({pair[0]: pair[1] for pair in pairs if isinstance(pair, tuple) and len(pair) == 2})
    made.update(words)
    return made


def _attribute(machine: Machine, given: list[Any], words: dict[str, Any]) -> Any:
    from nki_hf.tools.kernel_lint.evaluation.members import attribute

    return attribute(machine, given[0], given[1]) if len(given) > 1 and isinstance(given[1], str) else NotImplemented


def _is_kind(machine: Machine, given: list[Any], words: dict[str, Any]) -> Any:
    value, kinds = given[0], given[1] if isinstance(given[1], tuple) else (given[1],)
    texts = [kind.text.rpartition(".")[2] for kind in kinds if isinstance(kind, Host)]
    if isinstance(value, Unknown) or (isinstance(value, Tile) and value.argument) or len(texts) != len(kinds):
        known = isinstance(value, Instance) and all(isinstance(kind, Class) for kind in kinds)
        if known and value.kind in kinds:
            return True
        return NotImplemented
    named = {"Listed": "list", "Dictionary": "dict"}.get(type(value).__name__, type(value).__name__)
    return named in texts or (named == "bool" and "int" in texts)


_OWN: dict[str, Callable[..., Any]] = {
    "len": _length, "min": _least(False), "max": _least(True), "list": _listed, "tuple": _tupled, "set": _listed,
    "frozenset": _listed, "iter": _listed, "enumerate": _numbered, "zip": _zipped, "reversed": _reversed, "sorted": _sorted,
    "sum": _summed, "map": _mapped, "reduce": _reduced, "dict": _dictionary, "getattr": _attribute, "isinstance": _is_kind,
    "range": lambda machine, given, words: ranged(machine, given),
    "slice": lambda machine, given, words: slice(*given),
    "partial": lambda machine, given, words: Partial(given[0], given[1:], words),
    "replace": lambda machine, given, words: Instance(given[0].kind, {**given[0].fields, **words})
    if given and isinstance(given[0], Instance) else NotImplemented,
}  # fmt: skip
