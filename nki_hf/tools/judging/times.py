"""Times: the simulated latency at a size on a chip, what it could not be below, what bounds it, and what to change."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from nki_hf.chips import Chip
from nki_hf.chips.measurements import error_band
from nki_hf.errors import KernelFault
from nki_hf.sim import LaunchResult, SimOptions, launch
from nki_hf.sim.faults import SimulatorWarning
from nki_hf.sim.run.play import Marks, played
from nki_hf.tasks import Task
from nki_hf.timing.schedule import schedule
from nki_hf.tools.judging.counters import counters
from nki_hf.tools.judging.reasons import reasons, sentence
from nki_hf.tools.numpy_layouts import NUMPY_DTYPES

__all__ = ["COUNTED", "ONE_TURN", "TURNS_OF_INPUTS", "least_us", "sentence", "stream_of", "timed"]


ONE_TURN = "a loop whose trip count is a value is timed as one turn"
"""What is said of such a loop: a run on shapes alone does not know how often it turns."""
TURNS_OF_INPUTS = "a loop whose trip count is a value is timed with the turns that it takes on normal inputs"

COUNTED = (
    "Bounds that follow from sizes are counted, as in nl.fori_loop(0, x.shape[0] // 128, body). What N turns take: schedule() "
    "of nki_hf.timing.schedule on the events of a launch with SimOptions(values=False, trip_counts=N)"
)
"""What to do about it."""


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
    scheduled = schedule(events, chip, window=window, overflow="spill")
    least = least_us(task, asked, chip, lnc)
    return {
        "size": size,
        "lnc": lnc,
        **reasons(scheduled, events),
        "instructions": len(events),
        "band": error_band(task.family or task.name, chip.name),
        "least_us": least,
        "score": min(1.0, least * 1e3 / scheduled.total_ns),
        "spills": spilled,
        "counters": counters(scheduled),
    }


def stream_of(
    asked: Mapping[str, Any], trace: Mapping[str, Any], chip: Chip, lnc: int, marks: dict[int, Marks] | None = None
) -> tuple[LaunchResult, str]:
    """The launch of a tape, and the sentence about memory that overflows (and is spilled); arguments as for `timed`, and as for
    `played`.

    Raises:
      KernelFault: the tape breaks another rule.
      BadTape: it is none.
    """
    arrays = {name: (shape, NUMPY_DTYPES[dtype]) for name, shape, dtype in asked["arrays"]}
    arguments = {p: np.broadcast_to(np.zeros((), arrays[n][1]), arrays[n][0]) for p, n in trace["parameters"]}
    kernel = played(trace["tape"], list(arguments), marks=marks)

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


def least_us(task: Task, asked: Mapping[str, Any], chip: Chip, lnc: int) -> float:
    """Us that no kernel can be below: useful operations at the 16-bit peak, every input read once at the DMA engines' rate, and
    the fixed cost of a launch.
    """
    nbytes = sum(math.prod(shape) * NUMPY_DTYPES[kind].itemsize for _, shape, kind in asked["arrays"])
    compute = task.flops(int(asked["size"])) / (lnc * float(chip.tensor_peak_tflops)) / 1e6
    memory = nbytes / (lnc * float(chip.dma_engines) * float(chip.dma_engine_bytes_per_ns)) / 1e3
    return max(compute, memory) + float(chip.kernel_fixed_ns) / 1e3
