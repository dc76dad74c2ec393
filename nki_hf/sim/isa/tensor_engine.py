"""Tensor engine: matrix multiplication into PSUM."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.sim.execution.actions import Action
from nki_hf.sim.execution.current_machine import running_machine
from nki_hf.sim.execution.loops import persisting
from nki_hf.sim.execution.products import Product, multiplied
from nki_hf.sim.execution.storage import Storage
from nki_hf.sim.faults import fault, warn_unsure
from nki_hf.sim.isa.enums import matmul_perf_mode
from nki_hf.sim.isa.instruction import NkiInstruction, begin
from nki_hf.sim.tensors.casts import copy_cast, widen
from nki_hf.sim.tensors.origins import origin_of
from nki_hf.sim.tensors.tensor import NkiTensor
from nki_hf.sim.tensors.values import Array, Reader, flat_view, float_target, native_reader, reader, storer, writer

__all__ = ["kept", "nc_matmul", "product_action", "warn_in_loop", "written_before"]

_GROUP = 32
"""Partitions that share a list of offsets when an operand of the Tensor engine is indirect."""


_NO_MODE = matmul_perf_mode.none
_MODES = {mode.value: mode for mode in matmul_perf_mode}


def nc_matmul(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    tile_position: tuple[int, ...] = (),
    tile_size: tuple[int, ...] = (),
    perf_mode: matmul_perf_mode = matmul_perf_mode.none,
    name: str | None = None,
) -> NkiInstruction:
    """`dst[M, N] (=|+=) stationary[K, M].T @ moving[K, N]`, products exact, sums in float32.

    `accumulate=None` overwrites the elements of `dst` that this allocation has not written yet and adds to the others;
    True adds, False overwrites. Which of them applies is settled per element in program order. `double_row` contracts over
    partitions and the first free axis (of size 2) together. `is_transpose` moves bits: `moving` must then be a permutation
    matrix, and NaN and Inf pass. `perf_mode` may also be the member's value, as public kernels pass it.
    """
    if isinstance(perf_mode, str):
        perf_mode = _MODES.get(perf_mode, perf_mode)
    this = begin(
        "nc_matmul",
        dst=dst,
        stationary=stationary,
        moving=moving,
        is_stationary_onezero=is_stationary_onezero,
        is_moving_onezero=is_moving_onezero,
        is_transpose=is_transpose,
        accumulate=accumulate,
        tile_position=tile_position,
        tile_size=tile_size,
        perf_mode=perf_mode,
    )
    adds = written_before(dst, accumulate) if not is_transpose else False
    if this.machine.loops and not is_transpose:
        warn_in_loop("nc_matmul", dst, adds, accumulate)
    action, taken = None, None
    if this.values:
        if is_transpose:
            action = _permute_action(dst, stationary, moving)
        else:
            rows = 2 if perf_mode is matmul_perf_mode.double_row else 1
            left, right = (_operand(item, rows) for item in (stationary, moving))
            action = product_action(dst, left[0], right[0], adds, accumulate)
            target = float_target(dst)
            if left[2] is not None and right[2] is not None and target is not None and not this.machine.loops:
                if adds is True or adds is False:
                    action = Product(action, left[2], right[2], target, adds)
            if all(item.indirection is None for item in (dst, stationary, moving)):  # indices are read too
                taken = (left[1], right[1])
    return this.issue(
        engine="tensor",
        reads=(stationary, moving),
        writes=(dst,),
        action=action,
        accumulate=adds is not False,
        **kept(adds),
        perf_mode="none" if perf_mode is _NO_MODE else perf_mode.name,
        is_transpose=is_transpose,
        tile_position=tuple(tile_position),
        tile_size=tuple(tile_size),
        onezero=bool(is_stationary_onezero or is_moving_onezero),
        taken=taken,
    )


def written_before(dst: NkiTensor, accumulate: bool | None) -> Any:
    """False, True, or a bool array `[partitions, free_size]`: which elements of `dst` a product is added to."""
    if accumulate is not None:
        return accumulate
    storage = dst.storage
    if storage.untouched:
        return False
    if dst.indirection is None and dst.dtype.itemsize == storage.buffer.dtype.itemsize and dst.pattern() in storage.whole:
        return True
    flags = storage.written if dst.indirection is not None else dst.written()
    if flags is None:
        return False
    if dst.indirection is not None and flags.any():
        fault(
            "argument",
            "nc_matmul",
            f"accumulate=None and dst {dst!r} is scattered into a tile written before",
            limit="which elements were written follows only from run-time indices",
            advice="Pass accumulate=True or False",
        )
    if not flags.any():
        return False
    return True if flags.all() else flags.reshape(dst.partitions, dst.free_size).copy()


def warn_in_loop(opcode: str, dst: NkiTensor, adds: Any, accumulate: bool | None) -> None:
    """Warn where the first turn of a loop would overwrite and later ones add: a body is compiled once."""
    machine = running_machine()
    if accumulate is not None or adds is True or machine is None or not persisting(machine, dst.storage.buffer):
        return
    warn_unsure(
        "argument",
        opcode,
        f"accumulate=None in a loop of run time, and dst {dst!r} is from outside of it",
        limit="the first turn overwrites and later ones add here, which no document says of a body that is compiled once; with "
        "accumulate=True after a memset or a first product, or False, all turns are the same",
    )


def kept(adds: Any) -> dict[str, Any]:
    """Attributes that say whether old bytes of `dst` go into the result: all, or those that its own tile wrote before.

    `dst` is not listed among the reads: a product that follows another into PSUM does not wait for it as a reader would.
    """
    if adds is False:
        return {}
    return {"keeps": (0,)} if adds is True else {"keeps": (0,), "keeps_own": True}


def product_action(dst: NkiTensor, left: Reader, right: Reader, adds: Any, accumulate: bool | None) -> Action:
    """Closure of `dst (=|+=) left().T @ right()`, with `adds` as `written_before` gives it for the first turn of each loop.

    With `accumulate=None`, later turns of a loop add to what its body wrote to an allocation from outside of it.
    """
    first = accumulating_action(dst, left, right, adds)
    machine = running_machine()
    loops = persisting(machine, dst.storage.buffer) if machine is not None and machine.loops else []
    if accumulate is not None or adds is True or not loops:
        return first
    later: dict[int, Action] = {}
    for position, loop in enumerate(loops):
        loop.ends.append(
            lambda position=position: later.__setitem__(  # type: ignore[misc]
                position, accumulating_action(dst, left, right, written_before(dst, None))
            )
        )

    def action() -> None:
        for position, loop in enumerate(loops):
            if loop.turn:
                later[position]()
                return
        first()

    return action


def accumulating_action(dst: NkiTensor, left: Reader, right: Reader, adds: Any) -> Action:
    """Closure of `dst (=|+=) left().T @ right()` with `adds` as `written_before` gives it."""
    target, write = float_target(dst), writer(dst, _GROUP)
    if adds is False:
        if target is not None and target.flags.c_contiguous:
            return lambda: multiplied(left().T, right(), out=target)
        return lambda: write(multiplied(left().T, right()))
    if adds is True and target is not None:
        return lambda: np.add(target, multiplied(left().T, right()), out=target)
    current = reader(dst, _GROUP)
    if adds is True:
        return lambda: write(current() + multiplied(left().T, right()))
    return lambda: write(np.where(adds, current(), np.float32(0)) + multiplied(left().T, right()))


def _operand(tensor: NkiTensor, rows: int) -> tuple[Reader, Storage, Array | None]:
    """Reader of an operand, whose values it gives (those that a moved tile was made of), and where they always lie
    `[partitions, elements]`, if they do and NumPy can widen them.
    """
    origin = origin_of(tensor) if rows == 1 else None
    plain = tensor.dtype.name in ("float32", "bfloat16", "float16")
    if origin is not None:
        values, source = origin
        lies = values if plain else None
        if tensor.dtype.dtype == np.float32:
            return (lambda: values), source, lies
        convert = widen(tensor.dtype.dtype)
        return (lambda: convert(values)), source, lies
    read = reader(tensor, _GROUP)
    if rows == 1:
        return read, tensor.storage, flat_view(tensor) if plain else None
    shape = (tensor.partitions * rows, tensor.free_size // rows)
    return (lambda: read().reshape(shape)), tensor.storage, None


def _permute_action(dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor) -> Action:
    data, values, chooser = native_reader(stationary, _GROUP), reader(stationary, _GROUP), reader(moving, _GROUP)
    convert, store, write = copy_cast(stationary.dtype.dtype, dst.dtype), storer(dst, _GROUP), writer(dst, _GROUP)

    def action() -> None:
        matrix = chooser()
        hot = matrix != 0
        if (hot.sum(axis=0) > 1).any() or (matrix[hot] != 1).any():
            write(values().T @ matrix)  # no permutation: what the array computes then is a product
            return
        moved = np.take(data(), hot.argmax(axis=0), axis=0)
        moved = np.where(hot.any(axis=0)[:, None], moved, np.zeros((), moved.dtype))
        store(convert(moved.T))

    return action
