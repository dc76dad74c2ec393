"""Attention problems with dropout, with gradients of gradients, and with blocks of keys that a model's indexer chooses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import nki_hf
from tools.fuzz.attention_problems import PLAIN, Case

__all__ = ["draw_extra", "wrong_dropout", "wrong_second"]

Called = Callable[[dict[str, Any]], torch.Tensor]
"""The output `[batch, heads, seqlen_q, head_dim_v]` of a call with these tensors in the place of the problem's own."""
_INVALID = (-0.1, 1.5, math.nan, math.inf)


def draw_extra(seed: int) -> Case:
    """A problem of that seed.

    Some have rows without keys, whose lse is -inf or the sink, at scales that make scores vanish. `dropout`: probability of
    dropping a weight; values are the unit matrix then, so that the output is the weights. `second`: gradients of gradients are
    asked for. `chosen_blocks`: keys of a block, and how many of them each row names.
    """
    rng = np.random.default_rng([seed, 9])

    def one_of(*items: Any) -> Any:
        return items[int(rng.integers(len(items)))]

    def rarely(share: float = 0.1) -> bool:
        return bool(rng.random() < share)

    what = one_of("dropout", "second", "blocks", "empty")
    case = {**PLAIN, "seed": seed, "dtype": one_of("float32", "float32", "bfloat16", "float16")}
    case["front"] = {"dropout": one_of("transformers", "flash"), "blocks": "transformers"}.get(what, "attention")
    case["batch_q"] = case["batch_kv"] = one_of(1, 1, 2)
    case["heads_kv"], case["group"] = one_of((1, 1), (2, 1), (1, 2), (2, 3))
    case["seqlen_q"], case["seqlen_kv"] = one_of(1, 5, 17, int(rng.integers(1, 60))), one_of(5, 33, int(rng.integers(1, 90)))
    case["head_dim"] = case["head_dim_v"] = one_of(8, 16, 64, int(rng.integers(1, 65)))
    case["scale"] = one_of(None, None, float(rng.uniform(0.05, 1)), -0.5)
    case["softcap"] = one_of(None, None, float(rng.uniform(1, 50)))
    case["sink"] = one_of(None, None, "normal")
    case["causal"] = rarely(0.4)
    case["strict"], case["chip"] = rarely(0.3), one_of("trn2", "trn2", "trn1", "trn3")
    if not case["causal"] and case["front"] != "flash":
        case["mask"] = (
            one_of(None, None, "bool", "padding") if what == "blocks" else one_of(None, None, "bool", "float", "padding")
        )
        case["mask_axes"] = tuple(int(rng.integers(2)) for _ in range(3))
    if what == "dropout":
        case["dropout"] = one_of(0.0, 0.1, 0.5, 0.9, 1.0, one_of(*_INVALID))
        if case["dropout"]:
            case["head_dim_v"] = case["seqlen_kv"]
        case["gradients"] = rarely(0.4)
    elif what == "second":
        case["second"], case["gradients"], case["dtype"] = True, True, "float32"
        case["window"] = one_of(None, None, int(rng.integers(1, 40)))
        case["strict"] = False
    elif what == "empty":  # the first rows see no key, and scores are of any size
        case["lse"], case["causal"], case["ahead"], case["mask"] = True, False, int(rng.integers(1, 4)), None
        case["q_offset"] = -int(rng.integers(1, 12))
        case["kernel"] = one_of(None, "flash_prefill", "flash_decode", "flash_const_max")
        case["scale"] = one_of(None, 1.0, 1e-20, 1e-10, -1e-20, 30.0)
        case["softcap"] = one_of(None, None, 1e-20, 5.0)
        case["sink"] = one_of(None, None, None, "normal", "minus_inf")
        case["gradients"] = rarely(0.3)
    else:
        size = int(rng.integers(1, 9))
        case["chosen_blocks"] = (size, int(rng.integers(1, 5)))
        case["gradients"] = rarely(0.3)
    return case


# ---- dropout --------------------------------------------------------------------------------------------------------


