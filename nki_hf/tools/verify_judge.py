"""Judge one output against its reference: shape, written at all, finite, magnitude, worst row, cosine; in this order."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

__all__ = ["ROW_TILE", "Judgement", "judge", "row_error", "unit_roundoff"]

Array = np.ndarray[Any, Any]

ROW_TILE = 128
"""Rows of the tile that is named beside the worst row: the partition count."""

_ROUNDOFF = {"bfloat16": 2.0**-9, "float16": 2.0**-11, "float32": 2.0**-24}
_SMALL_ROW = 1e-2
"""Rows smaller than this share of the typical row are judged relative to the typical row."""


_BY_THE_WAY = 0.1
"""Share of the worst row's error from which an output's size is worth a word beside it: any wrong row changes it a little."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What one comparison found.

    Attributes:
      verdict: `pass`, or the first check that failed: `shape`, `dtype`, `reference` (the reference itself is not finite,
        so that a comparison shows nothing), `never written`, `all zero`, `not finite`, `magnitude`, `rows`,
        `cosine`.
      detail: one sentence with the numbers behind the verdict.
      row_error: largest `|output - reference| / |reference|` of a row (last axis), Euclidean norms;
        see `row_error` for small rows.
      worst_row: its index in the axes before the last.
      worst_tile: index of the first row of the tile of `ROW_TILE` rows (along the longest of these axes) with the largest
        mean error.
      magnitude: norm of the output over norm of the reference.
      cosine: cosine of the two as vectors.
      tolerance: allowed row error; magnitude and cosine may differ from 1 by as much.
    """

    verdict: str
    detail: str
    row_error: float = float("nan")
    worst_row: tuple[int, ...] = ()
    worst_tile: tuple[int, ...] = ()
    magnitude: float = float("nan")
    cosine: float = float("nan")
    tolerance: float = 0.0

    @property
    def passed(self) -> bool:
        """True if every check held."""
        return self.verdict == "pass"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; numbers that do not exist are None."""
        values = asdict(self)
        return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in values.items()}


def unit_roundoff(dtype: str) -> float:
    """Largest relative error of one rounding to `dtype`; that of float32 for types that are not listed."""
    return _ROUNDOFF.get(dtype, _ROUNDOFF["float32"])


def row_error(output: Array, reference: Array, scale: Array | float = 0.0) -> Array:
    """Relative error of each row (last axis); equal infinities agree. See `Judgement.row_error`.

    `scale` is a lower bound of the size that each row's error is relative to (it broadcasts over the rows): rounding errors
    grow with what was summed, however much of it cancels.
    """
    output, reference = _without_agreed_infinities(output, reference)
    difference, size = _row_norms(output - reference), _row_norms(reference)
    typical = float(np.sqrt(np.mean(size**2)))
    floor = max(_SMALL_ROW * typical, np.finfo(np.float64).tiny)
    return np.asarray(difference / np.maximum(np.maximum(size, floor), scale))


def _row_norms(array: Array) -> Array:
    """Norms along the last axis, without an array of squares."""
    return np.asarray(np.sqrt(np.einsum("...i,...i->...", array, array)))


def _without_agreed_infinities(output: Array, reference: Array) -> tuple[Array, Array]:
    out, ref = np.asarray(output, np.float64), np.asarray(reference, np.float64)
    agree = np.isinf(ref)
    if not agree.any():
        return out, ref
    agree &= out == ref
    return np.where(agree, 0.0, out), np.where(agree, 0.0, ref)


