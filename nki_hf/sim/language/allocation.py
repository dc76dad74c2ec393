"""Allocation: `nl.ndarray`, what stands on it, and constants that the program carries."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from nki_hf.sim import isa as nisa
from nki_hf.sim.execution.current_machine import current_machine
from nki_hf.sim.execution.machine import Machine
from nki_hf.sim.faults import fault, warn_unsure
from nki_hf.sim.language.movement import fill
from nki_hf.sim.tensors.regions import MemoryRegion, as_region
from nki_hf.sim.tensors.tensor import NkiTensor
from nki_hf.sim.whole import whole, whole_sizes

__all__ = ["full", "ndarray", "ones", "shared_constant", "shared_identity_matrix", "zeros", "zeros_like"]


def ndarray(
    shape: Any, dtype: Any, buffer: MemoryRegion | str = MemoryRegion.sbuf, name: str = "", address: Any = None
) -> NkiTensor:
    """A new tensor, never written: SBUF and PSUM take axis 0 as the partition axis."""
    machine = current_machine("nl.ndarray")
    sizes = whole_sizes("ndarray", "shape", shape)
    if any(size < 0 for size in sizes):
        fault("shape", "ndarray", f"shape={sizes}", limit="sizes must not be negative")
    element = machine.element(dtype)
    try:
        space = as_region(buffer).value
    except TypeError as error:
        fault("argument", "ndarray", f"buffer={buffer!r}", limit=str(error).partition(": ")[2].rstrip("."))
    address = _address(address, space, machine)
    role = "output" if space == "shared_hbm" else "scratch"
    storage = machine.allocate(sizes, element, space, name=name or "", role=role, address=address)
    return NkiTensor(sizes, element, storage)


def _address(address: Any, space: str, machine: Machine) -> tuple[int, int] | None:
    """`(partition, byte)` of an on-chip tile; None leaves the place to the compiler."""
    if address is None:
        return None
    pair = tuple(address) if isinstance(address, tuple | list) else ()
    if len(pair) != 2 or not all(isinstance(part, int) and not isinstance(part, bool) for part in pair):
        fault("argument", "ndarray", f"address={address!r}", limit="must be two integers, (partition, byte), or None")
    if space not in ("sbuf", "psum"):
        fault(
            "argument",
            "ndarray",
            f"address={address!r} of a tensor in {space}",
            limit="only tiles on chip have an address",
            advice="Leave address out",
        )
    step = int(machine.chip.sbuf_align_bytes if space == "sbuf" else machine.chip.psum_align_bytes)
    if pair[1] % step:
        report = warn_unsure if machine.options.third_party else fault
        report("placement", "ndarray", f"address={pair}", limit=f"the byte must be a multiple of {step} in {space}")
    return pair[0], pair[1]


def full(shape: Any, fill_value: Any, dtype: Any, buffer: MemoryRegion | str = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    """A new tensor filled with `fill_value`."""
    tensor = ndarray(shape, dtype, buffer, name)
    fill(tensor, fill_value)
    return tensor


def zeros(shape: Any, dtype: Any, buffer: MemoryRegion | str = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    """A new tensor of zeros."""
    return full(shape, 0, dtype, buffer, name)


def ones(shape: Any, dtype: Any, buffer: MemoryRegion | str = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    """A new tensor of ones."""
    return full(shape, 1, dtype, buffer, name)


def zeros_like(x: NkiTensor, dtype: Any = None, buffer: MemoryRegion | str | None = None, name: str = "") -> NkiTensor:
    """Zeros with the shape of `x`; dtype and memory are those of `x` unless given."""
    return zeros(x.shape, x.dtype if dtype is None else dtype, x.buffer if buffer is None else buffer, name)


def shared_constant(constant: Any) -> NkiTensor:
    """An HBM tensor that holds `constant`, a NumPy array or the path of a `.npy` file; both cores see the same one."""
    machine = current_machine("nl.shared_constant")
    array = np.load(constant, allow_pickle=False) if isinstance(constant, str | os.PathLike) else np.asarray(constant)
    element = machine.element(array.dtype)
    stored = np.array(array, dtype=element.dtype, order="C")
    data = stored.reshape(-1).view(np.uint8) if stored.size else np.empty(0, np.uint8)
    storage = machine.allocate(tuple(array.shape), element, "shared_hbm", role="constant", data=data)
    return NkiTensor(tuple(array.shape), element, storage)


def shared_identity_matrix(n: int, dtype: Any = "uint8", dst: NkiTensor | None = None) -> NkiTensor:
    """The `n x n` identity in SBUF, loaded from a constant; into `dst` if that is given."""
    machine = current_machine("nl.shared_identity_matrix")
    n = whole("shared_identity_matrix", "n", n)
    if n > machine.chip.partitions:
        fault("shape", "shared_identity_matrix", f"n={n}", limit=f"at most {machine.chip.partitions} partitions")
    element = machine.element(dtype if dst is None else dst.dtype)
    tile = ndarray((n, n), element) if dst is None else dst
    if math.prod(tile.shape) != n * n:
        fault("shape", "shared_identity_matrix", f"dst is {list(tile.shape)}", limit=f"must hold {n} x {n} elements")
    nisa.dma_copy(dst=tile, src=shared_constant(np.eye(n).astype(element.dtype)))
    return tile