def wrong_dropout(
    case: Case, called: Called, v: torch.Tensor, probs: torch.Tensor, weight: torch.Tensor, rounding: float
) -> str:
    """What is wrong with a call that drops weights.

    Args:
      case: the problem; its values are meant to be the unit matrix.
      called: makes the call with other tensors.
      v: the problem's values, whose shape and dtype they have.
      probs: the weights `[batch, heads, seqlen_q, seqlen_kv]` in float64.
      weight: of the output in the loss.
      rounding: what a score may err by in float32, by which a weight errs as a part of itself.
    """
    p = case["dropout"]
    if not 0 <= p <= 1:
        try:
            called({})
        except ValueError:
            return ""
        return f"dropout={p} was not refused"
    values = torch.eye(case["seqlen_kv"], dtype=v.dtype).expand(v.shape).clone().requires_grad_(case["gradients"])
    try:
        found, again = _seeded(called, values, 1), _seeded(called, values, 1)
    except nki_hf.UnsupportedProblem as error:
        return "" if case["strict"] else f"refused: {error}"
    if case["strict"]:
        return "strict settings let torch drop weights"
    if not torch.equal(found.detach(), again.detach()):
        return "the same seed drops other weights"
    out, kept = found.detach().double(), probs / (1 - p) if p < 1 else torch.zeros_like(probs)
    step = torch.finfo(v.dtype).eps
    close = 64 * step * (kept.abs() + step) + 2 * rounding * kept.abs()
    dropped = out.abs() <= 1e-12
    if bool((~dropped & ((out - kept).abs() > close + 0.02 * kept * (step > 1e-4))).any()):
        return "a weight is neither dropped nor scaled by what is kept"
    large = probs > 1e-3
    count, gone = int(large.sum()), int((dropped & large).sum())
    if abs(gone - p * count) > 6 * (count * p * (1 - p)) ** 0.5 + 1e-9:
        return f"{gone} of {count} weights were dropped at dropout={p}"
    if case["gradients"]:
        (dv,) = torch.autograd.grad((found.double() * weight).sum(), values)
        want = out.transpose(-1, -2) @ weight
        want = want.unflatten(1, (case["heads_kv"], case["group"])).sum(2)
        if not torch.allclose(dv.double(), want, rtol=0, atol=float(64 * step * (want.abs().max() + 1))):
            return "dv does not follow the weights that were dropped"
    return ""


def _seeded(called: Called, values: torch.Tensor, seed: int) -> torch.Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return called({"v": values})


# ---- gradients of gradients -----------------------------------------------------------------------------------------


def wrong_second(case: Case, called: Called, exact: Called, leaves: dict[str, torch.Tensor]) -> str:
    """What is wrong with gradients that are taken with `create_graph`, and with their own gradients, if there are any.

    Args:
      case: the problem.
      called: makes the call.
      exact: the same in float64.
      leaves: the tensors that have gradients.
    """
    found, first, second = _taken(called, leaves)
    wide = {name: each.double() for name, each in leaves.items()}
    want, want_first, want_second = _taken(exact, wide)
    if isinstance(want_second, Exception):
        raise want_second
    for name, one, other in zip(("out", *(f"d{name}" for name in leaves)), (found, *first), (want, *want_first), strict=True):
        if not torch.allclose(one.double(), other, rtol=1e-3, atol=1e-3 * (1 + float(other.abs().max()))):
            return f"{name} errs by {float((one.double() - other).abs().max()):.3g} with create_graph"
    if isinstance(second, Exception):
        named = isinstance(second, nki_hf.UnsupportedProblem) and "create_graph" in str(second)
        torchs = isinstance(second, RuntimeError) and "derivative for" in str(second)  # that of sdpa on the CPU
        return "" if named or torchs else f"{type(second).__name__} of a gradient of a gradient: {second}"
    for name, one, other in zip(leaves, second, want_second, strict=True):
        if not torch.allclose(one.double(), other, rtol=1e-2, atol=1e-2 * (1 + float(other.abs().max()))):
            return f"the second gradient of {name} errs by {float((one.double() - other).abs().max()):.3g}"
    return ""


def _taken(call: Called, leaves: dict[str, torch.Tensor]) -> tuple[torch.Tensor, Any, Any]:
    """Output, gradients, and the gradients of the sum of their squares or what was raised instead."""
    own = {name: each.detach().clone().requires_grad_() for name, each in leaves.items()}
    out = call(own)
    first = torch.autograd.grad(out.double().sin().sum(), list(own.values()), create_graph=True, allow_unused=True)
    first = [torch.zeros_like(each) if one is None else one for one, each in zip(first, own.values(), strict=True)]
    try:
        total = sum(each.double().square().sum() for each in first)
        second = torch.autograd.grad(total, list(own.values()), allow_unused=True)
    except (ValueError, RuntimeError) as error:
        return out.detach(), [each.detach() for each in first], error
    second = [torch.zeros_like(each) if one is None else one for one, each in zip(second, own.values(), strict=True)]
    return out.detach(), [each.detach() for each in first], second
