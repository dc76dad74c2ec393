"""Inputs for attention tests and the error that a kernel is allowed, both derived from the Problem.

No tolerance is a hand-picked number: a kernel may err, against float64, twice as much as a plain run in the same dtype does
on the same inputs, plus the rounding of its result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from nki_hf.kernels import reference
from nki_hf.problem import Problem

__all__ = [
    "DISTRIBUTIONS",
    "AttentionInputs",
    "allowed_error",
    "assert_matches_reference",
    "attention_inputs",
    "plain_attention",
    "some_rows",
]

Array = np.ndarray[Any, Any]

DISTRIBUTIONS = ("normal", "wide", "outlier_key", "equal", "negative")
"""`normal`: unit normal; `wide`: ten times that; `outlier_key`: one key a hundred times longer; `equal`: all scores the
same; `negative`: all scores negative. Uniform positive data is not among them: it hides a missing maximum or sign."""

_NUMPY: dict[str, Any] = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}


@dataclass(frozen=True, kw_only=True)
class AttentionInputs:
    """Arrays of one call, q, k, v in the problem's dtype; shapes as in `kernels.reference.attention`."""

    problem: Problem
    q: Array
    k: Array
    v: Array
    lo: Array | None = None
    hi: Array | None = None
    bias: Array | None = None
    sink: Array | None = None

    @property
    def masks(self) -> dict[str, Array | None]:
        """The optional arrays by name, as `reference.attention` takes them."""
        return {"lo": self.lo, "hi": self.hi, "bias": self.bias, "sink": self.sink}

    @functools.cached_property
    def expected(self) -> tuple[Array, Array]:
        """Output and lse in float64 (see `kernels.reference.attention`), computed once."""
        return self.summed[:2]

    @functools.cached_property
    def summed(self) -> tuple[Array, Array, Array]:
        """`expected`, and the size of what each row sums (see `kernels.reference.summed`)."""
        return reference.summed(self.problem, self.q, self.k, self.v, lo=self.lo, hi=self.hi, bias=self.bias, sink=self.sink)


