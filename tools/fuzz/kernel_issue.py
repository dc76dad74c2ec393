"""A program of `kernel_programs` as an NKI kernel: every step issued, and what it wrote stored."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from nki_hf.chips import get_chip
from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from tools.fuzz.kernel_loops import loop
from tools.fuzz.kernel_model import Array
from tools.fuzz.kernel_programs import COLUMNS, NEW_TILES, TILES, Step, changed, ranges_of
from tools.fuzz.rare_programs import issue_rare
from tools.fuzz.wide_issue import issue_wide

__all__ = ["PARAMETERS", "Refused", "launched", "options_of"]


PARAMETERS = (*TILES, *COLUMNS, "counts", "noise")
"""Those of each program's kernel; `noise` may be missing."""


class Refused(Exception):
    """The simulator's rules refuse a step; `path` leads to it."""

    def __init__(self, path: tuple[int, ...], fault: KernelFault) -> None:
        super().__init__(str(fault))
        self.path = path


def launched(
    program: Step, inputs: dict[str, Array], *, returned: dict[int, tuple[Any, ...]] | None = None, **options: Any
) -> Any:
    """The program as a kernel, launched on its inputs with `SimOptions` of these `options`; see `nki_hf.sim.launch`.

    Args:
      returned: takes what each core returned.

    Raises:
      Refused: a step breaks a rule.
      KernelFault: the cores, which do the same, wait for each other.
    """
    path: tuple[int, ...] = ()

    def kernel(t0: Any, t1: Any, t2: Any, t3: Any, c0: Any, c1: Any, counts: Any, noise: Any = None) -> Any:
        nonlocal path
        core = nl.program_id(0) if program["cores"] == 2 else 0
        tiles, outputs = {}, []
        for name, source in zip((*TILES, *COLUMNS, "noise"), (t0, t1, t2, t3, c0, c1, noise), strict=True):
            if source is not None:
                tiles[name] = nl.ndarray(source.shape[1:], source.dtype)
                nisa.dma_copy(dst=tiles[name], src=source[core])
        place = 0
        late: list[tuple[int, str]] = []  # outputs that are not stored yet, and the tiles with their values

        def store_late(names: Any) -> None:
            for at, name in [each for each in late if each[1] in names]:
                outputs[at] = _stored(tiles[name], core, program)
                late.remove((at, name))

        def loaded() -> Any:
            register = nisa.register_alloc()
            nisa.register_load(register, counts[0:1, place : place + 1])
            return register

        for index, step in enumerate(program["steps"]):
            path = (index,)
            store_late(TILES if step["op"] == "loop" else changed(step))
            if step.get("late"):
                _issue(step, tiles, core, program)
                late.append((len(outputs), step["dst"]))
                outputs.append(None)
                continue
            if step["op"] == "wide":
                register = None
                if step["what"] == "dynamic":
                    register = loaded()
                    place += 1
                tile = issue_wide(step, tiles, lambda view: _view(tiles, view), register)
                outputs.append(_stored(tile, core, program))
                continue
            if step["op"] == "rare":
                tile = issue_rare(step, tiles, lambda view: _view(tiles, view), program, core)
                outputs.append(_stored(tile, core, program))
                continue
            if step["op"] != "loop":
                outputs += [_stored(tile, core, program) for tile in _issue(step, tiles, core, program)]
                continue
            at_run_time = step["register"] and step["kind"] != "static"
            bounds: list[Any] = []
            for both in ranges_of(step):
                ends: list[Any] = [*both[0][:2]]
                for end in range(2):
                    if at_run_time and (end or "ranges" in step):
                        ends[end] = loaded()
                    place += 1
                bounds.append((*ends, both[0][2]))
            counter = counts[0:1, place - 1 : place]

            rooms = [_room(tiles[one["data"]]) if one["op"] == "meet" else None for one in step["body"]]

            def issue(inner: int, one: Step, index: int = index, rooms: list[Any] = rooms) -> None:
                nonlocal path
                path = (index, inner)
                _issue(one, tiles, core, program, rooms[inner])

            outputs += loop(step, bounds, counter, tiles, core, program["cores"], issue)
        store_late(TILES)
        if returned is not None:
            returned[int(core)] = tuple(outputs)
        return tuple(outputs)

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return launch(kernel, tuple(inputs.values()), options=options_of(program, **options), lnc=program["cores"])
        except KernelFault as fault:
            if fault.record.kind == "deadlock":
                raise
            raise Refused(path, fault) from None


