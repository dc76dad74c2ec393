"""The simulator as a back end: CPU tensors in, CPU tensors out, the same kernel source as on the chip.

A kernel runs as Python once per kernel source, shapes, dtypes, constants, chip and core count. That run is recorded, and
later calls replay the recording, which costs only its NumPy calls. Where a kernel's parts are independent
(kernels/division.py), one part is recorded and replayed for each of them, on as many threads as there are processors; the
values are those of the undivided launch, bit by bit, but for sums over parts: those are added in the parts' order.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import threading
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nki_hf.backends.base import KernelCall, RunResult
from nki_hf.backends.parallel_for import parallel_for, usable_processors
from nki_hf.backends.program_pool import Key, ProgramPool
from nki_hf.chips import Chip, get_chip
from nki_hf.kernels import registry
from nki_hf.kernels.binding import Binding
from nki_hf.kernels.division import Part, axis_sizes, parts, whole_shape, worth_threads
from nki_hf.lang import load
from nki_hf.sim import LaunchResult, SimOptions, launch
from nki_hf.sim.host import as_numpy, as_torch, is_torch
from nki_hf.sim.run.program import fill

__all__ = ["SimulatorBackend", "simulator_backend"]

Array = np.ndarray[Any, Any]


class SimulatorBackend:
    """Runs kernels on the CPU. Safe to call from several threads and after a fork.

    Attributes:
      name: `simulator`.
      chip: the chip whose limits hold.
    """

    name = "simulator"

    def __init__(self, chip: Chip, *, threads: int | None = None, pool_bytes: int = 1 << 30) -> None:
        """A back end of its own (see `simulator_backend` for the shared one).

        Args:
          chip: the chip whose limits hold.
          threads: threads that run independent parts; default is the number of usable processors.
          pool_bytes: how much memory idle recordings may hold; the least recently used ones go first.
        """
        self.chip = chip
        self._threads = threads or usable_processors()
        self._pool = ProgramPool(pool_bytes)
        self._replayed = 0
        self._recorded = 0
        self._lock = threading.Lock()
        _backends.add(self)

    @property
    def instructions_replayed(self) -> int:
        """Instructions executed by replays so far."""
        return self._replayed

    @property
    def programs_recorded(self) -> int:
        """Kernel runs as Python so far."""
        return self._recorded

    def unavailable(self) -> str | None:
        """None: the simulator runs anywhere."""
        return None

    def run(self, call: KernelCall) -> RunResult:
        """Run one call; the outputs are fresh and of the kind of the inputs (torch CPU tensors or NumPy arrays)."""
        arrays = {name: None if value is None else as_numpy(value) for name, value in call.tensors.items()}
        binding = registry.binding(call.kernel)
        found = parts(binding, call.shapes, binding.returned(call.passed), wanted=self._threads)
        outputs: Sequence[Array]
        turns: Mapping[str, int]
        if found:
            outputs, turns = self._run_parts(replace(call, lnc=1), arrays, binding, found)
        else:
            outputs, turns = self._execute(_key(call, arrays, self.chip), call, arrays)
        if any(map(is_torch, call.tensors.values())):
            return RunResult(outputs=tuple(map(as_torch, outputs)), turns=turns)
        return RunResult(outputs=tuple(outputs), turns=turns)

    def record(self, call: KernelCall, *, trip_counts: int | Mapping[str, int] | None = None) -> LaunchResult:
        """The undivided launch of a call on shapes alone, on `call.lnc` cores: its events and buffers, no values.

        `trip_counts` are those of its loops of run time (see `SimOptions`).
        """
        arrays = {name: None if value is None else as_numpy(value) for name, value in call.tensors.items()}
        blank = {
            name: None if array is None else np.empty(call.shape(name, array), array.dtype) for name, array in arrays.items()
        }
        options = SimOptions(chip=self.chip, values=False, trip_counts=trip_counts)
        return launch(_kernel(call.kernel, call.entry), (), {**blank, **call.constants}, options=options, lnc=call.lnc)

    def clear(self) -> None:
        """Forget all recordings."""
        self._pool.clear()

    def _run_parts(
        self, call: KernelCall, arrays: Mapping[str, Array | None], binding: Binding, found: tuple[Part, ...]
    ) -> tuple[list[Array], Counter[str]]:
        returned, sizes = binding.returned(call.passed), axis_sizes(binding, call.shapes)

        def inputs(part: Part) -> dict[str, Array | None]:
            return {name: None if array is None else array[part.inputs[name]] for name, array in arrays.items()}

        first = inputs(found[0])
        key = _key(call, first, self.chip)
        read = sum(array.nbytes for array in first.values() if array is not None)
        threads = self._threads if worth_threads(binding, sizes) or read >= _WORTH_THREADS else 1
        outputs: list[Array] = []
        turns: Counter[str] = Counter()
        waiting: dict[int, list[tuple[Array, Any, Array]]] = {}
        added = 0

        def take(number: int, part: Part, results: tuple[Array, ...], turned: Mapping[str, int]) -> None:
            nonlocal added
            turns.update(turned)
            if not outputs:
                outputs.extend(
                    np.zeros(whole_shape(binding, item, result.shape, sizes, call.shapes), result.dtype)
                    for item, result in zip(returned, results, strict=True)
                )
            places = zip(returned, outputs, part.outputs, results, strict=True)
            waiting[number] = [
                (output, index, result) for item, output, index, result in places if item.summed or item.broadcast
            ]
            # In the order of the parts, whichever thread is done first: a sum rounds by its order.
            while added in waiting:
                for output, index, result in waiting.pop(added):
                    output[index] += result
                added += 1

        def run_part(numbered: tuple[int, Part]) -> None:
            number, part = numbered
            results, turned = self._execute(key, call, inputs(part))
            with self._lock:
                take(number, part, results, turned)
            for item, output, index, result in zip(returned, outputs, part.outputs, results, strict=True):
                if not (item.summed or item.broadcast):
                    output[index] = result

        parallel_for(run_part, tuple(enumerate(found)), threads)
        return outputs, turns

    def _execute(
        self, key: Key, call: KernelCall, arrays: Mapping[str, Array | None]
    ) -> tuple[tuple[Array, ...], Mapping[str, int]]:
        """Replay an idle recording, or run the kernel and keep its recording. Interrupted recordings are dropped."""
        given = {name: array for name, array in arrays.items() if array is not None}
        program = self._pool.take(key)
        if program is not None:
            outputs = program(given)
            turns = program.turns()
            self._count(replayed=program.instructions)
        else:
            # A recording owns its memory: the inputs are copied, or replays would write into the caller's arrays.
            own = {name: None if array is None else _copy(array, call.shape(name, array)) for name, array in arrays.items()}
            options = SimOptions(chip=self.chip, events=False, record=True)
            result = launch(_kernel(call.kernel, call.entry), (), {**own, **call.constants}, options=options, lnc=call.lnc)
            outputs, program, turns = result.outputs, result.program, result.run.turns()
            self._count(recorded=1)
        if program is not None:
            self._pool.give(key, program)
        return outputs, turns

    def _count(self, replayed: int = 0, recorded: int = 0) -> None:
        with self._lock:
            self._replayed += replayed
            self._recorded += recorded

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._pool.after_fork()


@functools.cache
def simulator_backend(chip: str) -> SimulatorBackend:
    """The process's simulator of that chip, whose recordings all callers share."""
    return SimulatorBackend(get_chip(chip))


