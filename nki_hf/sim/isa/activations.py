"""Scalar engine: an activation function of scaled and biased data, with an optional reduction."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.sim.execution.actions import Action
from nki_hf.sim.isa.alu import stage
from nki_hf.sim.isa.copies import copy_action
from nki_hf.sim.isa.enums import reduce_cmd as ReduceCmd
from nki_hf.sim.isa.instruction import NkiInstruction, begin, tensors
from nki_hf.sim.isa.operators import OPERATORS, Operator, as_operator
from nki_hf.sim.isa.registers import reduction
from nki_hf.sim.tensors.origins import note_copy
from nki_hf.sim.tensors.tensor import NkiTensor
from nki_hf.sim.tensors.values import Array, column, float_target, reader, writer

__all__ = ["activate2", "activation", "activation_reduce"]


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


def activate2(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    imm0: Any,
    imm1: Any,
    op0: Any,
    op1: Any,
    relu_param: Any = 0.0,
    reverse0: bool = False,
    reverse1: bool = False,
    reduce_op: Any = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: ReduceCmd = ReduceCmd.idle,
    name: str | None = None,
) -> NkiInstruction:
    """`dst = op((data <op0> imm0) <op1> imm1)` in float32 (NeuronCore-v4), with the registers as in `activation`.

    `nl.bypass` skips a stage. `relu_param` is the slope of `nl.prelu` for negative inputs. Immediates and `relu_param` are
    numbers or `[partitions, 1]`.
    """
    op, op0, op1 = as_operator(op), as_operator(op0), as_operator(op1)
    folds = None if reduce_op is None else as_operator(reduce_op)
    this = begin(
        "activate2", dst=dst, op=op, data=data, imm0=imm0, imm1=imm1, op0=op0, op1=op1, relu_param=relu_param,
        reverse0=reverse0, reverse1=reverse1, reduce_op=folds, reduce_res=reduce_res, reduce_cmd=reduce_cmd,
    )  # fmt: skip
    action = None
    if this.values:
        read, write, function, slope = reader(data), writer(dst), _engine_function(op), column(relu_param)
        stages = [
            stage(item, operand, reverse)
            for item, operand, reverse in ((op0, imm0, reverse0), (op1, imm1, reverse1))
            if item.name != "bypass"
        ]
        fold = reduction(this.machine, "scalar", "activate2", data, reduce_cmd, folds or OPERATORS["add"], reduce_res)

        def action() -> None:
            values = read()
            for compute in stages:
                values = compute(values)
            values = function(values, slope()) if op.name == "prelu" else function(values)
            write(values)
            if fold is not None:
                fold(values)

    return this.issue(
        engine="scalar",
        reads=tensors(data, imm0, imm1, relu_param),
        writes=(dst, *tensors(reduce_res)),
        action=action,
        op=op.name,
        op0=op0.name,
        op1=op1.name,
        reduce=folds.name if folds is not None else None,
        reduce_cmd=reduce_cmd.name,
    )


def _activation(
    opcode: str,
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    bias: Any,
    scale: Any,
    reduce_op: Any,
    reduce_res: NkiTensor | None,
    reduce_cmd: ReduceCmd,
) -> NkiInstruction:
    op = as_operator(op)
    folds = None if reduce_op is None else as_operator(reduce_op)
    arguments = {"dst": dst, "op": op, "data": data, "bias": bias, "scale": scale, "reduce_op": folds, "reduce_res": reduce_res}
    if opcode == "activation":
        arguments["reduce_cmd"] = reduce_cmd
    this = begin(opcode, **arguments)
    action, fold = None, None
    if this.values:
        default = OPERATORS["add"]
        fold = reduction(this.machine, "scalar", opcode, data, reduce_cmd, folds or default, reduce_res)
        action = _activation_action(dst, op, data, bias, scale, fold)
    handle = this.issue(
        engine="scalar",
        reads=tensors(data, bias, scale),
        writes=(dst, *tensors(reduce_res)),
        action=action,
        op=op.name,
        reduce=folds.name if folds is not None else None,
        reduce_cmd=reduce_cmd.name,
        scale=not _is(scale, 1.0),
        bias=not _is(bias, 0.0),
    )
    if action is not None and _moves(op, data, bias, scale, fold):
        note_copy(dst, data)
    return handle


def _moves(op: Operator, data: NkiTensor, bias: Any, scale: Any, fold: Any) -> bool:
    return op.name == "copy" and _is(scale, 1.0) and _is(bias, 0.0) and fold is None and data.dtype.is_float


def _is(value: Any, neutral: float) -> bool:
    return value is None or (not isinstance(value, NkiTensor) and value == neutral)


def _activation_action(dst: NkiTensor, op: Operator, data: NkiTensor, bias: Any, scale: Any, fold: Any) -> Action:
    read, function = reader(data), _engine_function(op)
    times = None if _is(scale, 1.0) else column(scale)
    plus = None if _is(bias, 0.0) else column(bias)
    if _moves(op, data, bias, scale, fold):
        return copy_action(dst, data)  # float32 holds every value of the smaller types: the detour changes nothing
    target = float_target(dst)
    write = writer(dst) if target is None else np.asarray  # a float32 target is written by the function itself
    in_place = isinstance(function, np.ufunc)

    def action() -> None:
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

    return action


def _engine_function(op: Operator) -> Any:
    """What the Scalar engine computes for `op`: its exact function, but `sin` extrapolates outside [-pi, pi]."""
    return _extrapolated_sin if op.name == "sin" else op.compute


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
