"""The call of a random attention problem through its front door, with its settings, and the gradients that it asks for."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch

import nki_hf
from nki_hf.adapters import decision
from nki_hf.dispatch import decide
from nki_hf.kernels import registry
from nki_hf.kernels.flash_const_max import plan, tuning
from tools.fuzz.attention_fronts import FRONTS
from tools.fuzz.attention_given import Given
from tools.fuzz.attention_problems import VANISHING, Case
from tools.fuzz.attention_ways import in_way

__all__ = ["called", "called_with", "differing"]


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
        out, lse = in_way(case, lambda tensors: FRONTS[case["front"]](case, given, {**leaves, **tensors}, scale), leaves)
    found: dict[str, torch.Tensor | None] = {"out": out.detach(), "lse": None if lse is None else lse.detach()}
    for one, other in zip(before, kept, strict=True):
        if one is not None and other is not None and not _same_bits(one, other.detach()):
            raise AssertionError("the call changed one of its arguments")
    if learning:
        loss = (out.double() * given.weight).sum() if case["loss"] != "lse" or lse is None else 0.0
        if lse is not None and case["loss"] != "out":
            loss = loss + lse.double().masked_fill(lse < -VANISHING, 0.0).sin().sum()
        with _surroundings(case):
            inputs = [leaves[name] for name in learning]
            taken = [_gradients(loss, inputs) for _ in range(1 + twice)]
        for name, one, other in zip(learning, taken[0], taken[-1], strict=True):
            if not _same_bits(one, other):
                raise AssertionError(f"the gradient of {name} has other bits when it is taken again")
            found[f"d{name}"] = one
    return found


def called_with(case: Case, given: Given, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """The output alone, with some of the problem's tensors replaced."""
    leaves = {name: getattr(given, name) for name in ("q", "k", "v", "sink", "mask", "position_bias")}
    with _surroundings(case):
        return FRONTS[case["front"]](case, given, {**leaves, **tensors}, _wrapped_scale(case))[0]


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


def _gradients(loss: Any, inputs: list[Any]) -> list[torch.Tensor]:
    taken = torch.autograd.grad(loss, inputs, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(given) if each is None else each for given, each in zip(inputs, taken, strict=True)]


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
