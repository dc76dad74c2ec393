"""Footprint: the bytes that a region touches, normalised so that two regions can be compared exactly and quickly.

A region is a product of two sets: partitions `p0, p0 + step, ...` and bytes within a partition row, given as runs of
contiguous bytes repeated over a few strides (in HBM there is one row, and the bytes are those of the whole tensor). Two
footprints overlap if and only if both sets do. The test is exact, with two conservative cases that may report an overlap
that is none: run-time indices (the whole buffer counts as touched) and patterns of more than 2**18 runs.
"""

from __future__ import annotations

import numpy as np

from nki_hf.sim.stream.events import Region

__all__ = ["Footprint", "footprint_of", "overlap"]

_MOST_RUNS = 1 << 18

Dims = tuple[tuple[int, int], ...]
"""`(stride in bytes, count)` from the outermost to the innermost axis that is not part of a run."""


class Footprint:
    """Bytes of one access: partitions `[p0, p1)` at steps of `p_step`, bytes `[lo, hi)` of each as `run`s over `dims`.

    `certain` is False where run-time indices choose the elements: some of the bytes are touched, nobody knows which.
    """

    __slots__ = ("certain", "dense", "dims", "hi", "lo", "p0", "p1", "p_step", "run")

    def __init__(self, p0: int, p1: int, p_step: int, lo: int, hi: int, run: int, dims: Dims, certain: bool) -> None:
        self.p0, self.p1, self.p_step = p0, p1, p_step
        self.lo, self.hi, self.run, self.dims = lo, hi, run, dims
        self.certain = certain
        self.dense = not dims and (p_step == 1 or p1 - p0 == 1)

    def moved(self, partitions: int, nbytes: int) -> Footprint:
        """The same pattern at another place."""
        return Footprint(
            self.p0 + partitions,
            self.p1 + partitions,
            self.p_step,
            self.lo + nbytes,
            self.hi + nbytes,
            self.run,
            self.dims,
            self.certain,
        )

    def covers(self, other: Footprint) -> bool:
        """True only if every byte of `other` is touched by this one (False may also mean: too hard to tell)."""
        if not self.certain:
            return False
        if self.dense:
            return self.p0 <= other.p0 and other.p1 <= self.p1 and self.lo <= other.lo and other.hi <= self.hi
        return (
            other.certain
            and self.lo == other.lo
            and self.p0 == other.p0
            and self.p1 == other.p1
            and self.p_step == other.p_step
            and self.run == other.run
            and self.dims == other.dims
        )


def footprint_of(region: Region) -> Footprint:
    """The footprint of `region` in its buffer's own coordinates: partition 0, byte 0 is the buffer's start."""
    buffer = region.buffer
    row_bytes = buffer.bytes_per_partition
    rows = buffer.shape[0] if buffer.on_chip and buffer.shape else 1
    if region.indirect:
        return Footprint(0, rows, 1, 0, row_bytes, row_bytes, (), False)
    itemsize = region.dtype.itemsize
    start, axes = region.offset * itemsize, [(s * itemsize, n) for s, n in zip(region.strides, region.shape, strict=True)]
    if any(count == 0 for _, count in axes) or row_bytes == 0:
        return Footprint(0, 0, 1, 0, 0, 0, (), True)
    p0, p1, p_step = 0, 1, 1
    if buffer.on_chip:
        (step, count), axes = axes[0], axes[1:]
        p0, start = divmod(start, row_bytes)
        if count > 1 and step % row_bytes:  # the first axis does not run over partitions: the whole buffer, to be safe
            return Footprint(0, rows, 1, 0, row_bytes, row_bytes, (), False)
        p_step = max(step // row_bytes, 1) if count > 1 and step else 1
        p1 = p0 + ((count - 1) * p_step if step else 0) + 1
    return _free_pattern(p0, p1, p_step, start, itemsize, axes)


def _free_pattern(p0: int, p1: int, p_step: int, start: int, itemsize: int, axes: list[tuple[int, int]]) -> Footprint:
    run = itemsize
    dims: list[tuple[int, int]] = []
    for stride, count in sorted((abs(stride), count) for stride, count in axes if count > 1 and stride):
        if stride <= run:
            run += stride * (count - 1)
        elif dims and stride == dims[-1][0] * dims[-1][1]:
            dims[-1] = (dims[-1][0], dims[-1][1] * count)
        else:
            dims.append((stride, count))
    start += sum(stride * (count - 1) for stride, count in axes if stride < 0 and count > 1)
    last = sum(stride * (count - 1) for stride, count in dims)
    return Footprint(p0, p1, p_step, start, start + last + run, run, tuple(reversed(dims)), True)


_verdicts: dict[tuple[object, ...], bool] = {}


def overlap(a: Footprint, b: Footprint) -> bool:
    """True if two footprints in the same coordinates touch a common byte (see the module for the conservative cases)."""
    if a.lo >= b.hi or b.lo >= a.hi or a.p0 >= b.p1 or b.p0 >= a.p1:
        return False
    if a.dense and b.dense:
        return True
    key = (b.lo - a.lo, a.run, a.dims, b.run, b.dims, b.p0 - a.p0, a.p1 - a.p0, a.p_step, b.p1 - b.p0, b.p_step)
    verdict = _verdicts.get(key)
    if verdict is None:
        if len(_verdicts) > 200_000:
            _verdicts.clear()
        verdict = _verdicts[key] = _partitions_overlap(a, b) and _bytes_overlap(a, b)
    return verdict


def _partitions_overlap(a: Footprint, b: Footprint) -> bool:
    return not set(range(a.p0, a.p1, a.p_step)).isdisjoint(range(b.p0, b.p1, b.p_step))


def _bytes_overlap(a: Footprint, b: Footprint) -> bool:
    starts_a, starts_b = _run_starts(a), _run_starts(b)
    if starts_a is None or starts_b is None:
        return True
    if starts_a.size < starts_b.size:
        a, b, starts_a, starts_b = b, a, starts_b, starts_a
    after = np.searchsorted(starts_a, starts_b - a.run, side="right")  # first run of a that ends after each run of b starts
    inside = after < starts_a.size
    return bool(np.any(starts_a[after[inside]] < starts_b[inside] + b.run))


def _run_starts(item: Footprint) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
    starts = np.array([item.lo], np.int64)
    for stride, count in item.dims:
        if starts.size * count > _MOST_RUNS:
            return None
        starts = (starts[:, None] + stride * np.arange(count, dtype=np.int64)).reshape(-1)
    starts.sort()
    return starts
