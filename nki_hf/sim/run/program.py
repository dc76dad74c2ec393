"""Program: a recorded run that can be replayed on new inputs without running the kernel's Python again."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nki_hf.sim.execution.actions import Action
from nki_hf.sim.execution.numerics import engine_numerics
from nki_hf.sim.execution.products import joined
from nki_hf.sim.execution.run import Run
from nki_hf.sim.run.needed import needed, unsettled
from nki_hf.sim.run.refills import refilled
from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["Program", "fill"]

_BLOCK = 64
"""Rows of the source that are transposed in one go. A transposed copy of 4,096 rows in one piece takes four times as long."""


class Program:
    """The actions of one launch, bound to memory of their own.

    A program is not re-entrant: one thread at a time (see backends/simulator.py for a pool of them).

    Attributes:
      actions: lists of computations. Cores that do not talk to each other have one list each, which may run at the same
        time; cores that do have one list together, in the order of the recorded run. Some do several at once.
      instructions: recorded computations that a replay executes, over all cores; a loop of run time counts as one.
    """

    def __init__(self, run: Run, inputs: Mapping[str, NkiTensor], outputs: Sequence[NkiTensor]) -> None:
        if not run.replayable:
            raise ValueError(f"this run cannot be replayed: {run.why_not_replayable}.")
        free = {name: item.storage for name, item in inputs.items() if not item.storage.seen and item.size}
        self._lent = {name: item for name, item in free.items() if item.buffer.number not in run.modified}
        self._inputs = {name: tensor.array() for name, tensor in inputs.items() if name not in self._lent}
        self._modified = [name for name, tensor in inputs.items() if tensor.storage.buffer.number in run.modified]
        self._outputs = [tensor.array() for tensor in outputs]
        self._first = refilled(run)
        self.actions: list[list[Action]] = [run.order] if run.talks else [machine.actions for machine in run.cores]
        self._bounds: list[str] = []
        self._again: list[Action] = []
        self._settled = False
        found = needed(run, [tensor.storage.buffer.number for tensor in outputs]) if run.lnc == 1 else None
        if found is not None:
            small = [name for name, array in self._inputs.items() if array.dtype.kind in "iu" and array.nbytes <= _SMALL]
            # What follows from constants alone lies in memory since the recorded run, unless it is lost there.
            self.actions = [unsettled(found, run, ())]
            self._bounds = [name for name in small if name not in self._modified]
            self._again = unsettled(found, run, {inputs[name].storage.buffer.number for name in self._bounds})
            self._settled = True  # by the recorded run
        self.instructions = sum(len(actions) for actions in self.actions)
        self.actions, self._again = [joined(actions) for actions in self.actions], joined(self._again)
        self._keep = (run, inputs, outputs)

    @functools.cached_property
    def nbytes(self) -> int:
        """Bytes of the program's own memory: inputs, outputs and tiles."""
        run = self._keep[0]
        moved = sum(array.nbytes for array in (*self._inputs.values(), *self._outputs))
        moved += sum(storage.data.nbytes for storage in self._lent.values() if storage.data is not None)
        return moved + sum(machine.pool.nbytes for machine in run.cores)

    def turns(self) -> dict[str, int]:
        """Turns of each loop of run time in the last run, by its name."""
        return self._keep[0].turns()

    def _unchanged(self, name: str, given: np.ndarray[Any, Any]) -> bool:
        mine = self._inputs[name]
        return given.shape == mine.shape and given.dtype == mine.dtype and given.tobytes() == mine.tobytes()

    def release(self) -> None:
        """Let go of all memory now. A program and its run refer to each other in circles, which would keep it until Python
        looks for such; it cannot be called again.
        """
        for machine in self._keep[0].cores:
            machine.actions.clear()
            machine.accesses.clear()
        self._keep[0].order.clear()
        self.actions.clear()
        self._again.clear()
        self._first.clear()
        self._keep[0].refills.clear()
        self._keep[0].cores.clear()
        self._keep[0].loops.clear()
        self._inputs.clear()
        self._lent.clear()
        self._outputs.clear()

    def __call__(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> tuple[np.ndarray[Any, Any], ...]:
        """Replay on `inputs` (same names and dtypes as recorded); the outputs are fresh arrays.

        Inputs have the recorded shapes, or are shorter and are followed by zeros. Those that the kernel writes in place are
        updated. Those that it only reads by runs of whole rows from run-time starts are not copied before. What follows from
        constants and unchanged bounds alone is not computed again (see sim/run/needed.py).
        """
        settled, self._settled = self._settled and all(self._unchanged(name, inputs[name]) for name in self._bounds), False
        for name, target in self._inputs.items():
            fill(target, inputs[name])
        for name, storage in self._lent.items():
            storage.lent = inputs[name]
        try:
            with engine_numerics():
                for action in self._first:
                    action()
                for actions in [self._again] if settled else self.actions:
                    for action in actions:
                        action()
        finally:
            for storage in self._lent.values():
                storage.lent = None
        self._settled = bool(self._again)
        for name in self._modified:
            inputs[name][...] = self._inputs[name]
        return tuple(array.copy() for array in self._outputs)


_SMALL = 1 << 14
"""Bytes of an integer input that is compared with what it was in the last replay."""


def fill(target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
    """Copy `source` to the beginning of `target` along every axis, and zeros behind it."""
    for axis, length in enumerate(source.shape):
        if length < target.shape[axis]:
            before = (slice(None),) * axis
            target[(*before, slice(length, None))] = 0
            target = target[(*before, slice(0, length))]
    if source.ndim > 1 and source.strides[-1] > source.strides[-2]:
        for start in range(0, source.shape[-1], _BLOCK):
            target[..., start : start + _BLOCK] = source[..., start : start + _BLOCK]
    else:
        target[...] = source
