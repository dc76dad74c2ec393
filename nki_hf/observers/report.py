"""The figures of a schedule as plain values: what reports print, write as JSON, and show on a page."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from nki_hf.observers.gains import gains
from nki_hf.observers.timing import Roofline, critical_path, engine_times, roofline, traffic
from nki_hf.observers.working_set import working_sets
from nki_hf.sim.stream.events import Event
from nki_hf.timing.schedule import Schedule
from nki_hf.timing.spills import Spills

__all__ = ["ESTIMATED", "LONGER", "facts", "gain_text"]

LONGER = (
    "A negative gain is no mistake of the sum: given less work, the modelled compiler takes instructions in another order, "
    "which may end later. Program order never does."
)
ESTIMATED = (
    "~ is an estimate: of so long a kernel the gain of all but the busiest engine is that in four pieces of it, a quarter of "
    "its instructions. So is the most that a hint about such an engine gains."
)


def facts(
    scheduled: Schedule,
    events: Sequence[Event] | None = None,
    useful_flops: int | None = None,
    *,
    saved_ns: Mapping[str, float] | None = None,
    estimated: Collection[str] = (),
) -> dict[str, Any]:
    """Everything that a report says, as plain JSON types; times are simulated.

    Args:
      scheduled: the schedule.
      events: the kernel's own stream, whose working set is listed; None = that of the schedule, spills included.
      useful_flops: operations that were asked for, e.g. on visible keys; None = not known.
      saved_ns: what `gains` says of every engine, if it is known.
      estimated: the engines of which `saved_ns` is an estimate.
    """
    total, saved = scheduled.total_ns, gains(scheduled) if saved_ns is None else saved_ns
    point, spills = roofline(scheduled), scheduled.spills
    useful = None if useful_flops is None else useful_flops / total / 1e3
    return {
        "simulated": True, "chip": scheduled.chip.name, "order": scheduled.order, "total_us": total / 1e3,
        "instructions": len(scheduled.events), "throttled": scheduled.throttled,
        "achieved": _achieved(point, useful),
        "executed_tflops": point.achieved_tflops, "visible_tflops": useful,
        "peak_tflops": point.peak_tflops, "attainable_tflops": point.attainable_tflops,
        "spills": _spilled(spills),
        "engines": [
            {"core": row.core, "engine": row.engine, "instructions": row.instructions, "active": row.active_ns / total,
             "waiting": {name: ns / total for name, ns in row.waiting_ns.items()}, "idle": row.idle_ns / total,
             "gain_us": _gain_us(saved[row.engine]), "gain_estimated": row.engine in estimated}
            for row in engine_times(scheduled)
        ],
        "dma": [
            {"core": row.core, "transfers": row.transfers, "mib": row.nbytes / 2**20, "gb_per_s": row.bytes_per_ns,
             "peak_gb_per_s": row.peak_bytes_per_ns, "active": row.active_ns / total, "gain_us": _gain_us(saved["dma"]),
             "gain_estimated": "dma" in estimated}
            for row in traffic(scheduled)
        ],
        "memory": [
            {"core": core, "space": space, "kib": nbytes / 1024} for (core, space), nbytes in scheduled.high_water_bytes.items()
        ],
        "working_set": [
            {"core": item.core, "space": item.space, "high_water_bytes": item.high_water, "capacity_bytes": item.capacity,
             "tiles": [{"name": tile.name, "source": f"{tile.file}:{tile.line}", "bytes": tile.nbytes, "live": tile.live,
                        "total_bytes": tile.total} for tile in item.tiles]}
            for item in working_sets(scheduled.events if events is None else events, scheduled.chip)
        ],
        "path": [
            {"engine": step.engine, "opcode": step.opcode, "source": f"{step.file}:{step.line}" if step.file else "",
             "count": step.count, "us": step.ns / 1e3, "share": step.ns / total}
            for step in critical_path(scheduled)
        ],
    }  # fmt: skip


def gain_text(row: Mapping[str, Any]) -> str:
    """The gain of a row of `facts` in us, after a ~ if it is an estimate."""
    return f"{'~ ' if row['gain_estimated'] else ''}{row['gain_us']:,.1f}"


def _spilled(spills: Spills) -> str:
    """What came of tiles that did not fit, without what did not happen; empty if all fitted."""
    kinds = (
        (spills.psum_copies, "PSUM tiles go to SBUF"),
        (spills.recomputed, "matmuls run again for want of PSUM"),
        (spills.stores, "stores of spilled tiles go to HBM"),
        (spills.loads, "loads of spilled tiles come from HBM"),
    )
    found = [f"{count:,} {what}" for count, what in kinds if count]
    return f"{', '.join(found)}." if found else ""


def _achieved(point: Roofline, useful: float | None) -> str:
    if not point.flops:
        return "no matmuls"
    visible = "" if useful is None else f"on visible keys {useful:.1f} ({useful / point.peak_tflops:.1%} of peak), "
    return (
        f"{visible}executed, masked parts of score blocks included, {point.achieved_tflops:.1f} of {point.peak_tflops:.1f} "
        f"TFLOP/s ({point.achieved_tflops / point.peak_tflops:.1%} of peak), {point.bound} bound at "
        f"{point.intensity:,.0f} flops per HBM byte"
    )


def _gain_us(saved_ns: float) -> float:
    """Rounded to 0.1 ns, so that the rounding of sums is no gain."""
    return round(saved_ns, 1) / 1e3 + 0.0  # + 0.0: never -0.0
