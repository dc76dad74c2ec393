"""Counters of a schedule under the names of Neuron's profiler, which searches for kernels read; all simulated."""

from __future__ import annotations

from nki_hf.observers.timing import engine_times, roofline
from nki_hf.timing.schedule import Schedule

__all__ = ["counters"]


def counters(scheduled: Schedule) -> dict[str, float]:
    """Bytes, operations and percentages of the whole kernel; names as in a profile's summary."""
    found = dict.fromkeys([f"{space}_{way}_bytes" for space in ("hbm", "sbuf", "psum") for way in ("read", "write")], 0.0)
    transposed = 0.0
    for event in scheduled.events:
        for regions, way in ((event.reads, "read"), (event.writes, "write")):
            for region in regions:
                space = region.buffer.space if region.buffer.on_chip else "hbm"
                found[f"{space}_{way}_bytes"] += region.bytes
        if event.opcode == "nc_transpose" or event.attrs.get("is_transpose"):
            data = event.reads[0]
            transposed += 2.0 * data.elements * data.partitions
    point = roofline(scheduled)
    hbm = found["hbm_read_bytes"] + found["hbm_write_bytes"]
    found |= {
        "spill_save_bytes": float(scheduled.spills.stored_bytes),
        "spill_reload_bytes": float(scheduled.spills.loaded_bytes),
        "hardware_flops": float(point.flops) + transposed,
        "transpose_flops": transposed,
        "mm_arithmetic_intensity": point.flops / hbm if hbm else 0.0,
        "hfu_estimated_percent": 100 * (point.flops + transposed) / scheduled.total_ns / 1e3 / point.peak_tflops
        if point.peak_tflops
        else 0.0,
        "mfu_estimated_percent": 100 * point.achieved_tflops / point.peak_tflops if point.peak_tflops else 0.0,
    }
    cores = max(1, len({queue.core for queue in scheduled.work.queues}))
    for engine in ("tensor", "vector", "scalar", "gpsimd"):
        active = sum(row.active_ns for row in engine_times(scheduled) if row.engine == engine)
        found[f"{engine}_engine_active_time_percent"] = 100 * active / scheduled.total_ns / cores
    return {name: float(value) for name, value in found.items()}
