"""The accumulator registers of an engine: one float32 per lane, kept between instructions.

The Scalar engine has one set (activation, activation_reduce, activate2); the Vector engine another, shared by range_select,
select_reduce, tensor_scalar_reduce, tensor_scalar_cumulative and exponential. Source: docstrings of these instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nki_hf.sim.execution.actions import Action
from nki_hf.sim.execution.machine import Machine
from nki_hf.sim.faults import fault
from nki_hf.sim.isa.enums import reduce_cmd as ReduceCmd
from nki_hf.sim.isa.operators import Operator
from nki_hf.sim.tensors.tensor import NkiTensor
from nki_hf.sim.tensors.values import Array, column, writer

__all__ = ["prepared_registers", "reduction"]


def prepared_registers(
    machine: Machine, engine: str, tensor: NkiTensor, command: ReduceCmd, identity: float, initial: Any
) -> tuple[Array, Action | None]:
    """The registers `[partitions, 1]` of the lanes of `tensor`, updated in place, and the action that sets their start value.

    The action is None where the instruction goes on from what the registers hold.
    """
    name = f"{engine}.registers"
    registers = machine.state.get(name)
    if registers is None:
        registers = machine.state[name] = np.zeros((machine.chip.partitions, 1), np.float32)
    start = tensor.region().partition_start
    own = registers[start : start + tensor.partitions]
    used = machine.state.get(f"{engine}.registers_used", False)
    if command is not ReduceCmd.idle:
        machine.state[f"{engine}.registers_used"] = True
    if command is ReduceCmd.load_reduce:
        load = column(0.0 if initial is None else initial)
        return own, lambda: np.copyto(own, load())
    if command in (ReduceCmd.reset, ReduceCmd.reset_reduce):
        return own, lambda: own.fill(identity)
    if not used:  # never set in this run: a replay starts from zero here, as the first run did
        machine.first_action(lambda: registers.fill(0))
    return own, None


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
    folds = command in (ReduceCmd.reduce, ReduceCmd.reset_reduce, ReduceCmd.load_reduce)
    if folds and (op is None or op.identity is None):
        fault("argument", opcode, f"reduce_op={op!r} with reduce_cmd={command.name}", limit="needs a reduction operator")
    identity = 0.0 if op is None or op.identity is None else op.identity
    registers, prepare = prepared_registers(machine, engine, tensor, command, identity, initial)
    read_out = None if store is None else (lambda: store(-registers)) if negate else (lambda: store(registers))
    if command is ReduceCmd.reset_reduce and op is not None and op.name in ("add", "maximum", "minimum", "multiply"):
        reduce = op.reduce.reduce

        def fresh_fold(values: Array) -> None:
            reduce(values, axis=1, keepdims=True, out=registers)
            if read_out is not None:
                read_out()

        return fresh_fold

    def fold(values: Array) -> None:
        if prepare is not None:
            prepare()
        if folds and op is not None:
            op.compute(registers, op.fold(values), out=registers)
        if read_out is not None:
            read_out()

    return fold
