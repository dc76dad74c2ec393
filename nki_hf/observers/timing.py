"""What a schedule says: engine times, critical path, roofline; gains.py has what would be gained if something were free.

All times are simulated. `active` is Neuron Explorer's word: an engine executes an instruction, waits excluded.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from nki_hf.timing.schedule import Schedule
from nki_hf.timing.times import REASONS

__all__ = [
    "EngineTime",
    "PathStep",
    "Roofline",
    "Traffic",
    "critical_path",
    "engine_times",
    "floors_ns",
    "path_events",
    "roofline",
    "traffic",
]

WAITS = tuple(reason for reason in REASONS if reason not in ("start", "engine"))
"""What an engine can wait for: another engine's result, a DMA, a shared port, on-chip memory, an activation table."""


@dataclass(frozen=True, kw_only=True)
class EngineTime:
    """How one engine spends the kernel's time; the parts add up to `total_ns`.

    Attributes:
      core, engine: whose.
      instructions: how many it ran.
      active_ns: executing instructions.
      waiting_ns: by what it waited for, see `WAITS`.
      idle_ns: before its first and after its last instruction, the kernel's fixed cost included.
      total_ns: the kernel's latency.
    """

    core: int
    engine: str
    instructions: int
    active_ns: float
    waiting_ns: dict[str, float]
    idle_ns: float
    total_ns: float


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What one core's DMA engines did.

    Attributes:
      core: whose.
      transfers: how many.
      nbytes: bytes moved, spills included; see `Cost.nbytes`.
      hbm_bytes: bytes read from or written to HBM; a copy within HBM counts both.
      active_ns: time that the DMA engines were moving bytes, averaged over the engines.
      bytes_per_ns: over the kernel's latency.
      peak_bytes_per_ns: of all engines, practical.
    """

    core: int
    transfers: int
    nbytes: int
    hbm_bytes: int
    active_ns: float
    bytes_per_ns: float
    peak_bytes_per_ns: float


@dataclass(frozen=True, kw_only=True)
class PathStep:
    """A kernel line's share of the critical path.

    Attributes:
      engine, opcode, file, line: whose; engine `launch` stands for the kernel's fixed cost.
      count: instructions on the path.
      ns: time that the path spends in them and in waiting for their results; the shares add up to the kernel's latency.
    """

    engine: str
    opcode: str
    file: str
    line: int
    count: int
    ns: float


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """Where a kernel stands between compute and HBM, all cores together.

    Attributes:
      flops: operations of matmuls (transposes count nothing).
      hbm_bytes: bytes between HBM and the chip.
      intensity: flops per HBM byte.
      achieved_tflops, attainable_tflops, peak_tflops: over the latency; what intensity and DMA allow; the engines' peak in
        the dtype and mode of most matmuls.
      bound: `compute` or `dma`.
    """

    flops: int
    hbm_bytes: int
    intensity: float
    achieved_tflops: float
    attainable_tflops: float
    peak_tflops: float
    bound: str


def engine_times(scheduled: Schedule) -> list[EngineTime]:
    """One row per core and engine that ran anything, in the order tensor, vector, scalar, gpsimd, sync.

    Sync's instructions are the triggers of its transfers; while its descriptor ring is busy they wait for `dma`.
    """
    found = []
    of, ring = scheduled.work.queue_of, REASONS.index("dma")
    triggers = {queue for queue in scheduled.work.queues if queue.engine == "dma" and queue.name == "sync"}
    rows = {(queue.core, "sync" if queue in triggers else queue.engine): 0 for queue in scheduled.work.queues}
    for core, engine in (row for row in rows if row[1] != "dma"):
        own = [k for k, queue in enumerate(scheduled.work.queues) if (queue.core, queue.engine) == (core, engine)]
        sent = [
            k for k, queue in enumerate(scheduled.work.queues) if queue in triggers and (queue.core, "sync") == (core, engine)
        ]
        mine = np.flatnonzero(np.isin(of, own + sent))
        order = mine[np.argsort(scheduled.start_ns[mine], kind="stable")]
        trigger = np.isin(of[order], sent)
        ends = np.where(trigger, scheduled.start_ns[order] + float(scheduled.chip.dma_trigger_ns), scheduled.free_ns[order])
        reason = np.where(trigger & (scheduled.reason[order] == REASONS.index("engine")), ring, scheduled.reason[order])
        before = np.concatenate([scheduled.start_ns[order[:1]], ends[:-1]])
        gaps = np.maximum(scheduled.start_ns[order] - before, 0.0)
        waiting = {name: float(gaps[reason == REASONS.index(name)].sum()) for name in WAITS}
        active = float((ends - scheduled.start_ns[order]).sum())
        found.append(
            EngineTime(
                core=core,
                engine=engine,
                instructions=len(order),
                active_ns=active,
                waiting_ns=waiting,
                idle_ns=scheduled.total_ns - active - sum(waiting.values()),
                total_ns=scheduled.total_ns,
            )
        )
    rank = {name: i for i, name in enumerate(("tensor", "vector", "scalar", "gpsimd", "sync"))}
    return sorted(found, key=lambda row: (row.core, rank[row.engine]))


def traffic(scheduled: Schedule) -> list[Traffic]:
    """One row per core that moved anything."""
    found = []
    chip = scheduled.chip
    for core in sorted({queue.core for queue in scheduled.work.queues}):
        count = nbytes = hbm = 0
        engine_ns = 0.0
        for event, cost in zip(scheduled.events, scheduled.work.costs, strict=True):
            if event.core == core and cost.payload_ns:
                count, nbytes = count + 1, nbytes + cost.nbytes
                hbm += cost.hbm_bytes
                engine_ns += cost.payload_ns * cost.engines
        if count:
            found.append(
                Traffic(
                    core=core,
                    transfers=count,
                    nbytes=nbytes,
                    hbm_bytes=hbm,
                    active_ns=engine_ns / chip.dma_engines,
                    bytes_per_ns=nbytes / scheduled.total_ns,
                    peak_bytes_per_ns=chip.dma_engines * chip.dma_engine_bytes_per_ns,
                )
            )
    return found


def floors_ns(scheduled: Schedule) -> dict[str, float]:
    """By engine and `dma`: what it executes, or the bytes that it moves, without a gap, on the core where it takes longest."""
    found: dict[str, float] = {}
    for row in engine_times(scheduled):
        found[row.engine] = max(found.get(row.engine, 0.0), row.active_ns)
    return {**found, "dma": max((row.active_ns for row in traffic(scheduled)), default=0.0)}


def path_events(scheduled: Schedule) -> list[int]:
    """The chain of instructions that the latency consists of, last one first."""
    found: list[int] = []
    current = int(np.argmax(scheduled.done_ns)) if len(scheduled.events) else -1
    while current >= 0:
        found.append(current)
        current = int(scheduled.cause[current])
    return found


def critical_path(scheduled: Schedule) -> list[PathStep]:
    """The chain of instructions that the latency consists of, summed by kernel line, largest share first."""
    shares: dict[tuple[str, str, str, int], list[float]] = defaultdict(lambda: [0, 0.0])
    chain = path_events(scheduled)
    until = scheduled.total_ns
    for current in chain:
        event = scheduled.events[current]
        share = shares[event.engine, event.opcode, event.file, event.line]
        share[0] += 1
        share[1] += until - float(scheduled.start_ns[current])
        until = float(scheduled.start_ns[current])
    shares["launch", "", "", 0] = [1, until]
    steps = [PathStep(engine=k[0], opcode=k[1], file=k[2], line=k[3], count=int(v[0]), ns=v[1]) for k, v in shares.items()]
    return sorted(steps, key=lambda step: -step.ns)


def roofline(scheduled: Schedule) -> Roofline:
    """The kernel's position under the roofs of its cores' Tensor engines and DMA engines."""
    chip = scheduled.chip
    by_rate: dict[float, int] = defaultdict(int)  # flops by what the engine does of them, relative to 16-bit
    for event, cost in zip(scheduled.events, scheduled.work.costs, strict=True):
        if cost.flops and event.attrs.get("perf_mode") == "double_row":
            by_rate[float(chip.tensor_double_row_speedup)] += cost.flops
        elif cost.flops:
            by_rate[1 / chip.tensor_fp32_cycles if event.reads[0].dtype.itemsize == 4 else 1.0] += cost.flops
    cores = len({queue.core for queue in scheduled.work.queues})
    flops = sum(by_rate.values())
    peak = cores * chip.tensor_peak_tflops * max(by_rate, key=lambda rate: by_rate[rate], default=1.0)
    hbm = sum(row.hbm_bytes for row in traffic(scheduled))
    bandwidth = cores * chip.dma_engines * chip.dma_engine_bytes_per_ns
    intensity = flops / hbm if hbm else float("inf")
    attainable = min(peak, intensity * bandwidth / 1e3)
    return Roofline(
        flops=flops,
        hbm_bytes=hbm,
        intensity=intensity,
        achieved_tflops=flops / scheduled.total_ns / 1e3,
        attainable_tflops=attainable,
        peak_tflops=peak,
        bound="compute" if attainable == peak else "dma",
    )
