"""How run-time indices move a view: the three records that it may carry in `tensor.indirection`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nki_hf.sim.faults import fault

if TYPE_CHECKING:
    from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["GROUPS", "ScalarOffset", "TensorIndirection", "VectorOffset", "check_offsets", "index_tensors"]

GROUPS = (16, 32)
"""Partitions that share one list of offsets: 32 on the Tensor engine, 16 on the others."""


@dataclass(frozen=True, slots=True, eq=False)
class ScalarOffset:
    """The whole view moves by `index * stride` elements.

    Attributes:
      index: a one-element tensor or a `VirtualRegister`.
      stride: elements of the view's dtype per index step.
      size: valid indices are 0 to size - 1; None = only the storage's end counts.
      dim: axis of the view that the index moves along, -1 if it is gone from the view.
    """

    index: Any
    stride: int
    size: int | None
    dim: int


@dataclass(frozen=True, slots=True, eq=False)
class VectorOffset:
    """Row `p` of the view starts at `offset + index[p] * stride`; a `(P, N)` index is read column by column."""

    index: NkiTensor
    stride: int
    size: int | None
    dim: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class TensorIndirection:
    """Column `i` of the view is column `index[i % G, i // G]` of each partition group of G (NeuronCore-v4)."""

    index: NkiTensor
    stride: int
    size: int | None
    dim: int = 1


def index_tensors(tensors: tuple[NkiTensor, ...]) -> tuple[NkiTensor, ...]:
    """The index tensors that these operands' indirections read."""
    indirect = (tensor.indirection for tensor in tensors if tensor.indirection is not None)
    return tuple(item.index for item in indirect if hasattr(item.index, "storage"))


def check_offsets(shape: tuple[int, ...], index: NkiTensor, *groups: int) -> None:
    """A fault if a view `(P, num_elem)` takes offsets that its index does not have, with groups of any of these sizes.

    Element `i` of a group of G is at `index[i % G, i // G]`, so a last group that is cut to fewer partitions ends where the
    first one that it lacks would be read.
    """
    columns = math.prod(index.shape[1:])
    offers = [(shape[0] % group, shape[0] % group or group * columns, group) for group in groups]
    cut, offered, group = max(offers, key=lambda offer: offer[1])
    if shape[1] > offered:
        fault(
            "bounds",
            "indirect",
            f"num_elem={shape[1]} of index {index!r}",
            limit=f"a group of {cut or group} partitions has {offered} offsets in it",
            advice=f"Pass num_elem={offered} or less to indirect (left out it is all {math.prod(index.shape)} of the index)",
            num_elem=shape[1],
            offered=offered,
        )
