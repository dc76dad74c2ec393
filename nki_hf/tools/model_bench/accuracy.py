"""Accuracy of one output against the reference, and the verdict on it. NumPy in float64, nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["MAX_RMS_RATIO", "MAX_WORST_ROW_RATIO", "Accuracy", "Baseline", "baseline", "compare"]

MAX_RMS_RATIO = 1.5
"""Largest RMS error, over that of eager in the run's dtype, that passes."""

MAX_WORST_ROW_RATIO = 2.0
"""Largest RMS error of a single row, over that of eager's worst row, that passes: a few wrong rows among thousands do not show
in the RMS error of all. Larger than the other limit, because a maximum scatters more than a mean.
"""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """How far eager in the run's dtype is from the reference: what the error of every other output is compared with.

    Attributes:
      rms_error: RMS error over all rows of real tokens.
      worst_row_rms: the largest RMS error of one row.
    """

    rms_error: float
    worst_row_rms: float


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """How far an output is from the reference, over the rows of real tokens.

    Attributes:
      mse: mean squared error.
      cosine: cosine similarity of all values as one vector; blind to scale, so it never decides. NaN if one is all zero.
      max_abs: largest absolute error.
      worst_row: `(prompt, token)` of the row with the largest RMS error, or None if there is no row.
      worst_row_rms: that row's RMS error.
      worst_row_ratio: `worst_row_rms` over that of eager's worst row.
      rms_error: root of `mse`.
      rms_ratio: `rms_error` over that of eager in the run's dtype.
      passed: True iff everything is finite, `rms_ratio` <= `MAX_RMS_RATIO` and `worst_row_ratio` <= `MAX_WORST_ROW_RATIO`.
      remark: why it did not pass, in words; empty if it did.
    """

    mse: float
    cosine: float
    max_abs: float
    worst_row: tuple[int, int] | None
    worst_row_rms: float
    worst_row_ratio: float
    rms_error: float
    rms_ratio: float
    passed: bool
    remark: str


def compare(out: Array, reference: Array, *, valid: Array, against: Baseline) -> Accuracy:
    """Accuracy of `out` against `reference`, both `[batch, seqlen, hidden]`.

    Args:
      out: any float dtype; a wrong shape does not pass, whatever the values.
      reference: what it should be.
      valid: `[batch, seqlen]` bool; rows of padding are left out.
      against: how far eager in the run's dtype is from the same reference.
    """
    if out.shape != reference.shape:
        return _failed(f"the output has shape {list(out.shape)}, the reference {list(reference.shape)}")
    if not valid.any():
        return _failed("no row of real tokens to compare")
    got = out[valid].astype(np.float64)
    want = reference[valid].astype(np.float64)
    if not np.isfinite(want).all():
        return _failed("the reference is not finite, so nothing can be said")
    finite = np.isfinite(got).all(axis=-1)
    if not finite.all():
        prompt, token = np.argwhere(valid)[np.argmin(finite)]
        return _failed(f"{np.sum(~finite):,} of {finite.size:,} rows are not finite, first: prompt {prompt}, token {token}")
    squared = np.square(got - want)
    rows = np.sqrt(squared.mean(axis=-1))
    worst = int(rows.argmax())
    prompt, token = (int(index) for index in np.argwhere(valid)[worst])
    rms = float(np.sqrt(squared.mean()))
    ratio, row_ratio = _ratio(rms, against.rms_error), _ratio(float(rows[worst]), against.worst_row_rms)
    if not got.any():
        remark = "the output is all zeros: it was never written"
    elif ratio > MAX_RMS_RATIO:
        remark = f"RMS error is {ratio:.3g} times that of eager, at most {MAX_RMS_RATIO} passes"
    elif row_ratio > MAX_WORST_ROW_RATIO:
        remark = (
            f"the row of prompt {prompt}, token {token} has {row_ratio:.3g} times the RMS error of eager's worst row, at most "
            f"{MAX_WORST_ROW_RATIO} passes"
        )
    else:
        remark = ""
    norms = float(np.linalg.norm(got) * np.linalg.norm(want))
    return Accuracy(
        mse=float(squared.mean()),
        cosine=float(np.vdot(got, want)) / norms if norms else float("nan"),
        max_abs=float(np.sqrt(squared.max())),
        worst_row=(prompt, token),
        worst_row_rms=float(rows[worst]),
        worst_row_ratio=row_ratio,
        rms_error=rms,
        rms_ratio=ratio,
        passed=not remark,
        remark=remark,
    )


def baseline(eager: Array, reference: Array, *, valid: Array) -> Baseline:
    """The errors of eager over the rows of real tokens; arguments as in `compare`."""
    squared = np.square(eager[valid].astype(np.float64) - reference[valid].astype(np.float64))
    worst = squared.mean(axis=-1).max(initial=0.0)
    return Baseline(rms_error=float(np.sqrt(np.mean(squared))), worst_row_rms=float(np.sqrt(worst)))


def _ratio(error: float, eager: float) -> float:
    return error / eager if eager > 0 else 1.0 if error == 0 else float("inf")


def _failed(remark: str) -> Accuracy:
    nan = float("nan")
    return Accuracy(
        mse=nan,
        cosine=nan,
        max_abs=nan,
        worst_row=None,
        worst_row_rms=nan,
        worst_row_ratio=nan,
        rms_error=nan,
        rms_ratio=nan,
        passed=False,
        remark=remark,
    )