def attention_inputs(problem: Problem, *, seed: int = 0, distribution: str = "normal") -> AttentionInputs:
    """Random inputs of a problem: run-time bounds look like padding and packing, some rows see no key at all.

    Args:
      problem: sizes and options; its dtype must be one that NumPy can hold.
      seed: of the generator.
      distribution: one of `DISTRIBUTIONS`.
    """
    if distribution not in DISTRIBUTIONS:
        raise ValueError(f"distribution={distribution!r} is not known: it is one of {', '.join(DISTRIBUTIONS)}.")
    rng = np.random.default_rng(seed)
    dtype = _NUMPY[problem.dtype]
    q = rng.standard_normal((problem.batch, problem.num_heads_q, problem.seqlen_q, problem.head_dim))
    k = rng.standard_normal((problem.batch, problem.num_heads_kv, problem.seqlen_kv, problem.head_dim))
    v = rng.standard_normal((problem.batch, problem.num_heads_kv, problem.seqlen_kv, problem.head_dim_v))
    if distribution == "wide":
        q = q * 10
    elif distribution == "outlier_key" and problem.seqlen_kv:
        k[:, :, problem.seqlen_kv // 3] *= 100
    elif distribution == "equal":
        k = np.repeat(k[:, :, :1], problem.seqlen_kv, axis=2)
    elif distribution == "negative":
        q, k = np.abs(q), -np.abs(k)
    lo = hi = bias = sink = None
    mask = problem.mask
    if mask.runtime_bounds:
        lo, hi = _bounds(problem, rng)
    if mask.bias is not None:
        bias = _bias(problem, rng)
    if problem.sink:
        sink = rng.standard_normal(problem.num_heads_q).astype(np.float32) * 2
    return AttentionInputs(
        problem=problem, q=q.astype(dtype), k=k.astype(dtype), v=v.astype(dtype), lo=lo, hi=hi, bias=bias, sink=sink
    )


def plain_attention(inputs: AttentionInputs) -> tuple[Array, Array]:
    """Output and lse of a run that does what an eager implementation does in the problem's dtype: products summed in
    float32, every intermediate rounded to the dtype, softmax in float32. Rows are taken in blocks.
    """
    problem = inputs.problem
    rows = max(1, _SCORES // max(1, problem.batch * problem.num_heads_q * problem.seqlen_kv))
    if problem.seqlen_q > rows:
        parts = [plain_attention(some_rows(inputs, start, start + rows)) for start in range(0, problem.seqlen_q, rows)]
        return np.concatenate([out for out, _ in parts], 2), np.concatenate([lse for _, lse in parts], 2)
    rounded = _rounding(problem.dtype)
    q, k, v = (np.asarray(item, np.float32) for item in (inputs.q, inputs.k, inputs.v))
    k, v = (np.repeat(item, problem.group_size, axis=1) for item in (k, v))
    with np.errstate(over="ignore", invalid="ignore"):
        scores = rounded(rounded(q @ k.swapaxes(-1, -2)) * np.float32(problem.scale))
        if problem.softcap is not None:
            cap = np.float32(problem.softcap)
            scores = rounded(np.tanh(rounded(scores / cap)) * cap)
        if inputs.bias is not None and problem.mask.bias == "additive":
            scores = scores + inputs.bias.astype(np.float32)
    visible = reference.visible_keys(problem, lo=inputs.lo, hi=inputs.hi, bias=inputs.bias)
    scores = np.where(visible, scores, np.float32(-np.inf))
    shift = scores.max(-1, initial=np.finfo(np.float32).min, keepdims=True)
    sink = None if inputs.sink is None else inputs.sink.astype(np.float32)[None, :, None, None]
    if sink is not None:
        shift = np.maximum(shift, sink)
    weights = np.exp(scores - shift)
    total = weights.sum(-1, keepdims=True) + (0 if sink is None else np.exp(sink - shift))
    probs = rounded(weights / np.where(total == 0, np.float32(1), total))
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + shift)[..., 0]
    return rounded(probs @ v), np.where(total[..., 0] == 0, np.float32(-np.inf), lse)


_SCORES = 1 << 20
"""Scores of a plain run that are in memory at once."""


def some_rows(inputs: AttentionInputs, start: int, stop: int) -> AttentionInputs:
    """The call with some of its query rows."""
    problem, part = inputs.problem, slice(start, stop)
    mask = replace(problem.mask, q_offset=problem.mask.q_offset + start)
    q = inputs.q[:, :, part]
    return replace(
        inputs,
        problem=replace(problem, seqlen_q=q.shape[2], mask=mask),
        q=q,
        lo=None if inputs.lo is None else inputs.lo[..., part],
        hi=None if inputs.hi is None else inputs.hi[..., part],
        bias=inputs.bias if inputs.bias is None or inputs.bias.shape[2] == 1 else inputs.bias[:, :, part],
    )


def allowed_error(inputs: AttentionInputs) -> tuple[float, float]:
    """Largest error against float64 that a kernel may show in its output and in its lse."""
    want, want_lse = inputs.expected
    plain, plain_lse = plain_attention(inputs)
    step = float(ml_dtypes.finfo(_NUMPY[inputs.problem.dtype]).eps)  # type: ignore[no-untyped-call]
    finite = np.isfinite(want_lse)
    lse_error = _largest(plain_lse[finite] - want_lse[finite])
    # Scores are rounded in float32, which moves a weight by as many units as the score is large, and four more roundings
    # follow: product sum, row sum, correction, division. The scores that matter in a row are about its lse.
    unit = float(np.finfo(np.float32).eps) / 2
    score = _largest(want_lse[finite])
    out_band = step * _largest(want) / 2 + unit * (4 + score) * _largest(inputs.v)
    lse_band = 8 * unit * max(1.0, score)
    return 2 * _largest(plain - want) + out_band, 2 * lse_error + lse_band


def assert_matches_reference(inputs: AttentionInputs, out: Array, lse: Array) -> None:
    """Raise an AssertionError that names the worst element unless output and lse are within `allowed_error` of float64.

    Args:
      inputs: what was computed.
      out: `[batch, num_heads_q, seqlen_q, head_dim_v]`.
      lse: `[batch, num_heads_q, seqlen_q]`; empty rows must be exactly -inf.
    """
    want, want_lse = inputs.expected
    limits = allowed_error(inputs)
    for name, got, expected, limit in (("out", out, want, limits[0]), ("lse", lse, want_lse, limits[1])):
        if got.shape != expected.shape:
            raise AssertionError(f"{name} has shape {list(got.shape)}: it must have {list(expected.shape)}.")
        same = np.asarray(got, np.float64) == expected  # infinities
        with np.errstate(invalid="ignore"):
            error = np.where(same, 0.0, np.abs(np.asarray(got, np.float64) - expected))
        if error.size and not error.max() <= limit:
            worst = tuple(int(i) for i in np.unravel_index(np.argmax(np.nan_to_num(error, nan=np.inf)), error.shape))
            raise AssertionError(
                f"{name}{list(worst)} = {got[worst]} is {error[worst]:.3g} from the reference {expected[worst]:.6g}: "
                f"at most {limit:.3g} is allowed (twice the error of a plain {inputs.problem.dtype} run, and rounding)."
            )


def _bounds(problem: Problem, rng: np.random.Generator) -> tuple[Array, Array]:
    """Each batch item sees keys `[start, stop)`; one row in seven sees none."""
    start = rng.integers(0, problem.seqlen_kv // 3 + 1, (problem.batch, 1))
    stop = rng.integers(problem.seqlen_kv * 2 // 3, problem.seqlen_kv + 1, (problem.batch, 1))
    lo = np.repeat(start, problem.seqlen_q, axis=1).astype(np.int32)
    hi = np.repeat(stop, problem.seqlen_q, axis=1).astype(np.int32)
    empty = rng.random(lo.shape) < 1 / 7
    return lo, np.where(empty, lo, hi).astype(np.int32)


def _bias(problem: Problem, rng: np.random.Generator) -> Array:
    """A bias of the axes that the mask asks for; a third of the keys is hidden, and one row, if it has rows of its own."""
    mask = problem.mask
    shape = (
        problem.batch if mask.bias_batch else 1,
        problem.num_heads_q if mask.bias_heads else 1,
        problem.seqlen_q if mask.bias_rows else 1,
        problem.seqlen_kv,
    )
    seen = rng.random(shape) < 2 / 3
    if shape[2] > 1:
        seen[:, :, shape[2] // 2] = False
    if mask.bias == "boolean":
        return seen
    values = rng.standard_normal(shape).astype(np.float32)
    return np.where(seen, values, np.float32(-np.inf))


def _rounding(dtype: str) -> Callable[[Array], Array]:
    target = _NUMPY[dtype]
    return lambda values: values.astype(target, copy=False).astype(np.float32, copy=False)


def _largest(values: Array) -> float:
    return float(np.abs(np.asarray(values, np.float64)).max(initial=0.0))
