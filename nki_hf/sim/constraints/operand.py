"""What rules ask of one operand: its first partition, its free access pattern, the names of its operator and engine."""

from __future__ import annotations

from typing import Any

from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["engine_name", "first_partition", "free_axes", "is_tile", "operator_kind", "operator_name", "partition_step", "show"]


def is_tile(value: Any) -> bool:
    """True for a tensor, False for an immediate, a register or None."""
    return isinstance(value, NkiTensor)


def first_partition(tensor: NkiTensor) -> int:
    """Physical partition of an on-chip view's first row; tiles without an explicit address start at partition 0."""
    address = tensor.storage.buffer.address
    return tensor.region().partition_start + (address[0] if address is not None else 0)


def partition_step(tensor: NkiTensor) -> int:
    """Partitions from one row of an on-chip view to the next; 1 where there is only one row."""
    row = tensor.storage.buffer.bytes_per_partition // tensor.dtype.itemsize
    if tensor.shape[0] <= 1 or row == 0:
        return 1
    return tensor.strides[0] // row if tensor.strides[0] % row == 0 else 0


def free_axes(tensor: NkiTensor) -> list[tuple[int, int]]:
    """`(stride, size)` of the free axes that an access pattern needs: neighbours that continue each other are one axis."""
    axes: list[tuple[int, int]] = []
    for size, stride in zip(reversed(tensor.shape[1:]), reversed(tensor.strides[1:]), strict=True):
        if size == 1:
            continue
        if axes and stride == axes[-1][0] * axes[-1][1]:
            axes[-1] = (axes[-1][0], axes[-1][1] * size)
        else:
            axes.append((stride, size))
    return axes[::-1]


def operator_name(op: Any) -> str:
    """Name of an operator, `` for None."""
    return "" if op is None else str(getattr(op, "name", getattr(op, "__name__", op)))


def operator_kind(op: Any) -> str:
    """`arith`, `compare`, `logical`, `bitwise` or `activation`; `` for None."""
    return str(getattr(op, "kind", ""))


def engine_name(asked: Any) -> str:
    """Name of the engine asked for; `unknown` if the choice is left open."""
    return str(getattr(asked, "name", "unknown"))


def show(tensor: NkiTensor) -> str:
    """`name[shape]` for messages."""
    return f"{tensor.name}{list(tensor.shape)}"