def options_of(program: Step, **options: Any) -> SimOptions:
    """The options of a program's launches, with others."""
    return SimOptions(chip=get_chip(program.get("chip", "trn2")), seed=program["seed"] % 3, **options)


def _stored(tile: Any, core: Any, program: Step) -> Any:
    out = nl.ndarray((program["cores"], *tile.shape), tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out[core], src=tile)
    return out


def _view(tiles: dict[str, Any], view: Step) -> Any:
    tile, (start, stop) = tiles[view["tile"]], view["partitions"]
    (a, rows, row_step), (b, columns, column_step) = view["axes"]
    row_end, column_end = a + (rows - 1) * row_step + 1, b + (columns - 1) * column_step + 1
    if view["form"] == "subscript":
        tile = tile[start:stop, a:row_end:row_step, b:column_end:column_step]
    elif view["form"] == "slice":
        tile = tile.slice(0, start, stop).slice(1, a, row_end, row_step).slice(2, b, column_end, column_step)
    else:
        width, row = tile.shape[2], tile.shape[1] * tile.shape[2]
        pattern = [[row, stop - start], [width * row_step, rows], [column_step, columns]]
        tile = tile.ap(pattern=pattern, offset=start * row + a * width + b)
    if "broadcast" in view:
        axis = 1 + view["broadcast"]
        tile = tile.slice(axis, 0, 1).broadcast(axis, (rows, columns)[view["broadcast"]])
    if view["order"] == "permute":
        return tile.permute((0, 2, 1))
    if view["order"] == "flatten":
        return tile.flatten_dims(1, 2)
    return tile.expand_dim(1) if view["order"] == "expand" else tile


def _room(tile: Any) -> Any:
    """Where both cores put a tile of theirs."""
    return nl.ndarray((2, *tile.shape), tile.dtype, buffer=nl.shared_hbm)


