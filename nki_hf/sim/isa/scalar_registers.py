"""Registers of the engines' sequencers: register_* of all versions, scalar_load and scalar_store of NKI 0.7."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.sim.execution.current_machine import current_machine
from nki_hf.sim.faults import fault, warn_unsure
from nki_hf.sim.isa.instruction import NkiInstruction, begin
from nki_hf.sim.tensors.casts import cast
from nki_hf.sim.tensors.registers import RunTimeValue, VirtualRegister
from nki_hf.sim.tensors.scalars import NkiScalar
from nki_hf.sim.tensors.tensor import NkiTensor
from nki_hf.sim.tensors.values import native_reader, storer

__all__ = ["register_alloc", "register_load", "register_move", "register_store", "scalar_load", "scalar_store"]

_FOR_SCALARS = "Scalars of scalar_load are stored with scalar_store"


def register_alloc(x: int | NkiTensor | None = None) -> VirtualRegister:
    """A new 32-bit register, holding `x` if that is given: an int.

    The docstring speaks of three ways to a register that holds something and shows two; nki-library 2.29 uses a third one, a
    tensor of one element, which is loaded: kernels written elsewhere are warned of it.
    """
    machine = current_machine("nisa.register_alloc")
    if isinstance(x, NkiTensor) and machine.options.third_party:
        warn_unsure("argument", "register_alloc", f"x={x!r}", limit="the documents have an int or None; it is loaded here")
        register = VirtualRegister()
        register_load(register, x)
        return register
    if x is not None and (isinstance(x, bool) or not isinstance(x, int | np.integer)):
        fault(
            "argument", "register_alloc", f"x={x!r}", limit="must be an int or None", advice="Load tensors with register_load"
        )
    register = VirtualRegister(x if x is None else int(x))
    if x is not None:
        machine.action(lambda: register.write(x))
    return register


def register_move(dst: VirtualRegister, src: Any) -> None:
    """`dst = src`, an int or another register."""
    machine = current_machine("nisa.register_move")
    _writable("register_move", dst)
    if isinstance(src, VirtualRegister):
        _readable("register_move", src)
        dst.set_now(src.known, src.read() if src.known else None)
        dst.follows(src.loads)
        machine.action(lambda: dst.write(src.read()))
    elif isinstance(src, int | np.integer) and not isinstance(src, bool):
        dst.set_now(True, src)
        dst.follows()
        machine.action(lambda: dst.write(src))
    else:
        fault("argument", "register_move", f"src={src!r}", limit="must be an int or a register", advice=_FOR_SCALARS)


def register_load(dst: VirtualRegister, src: NkiTensor) -> NkiInstruction:
    """`dst =` the one element of `src` (SBUF or HBM), an integer that wraps at 32 bits or a float in float32."""
    this = begin("register_load", dst=dst, src=src)
    _writable("register_load", dst)
    _single("register_load", "src", src)
    dst.set_now(False)
    number = this.machine.run.note_load(dst)
    action = None
    if this.values:
        read = native_reader(src)
        kind = np.int64 if src.dtype.is_integer else np.float32
        action = lambda: dst.write(read().reshape(-1)[:1].astype(kind))  # noqa: E731
    return this.issue(engine="sync", reads=(src,), writes=(), action=action, load=number)


def register_store(dst: NkiTensor, src: VirtualRegister) -> NkiInstruction:
    """The one element of `dst` (SBUF or HBM) `=` the register's value, cast to its dtype."""
    this = begin("register_store", dst=dst, src=src)
    _single("register_store", "dst", dst)
    if not isinstance(src, VirtualRegister):
        fault("argument", "register_store", f"src={src!r}", limit="must be a register from register_alloc", advice=_FOR_SCALARS)
    _readable("register_store", src)
    action = _store_action(dst, src) if this.values else None
    return this.issue(engine="sync", reads=(), writes=(dst,), action=action, loads=src.loads)


def scalar_load(src: NkiTensor) -> NkiScalar:
    """A run-time scalar with the one element of `src`, whose dtype (int32 or int64) fixes its width."""
    this = begin("scalar_load", src=src)
    _single("scalar_load", "src", src)
    if src.dtype.name not in ("int32", "int64"):
        fault("dtype", "scalar_load", f"src is {src.dtype}", limit="int32 or int64")
    scalar = NkiScalar(0, src.dtype)
    scalar.known = False
    number = this.machine.run.note_load(scalar)
    action = None
    if this.values:
        read = native_reader(src)
        action = lambda: scalar.write(read())  # noqa: E731
    this.issue(engine="sync", reads=(src,), writes=(), action=action, load=number)
    return scalar


def scalar_store(dst: NkiTensor, value: NkiScalar) -> None:
    """The one element of `dst` (int32 or int64, as wide as the scalar) `=` the scalar's value."""
    this = begin("scalar_store", dst=dst, value=value)
    _single("scalar_store", "dst", dst)
    if not isinstance(value, NkiScalar):
        fault(
            "argument",
            "scalar_store",
            f"value={value!r}",
            limit="must be an NkiScalar",
            advice="Write constants with nisa.memset",
        )
    value.check_home("scalar_store")
    if dst.dtype != value.dtype:
        fault("dtype", "scalar_store", f"dst is {dst.dtype} and value {value.dtype}", limit="both of one width")
    action = _store_action(dst, value) if this.values else None
    this.issue(engine="sync", reads=(), writes=(dst,), action=action, loads=value.loads)


def _store_action(dst: NkiTensor, register: RunTimeValue) -> Any:
    dtype, store = dst.dtype, storer(dst)
    return lambda: store(cast(register.cell.reshape(1, 1), dtype))


def _single(opcode: str, operand: str, tensor: NkiTensor) -> None:
    if tensor.size != 1:
        fault("shape", opcode, f"{operand} is {list(tensor.shape)}", limit="must have exactly one element")
    if tensor.space == "psum":
        fault(
            "placement",
            opcode,
            f"{operand} {tensor!r} is in psum",
            limit="registers meet SBUF and HBM only",
            advice="Copy it to SBUF with tensor_copy first",
        )


def _writable(opcode: str, register: Any) -> None:
    if not isinstance(register, VirtualRegister):
        fault("argument", opcode, f"dst={register!r}", limit="must be a register from register_alloc", advice=_FOR_SCALARS)
    register.check_home(opcode)
    if register.frozen:
        fault(
            "argument",
            opcode,
            "dst is a frozen register, as dynamic_range yields",
            limit="the kernel may not write it",
            advice="Copy it into a register of your own with register_move",
        )


def _readable(opcode: str, register: VirtualRegister) -> None:
    register.check_home(opcode)
    if not register.initialized:
        fault("uninitialized", opcode, "src is a register that was never written", limit="load or move a value into it first")
