"""What one instruction does, in NumPy, written from the documented semantics and nothing of the simulator.

Each function takes the state before the instruction (arrays by tile) and gives the tiles that it changes: what is to be
written, and how far a result may be from it beside the rounding to its type (0 where the result is exact).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tools.fuzz.kernel_programs import EXCHANGES, Step
from tools.fuzz.rare_programs import rare_result
from tools.fuzz.wide_model import wide_result

__all__ = ["Array", "State", "after", "rounded", "viewed"]

Array = np.ndarray[Any, Any]
State = dict[str, Array]
Result = list[tuple[Array, Array, Any]]
"""Of each view that is written: the view, its values and their slack."""

_UNIT = np.float64(2.0**-24)
_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": lambda x, y: np.float32(1) * (x == y),
    "not_equal": lambda x, y: np.float32(1) * (x != y),
    "less": lambda x, y: np.float32(1) * (x < y),
    "less_equal": lambda x, y: np.float32(1) * (x <= y),
    "greater": lambda x, y: np.float32(1) * (x > y),
    "greater_equal": lambda x, y: np.float32(1) * (x >= y),
    "logical_and": lambda x, y: np.float32(1) * ((x != 0) & (y != 0)),
    "logical_or": lambda x, y: np.float32(1) * ((x != 0) | (y != 0)),
    "logical_xor": lambda x, y: np.float32(1) * ((x != 0) != (y != 0)),
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
}
_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "relu": lambda x: np.maximum(x, 0),
    "square": np.square,
    "tanh": np.tanh,
    "abs": np.abs,
    "copy": lambda x: x,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sqrt": np.sqrt,
    "sign": np.sign,
}


def viewed(state: State, view: Step) -> Array:
    """The elements of a view, in its order; a view of the state where it can be written."""
    array = state[view["tile"]][slice(*view["partitions"])]
    for axis, (first, count, step) in enumerate(view["axes"], start=1):
        index = [slice(None)] * 3
        index[axis] = slice(first, first + (count - 1) * step + 1, step)
        array = array[tuple(index)]
    if "broadcast" in view:
        axis = 1 + view["broadcast"]
        array = np.broadcast_to(array[:, :1] if axis == 1 else array[:, :, :1], array.shape)
    return array.transpose(0, 2, 1) if view["order"] == "permute" else array


def rounded(values: Array, kind: Any) -> Array:
    """Values in an element type: to nearest even; integers saturate, and NaN is 0."""
    kind = np.dtype(kind)
    if values.dtype == kind:
        return values
    if kind.kind in "iu":
        wide, limits = np.rint(values.astype(np.float64)), np.iinfo(kind)
        return np.where(np.isnan(wide), 0, np.clip(wide, limits.min, limits.max)).astype(kind)
    return values.astype(np.float32).astype(kind)


def after(step: Step, state: State, other: State | None = None, which: int = 0) -> Result:
    """What a step writes. `other` is the state of the other core, for an exchange; `which` says whose run-time values count.

    Views are flat, `[partitions, elements]`: only the number of elements of operands must agree.
    """
    if step["op"] in ("wide", "rare"):
        result = wide_result if step["op"] == "wide" else rare_result
        return [(state["result"], *result(step, functools.partial(_raw, state), state, which))]
    found: Result = _STEPS[step["op"]](step, state) if step["op"] not in EXCHANGES else []
    if other is not None:
        found = [(state[step["dst"]], other[step["data"]].copy(), 0)]
    return found


def _read(state: State, view: Step) -> Array:
    picked = viewed(state, view)
    return picked.reshape(len(picked), -1).astype(np.float32)


def _raw(state: State, view: Step) -> Array:
    picked = viewed(state, view)
    return picked.reshape(len(picked), -1)


def _operand(state: State, step: Step, value: Any) -> Any:
    """A column `[partitions, 1]` of the instruction's partitions, or a number."""
    return state[value][slice(*step["dst"]["partitions"])] if isinstance(value, str) else np.float32(value)


def _written(state: State, step: Step, values: Array, slack: Any = 0) -> Result:
    return [(viewed(state, step["dst"]), values, slack)]


def _column(state: State, step: Step, values: Array, slack: Any = 0) -> Result:
    return [] if step.get("column") is None else [(state[step["column"]][slice(*step["dst"]["partitions"])], values, slack)]


def _combined(alu: str, one: Any, two: Any, reverse: bool = False) -> Array:
    found: Array = _BINARY[alu](*((two, one) if reverse else (one, two)))
    return found


def _copy(step: Step, state: State) -> Result:
    raw = _raw(state, step["data"])
    same = raw.dtype == state[step["dst"]["tile"]].dtype
    return _written(state, step, raw.copy() if same else raw.astype(np.float32))


def _memset(step: Step, state: State) -> Result:
    return _written(state, step, np.full((1, 1), step["value"], np.float32))


