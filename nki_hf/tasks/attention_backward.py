"""The gradients of causal attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nki_hf.tasks.attention import _inputs
from nki_hf.tasks.matmuls import rounded
from nki_hf.tasks.task import FLOAT, Task

__all__ = ["TASKS"]

Array = np.ndarray[Any, Any]
_D = 128
_NAMES = ("q", "k", "v", "dout")


def _backward(
    q: Array, k: Array, v: Array, dout: Array, *, scaled: float = 1, delta: bool = True, masked: bool = True,
    score_scale: bool = True, of_p: bool = True, keys: slice = slice(None), rows: slice = slice(None), rounds: bool = False,
) -> tuple[Array, ...]:  # fmt: skip
    """dq, dk, dv; every option is a mistake, but for `rounds`: what products take is rounded to bfloat16."""
    scale = np.asarray(_D**-0.5, q.dtype)
    scores = q @ k.T * (scale if score_scale else 1)
    if masked:
        scores = np.where(np.tri(*scores.shape) > 0, scores, -np.inf)
    power = np.exp(scores - scores.max(-1, keepdims=True))
    probs = power / power.sum(-1, keepdims=True)
    if rounds:
        probs = rounded(probs)
    dprobs = dout @ v.T
    dscores = dprobs - (probs * dprobs).sum(-1, keepdims=True) if delta else dprobs
    dscores = probs * dscores if of_p else dscores * (probs > 0)
    factor = np.asarray(scale**scaled, q.dtype)
    if rounds:
        dscores = rounded(dscores)
    return (
        dscores[:, keys] @ k[keys] * factor,
        dscores[rows].T @ q[rows] * factor,
        probs[rows].T @ dout[rows],
    )


def _of(**words: Any) -> Callable[..., Any]:
    return lambda **arrays: _backward(**arrays, **words)


_WRONG: dict[str, Callable[..., Any]] = {
    "the gradients of q and k are not scaled": _of(scaled=0),
    "the gradients of q and k are scaled twice": _of(scaled=2),
    "the scores are not scaled": _of(score_scale=False),
    "the row sums of dout * out are not subtracted": _of(delta=False),
    "there is no mask": _of(masked=False),
    "the probabilities do not multiply the gradient of the scores": _of(of_p=False),
    **{
        f"{which} of {n} {what} is missing": _of(**{name: part})
        for n in (128, 512)
        for name, what in (("keys", "keys"), ("rows", "rows"))
        for which, part in (("the first block", slice(n, None)), ("the last block", slice(None, -n)))
    },
    "k is used in place of q for dk": lambda q, k, v, dout: (
        _backward(q, k, v, dout)[0], _backward(q, k, v, dout)[0], _backward(q, k, v, dout)[2]
    ),
    "v is used in place of dout for dv": lambda q, k, v, dout: (
        *_backward(q, k, v, dout)[:2], _backward(q, k, dout, v)[2]
    ),
}  # fmt: skip


def _summed(q: Array, k: Array, v: Array, dout: Array) -> tuple[Array, ...]:
    """`sqrt(sum of (term) ** 2)` of each row of dq, dk, dv: where terms are alike the sum cancels, their roundings do not."""
    scale = np.asarray(_D**-0.5, q.dtype)
    scores = np.where(np.tri(len(q), len(k)) > 0, q @ k.T * scale, -np.inf)
    power = np.exp(scores - scores.max(-1, keepdims=True))
    probs, dprobs = power / power.sum(-1, keepdims=True), np.abs(dout @ v.T)
    sizes = (probs * (dprobs + (probs * dprobs).sum(-1, keepdims=True)) * scale) ** 2
    products = (sizes, k), (sizes.T, q), (probs.T**2, dout)
    return tuple(np.sqrt((left @ right**2).sum(-1)) for left, right in products)


TASKS = {
    "attention_backward": Task(
        name="attention_backward", about="dq, dk, dv of causal attention from q, k, v and dout, one head, head_dim 128",
        arrays=lambda size: dict.fromkeys(_NAMES, ((size, _D), FLOAT)), reference=_backward, scale=_summed,
        ideal=_of(rounds=True),
        flops=lambda size: 10 * size * (size + 1) // 2 * _D, check=(256, 512), ragged=320, at=(2048,),
        outputs=("dq", "dk", "dv"),
        family="attention backward",
        axes=dict.fromkeys((*_NAMES, "dq", "dk", "dv"), "sd"),
        inputs=lambda size, distribution, rng: _inputs(dict.fromkeys(_NAMES, (size, _D)), distribution, rng),
        wrong=_WRONG,
    )
}  # fmt: skip
