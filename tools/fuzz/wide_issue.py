"""The instructions of `wide_programs` issued in a kernel; the result of each is a tile of its own in SBUF."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from tools.fuzz.kernel_programs import Step

__all__ = ["issue_wide"]

View = Callable[[Step], Any]


def issue_wide(step: Step, tiles: dict[str, Any], view: View, register: Any) -> Any:
    """Issue one step; the tile `[partitions, ...]` with its result.

    Args:
      step: the step.
      tiles: by name, with `noise`.
      view: makes the view that a step describes.
      register: of a dynamic step, the run-time value; else None.
    """
    what, data = step["what"], view(step["data"])
    p, n = data.shape[0], int(np.prod(data.shape[1:]))
    start, _ = step["data"]["partitions"]
    kind = getattr(nl, step["type"])
    if what in _OF_TILES:
        return _OF_TILES[what](step, tiles[step["tile"]], tiles, register)

    def fresh(*shape: int, dtype: Any = kind) -> Any:
        return nl.ndarray(shape, dtype)

    def flat(dtype: Any = nl.float32) -> Any:
        found = nl.ndarray((p, n), dtype)
        nisa.tensor_copy(dst=found, src=data)
        return found

    def indices(count: int, below: int, dtype: Any) -> Any:
        found = nl.ndarray((p, count), dtype)
        nisa.tensor_scalar(dst=found, data=tiles["noise"][start : start + p, 0:count], op0=nl.mod, operand0=float(below))
        return found

    alu = getattr(nl, step["alu"]) if "alu" in step else None
    found = fresh(p, n)
    if what == "binary" and step["other"] is not None:
        nisa.tensor_tensor(dst=found, data1=data, data2=view(step["other"]), op=alu)
    elif what == "binary":
        nisa.tensor_scalar(dst=found, data=data, op0=alu, operand0=step["operand"], reverse0=step["reverse"])
    elif what == "function":
        nisa.activation(dst=found, op=getattr(nl, step["function"]), data=data)
    elif what == "shift":
        found = fresh(p, n, dtype=data.dtype)
        nisa.tensor_scalar(dst=found, data=data, op0=alu, operand0=step["operand"])
    elif what == "cast":
        nisa.tensor_copy(dst=found, src=data, engine=getattr(nisa.engine, step["engine"]))
    elif what == "exponential":
        operand = step["operand"]
        shift = tiles[operand][start : start + p, 0:1] if isinstance(operand, str) else operand
        total = fresh(p, 1, dtype=nl.float32)
        reduced = {"reduce_res": total, "reduce_cmd": nisa.reduce_cmd.reset_reduce} if step["reduced"] else {}
        nisa.exponential(dst=found, src=data, max_value=shift, **reduced)
        return total if step["reduced"] else found
    elif what == "reduce_chain":
        total = fresh(p, 1, dtype=nl.float32)
        for number, (command, operand) in enumerate(step["links"]):
            last = number == len(step["links"]) - 1
            given = {"reduce_res": total, "reduce_res_negate": step["negate"]} if last else {}
            if command == "load_reduce":
                given["reduce_init"] = 1.5
            nisa.tensor_scalar_reduce(
                dst=found,
                data=data,
                op0=alu,
                operand0=operand,
                reduce_op=getattr(nl, step["alu1"]),
                reduce_cmd=getattr(nisa.reduce_cmd, command),
                **given,
            )
        return total
    elif what == "shuffle":
        found = fresh(p, n, dtype=data.dtype)
        nisa.memset(dst=found, value=7)
        nisa.nc_stream_shuffle(dst=found, src=data, shuffle_mask=shuffled(step, p))
    elif what == "n_gather":
        found = fresh(p, step["count"], dtype=data.dtype)
        nisa.nc_n_gather(dst=found, data=data, indices=indices(step["count"], n, nl.uint32))
    elif what == "local_gather":
        element = min(step["element"], n)
        found = fresh(p, 16 * step["count"], element, dtype=data.dtype)
        index = indices(step["count"], n - element + 1, nl.uint16)
        nisa.local_gather(dst=found, src_buffer=data, index=index, num_elem_per_idx=element)
    elif what in ("find8", "replace8"):
        largest, place = fresh(p, 8, dtype=data.dtype), fresh(p, 8, dtype=nl.uint32)
        nisa.max8(dst=largest, src=data)
        if what == "find8":
            nisa.nc_find_index8(dst=place, data=data, vals=largest)
            return place
        wanted = {"dst_idx": place} if step["indices"] else {}
        nisa.nc_match_replace8(dst=found, data=data, vals=largest, imm=step["value"], **wanted)
        return place if step["indices"] else found
    elif what == "bn_aggr":
        parts, found = fresh(p, 6, dtype=nl.float32), fresh(p, 2, dtype=nl.float32)
        nisa.bn_stats(dst=parts, data=data)
        nisa.bn_aggr(dst=found, data=parts)
    elif what == "bounds":
        ids = nl.ndarray((1, n), nl.float32)
        nisa.tensor_scalar(dst=ids, data=tiles["noise"][0:1, 0:n], op0=nl.mod, operand0=3.0)
        found = nl.ndarray((1, 2, n), nl.float32)
        nisa.sequence_bounds(dst=found, segment_ids=ids)
    elif what == "nonzero":
        found = fresh(p, n + 1, dtype=nl.int32)
        nisa.memset(dst=found, value=-9)
        nisa.nonzero_with_count(dst=found, src=flat(), index_offset=step["offset"], padding_val=step["padding"])
    elif what == "summed":
        found = fresh(p, n, dtype=nl.float32)
        nisa.dma_compute(dst=found, srcs=[flat(), _flat_copy(view(step["other"]))], reduce_op=nl.add, scales=step["scales"])
    elif what == "psum":
        bank = nl.ndarray((p, n), nl.float32, buffer=nl.psum)
        nisa.tensor_scalar(dst=bank, data=data, op0=nl.multiply, operand0=step["operand"])
        nisa.tensor_tensor(dst=found, data1=bank, data2=view(step["other"]), op=alu)
    else:
        return _language(step, flat(), _flat_copy(view(step["other"])))
    return found


def shuffled(step: Step, partitions: int) -> list[int]:
    """The mask of a shuffle, cut to partitions that there are in the last group."""
    within = partitions % 32 or 32
    return [entry if entry == 255 else entry % within for entry in step["mask"]]


def _flat_copy(data: Any) -> Any:
    found = nl.ndarray((data.shape[0], int(np.prod(data.shape[1:]))), nl.float32)
    nisa.tensor_copy(dst=found, src=data)
    return found


def _language(step: Step, x: Any, y: Any) -> Any:
    function = getattr(nl, step["function"])
    if step["function"] in ("sum", "mean", "var", "max", "min"):
        return function(x, axis=1, keepdims=True) if step["function"] != "var" else function(x, axis=1)
    if step["function"] == "where":
        return function(nl.greater(x, y), x, y)
    if step["function"] == "add":
        return function(x, y)
    if step["function"] == "matmul":
        return _flat_copy(function(x, y, transpose_x=True))
    if step["function"] == "transpose":
        return _flat_copy(function(x))
    if step["function"] == "rms_norm":
        return function(x, y, axis=1, n=x.shape[1])
    return function(x, axis=1)


# ---- steps on whole tiles -------------------------------------------------------------------------------------------


def _in_hbm(tile: Any) -> Any:
    found = nl.ndarray(tile.shape, tile.dtype, buffer=nl.private_hbm)
    nisa.dma_copy(dst=found, src=tile)
    return found


def _chain(view: Any, views: list[tuple[Any, ...]]) -> Any:
    names = {"flatten": "flatten_dims"}
    for name, *given in views:
        view = getattr(view, names.get(name, name))(*given)
    return view


def _hbm(step: Step, tile: Any, tiles: dict[str, Any], register: Any) -> Any:
    view = _chain(_in_hbm(tile), step["views"])
    found = nl.ndarray(view.shape, tile.dtype)
    nisa.dma_copy(dst=found, src=view)
    return found


def _sbuf(step: Step, tile: Any, tiles: dict[str, Any], register: Any) -> Any:
    view = _chain(tile, step["views"])
    found = nl.ndarray(view.shape, tile.dtype)
    nisa.tensor_copy(dst=found, src=view)
    return found


def _rows(step: Step, tile: Any, tiles: dict[str, Any], register: Any) -> Any:
    hbm, (p, rows, columns) = _in_hbm(tile), tile.shape
    count, width = step["count"], rows * columns
    index = nl.ndarray((count, 1), nl.int32)
    nisa.tensor_scalar(dst=index, data=tiles["noise"][0:count, 0:1], op0=nl.mod, operand0=float(p))
    if step["by"] == "ap":
        found = nl.ndarray((count, width), tile.dtype)
        pattern = [[width, count], [1, width]]
        nisa.dma_copy(dst=found, src=hbm.ap(pattern=pattern, offset=0, vector_offset=index, indirect_dim=0))
        return found
    found = nl.ndarray((count, rows, columns), tile.dtype)
    nisa.dma_copy(dst=found, src=hbm.vector_select(0, index))
    return found


def _scatter(step: Step, tile: Any, tiles: dict[str, Any], register: Any) -> Any:
    """Rows `count - 1` to 0 of a copy of the tile get rows 0 to `count - 1`."""
    hbm, (p, rows, columns) = _in_hbm(tile), tile.shape
    count, width = step["count"], rows * columns
    index = nl.ndarray((count, 1), nl.int32)
    nisa.iota(dst=index, pattern=[[0, 1]], offset=count - 1, channel_multiplier=-1)
    target = hbm.ap(pattern=[[width, count], [1, width]], offset=0, vector_offset=index, indirect_dim=0)
    if step["by"] == "select":
        target = hbm.vector_select(0, index)
    nisa.dma_copy(dst=target, src=tile[0:count])
    found = nl.ndarray((p, rows, columns), tile.dtype)
    nisa.dma_copy(dst=found, src=hbm)
    return found


def _dynamic(step: Step, tile: Any, tiles: dict[str, Any], register: Any) -> Any:
    hbm, (_, rows, columns) = _in_hbm(tile), tile.shape
    width = rows * columns
    if step["by"] == "select":
        source, shape = hbm.select(0, register), (rows, columns)
    elif step["by"] == "ap":
        source = hbm.ap(pattern=[[width, 1], [1, width]], offset=0, scalar_offset=register, indirect_dim=0)
        shape = (1, width)
    else:
        source, shape = hbm[nl.ds(register, 1)], (1, rows, columns)
    found = nl.ndarray(shape, tile.dtype)
    nisa.dma_copy(dst=found, src=source)
    return found


def _turned(step: Step, tile: Any, tiles: dict[str, Any], register: Any) -> Any:
    p, rows, columns = tile.shape
    found = nl.ndarray((rows * columns, p), tile.dtype)
    nisa.dma_transpose(dst=found, src=tile.reshape((p, rows * columns)))
    return found


def _turned32(step: Step, tile: Any, tiles: dict[str, Any], register: Any) -> Any:
    p, rows, columns = tile.shape
    p = min(p, 32)
    found = nl.ndarray((rows * columns, p), tile.dtype)
    nisa.nc_transpose(dst=found, data=tile[0:p].reshape((p, rows * columns)), engine=nisa.engine.vector)
    return found


_OF_TILES: dict[str, Callable[[Step, Any, dict[str, Any], Any], Any]] = {
    "hbm": _hbm,
    "sbuf": _sbuf,
    "rows": _rows,
    "scatter": _scatter,
    "dynamic": _dynamic,
    "turned": _turned,
    "turned32": _turned32,
}