def _tensor_tensor(step: Step, state: State) -> Result:
    raw = [_raw(state, step[name]) for name in ("data", "other")]
    if step["alu"].startswith("bitwise"):
        return _written(state, step, _combined(step["alu"], *raw))
    if all(each.dtype == np.int32 for each in (*raw, state[step["dst"]["tile"]])):
        # GpSimd computes whole numbers exactly; they wrap at 32 bits.
        exact = _combined(step["alu"], *(each.astype(np.int64) for each in raw))
        return _written(state, step, exact.astype(np.int64).astype(np.int32))
    return _written(state, step, _combined(step["alu"], *(each.astype(np.float32) for each in raw)))


def _tensor_scalar(step: Step, state: State) -> Result:
    values = _combined(step["alu"], _read(state, step["data"]), _operand(state, step, step["operand"]), step["reverse"])
    if step["alu1"] is not None:
        values = _combined(step["alu1"], values, _operand(state, step, step["operand1"]), step["reverse1"])
    return _written(state, step, values)


def _scalar_tensor_tensor(step: Step, state: State) -> Result:
    values = _combined(step["alu"], _read(state, step["data"]), _operand(state, step, step["operand"]), step["reverse"])
    return _written(state, step, _combined(step["alu1"], values, _read(state, step["other"]), step["reverse1"]))


def _affine(step: Step, state: State) -> Array:
    partitions, rows, columns = viewed(state, {**step["dst"], "order": None}).shape
    p, i, j = np.ogrid[:partitions, :rows, :columns]
    pattern = step["offset"] + step["multiplier"] * p + step["strides"][0] * i + step["strides"][1] * j
    return pattern.reshape(partitions, -1)


def _iota(step: Step, state: State) -> Result:
    return _written(state, step, _affine(step, state))


def _affine_select(step: Step, state: State) -> Result:
    chosen = _BINARY[step["alu"]](_affine(step, state), np.int64(0)) != 0
    kind = state[step["dst"]["tile"]].dtype
    data = rounded(_raw(state, step["data"]), kind) if _raw(state, step["data"]).dtype != kind else _raw(state, step["data"])
    return _written(state, step, np.where(chosen, data, rounded(np.float32([step["value"]]), kind)))


def _folded(alu: str, values: Array) -> tuple[Array, Any]:
    """The reduction of the last axis, and how far sums in another order may be from it."""
    wide, reduce = values.astype(np.float64), _BINARY[alu].reduce  # type: ignore[attr-defined]
    total = reduce(wide, axis=-1, keepdims=True)
    if alu in ("maximum", "minimum"):
        return total, 0
    count = values.shape[-1]
    size = np.abs(wide).sum(-1, keepdims=True) if alu == "add" else np.abs(total)
    slack = np.where(size < 1e37, _UNIT * count * size + 2.0**-126, np.inf)  # partial sums may overflow
    if alu == "multiply":  # factors that leave float32's range when they come first may not come back into it
        powers = np.log2(np.where(wide == 0, 1.0, np.abs(wide)))
        far = np.maximum(powers.clip(0).sum(-1, keepdims=True), -powers.clip(max=0).sum(-1, keepdims=True)) > 120
        slack = np.where(far, np.inf, slack)
    return total, slack


def _reduce(step: Step, state: State) -> Result:
    total, slack = _folded(step["alu"], _read(state, step["data"]))
    return _column(state, step, -total if step["negate"] else total, slack)


def _partition_reduce(step: Step, state: State) -> Result:
    total, slack = _folded(step["alu"], _read(state, step["data"]).T)
    row = viewed(state, {**step["dst"], "partitions": (step["dst"]["partitions"][0], step["dst"]["partitions"][0] + 1)})
    return [(row, total.T, slack.T if isinstance(slack, np.ndarray) else slack)]


def _predicated(step: Step, state: State) -> Result:
    mask = _raw(state, step["mask"]) != 0
    target = viewed(state, step["dst"])
    kind, kept = target.dtype, target.reshape(len(target), -1)
    data = np.float32([[step["data"]]]) if isinstance(step["data"], float) else _raw(state, step["data"])
    data = data if data.dtype == kind else rounded(data, kind)
    return _written(state, step, np.where(mask != step["reverse"], data, kept))


def _activation(step: Step, state: State) -> Result:
    values = _read(state, step["data"])
    if not (isinstance(step["scale"], float) and step["scale"] == 1.0):
        values = values * _operand(state, step, step["scale"])
    if step["bias"] is not None:
        values = values + _operand(state, step, step["bias"])
    result = _FUNCTIONS[step["function"]](values.astype(np.float64))
    exact = step["function"] in ("relu", "abs", "copy", "sign")
    slack: Any = 0 if exact else 8 * _UNIT * np.abs(result) + 2.0**-126
    total, apart = _folded("add", result)
    found = _written(state, step, result, slack)
    if step["column"] is not None:
        found += _column(state, step, total, apart + np.sum(np.broadcast_to(slack, result.shape), -1, keepdims=True))
    return found


