"""The gradients of causal attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nki_hf.tasks.attention import _inputs
from nki_hf.tasks.attention_reference import SCALED_QUERIES, scaled_queries
from nki_hf.tasks.matmuls import rounded
from nki_hf.tasks.task import FLOAT, Task

__all__ = ["TASKS"]

Array = np.ndarray[Any, Any]
_D = 128
_NAMES = ("q", "k", "v", "dout")


def _backward(
    q: Array, k: Array, v: Array, dout: Array, *, scaled: float = 1, delta: bool = True, masked: bool = True,
    score_scale: bool = True, of_p: bool = True, keys: slice = slice(None), rows: slice = slice(None), rounds: bool = False,
    ahead: int = 1, seen: Callable[[Array, Array], Array] | None = None, changed: Callable[..., Array] | None = None,
    right: tuple[str, str, str] = ("k", "q", "dout"), left: tuple[str, str, str] = ("ds", "ds.T", "p.T"),
    blocks: tuple[str, int] = ("", 128), divided: bool = True,
) -> tuple[Array, ...]:  # fmt: skip
    """dq, dk, dv; every option is a mistake, but for `rounds`: what products take is rounded to bfloat16."""
    scale = np.asarray(_D**-0.5, q.dtype)
    scores = q @ k.T * (scale if score_scale else 1)
    if masked:
        scores = np.where(np.tri(len(q), len(k), ahead - 1) > 0, scores, -np.inf)
    if seen is not None:
        scores = np.where(seen(np.arange(len(q))[:, None], np.arange(len(k))), scores, -np.inf)
    power = np.exp(scores - scores.max(-1, keepdims=True))
    probs = power / power.sum(-1, keepdims=True) if divided else power
    if rounds:
        probs = rounded(probs)
    dprobs = dout @ v.T
    dscores = dprobs - (probs * dprobs).sum(-1, keepdims=True) if delta else dprobs
    dscores = probs * dscores if of_p else dscores * (probs > 0)
    if changed is not None:
        dscores = changed(probs, dprobs)
    factor = np.asarray(scale**scaled, q.dtype)
    if rounds:
        dscores = rounded(dscores)
    if blocks[0]:
        return _by_blocks(dscores * factor, probs, q, k, dout, *blocks)
    if right != ("k", "q", "dout") or left != ("ds", "ds.T", "p.T"):
        lefts = {
            "ds": dscores,
            "ds.T": dscores.T,
            "p": probs,
            "p.T": probs.T,
            "p*p.T": (probs * probs).T,
            "power.T": power.T,
            "dp.T": dprobs.T,
            "dp": dprobs,
        }
        rights = {"q": q, "k": k, "v": v, "dout": dout}
        found = [lefts[a] @ rights[b] for a, b in zip(left, right, strict=True)]
        return found[0] * factor, found[1] * factor, found[2]
    return (
        dscores[:, keys] @ k[keys] * factor,
        dscores[rows].T @ q[rows] * factor,
        probs[rows].T @ dout[rows],
    )


def _by_blocks(dscores: Array, probs: Array, q: Array, k: Array, dout: Array, which: str, n: int) -> tuple[Array, ...]:
    """Gradients with one block of `n` left in each sum: the row's or key's own, or the first or last that counts."""
    place = np.arange(len(q))
    row, key = place[:, None] // n, place // n
    for_dq = {"own": row == key, "first": (key == 0) & (row >= 0), "all but own": row != key, "last": row == key}[which]
    for_dk = {"own": row == key, "first": row == key, "all but own": row != key, "last": (row == row.max()) & (key >= 0)}[which]
    return (dscores * for_dq) @ k, (dscores * for_dk).T @ q, (probs * for_dk).T @ dout


def _to_block(x: Array, n: int = 128) -> Array:
    """Zeros behind the end of a row's own block of `n` keys."""
    place = np.arange(len(x))
    return x * (place // n <= place[:, None] // n)


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
    "the mask is strict: a row does not see its own key": _of(seen=lambda rows, keys: (keys < rows) | (rows == 0)),
    "the mask is one ahead: a row sees the key after its own": _of(ahead=2),
    **{f"the mask is {n} keys ahead (whole tiles)": _of(ahead=1 + n) for n in (128, 256, 512)},
    **{
        f"the mask is {n} keys behind (whole tiles), where a row has as many": _of(
            masked=False, seen=lambda rows, keys, n=n: keys <= np.where(rows < n, rows, rows - n)
        )
        for n in (128, 256, 512)
    },
    **{
        f"the mask lets a row see its whole block of {n} keys": _of(
            masked=False, seen=lambda rows, keys, n=n: keys // n <= rows // n
        )
        for n in (128, 512)
    },
    "the mask is transposed: a row sees its own key and those after it": _of(
        masked=False, seen=lambda rows, keys: keys >= rows
    ),
    **{
        f"{words} of {n} is in each sum": _of(blocks=(which, n))
        for n in (128, 512)
        for words, which in (
            ("only the block on the diagonal", "own"),
            ("only the last block", "last"),
            ("only the first block", "first"),
            ("all but the block on the diagonal", "all but own"),
        )
    },
    "the row sums of dout * out are added, not subtracted": _of(
        changed=lambda p, dp: p * (dp + (p * dp).sum(-1, keepdims=True))
    ),
    "the row sums are those of dout * v, not weighted by the probabilities": _of(
        changed=lambda p, dp: p * (dp - ((p > 0) * dp).sum(-1, keepdims=True))
    ),
    "the row means of dout * out are subtracted, not the sums": _of(
        changed=lambda p, dp: p * (dp - (p * dp).mean(-1, keepdims=True))
    ),
    "the row means of dout * out over the keys up to the end of a row's block of 128 are subtracted, not the sums": _of(
        changed=lambda p, dp: p * (dp - (p * dp).sum(-1, keepdims=True) / (np.arange(len(p)) // 128 * 128 + 128)[:, None])
    ),
    "the row sums are those of the squared probabilities, not of dout * out": _of(
        changed=lambda p, dp: p * (dp - (p * p).sum(-1, keepdims=True))
    ),
    "the row sums are subtracted from the product with the probabilities, not before it": _of(
        changed=lambda p, dp: p * dp - (p > 0) * (p * dp).sum(-1, keepdims=True)
    ),
    "dp is not multiplied by the probabilities (dS = dP - delta), up to the end of a row's block of 128 keys": _of(
        changed=lambda p, dp: _to_block(dp - (p * dp).sum(-1, keepdims=True))
    ),
    "dS is P * (1 - P) * dP, as of a sigmoid": _of(changed=lambda p, dp: p * (1 - p) * dp),
    "dS is multiplied by the probabilities twice": _of(changed=lambda p, dp: p * p * (dp - (p * dp).sum(-1, keepdims=True))),
    "dS has the other sign": _of(changed=lambda p, dp: -p * (dp - (p * dp).sum(-1, keepdims=True))),
    "dS is P * dP - delta / n": _of(changed=lambda p, dp: p * dp - (p * dp).sum(-1, keepdims=True) / p.shape[-1]),
    "dS is transposed for dq": _of(left=("ds.T", "ds.T", "p.T")),
    "dS is not transposed for dk": _of(left=("ds", "ds", "p.T")),
    "P is not transposed for dv": _of(left=("ds", "ds.T", "p")),
    "dv takes the exponentials, which are not divided by their sums": _of(left=("ds", "ds.T", "power.T")),
    "the exponentials are not divided by their sums": _of(divided=False),
    "dv takes the squares of P": _of(left=("ds", "ds.T", "p*p.T")),
    "dv takes dS in place of P": _of(left=("ds", "ds.T", "ds.T")),
    "dv takes the scaled dS in place of P": lambda **a: (
        *_backward(**a)[:2],
        _D**-0.5 * _of(left=("ds", "ds.T", "ds.T"))(**a)[2],
    ),
    "dv takes dP in place of P": _of(left=("ds", "ds.T", "dp.T")),
    "dk takes P in place of dS": _of(left=("ds", "p.T", "p.T")),
    "dk takes P in place of the scaled dS": lambda **a: (
        _backward(**a)[0],
        _D**0.5 * _of(left=("ds", "p.T", "p.T"))(**a)[1],
        _backward(**a)[2],
    ),
    "dq takes P in place of dS": _of(left=("p", "ds.T", "p.T")),
    "dk takes dP in place of dS": _of(left=("ds", "dp.T", "p.T")),
    "dq takes dP in place of dS": _of(left=("dp", "ds.T", "p.T")),
    **{
        f"{other} stands in place of {mine} in the product for {out}": _of(
            right=tuple(other if name == mine else name for name in ("k", "q", "dout"))
        )
        for out, mine in (("dq", "k"), ("dk", "q"), ("dv", "dout"))
        for other in ("q", "k", "v", "dout")
        if other != mine
    },
    "the gradient of q is not scaled": lambda **a: (_backward(**a)[0] * _D**0.5, *_backward(**a)[1:]),
    "the gradient of k is not scaled": lambda **a: (_backward(**a)[0], _backward(**a)[1] * _D**0.5, _backward(**a)[2]),
    "the gradient of v is scaled": lambda **a: (*_backward(**a)[:2], _backward(**a)[2] * _D**-0.5),
}


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
        name="attention_backward",
        about="dq, dk, dv of causal attention from q, k, v and dout, one head, head_dim 128",
        arrays=lambda size: dict.fromkeys(_NAMES, ((size, _D), FLOAT)),
        reference=_backward,
        scale=_summed,
        ideal=_of(rounds=True),
        flops=lambda size: 10 * size * (size + 1) // 2 * _D,
        check=(256, 512),
        ragged=320,
        at=(2048,),
        outputs=("dq", "dk", "dv"),
        family="attention backward",
        axes=dict.fromkeys((*_NAMES, "dq", "dk", "dv"), "sd"),
        inputs=lambda size, distribution, rng: _inputs(dict.fromkeys(_NAMES, (size, _D)), distribution, rng),
        wrong=_WRONG,
        accepted={SCALED_QUERIES: scaled_queries},
    )
}
