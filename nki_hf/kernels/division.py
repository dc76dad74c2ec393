"""Division: which parts of a kernel call are independent of each other, by its binding, for threads and for launches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nki_hf.kernels.binding import Argument, Binding, Output

__all__ = [
    "Part",
    "axis_sizes",
    "launch_counts",
    "launch_parts",
    "launch_rows",
    "parts",
    "rows_of",
    "shared_axes",
    "whole_shape",
    "worth_threads",
]

Index = tuple[slice, ...]
Shapes = Mapping[str, tuple[int, ...] | None]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One independent part of a call.

    Attributes:
      inputs: which part of each tensor argument it reads, by parameter name.
      outputs: which part of each output it writes, in the kernel's order.
    """

    inputs: Mapping[str, Index]
    outputs: tuple[Index, ...]


def axis_sizes(binding: Binding, shapes: Shapes) -> dict[str, int]:
    """Size of each axis, from the shapes of a call's arguments (None = absent).

    Raises:
      ValueError: an argument that the kernel always gets is missing, or has another number of axes.
    """
    found: dict[str, int] = {"1": 1}
    for item in binding.arguments:
        shape = shapes.get(item.name)
        if shape is None:
            if not item.optional:
                raise ValueError(f"{item.name}=None is not a tensor of the call: {binding.name} always gets it.")
            continue
        if len(shape) != len(item.axes):
            raise ValueError(f"{item.name}.shape={list(shape)} is not {list(item.axes)}, as {binding.name} has it.")
        for axis, size in zip(item.axes, shape, strict=True):
            found[axis] = max(size, found.get(axis, 1)) if axis in item.broadcast else size
    return found


def worth_threads(binding: Binding, sizes: Mapping[str, int]) -> bool:
    """True if a size of the call is so large that dividing the group over threads pays for what it reads twice."""
    return any(sizes[axis] >= least for axis, least in binding.division.worth.items())


def parts(binding: Binding, shapes: Shapes, returned: Sequence[Output], wanted: int = 1) -> tuple[Part, ...]:
    """The parts of a call: one per entry of the divisible axes, whose order is that of the kernel's own loops.

    Args:
      binding: the kernel; one that names no axes is not taken apart: `()`.
      shapes: shape of each tensor argument by parameter name; None for absent ones.
      returned: the outputs that the call returns.
      wanted: make this many parts, where that is possible by dividing groups of query heads.
    """
    axes = binding.division.axes
    if not axes:
        return ()
    sizes = axis_sizes(binding, shapes)
    units = math.prod(sizes[axis] for axis in axes)
    shares = 1
    if binding.division.group and worth_threads(binding, sizes):
        group = sizes["num_heads_q"] // sizes["num_heads_kv"]
        shares = next((n for n in range(1, group + 1) if group % n == 0 and n * units >= wanted), group)
    return _cut(binding, shapes, sizes, returned, {axis: sizes[axis] for axis in axes}, shares)


