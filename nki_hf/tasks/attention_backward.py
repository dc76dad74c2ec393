"""The gradients of causal attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.tasks.attention import _inputs
from nki_hf.tasks.task import FLOAT, Task

__all__ = ["TASKS"]

Array = np.ndarray[Any, Any]
_D = 128
_NAMES = ("q", "k", "v", "dout")


def _backward(q: Array, k: Array, v: Array, dout: Array, *, scaled: bool = True, delta: bool = True) -> tuple[Array, ...]:
    scale = np.asarray(_D**-0.5, q.dtype)
    scores = q @ k.T * scale
    scores = np.where(np.tri(*scores.shape) > 0, scores, -np.inf)
    power = np.exp(scores - scores.max(-1, keepdims=True))
    probs = power / power.sum(-1, keepdims=True)
    dprobs = dout @ v.T
    dscores = probs * (dprobs - (probs * dprobs).sum(-1, keepdims=True) if delta else dprobs)
    factor = scale if scaled else np.asarray(1, q.dtype)
    return dscores @ k * factor, dscores.T @ q * factor, probs.T @ dout


TASKS = {
    "attention_backward": Task(
        name="attention_backward", about="dq, dk, dv of causal attention from q, k, v and dout, one head, head_dim 128",
        arrays=lambda size: dict.fromkeys(_NAMES, ((size, _D), FLOAT)), reference=_backward,
        flops=lambda size: 10 * size * (size + 1) // 2 * _D, check=(256, 512), at=(2048,), outputs=("dq", "dk", "dv"),
        family="attention backward",
        axes=dict.fromkeys((*_NAMES, "dq", "dk", "dv"), "sd"),
        inputs=lambda size, distribution, rng: _inputs(dict.fromkeys(_NAMES, (size, _D)), distribution, rng),
        wrong={
            "the gradients of q and k are not scaled": lambda **arrays: _backward(**arrays, scaled=False),
            "the row sums of dout * out are not subtracted": lambda **arrays: _backward(**arrays, delta=False),
        },
    )
}  # fmt: skip
