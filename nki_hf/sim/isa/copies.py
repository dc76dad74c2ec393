"""Data movement within the core: tensor_copy, memset."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.sim.execution.actions import Action
from nki_hf.sim.execution.moves import Clear, Load
from nki_hf.sim.isa.enums import engine as Engine
from nki_hf.sim.isa.instruction import NkiInstruction, begin, resolve_engine
from nki_hf.sim.tensors.casts import cast, copy_cast
from nki_hf.sim.tensors.indirect import access
from nki_hf.sim.tensors.offsets import ScalarOffset
from nki_hf.sim.tensors.origins import note_copy
from nki_hf.sim.tensors.tensor import NkiTensor
from nki_hf.sim.tensors.values import bit_type, storer

__all__ = ["copy_action", "memset", "tensor_copy"]


def tensor_copy(dst: NkiTensor, src: NkiTensor, engine: Engine = Engine.unknown, name: str | None = None) -> NkiInstruction:
    """`dst = src` within SBUF and PSUM; bit-exact if the dtypes are the same, else cast through float32."""
    this = begin("tensor_copy", dst=dst, src=src, engine=engine)
    action = copy_action(dst, src) if this.values else None
    handle = this.issue(engine=resolve_engine(engine, "vector"), reads=(src,), writes=(dst,), action=action)
    if action is not None:
        note_copy(dst, src)
    return handle


def memset(dst: NkiTensor, value: Any, engine: Engine = Engine.unknown, name: str | None = None) -> NkiInstruction:
    """Fill `dst` with `value`, cast to its dtype (packed types take only 0)."""
    this = begin("memset", dst=dst, value=value, engine=engine)
    action: Action | None = None
    if this.values:
        store = storer(dst)
        exact = isinstance(value, int | np.integer) and dst.dtype.is_integer
        fill = cast(np.asarray(value, np.int64 if exact else np.float32), dst.dtype)
        if dst.indirection is None:  # NumPy fills with bits faster than with its own floats of 16
            bits = bit_type(dst)
            target, word = dst.array().view(bits), np.asarray(fill).view(bits)
            action = Clear(target, word)
        else:
            action = lambda: store(fill)  # noqa: E731

    return this.issue(
        engine=resolve_engine(engine, "vector"),
        reads=(),
        writes=(dst,),
        action=action,
        zero=isinstance(value, int | float) and value == 0,
    )


def copy_action(dst: NkiTensor, src: NkiTensor, *, skip: bool | None = None) -> Action:
    """Closure that copies `src` to `dst` element by element in row-major order: bits, or cast through float32.

    `skip` leaves the elements of `dst` alone whose run-time index, on either side, is out of bounds.
    """
    if dst.indirection is not None or src.indirection is not None:
        return _indirect_copy(dst, src, skip)
    target, source, dtype = dst.array(), src.array(), dst.dtype
    shape = target.shape
    if source.dtype == target.dtype and dtype.name != "tfloat32":
        bits = bit_type(dst)
        target, source = target.view(bits), source.view(bits)
        direct = True
    else:
        direct = source.dtype == np.float32 and dtype.name in ("bfloat16", "float16")
    if direct:
        if source.shape == shape:
            return Clear(target, source)

        def copy() -> None:
            target[...] = source.reshape(shape)

        return copy
    convert = copy_cast(source.dtype, dtype)

    def copy_and_cast() -> None:
        target[...] = convert(source).reshape(shape)

    return copy_and_cast


def _indirect_copy(dst: NkiTensor, src: NkiTensor, skip: bool | None) -> Action:
    source, write = access(src, skip=skip), access(dst, skip=skip).write
    read = source.read
    convert, shape = copy_cast(src.dtype.dtype, dst.dtype), dst.shape
    if dst.indirection is None and src.dtype == dst.dtype and dst.dtype.name != "tfloat32" and not dst.storage.tracked:
        bits = bit_type(dst)
        target = dst.array().view(bits)
        if isinstance(src.indirection, ScalarOffset) and skip:
            return Load(target, read, source.rows)

        def whole() -> None:
            values, valid = read()
            if valid is None:
                target[...] = values.view(bits).reshape(shape)
            elif valid.any():
                np.copyto(target, values.view(bits).reshape(shape), where=np.broadcast_to(valid, values.shape).reshape(shape))

        return whole

    def action() -> None:
        values, valid = read()
        if valid is not None:
            valid = np.broadcast_to(valid, values.shape).reshape(shape)
        write(convert(values).reshape(shape), valid)

    return action