def _issue(step: Step, tiles: dict[str, Any], core: Any, program: Step, room: Any = None) -> list[Any]:
    """Issue one instruction; the tiles that it wrote. `room`: where the cores meet in each turn of a loop."""
    op = step["op"]
    if op == "sendrecv":
        moved = {1: {"dma_engine": nisa.dma_engine.gpsimd_dma}, 2: {"dma_engine": nisa.dma_engine.dma}}
        nisa.sendrecv(
            src=tiles[step["data"]],
            dst=tiles[step["dst"]],
            send_to_rank=1 - core,
            recv_from_rank=1 - core,
            pipe_id=step.get("pipe", 0),
            **moved.get(program["seed"] % 3, {}),
        )
        return [tiles[step["dst"]]]
    if op == "meet":
        tile = tiles[step["data"]]
        shared = _room(tile) if room is None else room
        nisa.dma_copy(dst=shared[core], src=tile)
        nisa.core_barrier(data=shared, cores=(0, 1))
        nisa.dma_copy(dst=tiles[step["dst"]], src=shared[1 - core])
        if room is not None:  # before the next turn writes what the other core reads
            nisa.core_barrier(data=shared, cores=(0, 1))
        return [tiles[step["dst"]]]
    start, stop = step["dst"]["partitions"]

    def operand(name: str) -> Any:
        value = step[name]
        return tiles[value][start:stop, 0:1] if isinstance(value, str) else value

    def alu(name: str = "alu") -> Any:
        return getattr(nl, step[name])

    dst = None if op in NEW_TILES else _view(tiles, step["dst"])
    data = _view(tiles, step["data"]) if isinstance(step.get("data"), dict) else step.get("data")
    other = _view(tiles, step["other"]) if "other" in step else None
    column = tiles[step["column"]][start:stop, 0:1] if step.get("column") else None
    if op == "copy":
        nisa.tensor_copy(dst=dst, src=data)
    elif op == "dma":
        nisa.dma_copy(dst=dst, src=data)
    elif op == "memset":
        nisa.memset(dst=dst, value=step["value"])
    elif op == "tensor_tensor":
        nisa.tensor_tensor(dst=dst, data1=data, data2=other, op=alu())
    elif op == "tensor_scalar":
        second = (
            {} if step["alu1"] is None else {"op1": alu("alu1"), "operand1": operand("operand1"), "reverse1": step["reverse1"]}
        )
        nisa.tensor_scalar(dst=dst, data=data, op0=alu(), operand0=operand("operand"), reverse0=step["reverse"], **second)
    elif op == "scalar_tensor_tensor":
        nisa.scalar_tensor_tensor(
            dst=dst,
            data=data,
            op0=alu(),
            operand0=operand("operand"),
            op1=alu("alu1"),
            operand1=other,
            reverse0=step["reverse"],
            reverse1=step["reverse1"],
        )
    elif op == "iota":
        nisa.iota(dst=dst, pattern=_pattern(step), offset=step["offset"], channel_multiplier=step["multiplier"])
    elif op == "affine_select":
        nisa.affine_select(
            dst=dst,
            pattern=_pattern(step),
            channel_multiplier=step["multiplier"],
            on_true_tile=data,
            on_false_value=step["value"],
            cmp_op=alu(),
            offset=step["offset"],
        )
    elif op == "reduce":
        nisa.tensor_reduce(dst=column, op=alu(), data=data, axis=tuple(range(1, len(data.shape))), negate=step["negate"])
    elif op == "partition_reduce":
        row = _view(tiles, {**step["dst"], "partitions": (start, start + 1)})
        nisa.tensor_partition_reduce(dst=row, op=alu(), data=data)
    elif op == "predicated":
        nisa.tensor_copy_predicated(dst=dst, src=data, predicate=_view(tiles, step["mask"]), reverse_pred=step["reverse"])
    elif op == "activation":
        reduced = (
            {"reduce_op": nl.add, "reduce_res": column, "reduce_cmd": nisa.reduce_cmd.reset_reduce}
            if column is not None
            else {}
        )
        bias = None if step["bias"] is None else operand("bias")
        nisa.activation(dst=dst, op=getattr(nl, step["function"]), data=data, bias=bias, scale=operand("scale"), **reduced)
    elif op == "reciprocal":
        nisa.reciprocal(dst=dst, data=data)
    elif op == "select":
        command = nisa.reduce_cmd.idle if column is None else nisa.reduce_cmd.reset_reduce
        nisa.select_reduce(
            dst=dst,
            predicate=_view(tiles, step["mask"]),
            on_true=data,
            on_false=operand("operand"),
            reduce_res=column,
            reduce_cmd=command,
            reduce_op=nl.maximum,
            reverse_pred=step["reverse"],
        )
    elif op == "range_select":
        bounds = [tiles[name][start:stop, 0:1] for name in COLUMNS]
        nisa.range_select(
            dst=dst,
            on_true_tile=data,
            comp_op0=alu(),
            comp_op1=alu("alu1"),
            bound0=bounds[0],
            bound1=bounds[1],
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
            reduce_res=column,
            reduce_op=nl.maximum,
            range_start=step["first"],
        )
    elif op == "scan":
        nisa.tensor_tensor_scan(
            dst=dst,
            data0=data,
            data1=other,
            initial=operand("operand"),
            op0=alu(),
            op1=alu("alu1"),
            reverse0=step["reverse"],
            reverse1=step["reverse1"],
        )
    elif op == "scalar_reduce":
        nisa.tensor_scalar_reduce(
            dst=dst,
            data=data,
            op0=alu(),
            operand0=operand("operand"),
            reduce_op=alu("alu1"),
            reduce_res=column,
            reduce_res_negate=step["negate"],
        )
    elif op == "cumulative":
        nisa.tensor_scalar_cumulative(dst=dst, src=data, op0=alu(), op1=alu("alu1"), imm0=operand("operand"))
    else:
        return [_result(step, data, other)]
    return [tiles[name] for name in changed(step)]


def _result(step: Step, data: Any, other: Any) -> Any:
    size = int(np.prod(data.shape[1:]))
    if step["op"] == "max8":
        found = nl.ndarray((data.shape[0], 8), data.dtype)
        nisa.max8(dst=found, src=data)
        return found
    if step["op"] == "bn_stats":
        found = nl.ndarray((data.shape[0], 6), nl.float32)
        nisa.bn_stats(dst=found, data=data)
        return found
    if step["op"] == "transpose":
        psum = nl.ndarray((size, data.shape[0]), data.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=psum, data=data)
    else:
        psum = nl.ndarray((size, int(np.prod(other.shape[1:]))), nl.float32, buffer=nl.psum)
        flat = [each.reshape((each.shape[0], int(np.prod(each.shape[1:])))) for each in (data, other)]
        for time in range(2 if step["twice"] else 1):
            accumulate = step["accumulate"] if time or step["accumulate"] is None else False
            nisa.nc_matmul(dst=psum, stationary=flat[0], moving=flat[1], accumulate=accumulate)
    found = nl.ndarray(psum.shape, psum.dtype)
    nisa.tensor_copy(dst=found, src=psum)
    return found


def _pattern(step: Step) -> list[list[int]]:
    (_, rows, _), (_, columns, _) = step["dst"]["axes"]
    return [[step["strides"][0], rows], [step["strides"][1], columns]]