def judge(
    output: Array,
    reference: Array,
    *,
    tolerance: float,
    unwritten: Array | None = None,
    scale: Array | float = 0.0,
    dtype: np.dtype[Any] | None = None,
    first: tuple[int, ...] = (),
) -> Judgement:
    """Compare an output with its reference.

    Args:
      output, reference: arrays of one shape; equal infinities agree (the lse of a row without keys).
      tolerance: see `Judgement.tolerance`.
      unwritten: bool array of the output's shape, True where the kernel never wrote; None = not known.
      scale: see `row_error`.
      dtype: the element type that the output must have; None = any.
      first: where `output` begins in what it is a part of, axis by axis: `detail` names places of the whole.
    """
    out, ref = np.atleast_1d(np.asarray(output, np.float64)), np.atleast_1d(np.asarray(reference, np.float64))

    def failed(verdict: str, detail: str) -> Judgement:
        return Judgement(verdict=verdict, detail=detail, tolerance=tolerance)

    if out.shape != ref.shape:
        return failed("shape", f"the output is {list(out.shape)} and the reference {list(ref.shape)}")
    if dtype is not None and np.asarray(output).dtype != dtype:
        return failed("dtype", f"the output is {np.asarray(output).dtype} and must be {dtype}")
    if np.isnan(ref).any():
        return failed("reference", f"{int(np.isnan(ref).sum()):,} elements of the reference are NaN: it judges nothing")
    if unwritten is not None and unwritten.any():
        place = _place(np.argwhere(np.atleast_1d(unwritten))[0], first)
        share = 100 * unwritten.mean()
        return failed("never written", f"{int(unwritten.sum()):,} elements ({share:.3g} %), the first at {place}")
    out, ref = _without_agreed_infinities(out, ref)
    if not ref.any():
        if out.any():
            return failed(
                "magnitude", f"the reference is all zero, and {int(np.count_nonzero(out)):,} elements of the output are not"
            )
        return Judgement(
            verdict="pass", detail="all zero, as the reference", row_error=0.0, magnitude=1.0, cosine=1.0, tolerance=tolerance
        )
    if not out.any():
        return failed("all zero", "every element of the output is zero")
    wrong = ~np.isfinite(out) | ~np.isfinite(ref)
    if wrong.any():
        place = _place(np.argwhere(wrong)[0], first)
        return failed("not finite", f"{int(wrong.sum()):,} elements differ in being finite, the first at {place}")
    errors = row_error(out, ref, scale)
    worst = tuple(int(i) for i in np.unravel_index(int(errors.argmax()), errors.shape)) if errors.ndim else ()
    sizes = float(np.linalg.norm(out)), float(np.linalg.norm(ref))
    magnitude = sizes[0] / sizes[1]
    cosine = float(out.ravel() @ ref.ravel()) / (sizes[0] * sizes[1])
    largest = float(errors.max())
    verdict, detail = "pass", f"worst row {largest:.3g}"
    # where most rows cancel, size and direction as a whole say no more than the rows do
    bound = tolerance * max(1.0, float(np.linalg.norm(np.broadcast_to(scale, errors.shape))) / sizes[1])
    row = f"row {_place(worst, first)} is off by {largest:.3g} of its size, {tolerance:.3g} allowed"
    whole = np.asarray(output).dtype.kind in "iub"
    if whole and largest > tolerance:
        apart = np.argwhere(out != ref)
        at = tuple(int(i) for i in apart[0])
        verdict = "rows"
        numbers = f"{out[at]:g} instead of {ref[at]:g}"
        detail = f"{len(apart):,} of {out.size:,} numbers differ, the first at {_place(at, first)}: {numbers}"
    elif abs(magnitude - 1) > bound:
        verdict, detail = "magnitude", f"the output is {_times(magnitude)} times as large as the reference"
        if largest > tolerance and not _only_scaled(out, ref, magnitude, largest, scale):
            verdict, detail = "rows", f"{row}, and {detail}" if abs(magnitude - 1) > _BY_THE_WAY * largest else row
    elif largest > tolerance:
        verdict, detail = "rows", row
    elif 1 - cosine > bound:
        verdict, detail = "cosine", f"cosine {cosine:.6f}"
    return Judgement(
        verdict=verdict,
        detail=detail,
        row_error=largest,
        worst_row=worst,
        worst_tile=_worst_tile(errors),
        magnitude=magnitude,
        cosine=cosine,
        tolerance=tolerance,
    )


def _place(place: Any, first: tuple[int, ...]) -> list[int]:
    """An index as an index of the whole."""
    return [int(i) + (first[axis] if axis < len(first) else 0) for axis, i in enumerate(place)]


def _only_scaled(out: Array, ref: Array, magnitude: float, largest: float, scale: Array | float) -> bool:
    """True if most of the error is gone once the size is right: that the output is larger is then what is wrong with it."""
    return bool(row_error(out / magnitude, ref, scale).max() < largest / 2)


def _times(magnitude: float) -> str:
    """As many digits as show that it is not 1."""
    return next(text for digits in (4, 6, 9, 17) if float(text := f"{magnitude:.{digits}g}") != 1 or digits == 17)


def _worst_tile(errors: Array) -> tuple[int, ...]:
    if errors.ndim == 0:
        return ()
    axis = int(np.argmax(errors.shape))
    moved = np.moveaxis(errors, axis, -1)
    starts = range(0, moved.shape[-1], ROW_TILE)
    means = np.stack([moved[..., start : start + ROW_TILE].mean(-1) for start in starts], axis=-1)
    index = [int(i) for i in np.unravel_index(int(means.argmax()), means.shape)]
    tile = index.pop() * ROW_TILE
    return (*index[:axis], tile, *index[axis:])
