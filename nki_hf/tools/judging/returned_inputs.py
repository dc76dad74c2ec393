"""A kernel's outputs are tensors of its own: an input that is returned as it came is none."""

from __future__ import annotations

from collections.abc import Mapping

from nki_hf.sim import LaunchResult
from nki_hf.tasks import Task
from nki_hf.tools.judging.findings import Failed, finding

__all__ = ["outputs_written"]


def outputs_written(first: LaunchResult, task: Task, names: Mapping[str, str]) -> None:
    """An output is a tensor that instructions write: an input that is returned as it came is none."""
    written = {region.buffer.number for event in first.events for region in event.writes}
    buffers = {buffer.number: buffer for buffer in first.run.buffers if buffer.role == "input"}
    for number, output in zip(first.run.returned, task.outputs, strict=False):
        if number in buffers and number not in written:
            name = buffers[number].name
            fault = {
                "kind": "input returned",
                "message": f"{output} is the kernel's own input {names.get(name, name)}, returned unchanged: no instruction "
                "writes it, and an output is a tensor that instructions write",
                "advice": "Allocate it with nl.ndarray(..., buffer=nl.shared_hbm), write it with nisa.dma_copy and return it.",
            }
            raise Failed("values", finding("values", fault))
