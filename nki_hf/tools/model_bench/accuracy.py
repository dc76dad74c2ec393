"""Accuracy of one output against the reference, and the verdict on it. NumPy in float64, nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["MAX_RMS_RATIO", "Accuracy", "compare", "rms_error"]

MAX_RMS_RATIO = 1.5
"""Largest RMS error, over that of eager in the run's dtype, that passes."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """How far an output is from the reference, over the rows of real tokens.

    Attributes:
      mse: mean squared error.
      cosine: cosine similarity of all values as one vector; blind to scale, so it never decides. NaN if one is all zero.
      max_abs: largest absolute error.
      worst_row: `(prompt, token)` of the row with the largest RMS error, or None if there is no row.
      worst_row_rms: that row's RMS error.
      rms_error: root of `mse`.
      rms_ratio: `rms_error` over that of eager in the run's dtype.
      passed: True iff everything is finite and `rms_ratio` <= `MAX_RMS_RATIO`.
      remark: why it did not pass, in words; empty if it did.
    """

    mse: float
    cosine: float
    max_abs: float
    worst_row: tuple[int, int] | None
    worst_row_rms: float
    rms_error: float
    rms_ratio: float
    passed: bool
    remark: str


def compare(out: Array, reference: Array, *, valid: Array, baseline_rms: float) -> Accuracy:
    """Accuracy of `out` against `reference`, both `[batch, seqlen, hidden]`.

    Args:
      out: any float dtype; a wrong shape does not pass, whatever the values.
      reference: what it should be.
      valid: `[batch, seqlen]` bool; rows of padding are left out.
      baseline_rms: RMS error of eager in the run's dtype against the same reference.
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
    rows = squared.mean(axis=-1)
    worst = int(rows.argmax())
    mse = float(squared.mean())
    ratio = float(np.sqrt(mse) / baseline_rms) if baseline_rms > 0 else (1.0 if mse == 0 else float("inf"))
    if not got.any():
        remark = "the output is all zeros: it was never written"
    elif ratio > MAX_RMS_RATIO:
        remark = f"RMS error is {ratio:.3g} times that of eager, at most {MAX_RMS_RATIO} passes"
    else:
        remark = ""
    norms = float(np.linalg.norm(got) * np.linalg.norm(want))
    prompt, token = (int(index) for index in np.argwhere(valid)[worst])
    return Accuracy(
        mse=mse,
        cosine=float(np.vdot(got, want)) / norms if norms else float("nan"),
        max_abs=float(np.sqrt(squared.max())),
        worst_row=(prompt, token),
        worst_row_rms=float(np.sqrt(rows[worst])),
        rms_error=float(np.sqrt(mse)),
        rms_ratio=ratio,
        passed=not remark,
        remark=remark,
    )


def rms_error(out: Array, reference: Array, *, valid: Array) -> float:
    """RMS error over the rows of real tokens."""
    difference = out[valid].astype(np.float64) - reference[valid].astype(np.float64)
    return float(np.sqrt(np.mean(np.square(difference))))


def _failed(remark: str) -> Accuracy:
    nan = float("nan")
    return Accuracy(
        mse=nan, cosine=nan, max_abs=nan, worst_row=None, worst_row_rms=nan, rms_error=nan, rms_ratio=nan,
        passed=False, remark=remark,
    )  # fmt: skip