def _reciprocal(step: Step, state: State) -> Result:
    return _written(state, step, np.float32(1) / _read(state, step["data"]))


def _select(step: Step, state: State) -> Result:
    mask = _raw(state, step["mask"]) != 0
    values = np.where(mask != step["reverse"], _read(state, step["data"]), _operand(state, step, step["operand"]))
    return _written(state, step, values) + _column(state, step, values.max(-1, keepdims=True))


def _range_select(step: Step, state: State) -> Result:
    data = _read(state, step["data"])
    index = np.float32(step["first"]) + np.arange(data.shape[1], dtype=np.float32)
    low, high = _operand(state, step, "c0"), _operand(state, step, "c1")
    inside = (_combined(step["alu"], index, low) != 0) & (_combined(step["alu1"], index, high) != 0)
    values = np.where(inside, data, np.finfo(np.float32).min)
    return _written(state, step, values) + _column(state, step, values.max(-1, keepdims=True))


def _scan(step: Step, state: State) -> Result:
    data, other = _read(state, step["data"]), _read(state, step["other"])
    running = np.broadcast_to(_operand(state, step, step["operand"]), (len(data), 1))[:, 0].astype(np.float32)
    columns = []
    for index in range(data.shape[1]):
        inner = _combined(step["alu"], data[:, index], running, step["reverse"])
        running = _combined(step["alu1"], inner, other[:, index], step["reverse1"])
        columns.append(running)
    return _written(state, step, np.stack(columns, 1))


def _scalar_reduce(step: Step, state: State) -> Result:
    values = _combined(step["alu"], _read(state, step["data"]), _operand(state, step, step["operand"]))
    total, slack = _folded(step["alu1"], values)
    return _written(state, step, values) + _column(state, step, -total if step["negate"] else total, slack)


def _cumulative(step: Step, state: State) -> Result:
    values = _combined(step["alu"], _read(state, step["data"]), _operand(state, step, step["operand"])).astype(np.float64)
    running = _BINARY[step["alu1"]].accumulate(values, axis=1)  # type: ignore[attr-defined]
    slack = _UNIT * values.shape[1] * np.abs(values).cumsum(1) if step["alu1"] == "add" else 0
    return _written(state, step, running, slack)


def _matmul(step: Step, state: State) -> Result:
    one, two = (_read(state, step[name]).astype(np.float64) for name in ("data", "other"))
    # The second product adds to the first where it says so, or where nothing is said of what was written before.
    times = 2 if step["twice"] and step["accumulate"] is not False else 1
    size = np.abs(one).T @ np.abs(two)
    slack = np.where(size < 1e37, _UNIT * (2 * len(one) + 2) * times * size + 2.0**-126, np.inf)  # partial sums may overflow
    return [(state["result"], times * (one.T @ two), slack)]


def _transpose(step: Step, state: State) -> Result:
    return [(state["result"], _raw(state, step["data"]).T, 0)]


def _max8(step: Step, state: State) -> Result:
    return [(state["result"], np.sort(_read(state, step["data"]), axis=1)[:, ::-1][:, :8], 0)]


def _bn_stats(step: Step, state: State) -> Result:
    parts, slacks = [], []
    for values in (_read(state, step["data"]).astype(np.float64)[:, first::2] for first in (0, 1)):
        count = np.full((len(values), 1), float(values.shape[1]))
        if not values.shape[1]:
            parts.append(np.zeros((len(values), 3)))
            slacks.append(np.zeros((len(values), 3)))
            continue
        mean = values.mean(1, keepdims=True)
        size = np.abs(values).max(1, keepdims=True)
        parts.append(np.concatenate([count, mean, ((values - mean) ** 2).sum(1, keepdims=True)], 1))
        slacks.append(np.concatenate([0 * size, 16 * _UNIT * size, 128 * _UNIT * count * size**2], 1))
    return [(state["result"], np.concatenate(parts, 1), np.concatenate(slacks, 1))]


_STEPS: dict[str, Callable[[Step, State], Result]] = {
    "copy": _copy, "dma": _copy, "memset": _memset, "tensor_tensor": _tensor_tensor, "tensor_scalar": _tensor_scalar,
    "scalar_tensor_tensor": _scalar_tensor_tensor, "iota": _iota, "affine_select": _affine_select, "reduce": _reduce,
    "partition_reduce": _partition_reduce, "predicated": _predicated, "activation": _activation, "reciprocal": _reciprocal,
    "select": _select, "range_select": _range_select, "scan": _scan, "scalar_reduce": _scalar_reduce, "cumulative": _cumulative,
    "matmul": _matmul, "transpose": _transpose, "max8": _max8, "bn_stats": _bn_stats,
}  # fmt: skip


@functools.cache
def kind_of(name: str) -> np.dtype[Any]:
    """NumPy's element type of that name."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
