"""Event: one executed instruction. The only thing that observers see of a run; nothing here knows about time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nki_hf.sim.dtypes import DType

__all__ = ["ENGINES", "Buffer", "Event", "Region"]

ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync", "dma")
"""Engine names as in Neuron Explorer; `dma` stands for the DMA engines, the queue is in `Event.queue`."""


@dataclass(slots=True, eq=False)
class Buffer:
    """One allocation: what an `nl.ndarray`, a kernel input or a constant is to the machine. Identity is the object.

    Attributes:
      number: running number within the run, in order of allocation.
      space: `sbuf`, `psum`, `hbm`, `private_hbm` or `shared_hbm`.
      name: the kernel's name for it, or `space` + number.
      shape: logical shape; on chip axis 0 is the partition axis.
      dtype: element type.
      core: program id of the owning core; None if shared.
      role: `input`, `output`, `constant` or `scratch`.
      address: explicit `(partition, byte)` if the kernel gave one.
      file, line: where the kernel allocated it.
    """

    number: int
    space: str
    name: str
    shape: tuple[int, ...]
    dtype: DType
    core: int | None
    role: str
    address: tuple[int, int] | None
    file: str
    line: int

    @property
    def on_chip(self) -> bool:
        """True in SBUF and PSUM."""
        return self.space in ("sbuf", "psum")

    @property
    def elements(self) -> int:
        """Number of elements."""
        total = 1
        for size in self.shape:
            total *= size
        return total

    @property
    def bytes_per_partition(self) -> int:
        """Bytes of one partition row (on chip), or of the whole tensor (HBM)."""
        rows = self.shape[0] if self.on_chip and self.shape else 1
        return self.elements * self.dtype.itemsize // max(rows, 1)


@dataclass(slots=True, eq=False)  # not frozen: that would cost a fifth of a trace, and nothing assigns to one
class Region:
    """The part of a buffer that an instruction touches, as an access pattern over the buffer's flattened storage.

    Attributes:
      buffer: the allocation.
      dtype: element type of this access (may differ from the buffer's after a reinterpreting view).
      offset: first element, in elements of `dtype` from the buffer's start.
      shape: sizes of the access; on chip the first axis runs over partitions.
      strides: element steps of each axis; 0 = broadcast.
      indirect: True if run-time indices choose the elements, so that the whole buffer counts as touched.
      reached: the elements (of `dtype`) of HBM that they chose in this run, in all turns of a loop of run time together; None =
        not known (on shapes alone, and reads of a launch on one core).
      twice: True if two turns of a loop chose the same element.
    """

    buffer: Buffer
    dtype: DType
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    indirect: bool = False
    reached: np.ndarray[Any, Any] | None = None
    twice: bool = False

    @property
    def elements(self) -> int:
        """Elements moved, broadcasts counted each time."""
        total = 1
        for size in self.shape:
            total *= size
        return total

    @property
    def partitions(self) -> int:
        """Partitions of an on-chip access; 1 in HBM."""
        return self.shape[0] if self.buffer.on_chip and self.shape else 1

    @property
    def partition_start(self) -> int:
        """First partition of an on-chip access."""
        row = self.buffer.bytes_per_partition // self.dtype.itemsize
        return self.offset // row if self.buffer.on_chip and row else 0

    @property
    def free_elements(self) -> int:
        """Elements per partition (on chip), or all of them (HBM)."""
        return self.elements // max(self.partitions, 1)

    @property
    def bytes(self) -> int:
        """Bytes moved, broadcasts counted each time."""
        return self.elements * self.dtype.itemsize

    @property
    def contiguous_bytes(self) -> int:
        """Length in bytes of the unit-stride runs that the access consists of (a DMA descriptor's payload)."""
        run = 1
        axes = list(zip(self.shape, self.strides, strict=True))
        for size, stride in reversed(axes[1:] if self.buffer.on_chip else axes):
            if size == 1:
                continue
            if stride != run:
                break
            run *= size
        return run * self.dtype.itemsize


@dataclass(slots=True, eq=False)  # not frozen, see Region
class Event:
    """One executed instruction.

    Attributes:
      index: position in the run's order of execution, over all cores.
      core: program id of the core that issued it.
      engine: one of `ENGINES`.
      queue: the issuing engine's name for compute; for DMA the queue that triggers it (e.g. `sync`, `scalar`, `gpsimd`).
      opcode: public name of the instruction, e.g. `nc_matmul`.
      reads, writes: regions in operand order (predicates, biases and per-partition scalars are reads).
      attrs: what timing or explanation needs besides: `op`, `op0`, `op1`, `accumulate`, `perf_mode`, `reduce`, ...
      file, line: the kernel's source position.
    """

    index: int
    core: int
    engine: str
    queue: str
    opcode: str
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]
    file: str
    line: int
    attrs: Mapping[str, Any] = field(default_factory=dict)
