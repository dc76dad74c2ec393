"""Gains: simulated time saved if an engine's instructions, or all DMA, took no time, by another schedule or an estimate."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nki_hf.observers.timing import floors_ns
from nki_hf.sim.beside import in_two
from nki_hf.timing.banks import WORTH_A_PROCESS
from nki_hf.timing.costs import Cost
from nki_hf.timing.schedule import Schedule, of_pieces, reschedule

__all__ = ["ESTIMATED_FROM", "gains", "quick_gains"]

ESTIMATED_FROM = 40_000
"""Instructions from which `quick_gains` estimates."""


_PIECES, _SHARE = 4, 0.25


_TYPICAL = 0.05
"""How far an engine's active share of the time may be from the whole kernel's in pieces that stand for it."""


def gains(scheduled: Schedule, *only: str) -> dict[str, float]:
    """Simulated ns saved if an engine's instructions, or all DMA, took no time; one entry per engine that ran anything, or for
    each of `only` that did.
    """
    _, examples = np.unique(scheduled.work.kind, return_index=True)
    of_kind = [scheduled.events[example].engine for example in examples.tolist()]
    engines = list(dict.fromkeys(queue.engine for queue in scheduled.work.queues if not only or queue.engine in only))

    def saved(some: Sequence[str]) -> list[float]:
        return [scheduled.total_ns - reschedule(scheduled, _without(scheduled, engine, of_kind)).total_ns for engine in some]

    mine, others = engines[::2], engines[1::2]
    worth = bool(others) and len(scheduled.events) >= WORTH_A_PROCESS
    ours, data = in_two(lambda: saved(mine), lambda: np.array(saved(others)).tobytes(), worth=worth)
    by_engine = dict(zip([*mine, *others], [*ours, *np.frombuffer(data).tolist()], strict=True))
    found = {engine: by_engine[engine] for engine in engines}
    if any(queue.engine == "dma" and queue.name == "sync" for queue in scheduled.work.queues):
        found.setdefault("sync", 0.0)  # it only triggers, and the time that a ring takes per transfer is DMA's
    return found


def _without(scheduled: Schedule, engine: str, of_kind: Sequence[str]) -> list[Cost]:
    """The costs of all forms of instructions, those of one engine zero; `of_kind` is the engine of each."""
    return [
        cost if its != engine
        else replace(cost, busy_ns=0.0, done_ns=0.0, output_ns=0.0, weight_ns=0.0, lead_ns=0.0,
                     payload_ns=0.0, tail_ns=0.0, psum_ns=0.0, sbuf_ns=0.0, table="")
        for cost, its in zip(scheduled.work.cost_of_kind, of_kind, strict=True)
    ]  # fmt: skip


def quick_gains(scheduled: Schedule) -> tuple[dict[str, float], frozenset[str]]:
    """`gains`, and the engines whose gain is an estimate: in a window's schedule of many instructions all but the busiest.

    An estimate is the gain in four pieces of the kernel, a quarter of its instructions, scaled to its latency. Of an engine
    that does nothing in them, or is not as active in them as in the whole kernel, nothing is estimated.
    """
    if scheduled.window is None or len(scheduled.events) < ESTIMATED_FROM:
        return gains(scheduled), frozenset()
    part, fixed = of_pieces(scheduled, _PIECES, _SHARE), float(scheduled.chip.kernel_fixed_ns)
    whole, theirs, floors = _active_shares(scheduled), _active_shares(part), floors_ns(scheduled)
    busiest = max(floors, key=lambda name: floors[name])
    scale = (scheduled.total_ns - fixed) / (part.total_ns - fixed)
    saved: dict[str, float] = {}
    estimated: set[str] = set()
    for engine in whole:
        rare = not theirs[engine] and whole[engine]
        if engine == busiest or rare or abs(whole[engine] - theirs[engine]) > _TYPICAL:
            saved |= gains(scheduled, engine)
        else:
            saved |= {name: ns * scale for name, ns in gains(part, engine).items() if name == engine}
            estimated.add(engine)
    if any(queue.engine == "dma" and queue.name == "sync" for queue in scheduled.work.queues):
        saved.setdefault("sync", 0.0)
    return saved, frozenset(estimated)


def _active_shares(scheduled: Schedule) -> dict[str, float]:
    """Share of the latency without the launch that each engine executes or moves bytes, the cores' mean."""
    work = scheduled.work
    moved = work.cost("payload_ns") * work.cost("engines") / float(scheduled.chip.dma_engines)
    dma = np.array([queue.engine == "dma" for queue in work.queues], bool)[work.queue_of]
    taken = np.bincount(work.queue_of, weights=np.where(dma, moved, work.cost("busy_ns")), minlength=len(work.queues))
    cores = len({queue.core for queue in work.queues})
    shares: dict[str, float] = defaultdict(float)
    for queue, ns in zip(work.queues, taken.tolist(), strict=True):
        shares[queue.engine] += ns / cores / (scheduled.total_ns - float(scheduled.chip.kernel_fixed_ns))
    return dict(shares)
