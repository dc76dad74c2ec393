"""Instructions of the Tensor engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.sim.isa.enums import matmul_perf_mode
from nki_hf.sim.isa.instruction import NkiInstruction, begin
from nki_hf.sim.machine import Step
from nki_hf.sim.tensor import NkiTensor
from nki_hf.sim.values import reader2d, writer

__all__ = ["nc_matmul"]


def nc_matmul(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    tile_position: tuple[int, ...] = (),
    tile_size: tuple[int, ...] = (),
    perf_mode: matmul_perf_mode = matmul_perf_mode.none,
    name: str | None = None,
) -> NkiInstruction:
    """`dst[M, N] (=|+=) stationary[K, M].T @ moving[K, N]`, products exact, sums in float32.

    `accumulate=None` overwrites the elements of `dst` that this allocation has not written yet and adds to the others;
    True adds, False overwrites. Which of them applies is settled per element in program order.
    """
    this = begin(
        "nc_matmul", dst=dst, stationary=stationary, moving=moving, is_stationary_onezero=is_stationary_onezero,
        is_moving_onezero=is_moving_onezero, is_transpose=is_transpose, accumulate=accumulate,
        tile_position=tile_position, tile_size=tile_size, perf_mode=perf_mode,
    )  # fmt: skip
    adds = _accumulates(dst, accumulate)
    step = _matmul_step(dst, stationary, moving, adds) if this.values else None
    return this.issue(
        engine="tensor", reads=(stationary, moving), writes=(dst,), step=step,
        accumulate=adds is True or (adds is not False), perf_mode=perf_mode.name, is_transpose=is_transpose,
    )  # fmt: skip


def _accumulates(dst: NkiTensor, accumulate: bool | None) -> Any:
    """False, True, or a bool array over `dst` of the elements to add to."""
    flags = dst.written()
    if accumulate is not None or flags is None:
        return bool(accumulate)
    if not flags.any():
        return False
    return True if flags.all() else flags.copy()


def _matmul_step(dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, adds: Any) -> Step:
    left, right, write = reader2d(stationary), reader2d(moving), writer(dst)
    if adds is False:
        return lambda: write(left().T @ right())
    current = reader2d(dst)
    if adds is True:
        return lambda: write(current() + left().T @ right())
    mask = adds.reshape(dst.partitions, dst.free_size)
    return lambda: write(np.where(mask, current(), np.float32(0)) + left().T @ right())
