"""Reductions along the free axes (Vector engine) and across partitions (GpSimd engine)."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.sim.constraints import refuse_non_tensors
from nki_hf.sim.execution.actions import Action
from nki_hf.sim.faults import fault
from nki_hf.sim.isa.alu import stage
from nki_hf.sim.isa.enums import reduce_cmd as ReduceCmd
from nki_hf.sim.isa.instruction import NkiInstruction, begin, tensors
from nki_hf.sim.isa.operators import Operator, as_operator
from nki_hf.sim.isa.registers import reduction
from nki_hf.sim.tensors.casts import widen
from nki_hf.sim.tensors.tensor import NkiTensor
from nki_hf.sim.tensors.values import bit_reader, bit_writer, reader, writer

__all__ = ["tensor_partition_reduce", "tensor_reduce", "tensor_scalar_reduce"]


def tensor_reduce(
    dst: NkiTensor, op: Any, data: NkiTensor, axis: Any, negate: bool = False, keepdims: bool = False, name: str | None = None
) -> NkiInstruction:
    """`dst = op` over the trailing free axes `axis` of `data`, in float32 (bit patterns for bitwise operators).

    `axis` is an int or a sequence of ints that ends at the last axis; `negate` multiplies the result by -1; `keepdims` has
    no effect here, because only the number of elements per partition of `dst` counts.
    """
    op = as_operator(op)
    axes = _trailing_axes("tensor_reduce", data, axis)
    this = begin("tensor_reduce", dst=dst, op=op, data=data, axis=axes, negate=negate, keepdims=keepdims)
    action = _reduce_action(dst, op, data, axes, negate) if this.values else None
    return this.issue(engine="vector", reads=(data,), writes=(dst,), action=action, op=op.name, axis=axes, negate=negate)


def tensor_scalar_reduce(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: NkiTensor | None = None,
    reverse0: bool = False,
    reduce_cmd: ReduceCmd = ReduceCmd.reset_reduce,
    reduce_init: Any = None,
    reduce_res_negate: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """`dst = data <op0> operand0`, and the Vector engine's registers reduce the float32 result along the free axes.

    `reduce_res [partitions, 1]` receives the registers (negated if asked for); None leaves the result in them.
    """
    op0, reduce_op = as_operator(op0), as_operator(reduce_op)
    this = begin(
        "tensor_scalar_reduce",
        dst=dst,
        data=data,
        op0=op0,
        operand0=operand0,
        reduce_op=reduce_op,
        reduce_res=reduce_res,
        reverse0=reverse0,
        reduce_cmd=reduce_cmd,
        reduce_init=reduce_init,
        reduce_res_negate=reduce_res_negate,
    )
    action = None
    if this.values:
        read, first, write = reader(data), stage(op0, operand0, reverse0), writer(dst)
        fold = reduction(
            this.machine,
            "vector",
            "tensor_scalar_reduce",
            data,
            reduce_cmd,
            reduce_op,
            reduce_res,
            reduce_init,
            negate=reduce_res_negate,
        )

        def action() -> None:
            values = first(read())
            write(values)
            if fold is not None:
                fold(values)

    return this.issue(
        engine="vector",
        reads=tensors(data, operand0, reduce_init),
        writes=(dst, *tensors(reduce_res)),
        action=action,
        op0=op0.name,
        reduce=reduce_op.name,
        reduce_cmd=reduce_cmd.name,
    )


def tensor_partition_reduce(dst: NkiTensor, op: Any, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """`dst [1, ...] = op` over the partitions of `data`, in float32; `nl.average` divides the sum by their number."""
    op = as_operator(op)
    this = begin("tensor_partition_reduce", dst=dst, op=op, data=data)
    action = None
    if this.values:
        if op.is_bitwise:
            bits, store = bit_reader(data), bit_writer(dst)
            action = lambda: store(op.reduce.reduce(bits(), axis=0, keepdims=True))  # noqa: E731
        else:
            read, write, rows = reader(data), writer(dst), np.float32(data.partitions)
            if op.name == "average":
                action = lambda: write(np.add.reduce(read(), axis=0, keepdims=True) / rows)  # noqa: E731
            else:
                action = lambda: write(op.fold(read().T).T)  # noqa: E731
    return this.issue(engine="gpsimd", reads=(data,), writes=(dst,), action=action, op=op.name)


def _trailing_axes(opcode: str, data: NkiTensor, axis: Any) -> tuple[int, ...]:
    refuse_non_tensors(opcode, {"data": data})
    asked = (axis,) if isinstance(axis, int | np.integer) else tuple(axis)
    axes = tuple(sorted(int(item) % data.ndim if -data.ndim <= item < data.ndim else int(item) for item in asked))
    if not axes or axes != tuple(range(axes[0], data.ndim)) or axes[0] == 0:
        fault(
            "argument",
            opcode,
            f"axis={axis!r} of data {list(data.shape)}",
            limit="must be the last free axes, without gaps and without the partition axis",
            operands=(f"data {data!r}",),
            axis=axis,
        )
    return axes


_HALVED = (4, 8, 16, 32)
"""Lengths of a last axis that is folded by halves: NumPy reduces so few elements in a row one by one."""


def _halves(op: Any) -> Any:
    def fold(values: Any, axis: tuple[int, ...]) -> Any:
        while values.shape[-1] > 1:
            half = values.shape[-1] // 2
            values = op(values[..., :half], values[..., half:])
        return values

    return fold


def _reduce_action(dst: NkiTensor, op: Operator, data: NkiTensor, axes: tuple[int, ...], negate: bool) -> Action:
    kept, reduced = 1, 1
    for index in range(1, data.ndim):
        if index in axes:
            reduced *= data.shape[index]
        else:
            kept *= data.shape[index]
    grouped, shape = (data.partitions, kept, reduced), (data.partitions, kept)
    if op.is_bitwise:
        bits, store = bit_reader(data), bit_writer(dst)
        return lambda: store(op.fold(bits().reshape(grouped)).reshape(shape))
    write = writer(dst)
    if op.name in ("add", "multiply", "maximum", "minimum") and data.indirection is None:
        # On the strided view itself: NumPy reduces permuted axes without a copy.
        array, fold = data.array(), op.reduce.reduce
        if op.name in ("maximum", "minimum") and len(axes) == 1 and array.shape[-1] in _HALVED:
            fold = _halves(op.reduce)
        convert = widen(array.dtype) if array.dtype != np.float32 else None

        def action() -> None:
            values = fold(array if convert is None else convert(array), axis=axes).reshape(shape)
            write(np.negative(values) if negate else values)

        return action
    read = reader(data)

    def folded() -> None:
        values = op.fold(read().reshape(grouped)).reshape(shape)
        write(np.negative(values) if negate else values)

    return folded
