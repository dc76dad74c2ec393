"""The oracle: attention with every option of `Problem`, its lse and its gradients, in float64 NumPy.

Written for clarity: it forms all scores of a block of rows. Formula, per batch and query head:

    scores = cap(q @ k.T * softmax_scale) + additive bias
    visible = static interval & run-time bounds & boolean bias & (additive bias is not -inf)
    out = softmax(scores over the visible keys and the sink) @ v

A row that sees no key gives zeros, lse = -inf (with a sink: lse = sink) and zero gradients. A sink of NaN or +inf makes every
row of its head NaN here. Kernels do the same for rows that see a key, and touch no other head; a row that sees none is NaN too
where it is computed, and zeros where its whole tile is skipped: callers may rely on neither.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from nki_hf.problem import Problem

__all__ = ["Gradients", "attention", "attention_gradients", "summed", "visible_keys"]

Array = np.ndarray[Any, Any]

_BLOCK = 1 << 20
"""Scores that are in memory at once."""


class Gradients(NamedTuple):
    """Gradients of one call, float64, in the shapes of what they belong to; None where that input is absent.

    Attributes:
      dq, dk, dv: as q, k, v.
      d_sink: `[num_heads_q]`.
      d_bias: as the bias, summed over the axes that it broadcasts; None unless the bias is additive.
    """

    dq: Array
    dk: Array
    dv: Array
    d_sink: Array | None
    d_bias: Array | None


def attention(
    problem: Problem,
    q: Array,
    k: Array,
    v: Array,
    *,
    lo: Array | None = None,
    hi: Array | None = None,
    bias: Array | None = None,
    sink: Array | None = None,
) -> tuple[Array, Array]:
    """Attention output `[batch, num_heads_q, seqlen_q, head_dim_v]` and lse `[batch, num_heads_q, seqlen_q]`, float64.

    Args:
      problem: sizes and options.
      q, k, v: as in `Problem`, any float type.
      lo, hi: run-time key bounds `[batch or 1, seqlen_q]`, if `problem.mask.runtime_bounds`.
      bias: `[batch or 1, num_heads_q or 1, seqlen_q or 1, seqlen_kv]`, boolean or additive as `problem.mask.bias` says.
      sink: `[num_heads_q]`, if `problem.sink`.
    """
    return summed(problem, q, k, v, lo=lo, hi=hi, bias=bias, sink=sink, sizes=False)[:2]


def summed(
    problem: Problem,
    q: Array,
    k: Array,
    v: Array,
    *,
    lo: Array | None = None,
    hi: Array | None = None,
    bias: Array | None = None,
    sink: Array | None = None,
    sizes: bool = True,
) -> tuple[Array, Array, Array]:
    """Output and lse as `attention`, and the size of what each output row sums, `[batch, num_heads_q, seqlen_q]`:
    `sqrt(sum of (weight * value) ** 2)` (zeros without `sizes`). Rows are taken in blocks, so that scores stay in the cache.
    """
    keys, values = np.asarray(k, np.float64), _per_query_head(problem, v)
    squares = (values.astype(np.float32) ** 2).sum(-1, keepdims=True) if sizes else None
    rows = problem.seqlen_q
    shape = (problem.batch, problem.num_heads_q, rows)
    out, lse, size = np.zeros((*shape, problem.head_dim_v)), np.zeros(shape), np.zeros(shape)
    block = max(1, _BLOCK // max(1, problem.batch * problem.num_heads_q * problem.seqlen_kv))
    for start in range(0, rows, block):
        part = slice(start, min(start + block, rows))
        seen = _seen(problem, start, part.stop)
        mask = replace(problem.mask, q_offset=problem.mask.q_offset + start - seen.start)
        probs, lse[..., part], _, _ = _probabilities(
            replace(problem, seqlen_q=part.stop - start, seqlen_kv=seen.stop - seen.start, mask=mask),
            q[:, :, part],
            keys[:, :, seen],
            None if lo is None else lo[..., part],
            None if hi is None else hi[..., part],
            bias if bias is None or bias.shape[2] == 1 else bias[:, :, part],
            sink,
        )
        out[:, :, part] = probs @ values[:, :, seen]
        if squares is not None:
            size[..., part] = np.sqrt((probs.astype(np.float32) ** 2 @ squares[:, :, seen])[..., 0])
    return out, lse, size


def _seen(problem: Problem, start: int, stop: int) -> slice:
    """Keys that any of the rows sees, where only the static band says so: it moves along the keys with the rows."""
    mask = problem.mask
    if mask.runtime_bounds or mask.bias is not None or not mask.banded:
        return slice(0, problem.seqlen_kv)
    first, last = mask.interval(start, problem.seqlen_kv)[0], mask.interval(stop - 1, problem.seqlen_kv)[1]
    return slice(first, last) if 0 <= first < last else slice(0, problem.seqlen_kv)


def attention_gradients(
    problem: Problem,
    q: Array,
    k: Array,
    v: Array,
    dout: Array,
    *,
    dlse: Array | None = None,
    lo: Array | None = None,
    hi: Array | None = None,
    bias: Array | None = None,
    sink: Array | None = None,
) -> Gradients:
    """Gradients of `sum(out * dout) + sum(lse * dlse)`; arguments as in `attention`, rows without keys contribute zero.

    Args:
      dout: `[batch, num_heads_q, seqlen_q, head_dim_v]`.
      dlse: `[batch, num_heads_q, seqlen_q]`; None = zero.
    """
    q64, k64, v64 = (np.asarray(item, np.float64) for item in (q, k, v))
    probs, _, tanh, sink_probs = _probabilities(problem, q, k, lo, hi, bias, sink)
    k_heads, v_heads = _per_query_head(problem, k64), _per_query_head(problem, v64)
    dout = np.asarray(dout, np.float64)
    dprobs = dout @ v_heads.swapaxes(-1, -2)
    delta = (probs * dprobs).sum(-1)
    weight = np.zeros_like(delta) if dlse is None else np.asarray(dlse, np.float64)
    dmasked = probs * (dprobs + (weight - delta)[..., None])
    dscores = dmasked if tanh is None else dmasked * (1 - tanh**2)
    dscores = dscores * problem.scale
    d_sink = None
    if sink_probs is not None:
        d_sink = (sink_probs * (weight - delta)).sum((0, 2))
    d_bias = None
    if bias is not None and problem.mask.bias == "additive":
        axes = tuple(axis for axis in range(4) if bias.shape[axis] == 1 and dmasked.shape[axis] != 1)
        d_bias = dmasked.sum(axes, keepdims=True)
    return Gradients(
        dscores @ k_heads,
        _fold_heads(problem, dscores.swapaxes(-1, -2) @ q64),
        _fold_heads(problem, probs.swapaxes(-1, -2) @ dout),
        d_sink,
        d_bias,
    )


def visible_keys(problem: Problem, *, lo: Array | None = None, hi: Array | None = None, bias: Array | None = None) -> Array:
    """Which keys each row sees, `bool [batch or 1, num_heads_q or 1, seqlen_q, seqlen_kv]`."""
    keys = np.arange(problem.seqlen_kv)
    static = [problem.mask.interval(row, problem.seqlen_kv) for row in range(problem.seqlen_q)]
    edges = np.array(static, np.int64).reshape(problem.seqlen_q, 2)
    seen = (keys >= edges[:, :1]) & (keys < edges[:, 1:])
    visible = seen[None, None]
    if problem.mask.runtime_bounds:
        if lo is None or hi is None:
            raise ValueError("mask.runtime_bounds=True needs the arrays lo and hi: pass both, [batch or 1, seqlen_q].")
        visible = visible & ((keys >= lo[..., None]) & (keys < hi[..., None]))[:, None]
    if problem.mask.bias is not None:
        if bias is None:
            raise ValueError(f"mask.bias={problem.mask.bias!r} needs the array bias: pass it.")
        visible = visible & (bias.astype(bool) if problem.mask.bias == "boolean" else ~np.isneginf(bias))
    return visible


def _probabilities(
    problem: Problem, q: Array, k: Array, lo: Array | None, hi: Array | None, bias: Array | None, sink: Array | None
) -> tuple[Array, Array, Array | None, Array | None]:
    q64, k64 = np.asarray(q, np.float64), _per_query_head(problem, np.asarray(k, np.float64))
    visible = visible_keys(problem, lo=lo, hi=hi, bias=bias)
    with np.errstate(invalid="ignore"):  # NaN inputs stay in the rows that see them
        scores = (q64 @ k64.swapaxes(-1, -2)) * problem.scale
        tanh = None
        if problem.softcap is not None:
            tanh = np.tanh(scores / problem.softcap)
            scores = problem.softcap * tanh
        if bias is not None and problem.mask.bias == "additive":
            scores = scores + np.where(np.isneginf(bias), 0.0, np.asarray(bias, np.float64))
    scores = np.where(visible, scores, -np.inf)
    row_max = scores.max(-1, initial=-np.inf)
    if problem.sink:
        if sink is None:
            raise ValueError("problem.sink=True needs the array sink: pass one logit per query head.")
        logit = np.asarray(sink, np.float64)[None, :, None]
        row_max = np.maximum(row_max, logit)
    shift = np.where(np.isneginf(row_max), 0.0, row_max)
    weights = np.exp(scores - shift[..., None])
    total = weights.sum(-1)
    sink_weight = np.exp(logit - shift) if problem.sink else None
    if sink_weight is not None:
        total = total + sink_weight
    with np.errstate(divide="ignore"):
        lse = np.log(total) + shift
    safe = np.where(total == 0, 1.0, total)
    return weights / safe[..., None], lse, tanh, None if sink_weight is None else sink_weight / safe


def _per_query_head(problem: Problem, array: Array) -> Array:
    """K or v `[batch, num_heads_kv, ...]` with one entry per query head, float64."""
    wide = np.asarray(array, np.float64)
    return wide if problem.group_size == 1 else np.repeat(wide, problem.group_size, axis=1)


def _fold_heads(problem: Problem, array: Array) -> Array:
    """Sum over the query heads of each kv head."""
    batch, _, length, width = array.shape
    return array.reshape(batch, problem.num_heads_kv, problem.group_size, length, width).sum(2)
