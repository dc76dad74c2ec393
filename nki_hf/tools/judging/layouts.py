"""Layouts: an array of a task in the order of axes that a kernel takes, and an output back in the task's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nki_hf.tasks import Task

__all__ = ["parsed", "placed", "placed_shape", "returned"]

Array = np.ndarray[Any, Any]


def parsed(text: str, task: Task) -> dict[str, str]:
    """`q=ds,k=ds` as letters by name.

    Raises:
      ValueError: a name or a letter is not one of the task's.
    """
    found = {}
    for part in text.split(",") if text else ():
        name, _, axes = part.partition("=")
        own = task.axes.get(name)
        if own is None:
            raise ValueError(f"layout has {name!r}: {task.name} lets {', '.join(task.axes) or 'no array'} have a layout.")
        if len(set(axes)) != len(axes) or not set(own) <= set(axes):
            raise ValueError(
                f"layout {name}={axes} is no order of the axes {own}: name each once; further letters are axes of 1."
            )
        found[name] = axes
    return found


def placed_shape(shape: tuple[int, ...], own: str, wanted: str) -> tuple[int, ...]:
    """The shape of an array of axes `own` in the order `wanted`."""
    return tuple(shape[own.index(letter)] if letter in own else 1 for letter in wanted)


def placed(array: Array, own: str, wanted: str) -> Array:
    """The array in the order `wanted`, dense."""
    moved = array.transpose([own.index(letter) for letter in wanted if letter in own])
    return np.ascontiguousarray(moved.reshape(placed_shape(array.shape, own, wanted)))


def returned(array: Array, own: str, given: str) -> Array:
    """An output of axes `given` in the task's order; as it is where its axes do not fit."""
    if array.ndim != len(given) or any(n != 1 for n, letter in zip(array.shape, given, strict=True) if letter not in own):
        return array
    kept = [letter for letter in given if letter in own]
    dense = array.reshape([n for n, letter in zip(array.shape, given, strict=True) if letter in own])
    return dense.transpose([kept.index(letter) for letter in own])


def layout_of(task: Task, layout: Mapping[str, str], name: str) -> tuple[str, str]:
    """The task's letters of an array or output, and those that the kernel is given."""
    own = task.axes.get(name, "")
    return own, layout.get(name, own)
