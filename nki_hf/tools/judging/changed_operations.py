"""An operation of a reference done otherwise: another function, an operand left out or another one, an index off by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nki_hf.tools.judging.changed_reductions import accumulations, reductions
from nki_hf.tools.judging.traced import Call, Change, Site

__all__ = ["BINARY", "COMPARISONS", "FUNCTIONS", "alternatives", "blocks", "earlier", "exchanged", "of_ufunc", "rolled"]

Array = np.ndarray[Any, Any]
_TILE = 128
_MOST_TILES = 16


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "left out": lambda x: x,
    **{item.__name__: item for item in (np.exp, np.exp2, np.expm1, np.log, np.log2, np.log10, np.log1p, np.sqrt, np.square)},
    **{item.__name__: item for item in (np.abs, np.negative, np.reciprocal, np.tanh, np.sin, np.cos, np.sign)},
    "the reciprocal square root": lambda x: x**-0.5,
    "the cube": lambda x: x**3,
    "the sigmoid": _sigmoid,
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * _sigmoid(x),
}
RESULTS = ("relu", "tanh", "the sigmoid", "silu", "exp", "square", "absolute", "negative")
_QUOTIENTS: dict[str, Callable[[Any], Any]] = {
    **{name: FUNCTIONS[name] for name in ("relu", "the sigmoid", "tanh", "silu")},
    "x * tanh(x)": lambda x: x * np.tanh(x),
    "gelu (by tanh)": lambda x: 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3))),
}
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum")
_BESIDE = {
    "greater_equal": "all from its index on",
    "greater": "all behind its index",
    "less_equal": "all up to its index",
    "less": "all before its index",
    "not_equal": "all but the one at its index",
}
COMPARISONS = ("greater", "greater_equal", "less", "less_equal", "equal", "not_equal")


def of_ufunc(name: str) -> Change:
    """The same operation of another ufunc."""
    return lambda call: call.result(function=getattr(np, name))


def _of_result(function: Callable[[Any], Any]) -> Change:
    return lambda call: function(call.result())


def _of_first(function: Callable[[Any], Any]) -> Change:
    return lambda call: function(call.inputs[0])


def alternatives(call: Call, inputs: Mapping[str, Array]) -> Iterator[tuple[str, Change]]:
    """Words about the operation, and what is done in its place; `inputs` are the arrays that may stand for an operand."""
    name, method = call.site.name, call.site.method
    first = call.inputs[0] if call.inputs else None
    if method == "reduce" and name in ("add", "maximum", "minimum", "multiply"):
        yield from reductions(call)
    elif method == "accumulate":
        yield from accumulations(call)
    elif method == "index":
        for by in (1, -1):
            yield f"is taken one {'before' if by > 0 else 'behind'}", rolled(by)
    elif name == "matmul":
        yield from _operands(call, inputs)
        for what in RESULTS:
            yield f"has {what} of its result", _of_result(FUNCTIONS[what])
        if first is not None and first.ndim >= 2 and first.shape[-1] == first.shape[-2]:
            yield "has its first operand transposed", lambda c: c.result(c.inputs[0].swapaxes(-1, -2), c.inputs[1])
    elif name in COMPARISONS and method == "__call__":
        for other in COMPARISONS:
            if other != name:
                yield f"has {other} in place of {name}", of_ufunc(other)
    elif method == "__call__" and len(call.inputs) == 1 and name in FUNCTIONS:
        for what, function in FUNCTIONS.items():
            if what != name:
                words = f"has {what} in place of {name}" if what != "left out" else f"has no {name}"
                yield words, _of_first(function)
    elif method == "__call__" and len(call.inputs) == 2 and name in (*BINARY, "power", "float_power"):
        yield from _binary(call, inputs)
    elif name == "where" and len(call.inputs) == 3:
        yield "has its condition negated", lambda c: c.function(~np.asarray(c.inputs[0], bool), *c.inputs[1:])
        yield "always takes its second argument", lambda c: c.function(True, *c.inputs[1:])
        yield "always takes its third argument", lambda c: c.function(False, *c.inputs[1:])
    elif name == "concatenate":
        yield "has its parts in reverse order", lambda c: c.function(list(c.inputs[0])[::-1], *c.inputs[1:], **c.options)
    elif name == "take_along_axis":
        for by in (1, -1):
            yield f"has indices {by:+d}", _other_index(by)
        for other, which in _BESIDE.items():
            words = f"sums {which}: a mask by {other} in place of equal"
            yield words, _compared(getattr(np, other))
        for n in (_TILE, 2 * _TILE, 4 * _TILE):
            yield f"finds its indices in the last {n} only, elsewhere 0", _found_in(slice(-n, None))
            yield f"finds its indices in the first {n} only, elsewhere 0", _found_in(slice(0, n))


def _compared(compare: Any) -> Change:
    """The sum of all elements whose number compares so with the index, as a mask gives it."""

    def change(call: Call) -> Any:
        array, index = call.inputs[:2]
        return np.where(compare(np.arange(array.shape[-1]), index), array, 0).sum(-1, keepdims=True)

    return change


def _found_in(part: slice) -> Change:
    def change(call: Call) -> Any:
        array, index = call.inputs[:2]
        there = np.isin(index, np.arange(array.shape[-1])[part])
        return np.where(there, call.result(), 0)

    return change


def _other_index(by: int) -> Change:
    def change(call: Call) -> Any:
        array, index = call.inputs[:2]
        return call.function(array, np.clip(index + by, 0, max(array.shape) - 1), *call.inputs[2:], **call.options)

    return change


def rolled(by: int) -> Change:
    """An index that takes what is `by` before."""

    def change(call: Call) -> Any:
        array, index = call.inputs
        for axis, item in enumerate(_axes(array, index)):
            if item is not None:
                array = np.roll(array, by, axis)
        return array[index]

    return change


def _axes(array: Array, index: Any) -> list[Any]:
    """What of an index picks from each axis of the array; None = all of it."""
    items = [item for item in (index if type(index) is tuple else (index,)) if item is not None and item is not Ellipsis]
    whole = slice(None)
    return [item if isinstance(item, int | slice) and item != whole else None for item in items][: array.ndim]


def exchanged(first: Call, second: Call) -> Iterator[tuple[str, dict[Site, Change]]]:
    """The operators of two operations, the second of which takes the result of the first: `a * b + c` as `(a + b) * c`."""
    one, other = first.site, second.site
    if one.name == other.name or not {one.name, other.name} <= set(BINARY) or one.method != "__call__" != other.method:
        return
    if not (one.text and one.text in other.text):
        return
    words = f"`{other.text}` of the reference has its two operators exchanged ({one.name} and {other.name})"
    yield words, {one: of_ufunc(other.name), other: of_ufunc(one.name)}


def _operands(call: Call, inputs: Mapping[str, Array]) -> Iterator[tuple[str, Change]]:
    """Another input of the task in place of an operand."""
    for place, operand in enumerate(call.inputs[:2]):
        if not isinstance(operand, np.ndarray) or operand.ndim < 2 or operand.size < 2 or operand.dtype.kind != "f":
            continue
        for name, other in inputs.items():
            for array, turned in ((other, False), (other.swapaxes(-1, -2) if other.ndim >= 2 else other, True)):
                if array.shape == operand.shape and not (turned and array.shape == other.shape and other is not operand):
                    if not np.array_equal(array, operand):
                        words = f"has {name}{'.T' if turned else ''} in place of its {('first', 'second')[place]} operand"
                        yield words, _in_place(place, _input(name), turned)


def earlier(call: Call, seen: Mapping[Site, Sequence[Call]]) -> Iterator[tuple[str, Change]]:
    """The result of an earlier operation in place of an operand of a product."""
    if call.site.name not in ("matmul", "multiply") or call.site.method != "__call__" or len(call.inputs) != 2:
        return
    for place, operand in enumerate(call.inputs):
        for site in seen:
            if site == call.site:
                break
            other = call.results.get(site)
            if np.ndim(operand) < 2 or not isinstance(other, np.ndarray) or other.dtype.kind != "f" or not site.text:
                continue
            for turned in (False, True):
                shape = other.shape[:-2] + other.shape[-2:][::-1] if turned else other.shape
                if shape == operand.shape and (not turned or call.site.name == "matmul"):
                    words = f"has `{site.text}`{'.T' if turned else ''} in place of its {('first', 'second')[place]} operand"
                    yield words, _in_place(place, _result(site), turned)


def _input(name: str) -> Callable[[Call], Any]:
    return lambda call: call.given[name]


def _result(site: Site) -> Callable[[Call], Any]:
    return lambda call: call.results[site]


def _in_place(place: int, array_of: Callable[[Call], Any], turned: bool) -> Change:
    """The operation with what `array_of` finds in place of an operand."""

    def change(call: Call) -> Any:
        array = array_of(call)
        array = array.swapaxes(-1, -2) if turned else array
        return call.result(*[array if i == place else item for i, item in enumerate(call.inputs)])

    return change


def _binary(call: Call, inputs: Mapping[str, Array]) -> Iterator[tuple[str, Change]]:
    name = call.site.name
    numbers = [not isinstance(item, np.ndarray) or not item.ndim for item in call.inputs]
    floats = any(np.asarray(item).dtype.kind == "f" for item in call.inputs)
    if not floats:
        return
    for place, said in ((0, "first"), (1, "second")):
        if not numbers[place]:
            yield f"is its {said} operand alone", _alone(place)
    for other in BINARY:
        if other != name:
            yield f"has {other} in place of {name}", of_ufunc(other)
    if name == "add":
        yield "has its first operand subtracted from its second", lambda c: c.result(*c.inputs[::-1], function=np.subtract)
    if name == "power" and numbers[1]:
        for exponent in (1, 2, 3, 4, 0.5, -0.5, -1):
            if exponent != call.inputs[1]:
                yield f"has exponent {exponent} in place of {call.inputs[1]}", _to_the(exponent)
    if name in ("multiply", "divide") and any(numbers):
        for what in RESULTS:
            yield f"has {what} of its result", _of_result(FUNCTIONS[what])
    if name in ("subtract", "divide"):
        yield "has its operands interchanged", lambda c: c.result(c.inputs[1], c.inputs[0])
    if name == "divide" and numbers[0] and call.inputs[0] == 1:
        for what in RESULTS:
            if what != "the sigmoid":
                yield f"is {what} where it is a sigmoid", _of_logit(FUNCTIONS[what])
    if name == "divide" and not numbers[0]:
        for what, function in _QUOTIENTS.items():
            yield f"is {what} of its first operand", _of_first(function)
        yield "divides by the root of its second operand", lambda c: c.result(c.inputs[0], np.sqrt(c.inputs[1]))
        yield "divides by the square of its second operand", lambda c: c.result(c.inputs[0], np.square(c.inputs[1]))
    yield from _operands(call, inputs)


def _of_logit(function: Callable[[Any], Any]) -> Change:
    """Of the argument of `1 / (1 + exp(-x))`."""
    return lambda call: function(-np.log(call.inputs[1] - 1))


def _to_the(exponent: float) -> Change:
    return lambda call: call.result(call.inputs[0], exponent)


def _alone(place: int) -> Change:
    return lambda call: np.broadcast_to(call.inputs[place], np.broadcast(*map(np.asarray, call.inputs)).shape).copy()


def blocks(call: Call) -> Iterator[tuple[str, Change]]:
    """Mistakes of a product in one block of 128 of what it sums over."""
    length = call.inputs[0].shape[-1] if call.site.name == "matmul" and np.ndim(call.inputs[0]) >= 2 else 0
    count = length // _TILE
    if length % _TILE or not 2 <= count <= _MOST_TILES:
        return
    for block in range(count):
        part = f"{block * _TILE} to {block * _TILE + _TILE - 1}"
        for factor, words in ((0, "lacks"), (2, "counts twice")):
            yield f"{words} {part} of {length}", _block_times(block, factor)
        for place, said in ((0, "first"), (1, "second")):
            for other in (block - 1, block + 1):
                if 0 <= other < count:
                    there = f"{other * _TILE} to {other * _TILE + _TILE - 1}"
                    yield f"has {there} of its {said} operand again in place of {part}", _block_again(block, other, place)


def _block_times(block: int, factor: float) -> Change:
    def change(call: Call) -> Any:
        left = np.array(call.inputs[0])
        left[..., block * _TILE : (block + 1) * _TILE] *= factor
        return call.result(left, call.inputs[1])

    return change


def _block_again(block: int, other: int, place: int) -> Change:
    def change(call: Call) -> Any:
        operands = [np.array(item) for item in call.inputs]
        one = operands[place] if not place else operands[place].swapaxes(-1, -2)
        one[..., block * _TILE : (block + 1) * _TILE] = one[..., other * _TILE : (other + 1) * _TILE]
        return call.result(*operands)

    return change
