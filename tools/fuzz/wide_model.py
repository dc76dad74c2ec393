"""What the steps of `wide_programs` give, in NumPy and float64, from the documented semantics and nothing of the simulator."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tools.fuzz.kernel_programs import Step

__all__ = ["wide_result"]

Array = np.ndarray[Any, Any]
_UNIT = 2.0**-24
_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def wide_result(step: Step, raw: Callable[[Step], Array], state: dict[str, Array], which: int) -> tuple[Array, Any]:
    """Values `[partitions, elements]` and how far a result may be from them beside the rounding to its type.

    Args:
      step: the step.
      raw: the elements `[partitions, elements]` of a view, in their type.
      state: the tiles before the step, with `noise`.
      which: 0 = the recorded run's run-time values, 1 = the other ones.
    """
    what = step["what"]
    if what in _OF_TILES:
        found = _OF_TILES[what](step, state, which)
        return found.reshape(len(found), -1), 0
    data = raw(step["data"])
    with np.errstate(all="ignore"):
        return _OF_VIEWS[what](step, data, raw, state)


def _wide(values: Array) -> Array:
    return values.astype(np.float32).astype(np.float64)


def _noise(step: Step, state: dict[str, Array], p: int, count: int, below: int) -> Array:
    start = step["data"]["partitions"][0]
    return state["noise"][start : start + p, :count].astype(np.int64) % below


def _binary(step: Step, data: Array, raw: Any, state: Any) -> tuple[Array, Any]:
    one = _wide(data)
    two = np.full_like(one, step["operand"]) if step["other"] is None else _wide(raw(step["other"]))
    if step["other"] is None and step["reverse"]:
        one, two = two, one
    alu = step["alu"]
    if alu == "divide":
        return one / two, 0
    if alu == "average":
        return (one + two) / 2, _UNIT * (np.abs(one) + np.abs(two))
    if alu == "power":
        found = np.power(one, two)
        return found, 16 * _UNIT * np.abs(found) + 2.0**-126
    if alu in ("abs_max", "abs_min"):
        first = np.abs(one) > np.abs(two) if alu == "abs_max" else np.abs(one) < np.abs(two)
        return np.where(first, one, two), 0
    found = np.fmod(one, two)
    if alu == "mod":
        found = np.where((found != 0) & (np.sign(found) != np.sign(two)), found + two, found)
    return found, 0


def _phi(x: Array) -> Array:
    return 0.5 * _erfc(-x / math.sqrt(2))


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _softplus(x: Array) -> Array:
    return np.logaddexp(x, 0.0)


_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": lambda x: x * _phi(x),
    "gelu_dx": lambda x: _phi(x) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    "gelu_apprx_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_apprx_sigmoid": lambda x: x * _sigmoid(1.702 * x),
    "gelu_apprx_sigmoid_dx": lambda x: _sigmoid(1.702 * x) * (1 + 1.702 * x * (1 - _sigmoid(1.702 * x))),
    "silu": lambda x: x * _sigmoid(x),
    "silu_dx": lambda x: _sigmoid(x) * (1 + x * (1 - _sigmoid(x))),
    "softplus": _softplus,
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "erf": _erf,
    "erf_dx": lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "log": np.log,
    "sin": np.sin,
    "arctan": np.arctan,
    "reciprocal": lambda x: 1 / x,
    "sign": np.sign,
    "square": np.square,
}


def _function(step: Step, data: Array, raw: Any, state: Any) -> tuple[Array, Any]:
    x = _wide(data)
    found = _FUNCTIONS[step["function"]](x)
    size = np.minimum(np.abs(x), 30.0) * (step["function"] not in ("rsqrt", "log", "reciprocal", "sign", "square"))
    slack = 64 * _UNIT * (np.abs(found) + size * np.minimum(1.0, np.abs(found) + 0.1)) + 2.0**-126
    # what the table of a function does beyond float32's or its own range is not this model's affair
    known = np.isfinite(x) & ((np.abs(x) < 3.14) if step["function"] == "sin" else (np.abs(x) < 1e4))
    return found, np.where(known, slack, np.inf)


def _shift(step: Step, data: Array, raw: Any, state: Any) -> tuple[Array, Any]:
    """Logical: the sign bit is a bit like the others."""
    bits = 8 * data.dtype.itemsize
    wide = data.astype(np.int64) & ((1 << bits) - 1)
    moved = wide << step["operand"] if step["alu"] == "left_shift" else wide >> step["operand"]
    return (moved & ((1 << bits) - 1)).astype(f"uint{bits}").view(data.dtype), 0


def _cast(step: Step, data: Array, raw: Any, state: Any) -> tuple[Array, Any]:
    return data, 0


def _exponential(step: Step, data: Array, raw: Any, state: Any) -> tuple[Array, Any]:
    start, stop = step["data"]["partitions"]
    operand = step["operand"]
    shift = state[operand][start:stop].astype(np.float64) if isinstance(operand, str) else operand
    inner = (_wide(data).astype(np.float32) - np.float32(shift)).astype(np.float64)
    found = np.exp(inner)
    slack = 8 * _UNIT * found + 2.0**-126
    if step["reduced"]:
        return found.sum(1, keepdims=True), (slack + _UNIT * found.shape[1] * found).sum(1, keepdims=True)
    return found, slack


def _reduce_chain(step: Step, data: Array, raw: Any, state: Any) -> tuple[Array, Any]:
    fold: Any = {"add": np.add, "maximum": np.maximum, "minimum": np.minimum}[step["alu1"]]
    total, size = np.zeros((len(data), 1)), np.zeros((len(data), 1))
    for command, operand in step["links"]:
        combine: Any = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum}[step["alu"]]
        values = combine(data.astype(np.float32), np.float32(operand)).astype(np.float64)
        if command == "load_reduce":
            values, size = np.concatenate([np.full((len(data), 1), 1.5), values], 1), 0 * size
        elif command == "reduce":
            values = np.concatenate([total, values], 1)
        else:
            size = 0 * size
        total = fold.reduce(values, axis=1, keepdims=True)
        size = size + np.abs(values).sum(1, keepdims=True) * values.shape[1]
    return -total if step["negate"] else total, _UNIT * size if step["alu1"] == "add" else 0


def _shuffle(step: Step, data: Array, raw: Any, state: Any) -> tuple[Array, Any]:
    within = len(data) % 32 or 32
    found = np.full(data.shape, 7.0)
    for row in range(len(data)):
        entry = step["mask"][row % 32]
        if entry != 255:
            found[row] = _wide(data)[row - row % 32 + entry % within]
    return found, 0


def _n_gather(step: Step, data: Array, raw: Any, state: Any) -> tuple[Array, Any]:
    index = _noise(step, state, len(data), step["count"], data.shape[1])
    return np.stack([row[own] for row, own in zip(data, index, strict=True)]), 0


def _local_gather(step: Step, data: Array, raw: Any, state: Any) -> tuple[Array, Any]:
    element = min(step["element"], data.shape[1])
    index = _noise(step, state, len(data), step["count"], data.shape[1] - element + 1)
    found = np.empty((len(data), 16 * step["count"] * element), data.dtype)
    for row in range(len(data)):
        group = row - row % 16
        for k in range(16 * step["count"]):
            first = index[group + k % 16, k // 16]
            found[row, k * element : (k + 1) * element] = data[row, first : first + element]
    return found, 0


def _find8(step: Step, data: Array, raw: Any, state: Any) -> tuple[Array, Any]:
    found, rows = np.zeros((len(data), 8), np.uint32), _wide(data)
    for n in np.flatnonzero(~_with_nan(rows)):
        used: list[int] = []
        for k, value in enumerate(sorted(rows[n], reverse=True)[:8]):
            used.append(next(place for place, each in enumerate(rows[n]) if each == value and place not in used))
            found[n, k] = used[-1]
    return found, _undecided(rows)


def _replace8(step: Step, data: Array, raw: Any, state: Any) -> tuple[Array, Any]:
    places, values = np.zeros((len(data), 8), np.uint32), _wide(data)
    replaced = values.copy()
    for n in np.flatnonzero(~_with_nan(values)):
        row, used = values[n], list[int]()
        for k, value in reversed([*enumerate(sorted(row, reverse=True)[:8])]):
            used.append(next(place for place, each in enumerate(row) if each == value and place not in used))
            places[n, k], replaced[n, used[-1]] = used[-1], step["value"]
    return (places if step["indices"] else replaced), _undecided(values)


def _with_nan(rows: Array) -> Array:
    return np.isnan(rows).any(1)


def _undecided(rows: Array) -> Any:
    """The slack of a search: none, but where a row holds NaN, whose place in an order no document says."""
    lost = _with_nan(rows)
    return np.where(lost, np.inf, 0.0)[:, None] if lost.any() else 0


def _bn_aggr(step: Step, data: Array, raw: Any, state: Any) -> tuple[Array, Any]:
    values = _wide(data)
    size = np.abs(values).max(1, keepdims=True)
    slack = np.concatenate([32 * _UNIT * size, 256 * _UNIT * size**2], 1)
    return np.concatenate([values.mean(1, keepdims=True), values.var(1, keepdims=True)], 1), slack


def _bounds(step: Step, data: Array, raw: Any, state: Any) -> tuple[Array, Any]:
    ids = state["noise"][0, : data.shape[1]] % 3
    n = len(ids)
    found = np.empty((2, n))
    for place in range(n):
        first = last = place
        while first > 0 and ids[first - 1] == ids[place]:
            first -= 1
        while last < n and ids[last] == ids[place]:
            last += 1
        found[:, place] = (n, -1) if ids[place] == 0 else (first, last)
    return found.reshape(1, -1), 0


def _nonzero(step: Step, data: Array, raw: Any, state: Any) -> tuple[Array, Any]:
    found = np.full((len(data), data.shape[1] + 1), -9, np.int64)
    for row in range(0, len(data), 16):
        places = np.flatnonzero(_wide(data)[row]) + step["offset"]
        found[row] = step["padding"]
        found[row, : len(places)] = places
        found[row, -1] = len(places)
    return found, 0


def _summed(step: Step, data: Array, raw: Any, state: Any) -> tuple[Array, Any]:
    one, two = _wide(data), _wide(raw(step["other"]))
    if step["scales"] is not None:
        one, two = one * step["scales"][0], two * step["scales"][1]
    return one + two, 4 * _UNIT * (np.abs(one) + np.abs(two)) + 2.0**-126


def _psum(step: Step, data: Array, raw: Any, state: Any) -> tuple[Array, Any]:
    one = (data.astype(np.float32) * np.float32(step["operand"])).astype(np.float32)
    combine: Any = {"add": np.add, "multiply": np.multiply, "subtract": np.subtract}[step["alu"]]
    return combine(one, raw(step["other"]).astype(np.float32)), 0


def _language(step: Step, data: Array, raw: Any, state: Any) -> tuple[Array, Any]:
    x, y, name = _wide(data), _wide(raw(step["other"])), step["function"]
    n, size = x.shape[1], np.abs(x)
    sums = _UNIT * n * size.sum(1, keepdims=True) + 2.0**-126
    if name in ("max", "min"):
        return getattr(x, name)(1, keepdims=True), 0
    if name in ("sum", "mean"):
        return getattr(x, name)(1, keepdims=True), 4 * sums
    if name == "var":
        return x.var(1, keepdims=True), 64 * _UNIT * n * (size.max(1, keepdims=True) + 1e-20) ** 2
    if name == "where":
        return np.where(x > y, x, y), 0
    if name == "add":
        return (x.astype(np.float32) + y.astype(np.float32)), 0
    if name == "transpose":
        return x.T, 0
    if name == "matmul":
        return x.T @ y, 4 * _UNIT * (len(x) + 1) * (np.abs(x).T @ np.abs(y)) + 2.0**-126
    if name == "rms_norm":
        found = x / np.sqrt((x * x).sum(1, keepdims=True) / n + 1e-6) * y
        return found, 64 * _UNIT * n * np.abs(found) + 2.0**-126
    powers = np.exp(x - x.max(1, keepdims=True))
    found = powers / powers.sum(1, keepdims=True)
    return found, 64 * _UNIT * (n + size.max(1, keepdims=True)) * found + 2.0**-126


_OF_VIEWS: dict[str, Callable[[Step, Array, Any, Any], tuple[Array, Any]]] = {
    "binary": _binary, "function": _function, "shift": _shift, "cast": _cast, "exponential": _exponential,
    "reduce_chain": _reduce_chain, "shuffle": _shuffle, "n_gather": _n_gather, "local_gather": _local_gather, "find8": _find8,
    "replace8": _replace8, "bn_aggr": _bn_aggr, "bounds": _bounds, "nonzero": _nonzero, "summed": _summed, "psum": _psum,
    "language": _language,
}  # fmt: skip


# ---- steps on whole tiles -------------------------------------------------------------------------------------------


def _viewed(step: Step, state: dict[str, Array], which: int) -> Array:
    found = state[step["tile"]]
    for name, *given in step["views"]:
        if name == "permute":
            found = found.transpose(given[0])
        elif name == "slice":
            dim, start, end, by = given
            found = found[(slice(None),) * dim + (slice(start, end, by),)]
        elif name == "select":
            found = found.take(given[1], axis=given[0])
        elif name == "reshape_dim":
            found = found.reshape(*found.shape[: given[0]], *given[1], *found.shape[given[0] + 1 :])
        elif name == "expand_dim":
            found = np.expand_dims(found, given[0])
        elif name == "squeeze_dim":
            found = found.squeeze(given[0])
        elif name == "broadcast":
            found = found.repeat(given[1], axis=given[0])
        elif name == "flatten":
            found = found.reshape(len(found), -1)
        else:
            found = found.reshape(given[0])
    return found


def _rows(step: Step, state: dict[str, Array], which: int) -> Array:
    tile = state[step["tile"]]
    return tile[state["noise"][: step["count"], 0].astype(np.int64) % len(tile)]


def _scatter(step: Step, state: dict[str, Array], which: int) -> Array:
    found, count = state[step["tile"]].copy(), step["count"]
    found[:count] = found[:count][::-1].copy()
    return found


def _dynamic(step: Step, state: dict[str, Array], which: int) -> Array:
    row = state[step["tile"]][step["at"][which]]
    return row if step["by"] == "select" else row[None]


def _turned(step: Step, state: dict[str, Array], which: int) -> Array:
    tile = state[step["tile"]]
    tile = tile[:32] if step["what"] == "turned32" else tile
    return tile.reshape(len(tile), -1).T


_OF_TILES: dict[str, Callable[[Step, dict[str, Array], int], Array]] = {
    "hbm": _viewed,
    "sbuf": _viewed,
    "rows": _rows,
    "scatter": _scatter,
    "dynamic": _dynamic,
    "turned": _turned,
    "turned32": _turned,
}
