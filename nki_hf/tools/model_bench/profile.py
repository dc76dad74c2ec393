"""The event file of a CPU run: every instruction that the simulated kernels execute, as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from nki_hf.adapters.layouts import attention_call
from nki_hf.backends.simulator import simulator_backend
from nki_hf.chips import get_chip
from nki_hf.dispatch import Decision
from nki_hf.kernels.flash_prefill.plan import plan_prefill
from nki_hf.sim.events import Event, Region
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
            "mask": {name: getattr(mask, name) for name in mask.__dataclass_fields__ if name != "rows"},
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
    problem, mask = decision.problem, decision.problem.mask
    dtype = getattr(torch, problem.dtype)
    q = torch.empty(problem.batch, problem.num_heads_q, problem.seqlen_q, problem.head_dim, dtype=dtype)
    k = torch.empty(problem.batch, problem.num_heads_kv, problem.seqlen_kv, problem.head_dim, dtype=dtype)
    v = torch.empty(problem.batch, problem.num_heads_kv, problem.seqlen_kv, problem.head_dim_v, dtype=dtype)
    rows = torch.zeros(problem.batch, problem.seqlen_q, dtype=torch.int32) if mask.runtime_bounds else None
    call = attention_call(
        problem, plan_prefill(problem, get_chip(decision.chip), decision.lnc), q, k, v,
        lo=rows, hi=rows, bias=_bias(decision),
        sink=torch.zeros(problem.num_heads_q) if problem.sink else None, lnc=decision.lnc,
    )  # fmt: skip
    return simulator_backend(decision.chip).record(call).events


def _bias(decision: Decision) -> torch.Tensor | None:
    problem, mask = decision.problem, decision.problem.mask
    if mask.bias is None:
        return None
    shape = (
        problem.batch if mask.bias_batch else 1,
        problem.num_heads_q if mask.bias_heads else 1,
        problem.seqlen_q if mask.bias_rows else 1,
        problem.seqlen_kv,
    )
    return torch.zeros(shape, dtype=torch.bool if mask.bias == "boolean" else torch.float32)


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
