"""Views that keep every element: axes in another order, split, merged, added, removed, repeated. Nothing is copied.

The constraints are those of the public stub (nki/api/nki/language/__init__.py: NkiTensor); each broken one is a fault.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from nki_hf.sim.tensors.offsets import VectorOffset
from nki_hf.sim.tensors.strides import permutation, reshaped_strides, row_major, split_sizes
from nki_hf.sim.tensors.viewed import Viewed, replaced
from nki_hf.sim.whole import whole, whole_sizes

if TYPE_CHECKING:
    from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["AxisViews"]


class AxisViews(Viewed):
    """Methods of `NkiTensor` that change the order and number of axes."""

    __slots__ = ()

    def permute(self, dims: tuple[int, ...]) -> NkiTensor:
        """Axes in the order `dims`; on chip and after `vector_select` axis 0 stays first."""
        order = whole_sizes("permute", "dims", tuple(dims))
        if sorted(order) != list(range(len(self.shape))):
            self._wrong("permute", f"dims={order}", f"must be a permutation of 0 to {len(self.shape) - 1}")
        if order[0] != 0:
            self._fixed_first("permute", f"dims={order}")
        return self._view(tuple(self.shape[i] for i in order), tuple(self.strides[i] for i in order), self.offset)

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        """Axis `dim` of size 1 repeated `size` times; not the partition axis."""
        self._check_dim("broadcast", dim)
        size = whole("broadcast", "size", size)
        if size < 1:
            self._wrong("broadcast", f"size={size}", "must be 1 or more")
        if self.shape[dim] != 1:
            self._wrong("broadcast", f"axis {dim} has size {self.shape[dim]}", "only an axis of size 1 can be broadcast")
        if dim == 0 and self._on_chip:
            self._wrong("broadcast", "dim=0", "the partition axis cannot be broadcast")
        return self._view(replaced(self.shape, dim, size), replaced(self.strides, dim, 0), self.offset)

    def expand_dim(self, dim: int) -> NkiTensor:
        """A new axis of size 1 at position `dim`."""
        if not 0 <= dim <= len(self.shape):
            self._wrong("expand_dim", f"dim={dim}", f"must be 0 to {len(self.shape)}")
        if dim == 0:
            self._fixed_first("expand_dim", "dim=0")
        step = self.shape[dim] * self.strides[dim] if dim < len(self.shape) else 1
        return self._view(
            (*self.shape[:dim], 1, *self.shape[dim:]), (*self.strides[:dim], step, *self.strides[dim:]), self.offset
        )

    def squeeze_dim(self, dim: int) -> NkiTensor:
        """Without axis `dim`, which has size 1."""
        self._check_dim("squeeze_dim", dim)
        if self.shape[dim] != 1:
            self._wrong("squeeze_dim", f"axis {dim} has size {self.shape[dim]}", "only an axis of size 1 can be removed")
        if dim == 0:
            self._fixed_first("squeeze_dim", "dim=0")
        return self._view(replaced(self.shape, dim), replaced(self.strides, dim), self.offset)

    def reshape_dim(self, dim: int, shape: tuple[int, ...]) -> NkiTensor:
        """Axis `dim` split into axes of sizes `shape`, one of which may be -1."""
        self._check_dim("reshape_dim", dim)
        sizes = split_sizes(self.shape[dim], whole_sizes("reshape_dim", "shape", shape))
        if sizes is None:
            self._wrong("reshape_dim", f"shape={tuple(shape)}", f"its product must be {self.shape[dim]}")
        if dim == 0 and sizes != self.shape[:1]:
            self._fixed_first("reshape_dim", f"dim=0, shape={sizes}")
        steps = tuple(step * self.strides[dim] for step in row_major(sizes))
        return self._view(
            self.shape[:dim] + sizes + self.shape[dim + 1 :], self.strides[:dim] + steps + self.strides[dim + 1 :], self.offset
        )

    def flatten_dims(self, start_dim: int, end_dim: int) -> NkiTensor:
        """Axes `start_dim` to `end_dim` (inclusive) merged; they must lie contiguously in memory."""
        if not 0 <= start_dim <= end_dim < len(self.shape):
            self._wrong("flatten_dims", f"start_dim={start_dim}, end_dim={end_dim}", f"0 <= start <= end < {len(self.shape)}")
        if start_dim == 0 and end_dim > 0:
            self._fixed_first("flatten_dims", "start_dim=0")
        sizes, steps = self.shape[start_dim : end_dim + 1], self.strides[start_dim : end_dim + 1]
        merged = reshaped_strides(sizes, steps, (math.prod(sizes),))
        if merged is None:
            self._wrong("flatten_dims", f"axes {start_dim} to {end_dim} of {self!r}", "they must be contiguous in memory")
        return self._view(
            (*self.shape[:start_dim], math.prod(sizes), *self.shape[end_dim + 1 :]),
            self.strides[:start_dim] + merged + self.strides[end_dim + 1 :],
            self.offset,
        )

    def reshape(self, shape: tuple[int, ...]) -> NkiTensor:
        """The same elements as `shape` (one size may be -1); on chip and after `vector_select` axis 0 keeps its size."""
        total = math.prod(self.shape)
        sizes = split_sizes(total, whole_sizes("reshape", "shape", shape))
        if sizes is None:
            self._wrong("reshape", f"shape={tuple(shape)}", f"its product must be {total:,}")
        if sizes == self.shape:
            return self._view(self.shape, self.strides, self.offset)
        if sizes[:1] != self.shape[:1]:
            self._fixed_first("reshape", f"shape={sizes}")
        if self._on_chip or isinstance(self.indirection, VectorOffset):
            steps = reshaped_strides(self.shape[1:], self.strides[1:], sizes[1:])
            merged = None if steps is None else self.strides[:1] + steps
        else:
            merged = reshaped_strides(self.shape, self.strides, sizes)
        if merged is None:
            self._wrong(
                "reshape",
                f"shape={sizes} from strides {self.strides}",
                "the memory layout must allow it",
                "Copy the tensor first",
            )
        return self._view(sizes, merged, self.offset)

    def rearrange(
        self, src_pattern: tuple[Any, ...], dst_pattern: tuple[Any, ...], fixed_sizes: dict[str, int] | None = None
    ) -> NkiTensor:
        """Axes split, reordered and merged by name, e.g. `rearrange(("b", ("h", "w")), ("b", "w", "h"), {"h": 4})`."""
        if len(src_pattern) != len(self.shape):
            self._wrong("rearrange", f"src_pattern={src_pattern}", f"the tensor has {len(self.shape)} axes")
        split = self._view(self.shape, self.strides, self.offset)
        names: list[str] = []
        for item in src_pattern:
            parts = (item,) if isinstance(item, str) else tuple(item)
            if len(parts) > 1:
                split = split.reshape_dim(len(names), tuple((fixed_sizes or {}).get(name, -1) for name in parts))
            names.extend(parts)
        wanted = [name for item in dst_pattern for name in ((item,) if isinstance(item, str) else item)]
        order = permutation(names, wanted)
        if order is None:
            self._wrong("rearrange", f"dst_pattern={dst_pattern}", f"must name each of {', '.join(names)} once")
        result = split.permute(order)
        for axis, item in enumerate(dst_pattern):
            if not isinstance(item, str) and len(item) > 1:
                result = result.flatten_dims(axis, axis + len(item) - 1)
        return result
