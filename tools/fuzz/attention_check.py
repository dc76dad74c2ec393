"""One attention problem through its front door, beside two references in float64: torch formulas and `kernels.reference`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

import nki_hf
from tools.fuzz.attention_call import called, called_with, differing
from tools.fuzz.attention_extras import wrong_dropout, wrong_second
from tools.fuzz.attention_given import Given, given_of
from tools.fuzz.attention_packs import starts
from tools.fuzz.attention_problems import PLAIN, VANISHING, Case, refused
from tools.fuzz.attention_reference import flushed, formulas, oracle, output, sizes_of

__all__ = ["check_problem"]

_INF = torch.inf
_UNIT, _TINY = 2.0**-24, 1e-30


def check_problem(case: Case) -> str:
    """What is wrong with the product's answer to a case; empty = nothing. Fields that it lacks are those of `PLAIN`."""
    case = {"seed": 0, **PLAIN, **case}
    given = given_of(case)
    nki_hf.explain(reset=True)
    if refused(case):
        try:
            called(case, given)
        except ValueError:
            return ""
        return "a call without a meaning was not refused"
    if case["dropout"]:
        probs = formulas(case, given, torch.float64)["probs"]
        rounding = _score_rounding(case, sizes_of(case, given, probs))
        return wrong_dropout(case, _calling(case, given), given.v, probs, given.weight, rounding)
    if case["second"]:
        names = [name for name in ("q", "k", "v", "sink") if getattr(given, name) is not None]
        leaves = {name: getattr(given, name) for name in names}
        return wrong_second(case, _calling(case, given), lambda tensors: output(case, given, tensors), leaves)
    if case["recorded"] == "other":
        with contextlib.suppress(nki_hf.UnsupportedProblem):
            called({**case, "strict": False}, given_of({**case, "seed": case["seed"] + 1}))
        nki_hf.explain(reset=True)
    if case["recorded"] == "mask" and given.mask is not None:
        given = _mask_with_a_past(case, given)
    strict_refusal = ""
    try:
        found = called(case, given, twice=True)
    except nki_hf.UnsupportedProblem as error:
        if not case["strict"]:
            return f"refused: {error}"
        strict_refusal = str(error)
        nki_hf.explain(reset=True)
        found = called({**case, "strict": False}, given, twice=True)
    report = nki_hf.explain(reset=True)
    if strict_refusal and not report.fallbacks:
        return f"strict settings refused what no fallback was counted for: {strict_refusal}"
    if case["strict"] and not strict_refusal and report.fallbacks:
        return "a fallback under strict settings"
    told = case["front"] == "attention" and case["way"] is None and case["lse"]
    if told and (found["lse"] is None) != bool(report.fallbacks):
        return f"lse is {'missing' if found['lse'] is None else 'there'} after {report.fallbacks} fallbacks"
    # The first call records the kernels' programs, unless they were recorded before; the second replays them.
    other = differing(found, called({**case, "strict": False}, given))
    nki_hf.explain(reset=True)
    by_kernels = bool(report.rows) and not report.fallbacks
    if other:
        return f"{other} of a second call has other bits than that of the first"
    if by_kernels and case["front"] == "varlen" and case["pages"] is None and case["seed"] % 2:
        reached = _reached_by_nan(case, given, found)
        nki_hf.explain(reset=True)
        if reached:
            return reached
    if report.fallbacks and case["mask"] == "inf":
        # torch's fused sdpa gives 0 in half precision where the softmax is NaN.
        undecided = (given.bias == _INF).any(-1, keepdim=True)
        found["out"] = torch.where(undecided & (found["out"] == 0), torch.nan, found["out"])
    if 0 in (case["batch_q"], case["seqlen_q"], case["seqlen_kv"]):
        return _empty(case, given, found)
    rounded = any(row.first.kernel == "flash_const_max" for row in report.rows)
    return _compared({**case, "lse": found["lse"] is not None}, given, found, rounded_sums=rounded, by_kernels=by_kernels)


