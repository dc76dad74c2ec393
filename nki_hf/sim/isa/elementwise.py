"""Element-wise instructions of the Vector engine (some of them also on Scalar or GpSimd)."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.sim.execution.actions import Action
from nki_hf.sim.isa.alu import bit_column, shift_safe, stage
from nki_hf.sim.isa.enums import engine as Engine
from nki_hf.sim.isa.instruction import NkiInstruction, begin, resolve_engine, tensors
from nki_hf.sim.isa.operators import OPERATORS, Operator, as_operator
from nki_hf.sim.tensors.casts import cast
from nki_hf.sim.tensors.tensor import NkiTensor
from nki_hf.sim.tensors.values import bit_reader, bit_type, bit_writer, float_target, native_reader, reader, storer, writer

__all__ = ["reciprocal", "scalar_tensor_tensor", "tensor_scalar", "tensor_tensor"]

_INT32 = ("int32", "uint32")


def tensor_tensor(
    dst: NkiTensor, data1: NkiTensor, data2: NkiTensor, op: Any, engine: Engine = Engine.unknown, name: str | None = None
) -> NkiInstruction:
    """`dst = data1 <op> data2`, element by element in float32.

    Bitwise operators work on bit patterns. If all tiles are int32 or uint32 in SBUF and no engine is asked for, GpSimd
    computes in exact integer arithmetic (results wrap at 32 bits).
    """
    op = as_operator(op)
    this = begin("tensor_tensor", dst=dst, data1=data1, data2=data2, op=op, engine=engine)
    tiles = (dst, data1, data2)
    integers = all(tile.dtype.name in _INT32 for tile in tiles) and not op.is_bitwise
    on_gpsimd = op.name == "power" or (integers and all(tile.space == "sbuf" for tile in tiles))
    where = resolve_engine(engine, "gpsimd" if on_gpsimd else "vector")
    action = None
    if this.values:
        if op.is_bitwise:
            action = _bitwise_pair(dst, data1, data2, op)
        elif integers and where == "gpsimd":
            action = _integer_pair(dst, data1, data2, op)
        else:
            action = _float_pair(dst, data1, data2, op)
    return this.issue(engine=where, reads=(data1, data2), writes=(dst,), action=action, op=op.name)


def tensor_scalar(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    engine: Engine = Engine.unknown,
    name: str | None = None,
) -> NkiInstruction:
    """`dst = (data <op0> operand0) <op1> operand1`; operands are immediates or tiles `[partitions, 1]`.

    Float32 arithmetic rounded once at the end; two bitwise operators work on bit patterns instead. Unary operators ignore
    their operand.
    """
    op0, op1 = as_operator(op0), None if op1 is None else as_operator(op1)
    this = begin(
        "tensor_scalar",
        dst=dst,
        data=data,
        op0=op0,
        operand0=operand0,
        reverse0=reverse0,
        op1=op1,
        operand1=operand1,
        reverse1=reverse1,
        engine=engine,
    )
    action = None
    if this.values:
        build = _bitwise_scalar if op0.is_bitwise else _float_scalar
        action = build(dst, data, op0, operand0, reverse0, op1, operand1, reverse1)
    return this.issue(
        engine=resolve_engine(engine, "vector"),
        reads=tensors(data, operand0, operand1),
        writes=(dst,),
        action=action,
        op0=op0.name,
        op1=op1.name if op1 is not None else None,
    )


def scalar_tensor_tensor(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: NkiTensor,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """`dst = (data <op0> operand0) <op1> operand1`: first a per-partition operand, then a tile, in float32."""
    op0, op1 = as_operator(op0), as_operator(op1)
    this = begin(
        "scalar_tensor_tensor",
        dst=dst,
        data=data,
        op0=op0,
        operand0=operand0,
        op1=op1,
        operand1=operand1,
        reverse0=reverse0,
        reverse1=reverse1,
    )
    action = None
    if this.values:
        action = _chain(dst, data, stage(op0, operand0, reverse0), stage(op1, reader(operand1), reverse1))
    return this.issue(
        engine="vector", reads=tensors(data, operand0, operand1), writes=(dst,), action=action, op0=op0.name, op1=op1.name
    )


def reciprocal(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """`dst = 1 / data` in float32."""
    this = begin("reciprocal", dst=dst, data=data)
    action = _chain(dst, data, OPERATORS["reciprocal"].compute, None) if this.values else None
    return this.issue(engine="vector", reads=(data,), writes=(dst,), action=action, op="reciprocal")


def _chain(dst: NkiTensor, data: NkiTensor, first: Any, second: Any) -> Action:
    read, target = reader(data), float_target(dst)
    if target is not None:
        if second is None:
            return lambda: first(read(), out=target)
        return lambda: second(first(read()), out=target)
    write = writer(dst)
    if second is None:
        return lambda: write(first(read()))
    return lambda: write(second(first(read())))


def _float_pair(dst: NkiTensor, data1: NkiTensor, data2: NkiTensor, op: Operator) -> Action:
    left, right, target, compute = reader(data1), reader(data2), float_target(dst), op.compute
    if target is not None:
        return lambda: compute(left(), right(), out=target)
    write = writer(dst)
    return lambda: write(compute(left(), right()))


def _float_scalar(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Operator,
    operand0: Any,
    reverse0: bool,
    op1: Operator | None,
    operand1: Any,
    reverse1: bool,
) -> Action:
    second = None if op1 is None else stage(op1, operand1, reverse1)
    return _chain(dst, data, stage(op0, operand0, reverse0), second)


def _integer_pair(dst: NkiTensor, data1: NkiTensor, data2: NkiTensor, op: Operator) -> Action:
    left, right, dtype, store = native_reader(data1), native_reader(data2), dst.dtype, storer(dst)

    def action() -> None:
        result = op.compute(left().astype(np.int64), right().astype(np.int64))
        store(cast(result, dtype) if result.dtype.kind == "f" else result.astype(dtype.dtype))

    return action


def _bitwise_pair(dst: NkiTensor, data1: NkiTensor, data2: NkiTensor, op: Operator) -> Action:
    left, right, write, compute = bit_reader(data1), bit_reader(data2), bit_writer(dst), shift_safe(op)
    return lambda: write(compute(left(), right()))


def _bitwise_scalar(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Operator,
    operand0: Any,
    reverse0: bool,
    op1: Operator | None,
    operand1: Any,
    reverse1: bool,
) -> Action:
    read, write = bit_reader(data), bit_writer(dst)
    bits = bit_type(data)
    stages = []
    for op, operand, reverse in ((op0, operand0, reverse0), (op1, operand1, reverse1)):
        if op is None:
            continue
        get = None if op.arity == 1 else bit_column(operand, bits)
        stages.append((shift_safe(op), get, reverse))

    def action() -> None:
        values = read()
        for compute, get, reverse in stages:
            if get is None:
                values = compute(values)
            else:
                values = compute(get(), values) if reverse else compute(values, get())
        write(values)

    return action
