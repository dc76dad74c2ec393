"""Times: the simulated latency at a size on a chip, what it could not be below, what bounds it, and what to change."""

from __future__ import annotations

import linecache
import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from nki_hf.chips import Chip
from nki_hf.chips.measurements import error_band
from nki_hf.errors import KernelFault
from nki_hf.observers.timing import critical_path, engine_times, gains, traffic
from nki_hf.sim import LaunchResult, SimOptions, launch
from nki_hf.sim.faults import SimulatorWarning
from nki_hf.sim.run.play import played
from nki_hf.tasks import Task
from nki_hf.timing.schedule import schedule
from nki_hf.tools.judging.counters import counters
from nki_hf.tools.judging.hints import hints
from nki_hf.tools.numpy_layouts import NUMPY_DTYPES

__all__ = ["sentence", "stream_of", "timed"]


def timed(
    task: Task,
    asked: Mapping[str, Any],
    trace: Mapping[str, Any],
    chip: Chip,
    lnc: int,
    *,
    dtype: str,
    window: int | None,
    launched: tuple[LaunchResult, str] | None = None,
) -> dict[str, Any]:
    """One row of the record; times in simulated us.

    Args:
      task: what the kernel computes.
      asked: the size and the arrays (name, shape, element type) that the kernel's process was given.
      trace: what it answered: the tape and the names of its parameters.
      chip, lnc: what it runs on.
      dtype: element type of the run.
      window: order of the schedule; None = as written.
      launched: what `stream_of` gave, if it is known.

    Raises:
      KernelFault: the tape breaks a rule at this size; memory that overflows is spilled instead.
    """
    size = int(asked["size"])
    result, spilled = launched or stream_of(asked, trace, chip, lnc)
    events = result.events
    plan = schedule(events, chip, window=window, overflow="spill")
    total = plan.total_ns / 1e3
    engines: dict[str, float] = {}
    for row in engine_times(plan):
        engines[row.engine] = max(engines.get(row.engine, 0.0), row.active_ns / 1e3)
    moved = traffic(plan)
    dma = max((row.active_ns / 1e3 for row in moved), default=0.0)
    floors = {**engines, "dma": dma}
    least = _least(task, asked, chip, lnc)
    path = critical_path(plan)
    busiest = max(floors, key=lambda name: floors[name])
    top = next((step for step in path if step.engine == busiest), path[0] if path else None)
    saved = gains(plan, busiest).get(busiest, 0.0) / 1e3
    bottleneck = None
    if top is not None:
        code = linecache.getline(top.file, top.line).strip()
        bottleneck = {
            "engine": busiest,
            "opcode": top.opcode,
            "file": top.file,
            "line": top.line,
            "code": code[:160],
            "active": floors[busiest] / total,
            "share": top.ns / plan.total_ns,
            "gain_us": max(saved, 0.0),
        }
    return {
        "size": size,
        "chip": chip.name,
        "lnc": lnc,
        "us": total,
        "order": plan.order,
        "instructions": len(events),
        "band": error_band(task.family or task.name, chip.name),
        "floors_us": {name: round(us, 3) for name, us in floors.items()},
        "least_us": least,
        "score": min(1.0, least / total),
        "bottleneck": bottleneck,
        "spills": spilled,
        "path": [
            {
                "engine": s.engine,
                "opcode": s.opcode,
                "file": s.file,
                "line": s.line,
                "us": s.ns / 1e3,
                "share": s.ns / plan.total_ns,
            }
            for s in path[:6]
        ],
        "counters": counters(plan),
        "hints": [
            {"rule": h.rule, "file": h.file, "line": h.line, "text": h.text, "gain_us": h.gain_us} for h in hints(plan, events)
        ],
    }


def stream_of(asked: Mapping[str, Any], trace: Mapping[str, Any], chip: Chip, lnc: int) -> tuple[LaunchResult, str]:
    """The launch of a tape, and the sentence about memory that overflows (and is spilled); arguments as for `timed`.

    Raises:
      KernelFault: the tape breaks another rule.
      BadTape: it is none.
    """
    arrays = {name: (shape, NUMPY_DTYPES[dtype]) for name, shape, dtype in asked["arrays"]}
    arguments = {p: np.broadcast_to(np.zeros((), arrays[n][1]), arrays[n][0]) for p, n in trace["parameters"]}
    kernel = played(trace["tape"], list(arguments))

    def run(checks: bool) -> LaunchResult:
        options = SimOptions(chip=chip, values=False, third_party=True, checks=checks, trip_counts=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SimulatorWarning)
            return launch(kernel, (), arguments, options=options, lnc=lnc)

    try:
        return run(True), ""
    except KernelFault as fault:
        if fault.record.kind != "capacity":
            raise
        return run(False), str(fault)


def _least(task: Task, asked: Mapping[str, Any], chip: Chip, lnc: int) -> float:
    """Us that no kernel can be below: useful operations at the 16-bit peak, every input read once at the DMA engines' rate, and
    the fixed cost of a launch.
    """
    nbytes = sum(math.prod(shape) * NUMPY_DTYPES[kind].itemsize for _, shape, kind in asked["arrays"])
    compute = task.flops(int(asked["size"])) / (lnc * float(chip.tensor_peak_tflops)) / 1e6
    memory = nbytes / (lnc * float(chip.dma_engines) * float(chip.dma_engine_bytes_per_ns)) / 1e3
    return max(compute, memory) + float(chip.kernel_fixed_ns) / 1e3


def sentence(row: Mapping[str, Any]) -> str:
    """The verdict on a time in one sentence, for every tool and page."""
    text = f"~ {row['us']:,.1f} us simulated on {row['chip']} at size {row['size']:,}"
    if row.get("band"):
        text += f" (error band {row['band']})"
    at = row["bottleneck"]
    if at:
        place = f" in {at['opcode']} (line {at['line']})" if at["line"] else ""
        text += f"; {at['engine']} is active {at['active']:.0%} of it, most of all{place}"
        if at["gain_us"] > 0.005 * row["us"]:
            text += f"; {at['gain_us']:,.1f} us shorter if it took no time"
    return text + f"; {row['score']:.0%} of what the chip allows at best."