def launch_counts(binding: Binding, shapes: Shapes, instructions: int, limit: int) -> dict[str, int]:
    """Into how many equal pieces each axis is cut so that no launch exceeds `limit` instructions, outermost first.

    `num_heads_q` stands for the query heads of one kv head, which are divided last. If even one entry of every axis exceeds
    the limit, each launch has one.
    """
    sizes = axis_sizes(binding, shapes)
    axes = binding.division.axes
    units = math.prod(sizes[axis] for axis in axes)
    room = limit * units // max(1, instructions)  # units that fit one launch
    counts = {}
    for number, axis in enumerate(axes):
        inner = math.prod(sizes[later] for later in axes[number + 1 :])
        taken = _largest_divisor(sizes[axis], room // inner)
        counts[axis] = sizes[axis] // taken
        room //= taken
    if binding.division.group:
        group = sizes["num_heads_q"] // sizes["num_heads_kv"]
        whole = all(counts[axis] == sizes[axis] for axis in axes)
        counts["num_heads_q"] = group // _largest_divisor(group, limit * units * group // max(1, instructions)) if whole else 1
    return counts


def launch_parts(binding: Binding, shapes: Shapes, returned: Sequence[Output], counts: Mapping[str, int]) -> tuple[Part, ...]:
    """The parts of a call whose axes are cut as `launch_counts` says, in the order of nested loops."""
    axes = {axis: count for axis, count in counts.items() if axis in binding.division.axes}
    return _cut(binding, shapes, axis_sizes(binding, shapes), returned, axes, counts.get("num_heads_q", 1))


def launch_rows(
    binding: Binding,
    shapes: Shapes,
    constants: Mapping[str, Any],
    instructions: int,
    limit: int,
    counts: Mapping[str, int],
) -> Sequence[tuple[int, int]]:
    """The query rows `[begin, end)` of each launch of one head, where even one head exceeds `limit`; else empty."""
    sizes = axis_sizes(binding, shapes)
    heads = math.prod(sizes[axis] for axis in binding.division.axes)
    if binding.division.group:
        heads *= sizes["num_heads_q"] // sizes["num_heads_kv"]
    if binding.division.rows is None or instructions <= limit * heads or math.prod(counts.values()) < heads:
        return ()
    return binding.division.rows.runs(constants, sizes["seqlen_q"], limit)


def rows_of(binding: Binding, name: str, shape: tuple[int, ...], begin: int, end: int) -> Index:
    """Where the query rows `[begin, end)` of an argument are."""
    (item,) = [item for item in binding.arguments if item.name == name]
    return _index(item, {"seqlen_q": slice(begin, end)}, shape)


def shared_axes(output: Output, shapes: Shapes) -> frozenset[str]:
    """Axes of an output that have size 1 because the bias has: what parts along them give is added up."""
    bias = shapes.get("bias")
    if bias is None:
        return frozenset()
    return (
        frozenset(axis for axis, size in zip(output.axes, bias, strict=True) if size == 1) if output.broadcast else frozenset()
    )


def whole_shape(
    binding: Binding, output: Output, part: tuple[int, ...], sizes: Mapping[str, int], shapes: Shapes
) -> tuple[int, ...]:
    """Shape of an output of the whole call, from that of a part."""
    shared = shared_axes(output, shapes)
    divided = {*binding.division.axes, "num_heads_q"} if "num_heads_kv" in binding.division.axes else set(binding.division.axes)
    divided -= shared
    return tuple(sizes[axis] if axis in divided else size for axis, size in zip(output.axes, part, strict=True))


def _cut(
    binding: Binding,
    shapes: Shapes,
    sizes: Mapping[str, int],
    returned: Sequence[Output],
    counts: Mapping[str, int],
    shares: int,
) -> tuple[Part, ...]:
    group = sizes["num_heads_q"] // sizes["num_heads_kv"] if "num_heads_kv" in counts else 1
    given = [(item, shape) for item in binding.arguments if (shape := shapes.get(item.name)) is not None]
    made = [(item, shapes.get("bias") if item.broadcast else None) for item in returned]
    found = []
    for *numbers, share in itertools.product(*(range(count) for count in counts.values()), range(shares)):
        places: dict[str, slice] = {}
        for (axis, count), number in zip(counts.items(), numbers, strict=True):
            length = sizes[axis] // count
            places[axis] = slice(number * length, (number + 1) * length)
        if "num_heads_kv" in places:
            heads = places["num_heads_kv"]
            size = group * (heads.stop - heads.start) // shares
            places["num_heads_q"] = slice(heads.start * group + share * size, heads.start * group + (share + 1) * size)
        inputs = {item.name: _index(item, places, shape) for item, shape in given}
        found.append(Part(inputs=inputs, outputs=tuple([_index(item, places, shape) for item, shape in made])))
    return tuple(found)


def _index(item: Argument | Output, places: Mapping[str, slice], shape: tuple[int, ...] | None) -> Index:
    """The part's place in a tensor; axes of size 1 that stand for all are kept."""
    stop = 0
    for number, axis in enumerate(item.axes):
        if axis in places:
            stop = number + 1
    found = [places.get(axis, _EVERY) for axis in item.axes[:stop]]
    if shape is not None and item.broadcast:
        for number, axis in enumerate(item.axes[:stop]):
            if axis in item.broadcast and shape[number] == 1:
                found[number] = _EVERY
        while found and found[-1] == _EVERY:
            found.pop()
    return tuple(found)


_EVERY = slice(None)


def _largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit`; 1 if there is none."""
    return next((d for d in range(min(number, max(1, limit)), 0, -1) if number % d == 0), 1)