def _calling(case: Case, given: Given) -> Callable[[dict[str, torch.Tensor]], torch.Tensor]:
    """The output of the case's call with some of its tensors replaced."""

    def call(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        return called_with(case, given, tensors)

    return call


def _mask_with_a_past(case: Case, given: Given) -> Given:
    """The same, with a mask whose tensor held other values when a call was made with it before."""
    other = given_of({**case, "seed": case["seed"] + 1}).mask
    mask = other.detach().clone(memory_format=torch.preserve_format)
    with contextlib.suppress(nki_hf.UnsupportedProblem):
        called({**case, "strict": False, "gradients": False}, replace(given, mask=mask))
    nki_hf.explain(reset=True)
    if case["mask_written"] == "copy_":
        mask.copy_(given.mask)
    elif case["mask_written"] == "data":
        mask.data[...] = given.mask
    else:
        words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[mask.element_size()]
        mask.view(words).numpy()[...] = given.mask.view(words).numpy()
    return replace(given, mask=mask)


def _reached_by_nan(case: Case, given: Given, found: dict[str, Any]) -> str:
    """What one sequence of a pack, made NaN, changes of the others; empty = nothing."""
    rows, keys = starts(case)
    which = case["seed"] // 2 % len(case["lengths"])
    ranges = [range(int(each[which]), int(each[which + 1])) for each in (rows, keys)]
    lost = {name: getattr(given, name).clone() for name in ("q", "k", "v")}
    for name, tensor in lost.items():
        tensor[:, :, ranges[name != "q"]] = torch.nan
    other = called({**case, "strict": False}, replace(given, **lost))
    for name, own in (("out", 0), ("lse", 0), ("dq", 0), ("dk", 1), ("dv", 1)):
        have = found.get(name)
        if have is not None:
            kept = [place for place in range(have.shape[2]) if place not in ranges[own]]
            if not torch.equal(have[:, :, kept], other[name][:, :, kept]):
                return f"{name} of a sequence is another one if sequence {which} is NaN"
    return ""


def _rounded_sums(case: Case, probs: torch.Tensor, step: float) -> torch.Tensor:
    """What rounding each weight by half a step at most moves the logarithm of their sum by: six times what is expected of
    roundings that do not depend on each other, which those of equal weights do.
    """
    if case["values"] == "equal" or case["scale"] == 0:
        return torch.tensor(step / 2)
    spread = probs.nan_to_num(0.0).square().sum(-1).sqrt() / probs.nan_to_num(0.0).sum(-1).clamp(min=_TINY)
    return step / 2 * (6 * spread).clamp(max=1.0)


def _score_rounding(case: Case, sizes: dict[str, float]) -> float:
    """What a score may err by: a float32 sum of n terms errs by sqrt(n / 3) units in the mean square, if it is taken term by
    term; the worst of many rows by four times that.
    """
    return _UNIT * (8 + max(4.0, 4 * (case["head_dim"] / 3) ** 0.5) * sizes["scores"])


def _empty(case: Case, given: Given, found: dict[str, Any]) -> str:
    """What is wrong with results of no batch, no rows or no keys: zeros, and an lse that is the sink or -inf."""
    shape = (*given.bias.shape[:3], case["head_dim_v"])
    if found["out"].shape != shape:
        return f"out has shape {list(found['out'].shape)}, not {list(shape)}"
    none = torch.full(shape[:3], -_INF)
    if given.sink is not None:
        none = (given.sink[..., 0] if case["sink_rows"] else given.sink[None, :, None]).expand(shape[:3])
    decided = ~(none.isnan() | (none == _INF))  # beside other sinks rows may be NaN
    if bool(found["out"][decided].any()):
        return "out is not zeros where there are no keys"
    if found["lse"] is not None and not torch.equal(found["lse"][decided], none[decided]):
        return "lse without keys is not the sink, or -inf"
    lost = [name for name, each in found.items() if name.startswith("d") and name != "dsink" and bool(each.any())]
    return f"{lost[0]} is not zeros" if lost else ""


# ---- comparison ---------------------------------------------------------------------------------------------------------


def _compared(case: Case, given: Given, found: dict[str, Any], *, rounded_sums: bool, by_kernels: bool) -> str:
    """What differs from float64; with `rounded_sums` the lse is that of weights rounded to the dtype, each by half a step. That
    of kernels, whose scores are float32, may not err as a plain run's does.
    """
    dtype = getattr(torch, case["dtype"])
    exact = formulas(case, given, torch.float64)
    if found["out"].dtype != dtype:
        return f"out is {found['out'].dtype}, and q is {dtype}"
    if case["kv_dtype"] is not None:  # results in the coarser type of q's, k's and v's may err by its steps
        dtype = max(dtype, getattr(torch, case["kv_dtype"]), key=lambda each: torch.finfo(each).eps)
    plain = formulas(case, given, dtype)
    special = given.bias.isnan() | (given.bias == _INF)
    finite = not bool(special.any()) and (given.sink is None or bool(torch.isfinite(given.sink).all()))
    sizes = sizes_of(case, given, exact["probs"])
    if finite and not case["sink_rows"]:
        close = 1e-9 + 2.0**-50 * sizes["scores"]
        for name, want in oracle(case, given).items():
            if not torch.allclose(want, exact[name], rtol=close, atol=close):
                return f"the references disagree about {name} by {(want - exact[name]).abs().max():.3g}"
    gradients = [each for name, each in exact.items() if name.startswith("d") and each is not None]
    smooth = finite and all(bool(torch.isfinite(each).all()) for each in gradients)
    flush = flushed(case, given)
    step, scores = torch.finfo(dtype).eps, _score_rounding(case, sizes)
    for name, have in found.items():
        want, low = exact.get(name), plain.get(name)
        if have is None or want is None or low is None or (name.startswith("d") and not smooth):
            continue  # a gradient of NaN has no value to agree on
        if name == "dsink" and case["sink"] == "lowest":
            continue  # beside no key, a sink near float32's lowest value counts as none
        have = have.double()
        if name == "dposition_bias" and case["bias_spare"]:
            if bool(have[..., case["seqlen_kv"] :].any()):
                return "the position bias has a gradient behind the last key"
            have = have[..., : case["seqlen_kv"]]
        if have.shape != want.shape:
            return f"{name} has shape {list(have.shape)}, not {list(want.shape)}"
        if name == "out":  # rows that see no key are zeros; a NaN or infinite sink may make them NaN
            want = want.masked_fill((given.bias == -_INF).all(-1, keepdim=True) & (have == 0), 0.0)
        if name == "lse":  # that of a NaN or an infinite sink, or of lowest scores alone, is left open
            decided = ~want.isnan() & (want != _INF) & ~(torch.isfinite(want) & (want < -VANISHING))
            have, want, low = have[decided], want[decided], low[decided]
            lost = (want == -_INF) != (have == -_INF)
            if bool(lost.any()):
                return f"lse is {have[lost][0]} where {want[lost][0]} is right ({int(lost.sum())} of {lost.numel()})"
        if name.startswith("d"):  # what leaves the range of its type is as large as the type allows
            have = have.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max)
        # Twice the error of a plain run, the rounding of the result, and that of what it is a sum of.
        rounding = sizes[name] * (scores + (4 * step if name.startswith("d") else 0.0)) + _TINY
        if rounding > torch.finfo(dtype).max:
            continue  # one rounding may leave the range of the type
        wrong = torch.isfinite(have) != torch.isfinite(want)
        if bool(wrong.any()):
            return f"{name} is {have[wrong][0]} where {want[wrong][0]} is right ({int(wrong.sum())} of {wrong.numel()})"
        decided = torch.isfinite(want)
        if not bool(decided.any()):
            continue
        error = float((have[decided] - want[decided]).abs().max())
        apart = (low[decided] - want[decided]).abs()
        apart = apart[torch.isfinite(apart)]
        largest = float(want[decided].abs().max())
        plainly = 0.0 if name == "lse" and by_kernels else 2 * float(apart.max() if apart.numel() else 0.0)
        allowed = plainly + step * (largest if name != "lse" else 0.0)
        allowed += rounding
        if name == "lse" and rounded_sums:
            allowed += float(_rounded_sums(case, exact["probs"], step).max())
        if case["parts"] and name == "out":  # each part was rounded
            allowed += step * sizes["out"]
        if case["parts"] and name == "lse":  # and so were the lses, and their differences
            allowed += 4 * _UNIT * largest
        # Results, and weights and their gradients on the way to them, are flushed to zero or rounded to the least number.
        allowed += torch.finfo(dtype).smallest_normal * step * (1 + flush.get(name, 0.0)) if name != "lse" else 0.0
        if not error <= allowed:
            return f"{name} errs by {error:.3g}, and {allowed:.3g} is allowed (largest value {largest:.3g})"
    return ""
