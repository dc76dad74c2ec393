"""The accumulator registers of an engine: one float32 per lane, kept between instructions.

The Scalar engine has one set (activation, activation_reduce, activate2); the Vector engine another, shared by range_select,
select_reduce, tensor_scalar_reduce, tensor_scalar_cumulative and exponential. Source: docstrings of these instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nki_hf.sim.faults import fault
from nki_hf.sim.isa.enums import reduce_cmd as ReduceCmd
from nki_hf.sim.language.operators import Operator
from nki_hf.sim.machine import Machine
from nki_hf.sim.tensor import NkiTensor
from nki_hf.sim.values import Array, column, writer

__all__ = ["lanes", "reduction"]


def lanes(machine: Machine, engine: str, tensor: NkiTensor) -> Array:
    """The registers `[partitions, 1]` of the lanes that `tensor` occupies, as a view that instructions update in place."""
    name = f"{engine}.registers"
    registers = machine.state.get(name)
    if registers is None:
        registers = machine.state[name] = np.zeros((machine.chip.partitions, 1), np.float32)
    start = tensor.region().partition_start
    return registers[start : start + tensor.partitions]


def reduction(
    machine: Machine,
    engine: str,
    opcode: str,
    tensor: NkiTensor,
    command: ReduceCmd,
    op: Operator | None,
    result: NkiTensor | None,
    initial: Any = None,
    *,
    negate: bool = False,
) -> Callable[[Array], None] | None:
    """Closure that folds a float32 result `[partitions, free_size]` into the registers and reads them out.

    None if the instruction neither touches nor reads the registers. Reductions take the values before they are rounded to
    the destination's type.
    """
    store = None if result is None else writer(result)
    if command is ReduceCmd.idle and store is None:
        return None
    registers = lanes(machine, engine, tensor)
    folds = command in (ReduceCmd.reduce, ReduceCmd.reset_reduce, ReduceCmd.load_reduce)
    if op is None or op.identity is None:
        if folds:
            fault("argument", opcode, f"reduce_op={op!r} with reduce_cmd={command.name}", limit="needs a reduction operator")
        identity = np.float32(0)
    else:
        identity = np.float32(op.identity)
    start = column(initial) if command is ReduceCmd.load_reduce else None
    if command is ReduceCmd.load_reduce and initial is None:
        fault("argument", opcode, "reduce_cmd=load_reduce without an initial value", limit="needs one")
    known = machine.state.setdefault(f"{engine}.initialized", set())
    fresh = command is ReduceCmd.reduce and not known  # a replay starts from zero here, as the first run did
    if command is not ReduceCmd.idle:
        known.add(True)

    def step(values: Array) -> None:
        if start is not None:
            registers[...] = start()
        elif fresh or command in (ReduceCmd.reset, ReduceCmd.reset_reduce):
            registers[...] = identity
        if folds and op is not None:
            op.compute(registers, op.fold(values), out=registers)
        if store is not None:
            store(-registers if negate else registers)

    if command is ReduceCmd.reset_reduce and op is not None and op.reduce is not None and op.kind == "arith":
        if op.name in ("add", "maximum", "minimum", "multiply"):
            fold = op.reduce.reduce

            def fresh_step(values: Array) -> None:
                fold(values, axis=1, keepdims=True, out=registers)
                if store is not None:
                    store(-registers if negate else registers)

            return fresh_step
    return step
