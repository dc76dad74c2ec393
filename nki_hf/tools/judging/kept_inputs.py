"""A kernel's inputs are the caller's, and its outputs tensors of its own: what is written that must not be, and what is not."""

from __future__ import annotations

from collections.abc import Mapping

from nki_hf.sim import LaunchResult
from nki_hf.tasks import Task
from nki_hf.tools.judging.findings import Failed, finding

__all__ = ["inputs_kept", "outputs_written"]


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


def inputs_kept(first: LaunchResult, task: Task, names: Mapping[str, str]) -> None:
    """A task's inputs are the caller's: a kernel that writes what it reads gives another result when it is called again."""
    read = {region.buffer.number for event in first.events for region in event.reads if region.buffer.role == "input"}
    for event in first.events:
        for region in event.writes:
            name = region.buffer.name
            if region.buffer.role == "input" and region.buffer.number in read and names.get(name) not in task.in_place:
                fault = {
                    "kind": "input written",
                    "message": f"{event.opcode} writes the input {name}, which is also read: an output is a tensor of its own",
                    "advice": "Allocate it with nl.ndarray(..., buffer=nl.shared_hbm).",
                    "file": event.file,
                    "line": event.line,
                }
                raise Failed("values", finding("values", fault))
