"""One step of AdamW, element by element."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nki_hf.tasks.row_parts import narrow
from nki_hf.tasks.task import FLOAT, Task

__all__ = ["TASKS"]

Array = np.ndarray[Any, Any]
_BETAS = (0.9, 0.999)


def _adamw(
    param: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array, *, lr: float = 1e-3, eps: float = 1e-8,
    weight_decay: float = 0.01, decoupled: bool = True, betas: tuple[float, float] = _BETAS, squared: bool = True,
    inside: bool = False, shares: tuple[float, float] = (1 - _BETAS[0], 1 - _BETAS[1]), corrected: bool = False,
    update: str = "m", after: bool = False, power: Callable[[Array], Array] | None = None, root: float = 0.5,
    corrections: tuple[bool, bool] = (False, False), of_m: Callable[[Array], Array] | None = None,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """One step; every option but the first three is a mistake."""
    if not decoupled:
        grad = grad + weight_decay * param
    if betas != _BETAS:
        shares = 1 - betas[0], 1 - betas[1]
    m = betas[0] * exp_avg + shares[0] * grad
    v = betas[1] * exp_avg_sq + shares[1] * (power(grad) if power else grad * grad if squared else grad)
    top, bottom = {
        "m": (m, v),
        "grad": (grad, v),
        "old": (exp_avg, exp_avg_sq),
        "old m": (exp_avg, v),
        "old v": (m, exp_avg_sq),
        "g2": (m, grad * grad),
        "none": (m, np.ones_like(v)),
        "sign": (np.sign(m), np.ones_like(v)),
    }[update]
    if corrected or corrections[0]:  # as in the first step
        top = top / (1 - betas[0])
    if corrected or corrections[1]:
        bottom = bottom / (1 - betas[1])
    top = of_m(top) if of_m else top
    bottom = np.maximum(bottom, 0)
    step = lr * top / ((bottom + eps) ** root if inside else bottom**root + eps)
    shrunk = 1 - lr * weight_decay * decoupled
    return (param - step) * shrunk if after else param * shrunk - step, m, v


def _moments(size: int, distribution: str, rng: np.random.Generator) -> Mapping[str, Array]:
    wide = 10 if distribution == "wide" else 1
    small: Any = 10.0 ** rng.uniform(-9, -7, (size, 1)) if distribution == "small" else 1.0  # each row by itself near eps
    found = {name: rng.standard_normal((size, 512)) * wide for name in ("param", "grad", "exp_avg")}
    found["grad"] *= small
    found["exp_avg"] *= small
    squares = (rng.standard_normal((size, 512)) ** 2 * wide + 1e-3) * small * small
    if distribution == "new":  # a bias, or LoRA's B: the step alone is seen, with roots from near eps to 1
        found["param"], squares = np.zeros((size, 512)), 10.0 ** rng.uniform(-14, 0, (size, 1)) * (1 + squares)
        found["grad"], found["exp_avg"] = found["grad"] * np.sqrt(squares), found["exp_avg"] * np.sqrt(squares)
    return {**found, "exp_avg_sq": squares}


_ADAMW_WRONG: dict[str, Callable[..., Any]] = {
    "the weight decay goes through the moments (Adam with L2)": lambda **a: _adamw(**a, decoupled=False),
    "the weight decay is missing": lambda **a: _adamw(**a, weight_decay=0.0),
    "the weight decay is not multiplied by the learning rate": lambda **a: _adamw(**a, weight_decay=10.0),
    "the weight decay comes after the step": lambda **a: _adamw(**a, after=True),
    "the moments are corrected for their bias (as in the first step)": lambda **a: _adamw(**a, corrected=True),
    "the weight decay has the other sign": lambda **a: _adamw(**a, weight_decay=-0.01),
    "the gradient is not multiplied by 1 - beta1": lambda **a: _adamw(**a, shares=(1.0, 1 - _BETAS[1])),
    "the squared gradient is not multiplied by 1 - beta2": lambda **a: _adamw(**a, shares=(1 - _BETAS[0], 1.0)),
    "the betas are exchanged": lambda **a: _adamw(**a, betas=_BETAS[::-1]),
    "the gradient is not squared in exp_avg_sq": lambda **a: _adamw(**a, squared=False),
    "absolute gradients are averaged in exp_avg_sq, not squares": lambda **a: _adamw(**a, power=np.abs),
    "exp_avg_sq takes the square of the new exp_avg, not of the gradient": lambda **a: _adamw(
        **a, power=lambda g: _adamw(**a)[1] ** 2
    ),
    "the squared gradient is rounded to bfloat16": lambda **a: _adamw(**a, power=lambda g: narrow(g * g)),
    **{
        f"the gradient is clipped to {most:g}": lambda most=most, **a: _adamw(**{**a, "grad": np.clip(a["grad"], -most, most)})
        for most in (0.5, 1.0, 2.0, 5.0)
    },
    "the gradient is multiplied by 1 - beta1 before it is squared in exp_avg_sq": lambda **a: _adamw(
        **a, power=lambda g: ((1 - _BETAS[0]) * g) ** 2
    ),
    "the gradient is multiplied by 1 - beta2 before it is squared in exp_avg_sq, not after": lambda **a: _adamw(
        **a, power=lambda g: ((1 - _BETAS[1]) * g) ** 2, shares=(1 - _BETAS[0], 1.0)
    ),
    "the squared gradient is multiplied by 1 - beta2 twice": lambda **a: _adamw(**a, power=lambda g: (1 - _BETAS[1]) * g * g),
    "the gradient is divided by 1 - beta1 before it is squared in exp_avg_sq": lambda **a: _adamw(
        **a, power=lambda g: (g / (1 - _BETAS[0])) ** 2
    ),
    "the gradient is multiplied by the learning rate before it is squared in exp_avg_sq": lambda **a: _adamw(
        **a, power=lambda g: (1e-3 * g) ** 2
    ),
    "the gradient is squared twice in exp_avg_sq": lambda **a: _adamw(**a, power=lambda g: g**4),
    "exp_avg_sq is not under a root": lambda **a: _adamw(**a, root=1.0),
    "the fourth root of exp_avg_sq divides, not the square root": lambda **a: _adamw(**a, root=0.25),
    "the root of exp_avg_sq multiplies, not divides": lambda **a: _adamw(**a, root=-0.5),
    "nothing divides the step (exp_avg_sq is not used)": lambda **a: _adamw(**a, update="none"),
    "the step has the size of the learning rate (sign of exp_avg)": lambda **a: _adamw(**a, update="sign"),
    "the step follows exp_avg before its update": lambda **a: _adamw(**a, update="old m"),
    "the step is divided by exp_avg_sq before its update": lambda **a: _adamw(**a, update="old v"),
    "the step is divided by the gradient's own square, not by exp_avg_sq": lambda **a: _adamw(**a, update="g2"),
    "exp_avg alone is corrected for its bias (as in the first step)": lambda **a: _adamw(**a, corrections=(True, False)),
    "exp_avg_sq alone is corrected for its bias (as in the first step)": lambda **a: _adamw(**a, corrections=(False, True)),
    **{
        f"eps is {eps} instead of 1e-8": lambda eps=eps, **a: _adamw(**a, eps=eps)
        for eps in (1e-10, 1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
    },
    **{
        f"the learning rate is {words}": lambda rate=rate, **a: _adamw(**a, lr=rate, weight_decay=1e-5 / rate)
        for words, rate in (("ten times as large", 1e-2), ("a tenth", 1e-4), ("squared", 1e-6))
    },
    **{
        f"weight_decay is {decay} instead of 0.01": lambda decay=decay, **a: _adamw(**a, weight_decay=decay)
        for decay in (1e-3, 1e-4, 0.1)
    },
    "the weight decay takes exp_avg, not the parameter": lambda **a: (
        _adamw(**a)[0] + 1e-5 * a["param"] - 1e-5 * _adamw(**a)[1],
        *_adamw(**a)[1:],
    ),
    "beta1 is 0.99 instead of 0.9": lambda **a: _adamw(**a, betas=(0.99, _BETAS[1])),
    "beta2 is 0.99 instead of 0.999": lambda **a: _adamw(**a, betas=(_BETAS[0], 0.99)),
    "beta2 is 0.95 instead of 0.999": lambda **a: _adamw(**a, betas=(_BETAS[0], 0.95)),
    "exp_avg takes the squared gradient": lambda **a: (
        _adamw(**{**a, "grad": a["grad"] ** 2})[0],
        _adamw(**{**a, "grad": a["grad"] ** 2})[1],
        _adamw(**a)[2],
    ),
    "the gradient is subtracted from exp_avg": lambda **a: _adamw(**a, shares=(_BETAS[0] - 1, 1 - _BETAS[1])),
    "the step is Nesterov's (exp_avg looks ahead)": lambda **a: _adamw(
        **a, of_m=lambda m: _BETAS[0] * m + (1 - _BETAS[0]) * a["grad"]
    ),
    "eps is under the root": lambda **a: _adamw(**a, inside=True),
    "eps is missing": lambda **a: _adamw(**a, eps=0.0),
    "the step goes up: its sign is wrong": lambda **a: _adamw(**a, lr=-1e-3, weight_decay=-0.01),
    "the learning rate is missing": lambda **a: _adamw(**a, lr=1.0, weight_decay=1e-5),
    "the step follows the gradient, not exp_avg": lambda **a: _adamw(**a, update="grad"),
    "the step follows the moments before they are updated": lambda **a: _adamw(**a, update="old"),
    "beta1 and 1 - beta1 are exchanged": lambda **a: _adamw(**a, betas=(1 - _BETAS[0], _BETAS[1])),
    "beta2 and 1 - beta2 are exchanged": lambda **a: _adamw(**a, betas=(_BETAS[0], 1 - _BETAS[1])),
}


TASKS = {
    task.name: task
    for task in (
        Task(name="adamw", about="one step of AdamW: param, grad, exp_avg, exp_avg_sq [size, 512] -> the new param, exp_avg, "
             "exp_avg_sq; betas 0.9, 0.999, lr 1e-3, eps 1e-8, weight_decay 0.01, no bias correction",
             arrays=lambda n: dict.fromkeys(("param", "grad", "exp_avg", "exp_avg_sq"), ((n, 512), FLOAT)),
             reference=lambda param, grad, exp_avg, exp_avg_sq: _adamw(param, grad, exp_avg, exp_avg_sq), inputs=_moments,
             flops=lambda n: 12 * n * 512, check=(128, 256), ragged=200, at=(2048,), dtype="float32",
             outputs=("param", "exp_avg", "exp_avg_sq"), distributions=("small", "new"), least_rtol=2e-6, wrong=_ADAMW_WRONG),
    )
}  # fmt: skip
