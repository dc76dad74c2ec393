"""Vector engine instructions that choose elements: by a range of indices, by a predicate, with an optional row maximum."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.sim.isa.enums import reduce_cmd as ReduceCmd
from nki_hf.sim.isa.instruction import NkiInstruction, begin, tensors
from nki_hf.sim.isa.operators import OPERATORS, as_operator
from nki_hf.sim.isa.registers import reduction
from nki_hf.sim.tensors.casts import cast, copy_cast
from nki_hf.sim.tensors.tensor import NkiTensor
from nki_hf.sim.tensors.values import Reader, column, mark_written, native_reader, reader, storer, writer

__all__ = ["FP32_MIN", "range_select", "select_reduce", "tensor_copy_predicated"]

FP32_MIN = float(np.finfo(np.float32).min)
_MAXIMUM = OPERATORS["maximum"]
_COMPARE = {name: getattr(np, name) for name in ("equal", "less", "less_equal", "greater", "greater_equal")}


def range_select(
    dst: NkiTensor,
    on_true_tile: NkiTensor,
    comp_op0: Any,
    comp_op1: Any,
    bound0: NkiTensor,
    bound1: NkiTensor,
    reduce_cmd: ReduceCmd = ReduceCmd.reset_reduce,
    reduce_res: NkiTensor | None = None,
    reduce_op: Any = _MAXIMUM,
    range_start: int = 0,
    on_false_value: float = FP32_MIN,
    name: str | None = None,
) -> NkiInstruction:
    """`dst = on_true_tile` where `comp_op0(index, bound0) and comp_op1(index, bound1)`, else `on_false_value`.

    `index = range_start + position along the flattened free axes`, compared in float32 with bounds `[partitions, 1]`. The
    Vector engine's registers take the row maximum of the float32 result, fills included; `reduce_res` receives them.
    """
    comp_op0, comp_op1, reduce_op = as_operator(comp_op0), as_operator(comp_op1), as_operator(reduce_op)
    this = begin(
        "range_select",
        dst=dst,
        on_true_tile=on_true_tile,
        comp_op0=comp_op0,
        comp_op1=comp_op1,
        bound0=bound0,
        bound1=bound1,
        reduce_cmd=reduce_cmd,
        reduce_res=reduce_res,
        reduce_op=reduce_op,
        range_start=range_start,
        on_false_value=on_false_value,
    )
    action = None
    if this.values:
        read, write, low, high = reader(on_true_tile), writer(dst), column(bound0), column(bound1)
        first, second = _COMPARE.get(comp_op0.name, comp_op0.compute), _COMPARE.get(comp_op1.name, comp_op1.compute)
        index = (range_start + np.arange(on_true_tile.free_size)).astype(np.float32)
        fill = np.float32(on_false_value)
        fold = reduction(this.machine, "vector", "range_select", on_true_tile, reduce_cmd, reduce_op, reduce_res)

        def action() -> None:
            mask = first(index, low())
            np.logical_and(mask, second(index, high()), out=mask)
            values = np.where(mask, read(), fill)
            write(values)
            if fold is not None:
                fold(values)

    return this.issue(
        engine="vector",
        reads=(on_true_tile, bound0, bound1),
        writes=(dst, *tensors(reduce_res)),
        action=action,
        reduce=reduce_op.name,
        reduce_cmd=reduce_cmd.name,
    )


def select_reduce(
    dst: NkiTensor,
    predicate: NkiTensor,
    on_true: NkiTensor,
    on_false: Any,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: ReduceCmd = ReduceCmd.idle,
    reduce_op: Any = _MAXIMUM,
    reverse_pred: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """`dst = on_true` where `predicate != 0`, else `on_false` (an immediate or `[partitions, 1]`).

    The Vector engine's registers take the row maximum of the float32 result as `reduce_cmd` says; `reduce_res` receives them.
    """
    reduce_op = as_operator(reduce_op)
    this = begin(
        "select_reduce",
        dst=dst,
        predicate=predicate,
        on_true=on_true,
        on_false=on_false,
        reduce_res=reduce_res,
        reduce_cmd=reduce_cmd,
        reduce_op=reduce_op,
        reverse_pred=reverse_pred,
    )
    action = None
    if this.values:
        read, test, other, write = reader(on_true), native_reader(predicate), column(on_false), writer(dst)
        fold = reduction(this.machine, "vector", "select_reduce", on_true, reduce_cmd, reduce_op, reduce_res)

        def action() -> None:
            mask = test() != 0
            values = np.where(mask, other(), read()) if reverse_pred else np.where(mask, read(), other())
            write(values)
            if fold is not None:
                fold(values)

    return this.issue(
        engine="vector",
        reads=tensors(predicate, on_true, on_false),
        writes=(dst, *tensors(reduce_res)),
        action=action,
        reduce=reduce_op.name,
        reduce_cmd=reduce_cmd.name,
    )


def tensor_copy_predicated(
    dst: NkiTensor, src: Any, predicate: NkiTensor, reverse_pred: bool = False, name: str | None = None
) -> NkiInstruction:
    """`dst = src` (a tile or an immediate) where `predicate != 0`; the other elements of `dst` stay as they are."""
    this = begin("tensor_copy_predicated", dst=dst, src=src, predicate=predicate, reverse_pred=reverse_pred)
    action = None
    # which elements of a PSUM tile are written settles later products at trace time, so there all of them count as written
    noted = this.values and dst.space != "psum" and dst.storage.tracked
    if this.values:
        store, test = storer(dst), native_reader(predicate)
        read = _source(dst, src)

        def action() -> None:
            chosen = test() == 0 if reverse_pred else test() != 0
            store(read(), chosen)
            if noted:
                mark_written(dst, chosen)

    return this.issue(
        engine="vector", reads=(*tensors(src), predicate, dst), writes=(dst,), action=action, marked=() if noted else None
    )


def _source(dst: NkiTensor, src: Any) -> Reader:
    """Closure that gives what may be copied, in `dst`'s element type."""
    if not isinstance(src, NkiTensor):
        constant = cast(np.asarray(src, np.float32), dst.dtype)
        return lambda: constant
    read, convert = native_reader(src), copy_cast(src.dtype.dtype, dst.dtype)
    return lambda: convert(read())
