"""Kernels of this package: they take the arrays of a task as their binding says."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nki_hf.chips import Chip
from nki_hf.errors import UnsupportedProblem
from nki_hf.kernels.binding import Binding
from nki_hf.kernels.call_tensors import TENSORS
from nki_hf.kernels.packing import packing
from nki_hf.kernels.plan import Plan, Target
from nki_hf.kernels.registry import bindings
from nki_hf.lang import features
from nki_hf.problem import Mask, Problem
from nki_hf.tasks import Task
from nki_hf.tools.numpy_layouts import NumpyArrays
from nki_hf.tools.verify_subject import layout_of

__all__ = ["Packed", "packed_by"]

Array = np.ndarray[Any, Any]


class Packed:
    """How a kernel of ours takes the arrays of an attention task."""

    def __init__(self, binding: Binding, task: Task, chip: Chip, lnc: int) -> None:
        self.binding = binding
        self.task = task
        self.target = Target(chip=chip, lnc=lnc, features=features("simulator"))

    @property
    def out(self) -> str:
        """Axes of its output as letters."""
        return layout_of(self.binding)["out"]

    def problem(self, size: int, dtype: str) -> Problem:
        """The call in the words of the package."""
        shapes = self.task.shapes(size, dtype)
        (*heads, rows, head_dim), (*kv_heads, keys, _) = shapes["q"][0], shapes["k"][0]
        seen = self.task.mask
        mask = Mask(ahead=seen.get("ahead"), window=seen.get("window"), q_offset=keys - rows) if seen else Mask()
        return Problem(
            batch=1,
            num_heads_q=heads[0] if heads else 1,
            num_heads_kv=kv_heads[0] if kv_heads else 1,
            seqlen_q=rows,
            seqlen_kv=keys,
            head_dim=head_dim,
            head_dim_v=head_dim,
            dtype=dtype,
            mask=mask,
        )

    def plan(self, size: int, dtype: str) -> Plan:
        """How it runs a size."""
        plan = self.binding.plan(self.problem(size, dtype), self.target)
        if not isinstance(plan, Plan):
            raise UnsupportedProblem(plan)
        return plan

    def shapes(self, size: int, dtype: str) -> dict[str, Any]:
        """Shape and element type of its tensors."""
        found = self.binding.shapes(self.problem(size, dtype), self.plan(size, dtype))
        return {name: item for name, item in found.items() if item is not None}

    def arrays(self, size: int, dtype: str) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
        """What makes its tensors of the task's arrays."""
        problem, plan = self.problem(size, dtype), self.plan(size, dtype)

        def pack(arrays: Mapping[str, Array]) -> dict[str, Array]:
            four = {
                name: array.reshape((1, *((1,) if array.ndim == 2 else ()), *array.shape)) for name, array in arrays.items()
            }
            found = packing(self.binding, problem, plan)({name: four.get(name) for name in TENSORS}, NumpyArrays(), fill=True)
            return {name: np.ascontiguousarray(array) for name, array in found.items() if array is not None}

        return pack


def packed_by(file: str, name: str, task: Task, chip: Chip, lnc: int) -> Packed | None:
    """None unless the file is that of a kernel of ours and the task is attention."""
    if not {"q", "k", "v"} == set(task.arrays(task.check[0])):
        return None
    for binding in bindings("forward"):
        spec = importlib.util.find_spec(binding.module)
        here = spec is not None and spec.origin and Path(spec.origin) == Path(file).resolve()
        if here and (not name or name.startswith(binding.name)):  # its entries are called NAME and NAME_loop
            return Packed(binding, task, chip, lnc)
    return None
