"""The call of a random attention problem through its front door, with its settings, and the gradients that it asks for."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch

import nki_hf
from nki_hf.adapters import decision
from nki_hf.adapters.transformers import nki_attention
from nki_hf.dispatch import decide
from nki_hf.kernels import registry
from nki_hf.kernels.flash_const_max import plan, tuning
from tools.fuzz.attention_given import Given, passed_mask
from tools.fuzz.attention_problems import VANISHING, Case

__all__ = ["called", "differing"]


def called(case: Case, given: Given, *, twice: bool = False) -> dict[str, torch.Tensor | None]:
    """Output `[batch, heads, seqlen_q, head_dim_v]`, lse, and the gradient of each tensor that has one. `given` stays as it is.

    Args:
      case: the problem.
      given: its tensors.
      twice: True takes the gradients a second time, of the same output.

    Raises:
      AssertionError: an argument was changed, or the second gradients have other bits than the first.
    """
    names = ("q", "k", "v", "sink", "mask", "position_bias")
    leaves: dict[str, torch.Tensor | None] = {name: getattr(given, name) for name in names}
    leaves["scale"] = scale = _wrapped_scale(case)
    learning = _learning(case, leaves)
    leaves.update({name: each.detach().requires_grad_() for name, each in learning.items()})
    scale = scale if "scale" not in learning else leaves["scale"]
    kept = (*(leaves[name] for name in names), given.lo, given.hi)
    before = [None if each is None else each.detach().clone() for each in kept]
    with _surroundings(case):
        out, lse = _front_door(case, given, leaves, scale)
    found: dict[str, torch.Tensor | None] = {"out": out.detach(), "lse": None if lse is None else lse.detach()}
    for one, other in zip(before, kept, strict=True):
        if one is not None and other is not None and not _same_bits(one, other.detach()):
            raise AssertionError("the call changed one of its arguments")
    if learning:
        loss = (out.double() * given.weight).sum()
        if lse is not None:
            loss = loss + lse.double().masked_fill(lse < -VANISHING, 0.0).sin().sum()
        with _surroundings(case):
            inputs = [leaves[name] for name in learning]
            taken = [torch.autograd.grad(loss, inputs, retain_graph=True) for _ in range(1 + twice)]
        for name, one, other in zip(learning, taken[0], taken[-1], strict=True):
            if not _same_bits(one, other):
                raise AssertionError(f"the gradient of {name} has other bits when it is taken again")
            found[f"d{name}"] = one
    return found


def _learning(case: Case, leaves: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Those of the tensors that have a gradient, by name."""
    if not case["gradients"]:
        return {}
    fixed = {*case["frozen"]}
    if not case["mask_learns"]:
        fixed.add("mask")
    if case["position_bias"] != "learned":
        fixed.add("position_bias")
    if case["scale_as"] != "learned":
        fixed.add("scale")
    return {name: each for name, each in leaves.items() if isinstance(each, torch.Tensor) and name not in fixed}


def _front_door(case: Case, given: Given, leaves: dict[str, Any], scale: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    q, k, v, sink, mask, position_bias = (leaves[name] for name in ("q", "k", "v", "sink", "mask", "position_bias"))
    mask = passed_mask(case, mask)
    if case["front"] == "transformers":
        module = SimpleNamespace(is_causal=case["causal"], training=False)
        options = {"scaling": scale, "softcap": case["softcap"], "s_aux": sink, "use_cache": True}
        if position_bias is not None:
            options["position_bias"] = position_bias
        out, _ = nki_attention(module, q, k, v, mask, **options)
        return out.transpose(1, 2), None
    whole = {name: _wrapped(case[name], case["whole"]) for name in ("window", "ahead", "q_offset")}
    found = nki_hf.attention(
        q,
        k,
        v,
        mask,
        causal=case["causal"],
        lo=given.lo,
        hi=given.hi,
        scale=scale,
        softcap=case["softcap"],
        sink=sink,
        return_lse=case["lse"],
        **whole,
    )
    return found if isinstance(found, tuple) else (found, None)


def _wrapped(value: Any, how: str) -> Any:
    if type(value) is not int or not -(2**63) <= value < 2**63 or how == "int":
        return value
    return np.int64(value) if how == "numpy" else torch.tensor([value])


def _wrapped_scale(case: Case) -> Any:
    scale, how = case["scale"], case["scale_as"]
    if scale is None or how == "float":
        return scale
    if how == "numpy":
        return np.float64(scale)
    return torch.tensor(scale, dtype=torch.float64 if how == "tensor" else torch.float32)


@contextlib.contextmanager
def _surroundings(case: Case) -> Iterator[None]:
    """Settings, the kernels that may be asked, the default dtype and inference mode of a case."""
    kept, before = torch.get_default_dtype(), case["default_dtype"]
    changes = {"strict": case["strict"], "chip": case["chip"], "lnc": case["lnc"]}
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(nki_hf.using(**changes))
        stack.callback(torch.set_default_dtype, kept)
        if before is not None:
            torch.set_default_dtype(getattr(torch, before))
        if case["inference"]:
            stack.enter_context(torch.inference_mode())
        if case["kernel"] is not None:
            stack.callback(_forget_decisions)
            asked = [item for item in registry.PACKAGES if item.endswith((case["kernel"], "flash_backward"))]
            stack.enter_context(mock.patch.object(registry, "PACKAGES", asked))
            _forget_decisions()
        if case["constants"] is not None:
            stack.callback(_forget_decisions)
            forced = mock.patch.object(plan, "tuning_of", lambda problem, chip: tuning.TABLE[chip.name][case["constants"]])
            stack.enter_context(forced)
            _forget_decisions()
        yield


def _forget_decisions() -> None:
    for cache in (decide, decision._decided, decision._decided_gradients, plan.plan_const_max):
        cache.cache_clear()


def differing(first: dict[str, Any], second: dict[str, Any]) -> str:
    """The first result that two calls disagree on, bit by bit; empty = none."""
    for name, one in first.items():
        other = second[name]
        if (one is None) != (other is None) or (one is not None and not _same_bits(one, other)):
            return name
    return ""


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    # clone: a tensor of one element counts as contiguous at any stride, and such a stride cannot be viewed as bytes.
    return torch.equal(
        *(each.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8) for each in (one, other))
    )
