"""Scalar engine: an activation function of scaled and biased data, with an optional reduction."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.sim.isa.enums import reduce_cmd as ReduceCmd
from nki_hf.sim.isa.instruction import NkiInstruction, begin, tensors
from nki_hf.sim.isa.registers import reduction
from nki_hf.sim.language.operators import OPERATORS, Operator, as_operator
from nki_hf.sim.machine import Step
from nki_hf.sim.tensor import NkiTensor
from nki_hf.sim.values import Array, column, float_target, reader, writer

__all__ = ["activation", "activation_reduce", "engine_function"]


def activation(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: ReduceCmd = ReduceCmd.idle,
    name: str | None = None,
) -> NkiInstruction:
    """`dst = op(data * scale + bias)` in float32, rounded once; `scale` and `bias` are immediates or `[partitions, 1]`.

    The Scalar engine's registers sum the float32 result as `reduce_cmd` says, and `reduce_res [partitions, 1]` receives
    them; it may alias `dst`, then the registers win.
    """
    return _activation("activation", dst, op, data, bias, scale, reduce_op, reduce_res, reduce_cmd)


def activation_reduce(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    reduce_op: Any,
    reduce_res: NkiTensor,
    bias: Any = None,
    scale: Any = 1.0,
    name: str | None = None,
) -> NkiInstruction:
    """`activation` with `reduce_cmd=reset_reduce`: `reduce_res` is the reduction of this instruction's result."""
    return _activation("activation_reduce", dst, op, data, bias, scale, reduce_op, reduce_res, ReduceCmd.reset_reduce)


def engine_function(op: Operator) -> Any:
    """What the Scalar engine computes for `op`: its exact function, but `sin` extrapolates outside [-pi, pi]."""
    return _extrapolated_sin if op.name == "sin" else op.compute


def _activation(
    opcode: str, dst: NkiTensor, op: Any, data: NkiTensor, bias: Any, scale: Any, reduce_op: Any,
    reduce_res: NkiTensor | None, reduce_cmd: ReduceCmd,
) -> NkiInstruction:  # fmt: skip
    op = as_operator(op)
    folds = None if reduce_op is None else as_operator(reduce_op)
    arguments = {"dst": dst, "op": op, "data": data, "bias": bias, "scale": scale, "reduce_op": folds, "reduce_res": reduce_res}
    if opcode == "activation":
        arguments["reduce_cmd"] = reduce_cmd
    this = begin(opcode, **arguments)
    step = None
    if this.values:
        default = OPERATORS["add"]
        fold = reduction(this.machine, "scalar", opcode, data, reduce_cmd, folds or default, reduce_res)
        step = _activation_step(dst, op, data, bias, scale, fold)
    return this.issue(
        engine="scalar", reads=tensors(data, bias, scale), writes=(dst, *tensors(reduce_res)), step=step, op=op.name,
        reduce=folds.name if folds is not None else None, reduce_cmd=reduce_cmd.name, scale=not _is(scale, 1.0),
        bias=not _is(bias, 0.0),
    )  # fmt: skip


def _is(value: Any, neutral: float) -> bool:
    return value is None or (not isinstance(value, NkiTensor) and value == neutral)


def _activation_step(dst: NkiTensor, op: Operator, data: NkiTensor, bias: Any, scale: Any, fold: Any) -> Step:
    read, function = reader(data), engine_function(op)
    times = None if _is(scale, 1.0) else column(scale)
    plus = None if _is(bias, 0.0) else column(bias)
    target = float_target(dst)
    write = writer(dst)
    in_place = isinstance(function, np.ufunc)

    def step() -> None:
        values = read()
        if times is not None:
            values = values * times()
            if plus is not None:
                values += plus()
        elif plus is not None:
            values = values + plus()
        if target is not None:
            function(values, out=target)
            values = target
        else:
            if in_place and (times is not None or plus is not None):
                values = function(values, out=values)
            else:
                values = function(values)
            write(values)
        if fold is not None:
            fold(values)

    return step


# The engine evaluates its polynomial beyond the ends of the last interval, with no range reduction. Documented: sin(9) is
# about 27.65. The cubic below is the one through sin's value, slope and curvature at pi (x - pi = 5.858 gives
# -d + d^3/6 = 27.65).
_PI = np.float32(np.pi)


def _extrapolated_sin(x: Array, out: Array | None = None) -> Array:
    beyond = np.abs(x) > _PI
    if not beyond.any():
        return np.sin(x, out=out)
    past = np.where(beyond, x - np.copysign(_PI, x), np.float32(0))
    values = np.where(beyond, past * past * past / np.float32(6) - past, np.sin(x)).astype(np.float32)
    if out is None:
        return values
    out[...] = values
    return out
