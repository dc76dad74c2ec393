"""Packing: the tensors of a call -> a kernel's arguments, by its binding. One description, for NumPy and for torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from nki_hf.kernels.binding import Argument, Binding
from nki_hf.kernels.call_tensors import TENSORS
from nki_hf.kernels.plan import Plan
from nki_hf.problem import Band, Problem

__all__ = ["Arrays", "Packing", "packing"]


class Arrays(Protocol):
    """What packing asks of an array library."""

    def permuted(self, array: Any, order: tuple[int, ...]) -> Any:
        """A view with its axes in that order."""

    def cast(self, array: Any, dtype: str, hidden: float | None, lowest: float | None) -> Any:
        """In `dtype`; uint8 holds truth values; with `hidden` in place of -inf, and all other values raised to `lowest`."""

    def padded(self, array: Any, axis: int, length: int, value: float) -> Any:
        """As long as `length` along an axis, `value` at its end."""

    def bounds(self, band: Band, seqlen_q: int, seqlen_kv: int, tensors: Mapping[str, Any]) -> tuple[Any, Any]:
        """Int32 `[batch or 1, seqlen_q]`: the band's first and past-the-last key of each row, cut to `lo` and `hi` of
        `tensors` if they are there.
        """


@dataclass(frozen=True, kw_only=True)
class _Step:
    """How one argument is made; None everywhere = the tensor as it is (`as_it_is`)."""

    name: str
    dtype: str | None
    hidden: float | None
    lowest: float | None
    order: tuple[int, ...] | None
    index: tuple[Any, ...] | None
    padding: tuple[tuple[int, int, float], ...]
    as_it_is: bool = field(init=False)

    def __post_init__(self) -> None:
        made = self.dtype is not None or self.order is not None or self.index is not None or bool(self.padding)
        object.__setattr__(self, "as_it_is", not made)


@dataclass(frozen=True, kw_only=True)
class Packing:
    """How the arguments of one kernel are made for one problem.

    Attributes:
      steps: one entry per argument in the kernel's order; None in place of one that the kernel does not get.
      bounds: band, seqlen_q and seqlen_kv if the kernel gets `lo` or `hi`, else None.
      extended: axis and length of the arguments that the back end fills with zeros (see `KernelCall.extended`).
    """

    steps: tuple[tuple[str, _Step | None], ...]
    bounds: tuple[Band, int, int] | None
    extended: Mapping[str, tuple[int, int]]

    def __call__(
        self, tensors: Mapping[str, Any], arrays: Arrays, *, fill: bool = False, exact: bool = False
    ) -> dict[str, Any]:
        """The arguments by name; None where there is none.

        Args:
          tensors: the tensors of the call by name, as in `binding.TENSORS`; the ones that it lacks are None or missing.
          arrays: their library.
          fill: True also fills the axes of `extended`.
          exact: True if `lo` and `hi` are there, int32, and lie within the band and the keys: they are taken as they are.

        Raises:
          ValueError: a tensor that the kernel gets is missing.
        """
        if self.bounds is not None and not exact:
            lower, upper = arrays.bounds(*self.bounds, tensors)
            tensors = {**tensors, "lo": lower, "hi": upper}
        found: dict[str, Any] = {}
        for name, step in self.steps:
            if step is None:
                found[name] = None
                continue
            tensor = tensors.get(name)
            if tensor is None:
                raise ValueError(f"{name}=None is a tensor that the kernel gets: pass it.")
            if step.as_it_is and not fill:
                found[name] = tensor
                continue
            if step.dtype is not None:
                tensor = arrays.cast(tensor, step.dtype, step.hidden, step.lowest)
            if step.order is not None:
                tensor = arrays.permuted(tensor, step.order)
            if step.index is not None:
                tensor = tensor[step.index]
            for axis, length, value in step.padding:
                tensor = arrays.padded(tensor, axis, length, value)
            if fill and name in self.extended:
                tensor = arrays.padded(tensor, *self.extended[name], 0.0)
            found[name] = tensor
        return found


def packing(binding: Binding, problem: Problem, plan: Plan) -> Packing:
    """The packing of one problem."""
    shapes = binding.shapes(problem, plan)
    steps: list[tuple[str, _Step | None]] = []
    extended: dict[str, tuple[int, int]] = {}
    for item in binding.arguments:
        shape = shapes[item.name]
        if shape is None:
            steps.append((item.name, None))
            continue
        longer = _longer(item, problem, binding.sizes(problem, plan), shape[1])
        if len(longer) == 1 and longer[0][2] == 0:
            extended[item.name] = longer[0][:2]
            longer = ()
        axes = [axis for axis in item.axes if axis != "1"]
        order = tuple(TENSORS[item.name].index(axis) for axis in axes)
        step = _Step(
            name=item.name,
            dtype=None if item.dtype == "problem" or item.name in ("lo", "hi") else shape[1],
            hidden=item.hidden,
            lowest=item.lowest(problem) if callable(item.lowest) else item.lowest,
            order=None if order == tuple(sorted(order)) else order,
            index=tuple(None if axis == "1" else slice(None) for axis in item.axes) if "1" in item.axes else None,
            padding=longer,
        )
        steps.append((item.name, step))
    bounds = None
    if shapes.get("lo") is not None or shapes.get("hi") is not None:
        bounds = (problem.mask, problem.seqlen_q, problem.seqlen_kv)
    return Packing(steps=tuple(steps), bounds=bounds, extended=extended)


def _longer(item: Argument, problem: Problem, sizes: Mapping[str, int], dtype: str) -> tuple[tuple[int, int, float], ...]:
    """Axis, length and filling of every axis that the kernel sees longer than it is."""
    found = []
    for number, axis in enumerate(item.axes):
        if axis == "1" or sizes[axis] == getattr(problem, axis):
            continue
        if item.padding is None:
            raise ValueError(f"{item.name} cannot be longer in {axis}: its binding names no padding.")
        found.append((number, sizes[axis], 0.0 if dtype == "uint8" else item.padding))
    return tuple(found)
