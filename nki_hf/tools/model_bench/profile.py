"""The event file of a CPU run: every instruction that the simulated kernels execute, as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nki_hf.backends.simulator import simulator_backend
from nki_hf.dispatch import Decision, kernel_call
from nki_hf.sim.stream.events import Event, Region
from nki_hf.tools.numpy_layouts import NUMPY_DTYPES
from nki_hf.tools.output_files import whole_file

__all__ = ["event_lines", "write_events"]


def write_events(path: Path, decisions: Iterable[Decision]) -> int:
    """Write the events of one launch per decision and return how many there are; the file is complete or absent.

    Each launch starts with a line `{"launch": ...}` that says kernel, problem, chip and core count; every further line is
    one event, in the order of execution.
    """
    count = 0
    with whole_file(path) as file:
        for decision in decisions:
            for line in event_lines(decision):
                file.write(json.dumps(line, default=str).encode() + b"\n")
                count += "launch" not in line
    return count


def event_lines(decision: Decision) -> Iterator[dict[str, Any]]:
    """The header of the launch, then its events, as plain JSON values."""
    problem, mask = decision.problem, decision.problem.mask
    yield {
        "launch": {
            "kernel": decision.kernel,
            "chip": decision.chip,
            "lnc": decision.lnc,
            "problem": {name: getattr(problem, name) for name in problem.__dataclass_fields__ if name != "mask"},
            "mask": {name: getattr(mask, name) for name in mask.__dataclass_fields__},
        }
    }
    for event in _record(decision):
        yield {
            "index": event.index,
            "core": event.core,
            "engine": event.engine,
            "queue": event.queue,
            "opcode": event.opcode,
            "reads": [_region(region) for region in event.reads],
            "writes": [_region(region) for region in event.writes],
            "attrs": dict(event.attrs),
            "file": event.file,
            "line": event.line,
        }


def _record(decision: Decision) -> Iterable[Event]:
    """The launch on shapes alone: the values of a run do not change which instructions it executes."""
    if decision.binding is None or decision.plan is None:
        return ()
    batch = decision.problem.batch if decision.problem.mask.runtime_bounds else 1
    shapes = decision.binding.shapes(decision.problem, decision.plan, batch)
    tensors = {name: None if item is None else np.empty(item[0], NUMPY_DTYPES[item[1]]) for name, item in shapes.items()}
    call = kernel_call(decision, tensors, {})
    return simulator_backend(decision.chip).record(call, trip_counts=decision.plan.trip_counts).events


def _region(region: Region) -> dict[str, Any]:
    buffer = region.buffer
    return {
        "buffer": buffer.name,
        "number": buffer.number,
        "space": buffer.space,
        "dtype": str(region.dtype),
        "offset": region.offset,
        "shape": list(region.shape),
        "strides": list(region.strides),
        "bytes": region.bytes,
    }