_WORTH_THREADS = 1 << 21
"""Bytes that a part of few rows must read for threads to pay: below, its NumPy calls are too short to run side by side."""

_backends: weakref.WeakSet[SimulatorBackend] = weakref.WeakSet()


def _after_fork() -> None:
    for backend in list(_backends):
        backend._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@functools.cache
def _kernel(name: str, entry: str) -> Any:
    return getattr(load(registry.binding(name).module, "simulator"), entry or name)


@functools.cache
def _source_hash(name: str) -> str:
    source = inspect.getsource(load(registry.binding(name).module, "simulator"))
    return hashlib.sha256(source.encode()).hexdigest()


def _copy(array: Array, shape: tuple[int, ...]) -> Array:
    """A dense copy in a shape that is as long or longer, zeros behind it."""
    copy = np.empty(shape, array.dtype)
    fill(copy, array)
    return copy


def _key(call: KernelCall, arrays: Mapping[str, Array | None], chip: Chip) -> Key:
    tensors = tuple(
        (name, None if array is None else (call.shape(name, array), array.dtype.str)) for name, array in arrays.items()
    )
    return (
        call.kernel,
        call.entry,
        call.passed,
        _source_hash(call.kernel),
        tensors,
        tuple(call.constants.items()),
        chip.name,
        call.lnc,
    )
