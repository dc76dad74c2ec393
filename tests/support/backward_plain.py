"""Gradients of attention by an eager implementation in the same dtype, and those in float64, each with the terms they sum."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from nki_hf.kernels import reference

RUNS, FEW = (4, 32), 60
"""Plain runs in float32, each in another order of sums: of many rows, and of fewer than `FEW`, whose errors are few numbers.
In 16 bits the rounding of products hides the order: one run."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Gradients by name, and the terms that they are sums of: probs, dmasked (= the bias's), dscores
    `[batch, num_heads_q, seqlen_q, seqlen_kv]`, and those of the sink `[batch, num_heads_q, seqlen_q]` or None.
    """

    gradients: dict[str, np.ndarray]
    probs: np.ndarray
    dmasked: np.ndarray
    dscores: np.ndarray
    sink: np.ndarray | None


def plain_run(inputs, dout, dlse=None):
    """What an eager implementation does in the problem's dtype: products summed in float32, every intermediate rounded."""
    case = inputs.problem
    dtype = inputs.q.dtype

    def rounded(values):
        return values.astype(dtype).astype(np.float32)

    q, k, v = (np.asarray(item, np.float32) for item in (inputs.q, inputs.k, inputs.v))
    k_heads, v_heads = (np.repeat(item, case.group_size, axis=1) for item in (k, v))
    with np.errstate(over="ignore", invalid="ignore"):
        scores = rounded(rounded(_product(q, k_heads.swapaxes(-1, -2))) * np.float32(case.scale))
        tanh = None
        if case.softcap is not None:
            cap = np.float32(case.softcap)
            tanh = rounded(np.tanh(rounded(scores / cap)))
            scores = rounded(tanh * cap)
        if inputs.bias is not None and case.mask.bias == "additive":
            scores = scores + inputs.bias.astype(np.float32)
    visible = reference.visible_keys(case, lo=inputs.lo, hi=inputs.hi, bias=inputs.bias)
    scores = np.where(visible, scores, np.float32(-np.inf))
    shift = scores.max(-1, initial=np.finfo(np.float32).min, keepdims=True)
    sink = None if inputs.sink is None else inputs.sink.astype(np.float32)[None, :, None, None]
    if sink is not None:
        shift = np.maximum(shift, sink)
    with np.errstate(invalid="ignore"):  # scores beyond float16 are inf, and their rows NaN, as in eager
        weights = np.exp(scores - shift)
    total = weights.sum(-1, keepdims=True) + (0 if sink is None else np.exp(sink - shift))
    total = np.where(total == 0, np.float32(1), total)
    exact = weights / total
    probs = rounded(exact)
    grads = np.asarray(dout, np.float32)
    dprobs = rounded(_product(grads, v_heads.swapaxes(-1, -2)))
    delta = (exact * dprobs).sum(-1, keepdims=True) - (0 if dlse is None else dlse[..., None])
    dmasked = exact * (dprobs - delta)
    dscores = rounded(dmasked)
    if tanh is not None:
        dscores = rounded(dscores * (1 - tanh**2))
    dscores = rounded(dscores * np.float32(case.scale))
    found = {
        "dq": rounded(_product(dscores, k_heads)),
        "dk": rounded(fold(case, rounded(_product(dscores.swapaxes(-1, -2), q)))),
        "dv": rounded(fold(case, rounded(_product(probs.swapaxes(-1, -2), grads)))),
    }
    shares = None
    if sink is not None:
        shares = -rounded(np.exp(sink - shift) / total * delta)[..., 0]
        found["d_sink"] = rounded(shares.sum((0, 2)))
    if inputs.bias is not None and case.mask.bias == "additive":
        found["d_bias"] = rounded(rounded(dmasked).sum(shared_axes(inputs), keepdims=True))
    return Terms(gradients=found, probs=probs, dmasked=rounded(dmasked), dscores=dscores, sink=shares)


