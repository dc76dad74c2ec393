"""Cumulative instructions of the Vector engine: tensor_scalar_cumulative and tensor_tensor_scan."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.sim.isa.alu import stage
from nki_hf.sim.isa.enums import reduce_cmd as ReduceCmd
from nki_hf.sim.isa.instruction import NkiInstruction, begin, tensors
from nki_hf.sim.isa.operators import as_operator
from nki_hf.sim.isa.registers import prepared_registers
from nki_hf.sim.tensors.tensor import NkiTensor
from nki_hf.sim.tensors.values import Array, column, reader, writer

__all__ = ["tensor_scalar_cumulative", "tensor_tensor_scan"]


def tensor_scalar_cumulative(
    dst: NkiTensor,
    src: NkiTensor,
    op0: Any,
    op1: Any,
    imm0: Any,
    imm1: Any = None,
    reduce_cmd: ReduceCmd = ReduceCmd.reset_reduce,
    name: str | None = None,
) -> NkiInstruction:
    """`dst[i] = r` with `r = op1(op0(src[i], imm0), r)` along the free axes, sequentially in float32.

    `r` is the Vector engine's register: it starts from the identity of `op1`, from `imm1` (`load_reduce`) or from what the
    register holds (`reduce`), and keeps the last value.
    """
    op0, op1 = as_operator(op0), as_operator(op1)
    this = begin("tensor_scalar_cumulative", dst=dst, src=src, op0=op0, op1=op1, imm0=imm0, imm1=imm1, reduce_cmd=reduce_cmd)
    action = None
    if this.values:
        read, first, write = reader(src), stage(op0, imm0, False), writer(dst)
        registers, prepare = prepared_registers(this.machine, "vector", src, reduce_cmd, op1.identity or 0.0, imm1)
        compute = op1.compute
        scan = getattr(compute, "accumulate", None) if op1.name != "subtract" else None

        def action() -> None:
            if prepare is not None:
                prepare()
            values = first(read())
            if scan is not None:
                running = scan(np.concatenate([registers, values], axis=1), axis=1)[:, 1:]
            else:
                running, state = np.empty(values.shape, np.float32), registers[:, 0].copy()
                for index in range(values.shape[1]):
                    state = running[:, index] = compute(values[:, index], state)
            registers[...] = running[:, -1:]
            write(running)

    return this.issue(
        engine="vector",
        reads=tensors(src, imm0, imm1),
        writes=(dst,),
        action=action,
        op0=op0.name,
        op1=op1.name,
        reduce_cmd=reduce_cmd.name,
    )


def tensor_tensor_scan(
    dst: NkiTensor,
    data0: NkiTensor,
    data1: NkiTensor,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """`dst[i] = op1(op0(data0[i], dst[i - 1]), data1[i])` along the free axes in float32; `dst[-1]` is `initial`.

    The running value stays in float32; only what is written is rounded. `initial` is an immediate or `[partitions, 1]`.
    """
    op0, op1 = as_operator(op0), as_operator(op1)
    this = begin(
        "tensor_tensor_scan",
        dst=dst,
        data0=data0,
        data1=data1,
        initial=initial,
        op0=op0,
        op1=op1,
        reverse0=reverse0,
        reverse1=reverse1,
    )
    action = None
    if this.values:
        left, right, start, write = reader(data0), reader(data1), column(initial), writer(dst)
        first, second, rows = op0.compute, op1.compute, data0.partitions

        def action() -> None:
            a, b = np.ascontiguousarray(left().T), np.ascontiguousarray(right().T)  # a row per position
            running: Array = np.empty_like(a)
            state = np.broadcast_to(start(), (rows, 1))[:, 0]
            for index in range(len(a)):
                inner = first(state, a[index]) if reverse0 else first(a[index], state)
                state = second(b[index], inner, out=running[index]) if reverse1 else second(inner, b[index], out=running[index])
            write(running.T)

    return this.issue(
        engine="vector", reads=tensors(data0, data1, initial), writes=(dst,), action=action, op0=op0.name, op1=op1.name
    )
