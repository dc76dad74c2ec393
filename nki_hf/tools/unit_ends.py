"""When each independent unit of a call ends in a schedule: the last of its stores to the first output."""

from __future__ import annotations

import math

import numpy as np

from nki_hf.kernels.registry import binding
from nki_hf.problem import Problem
from nki_hf.sim.stream.events import Region
from nki_hf.timing.schedule import Schedule

__all__ = ["unit_ends"]


def unit_ends(scheduled: Schedule, problem: Problem, kernel: str, cores: int) -> list[float] | None:
    """Of the n-th unit of every core the simulated ns at which it is written on all of them; None if a unit is not written.

    A schedule of one core of several, all of which do the same, has the units of that core.

    Args:
      scheduled: the schedule of `problem`, whose units lie along the innermost axis that the kernel's binding divides.
      problem: the call.
      kernel: its name.
      cores: how many share the units evenly.
    """
    contract = binding(kernel)
    inner, output = contract.division.axes[-1], contract.outputs[0]
    heads = inner == "num_heads_kv" and "num_heads_q" in output.axes
    axis = output.axes.index("num_heads_q" if heads else inner)
    shape = tuple(int(getattr(problem, name)) for name in output.axes)
    width = problem.group_size if heads else 1
    ends = [-1.0] * (shape[axis] // width)
    stores = np.array([queue.engine == "dma" for queue in scheduled.work.queues], np.bool_)[scheduled.work.queue_of]
    for i in np.flatnonzero(stores).tolist():
        for region in scheduled.events[i].writes:
            buffer = region.buffer
            if not buffer.on_chip and buffer.role != "input" and buffer.shape == shape:
                first, last = _along(region, axis, shape)
                for unit in range(first // width, last // width + 1):
                    ends[unit] = max(ends[unit], float(scheduled.done_ns[i]))
    traced = len({queue.core for queue in scheduled.work.queues})
    written = sorted(end for end in ends if end >= 0)
    return written[traced - 1 :: traced] if len(written) * cores == len(ends) * traced else None


def _along(region: Region, axis: int, shape: tuple[int, ...]) -> tuple[int, int]:
    """First and last index along an axis of its row-major buffer that a region touches."""
    size, step = shape[axis], math.prod(shape[axis + 1 :])
    if region.indirect:
        return 0, size - 1
    first = region.offset % (step * size)
    last = first + sum((n - 1) * s for n, s in zip(region.shape, region.strides, strict=True) if s < step * size)
    return first // step, min(last // step, size - 1)