def _product(left, right):
    """`left @ right` in float32, summed one after the other as matrix products of many rows are: NumPy sums the product of
    a single row as eight partial sums, more exactly than either a chip or a batch does.
    """
    rows = left.shape[-2]
    if rows >= 8:
        return left @ right
    padded = np.zeros((*left.shape[:-2], 8, left.shape[-1]), left.dtype)
    padded[..., :rows, :] = left
    return (padded @ right)[..., :rows, :]


def fold(case, array):
    batch, _, length, width = array.shape
    return array.reshape(batch, case.num_heads_kv, case.group_size, length, width).sum(2)


def shared_axes(inputs):
    """Axes over which the bias's gradient is summed."""
    case = inputs.problem
    full = (case.batch, case.num_heads_q, case.seqlen_q, case.seqlen_kv)
    return tuple(axis for axis in range(4) if inputs.bias.shape[axis] == 1 and full[axis] != 1)


def runs_of(inputs, dout, dlse):
    """Plain runs in other orders of head_dim and head_dim_v; the gradients as the first run has them."""
    yield plain_run(inputs, dout, dlse)
    if inputs.q.dtype != np.float32:
        return
    case, rng = inputs.problem, np.random.default_rng(0)
    runs = RUNS[case.batch * case.num_heads_q * case.seqlen_q < FEW]
    for _ in range(runs - 1):
        order, order_v = rng.permutation(case.head_dim), rng.permutation(case.head_dim_v)
        back, back_v = np.argsort(order), np.argsort(order_v)
        turned = replace(inputs, q=inputs.q[..., order], k=inputs.k[..., order], v=inputs.v[..., order_v])
        run = plain_run(turned, dout[..., order_v], dlse)
        found = {"dq": back, "dk": back, "dv": back_v}
        yield replace(
            run, gradients={name: item[..., found[name]] if name in found else item for name, item in run.gradients.items()}
        )


def exact_terms(inputs, dout, dlse):
    """The same as `Terms`, in float64."""
    case = inputs.problem
    want = reference.attention_gradients(case, inputs.q, inputs.k, inputs.v, dout, dlse=dlse, **inputs.masks)
    probs, _, tanh, shares = reference._probabilities(case, inputs.q, inputs.k, inputs.lo, inputs.hi, inputs.bias, inputs.sink)
    v_heads = np.repeat(np.asarray(inputs.v, np.float64), case.group_size, axis=1)
    dprobs = np.asarray(dout, np.float64) @ v_heads.swapaxes(-1, -2)
    delta = (probs * dprobs).sum(-1) - (0 if dlse is None else dlse)
    dmasked = probs * (dprobs - delta[..., None])
    return Terms(
        gradients={name: getattr(want, name) for name in ("dq", "dk", "dv", "d_sink", "d_bias")},
        probs=probs,
        dmasked=dmasked,
        dscores=dmasked * (1.0 if tanh is None else 1 - tanh**2) * case.scale,
        sink=None if shares is None else -shares * delta,
    )


def spread_of(inputs, off, dout):
    """Per gradient: the squares of its errors if those of its terms, `off`, had signs of their own; and per row (of d_sink:
    per head) the sum of the squares that come from there.
    """
    case = inputs.problem
    squares = {name: np.square(getattr(off, name), dtype=np.float64) for name in ("probs", "dmasked", "dscores")}
    q, k, grads = (np.square(np.asarray(item, np.float64)) for item in (inputs.q, inputs.k, dout))
    dq = squares["dscores"] @ np.repeat(k, case.group_size, axis=1)
    found = {
        "dq": (dq, dq.sum(-1)),
        "dk": (fold(case, squares["dscores"].swapaxes(-1, -2) @ q), squares["dscores"].sum(-1) * q.sum(-1)),
        "dv": (fold(case, squares["probs"].swapaxes(-1, -2) @ grads), squares["probs"].sum(-1) * grads.sum(-1)),
    }
    if off.sink is not None:
        heads = np.square(off.sink).sum((0, 2))
        found["d_sink"] = (heads, heads)
    if "d_bias" in off.gradients:
        found["d_bias"] = (squares["dmasked"].sum(shared_axes(inputs), keepdims=True), squares["dmasked"].sum(-1))
    return found


def rms(values):
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0
