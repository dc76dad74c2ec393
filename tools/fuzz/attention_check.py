"""One attention problem through its front door, beside two references in float64: torch formulas and `kernels.reference`."""

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
from nki_hf.kernels import reference, registry
from nki_hf.problem import Mask, Problem
from tools.fuzz.attention_given import Given, given_of
from tools.fuzz.attention_problems import PLAIN, Case, refused

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
            _call(case, given)
        except ValueError:
            return ""
        return "a call without a meaning was not refused"
    strict_refusal = ""
    try:
        found = _call(case, given)
    except nki_hf.UnsupportedProblem as error:
        if not case["strict"]:
            return f"refused: {error}"
        strict_refusal = str(error)
        nki_hf.explain(reset=True)
        found = _call({**case, "strict": False}, given)
    report = nki_hf.explain(reset=True)
    if strict_refusal and not report.fallbacks:
        return f"strict settings refused what no fallback was counted for: {strict_refusal}"
    if case["strict"] and not strict_refusal and report.fallbacks:
        return "a fallback under strict settings"
    if case["lse"] and (found["lse"] is None) != bool(report.fallbacks):
        return f"lse is {'missing' if found['lse'] is None else 'there'} after {report.fallbacks} fallbacks"
    if not report.fallbacks:
        # The first call records the kernel's program, the second replays it.
        other = _differing(found, _call(case, given))
        nki_hf.explain(reset=True)
        if other:
            return f"{other} of a second call has other bits than that of the first"
    if report.fallbacks and case["mask"] == "inf":
        # torch's fused sdpa gives 0 in half precision where the softmax is NaN.
        undecided = (given.bias == _INF).any(-1, keepdim=True)
        found["out"] = torch.where(undecided & (found["out"] == 0), torch.nan, found["out"])
    rounded = any(row.first.kernel == "flash_const_max" for row in report.rows)
    return _compared({**case, "lse": found["lse"] is not None}, given, found, rounded_sums=rounded)


# ---- the call ---------------------------------------------------------------------------------------------------------


def _call(case: Case, given: Given) -> dict[str, torch.Tensor | None]:
    """Output `[batch, heads, seqlen_q, head_dim_v]`, lse, and the gradients that were asked for; leaves `given` as it is."""
    leaves = {"q": given.q, "k": given.k, "v": given.v, "sink": given.sink}
    scale = _wrapped_scale(case)
    if case["gradients"]:
        leaves = {name: None if each is None else each.detach().requires_grad_() for name, each in leaves.items()}
    before = [None if each is None else each.detach().clone() for each in (*leaves.values(), given.mask, given.lo, given.hi)]
    with _surroundings(case):
        out, lse = _front_door(case, given, leaves, scale)
    found: dict[str, torch.Tensor | None] = {"out": out.detach(), "lse": None if lse is None else lse.detach()}
    after = (*leaves.values(), given.mask, given.lo, given.hi)
    for one, other in zip(before, after, strict=True):
        if one is not None and other is not None and not _same_bits(one, other.detach()):
            raise AssertionError("the call changed one of its arguments")
    if case["gradients"]:
        if isinstance(scale, torch.Tensor) and scale.requires_grad:
            leaves["scale"] = scale
        loss = (out.double() * given.weight).sum()
        if lse is not None:
            loss = loss + lse.double().masked_fill(lse == -_INF, 0.0).sin().sum()
        with _surroundings(case):
            loss.backward()
        found.update({f"d{name}": None if leaf is None else leaf.grad for name, leaf in leaves.items()})
    return found


def _front_door(case: Case, given: Given, leaves: dict[str, Any], scale: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    q, k, v, sink = (leaves[name] for name in ("q", "k", "v", "sink"))
    if case["front"] == "transformers":
        module = SimpleNamespace(is_causal=case["causal"], training=False)
        out, _ = nki_attention(module, q, k, v, given.mask, scaling=scale, softcap=case["softcap"], s_aux=sink, use_cache=True)
        return out.transpose(1, 2), None
    whole = {name: _wrapped(case[name], case["whole"]) for name in ("window", "ahead", "q_offset")}
    found = nki_hf.attention(
        q, k, v, given.mask, causal=case["causal"], lo=given.lo, hi=given.hi, scale=scale, softcap=case["softcap"], sink=sink,
        return_lse=case["lse"], **whole,
    )  # fmt: skip
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
    return torch.tensor(scale, dtype=torch.float64 if how == "tensor" else torch.float32, requires_grad=how == "learned")


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
        yield


def _forget_decisions() -> None:
    for cache in (decide, decision._decided, decision._decided_gradients):
        cache.cache_clear()


# ---- references ---------------------------------------------------------------------------------------------------------


def _formulas(case: Case, given: Given, dtype: torch.dtype) -> dict[str, Any]:
    """What autograd of plain formulas gives in a dtype; softmax in float32 at least, as eager attention does."""
    wide = torch.promote_types(dtype, torch.float32)
    grads = case["gradients"]
    sink = None if given.sink is None else given.sink.to(wide)
    scale = torch.tensor(case["head_dim"] ** -0.5 if case["scale"] is None else case["scale"], dtype=torch.float64)
    leaves = {"q": given.q.to(dtype), "k": given.k.to(dtype), "v": given.v.to(dtype), "sink": sink, "scale": scale}
    leaves = {name: None if each is None else each.detach().clone().requires_grad_(grads) for name, each in leaves.items()}
    q, k, v = (leaves[name] for name in ("q", "k", "v"))
    k, v = k.repeat_interleave(case["group"], 1), v.repeat_interleave(case["group"], 1)
    scores = (q @ k.transpose(-1, -2)).to(wide) * leaves["scale"].to(wide)
    if case["softcap"] is not None:
        scores = case["softcap"] * torch.tanh(scores / case["softcap"])
    scores = scores + given.bias.to(wide)
    if sink is not None:
        own = leaves["sink"] if case["sink_rows"] else leaves["sink"].view(1, -1, 1, 1)
        scores = torch.cat([scores, own.expand(*scores.shape[:3], 1)], -1)
    dead = (scores == -_INF).all(-1, keepdim=True)
    scores = scores.masked_fill(dead, 0.0)
    probs = torch.softmax(scores, -1).masked_fill(dead, 0.0)[..., : case["seqlen_kv"]]
    out = probs.to(dtype) @ v
    lse = torch.logsumexp(scores, -1).masked_fill(dead[..., 0], -_INF)
    found = {"out": out.detach(), "lse": lse.detach(), "probs": probs.detach()}
    if grads:
        loss = (out.double() * given.weight).sum()
        if case["lse"]:
            loss = loss + lse.double().masked_fill(lse == -_INF, 0.0).sin().sum()
        loss.backward()
        found.update({f"d{name}": None if leaf is None else leaf.grad for name, leaf in leaves.items()})
    return {name: None if each is None else each.double() for name, each in found.items()}


def _oracle(case: Case, given: Given) -> dict[str, torch.Tensor]:
    """Output and lse of `kernels.reference`, which has the whole mask as its bias."""
    batch = given.bias.shape[0]
    problem = Problem(
        batch=batch, num_heads_q=given.q.shape[1], num_heads_kv=given.k.shape[1], seqlen_q=case["seqlen_q"],
        seqlen_kv=case["seqlen_kv"], head_dim=case["head_dim"], head_dim_v=case["head_dim_v"], softmax_scale=case["scale"],
        mask=Mask(bias="additive", bias_batch=batch > 1, bias_heads=given.q.shape[1] > 1, bias_rows=True),
        softcap=case["softcap"], sink=given.sink is not None,
    )  # fmt: skip
    arrays = [each.double().expand(batch, -1, -1, -1).numpy() for each in (given.q, given.k, given.v)]
    sink = None if given.sink is None else given.sink.double().numpy()
    out, lse = reference.attention(problem, *arrays, bias=given.bias.numpy(), sink=sink)
    return {"out": torch.from_numpy(out), "lse": torch.from_numpy(lse)}


# ---- comparison ---------------------------------------------------------------------------------------------------------


def _compared(case: Case, given: Given, found: dict[str, Any], *, rounded_sums: bool) -> str:
    """What differs from float64; with `rounded_sums` the lse is that of weights rounded to the dtype, each by half a step."""
    dtype = getattr(torch, case["dtype"])
    exact, plain = _formulas(case, given, torch.float64), _formulas(case, given, dtype)
    special = given.bias.isnan() | (given.bias == _INF)
    finite = not bool(special.any()) and (given.sink is None or bool(torch.isfinite(given.sink).all()))
    sizes = _sizes(case, given, exact["probs"])
    if finite and not case["sink_rows"]:
        close = 1e-9 + 2.0**-50 * sizes["scores"]
        for name, want in _oracle(case, given).items():
            if not torch.allclose(want, exact[name], rtol=close, atol=close):
                return f"the references disagree about {name} by {(want - exact[name]).abs().max():.3g}"
    if found["out"].dtype != dtype:
        return f"out is {found['out'].dtype}, and q is {dtype}"
    gradients = [each for name, each in exact.items() if name.startswith("d") and each is not None]
    smooth = finite and all(bool(torch.isfinite(each).all()) for each in gradients)
    # A float32 sum of n terms of one sign errs by some sqrt(n) units, whatever its order.
    units = max(2.0, case["head_dim"] ** 0.5 / 2)
    flushed = _flushed(case, given)
    step, scores = torch.finfo(dtype).eps, _UNIT * (8 + units * sizes["scores"])
    for name, have in found.items():
        want, low = exact.get(name), plain.get(name)
        if have is None or want is None or low is None or (name.startswith("d") and not smooth):
            continue  # a gradient of NaN has no value to agree on
        if name == "dsink" and case["sink"] == "lowest":
            continue  # beside no key, a sink near float32's lowest value counts as none
        have = have.double()
        if have.shape != want.shape:
            return f"{name} has shape {list(have.shape)}, not {list(want.shape)}"
        if name == "out":  # rows that see no key are zeros; a NaN or infinite sink may make them NaN
            want = want.masked_fill((given.bias == -_INF).all(-1, keepdim=True) & (have == 0), 0.0)
        if name == "lse":  # that of a NaN or an infinite sink is left open
            decided = ~want.isnan() & (want != _INF)
            have, want, low = have[decided], want[decided], low[decided]
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
        allowed = 2 * float(apart.max() if apart.numel() else 0.0) + step * (largest if name != "lse" else 0.0)
        allowed += rounding
        if name == "lse" and rounded_sums:
            allowed += step / 2
        # Results, and weights and their gradients on the way to them, are flushed to zero or rounded to the least number.
        allowed += torch.finfo(dtype).smallest_normal * step * (1 + flushed.get(name, 0.0)) if name != "lse" else 0.0
        if not error <= allowed:
            return f"{name} errs by {error:.3g}, and {allowed:.3g} is allowed (largest value {largest:.3g})"
    return ""


def _sizes(case: Case, given: Given, probs: torch.Tensor) -> dict[str, float]:
    """How large the terms are that each result is a sum of: what the rounding of a weight, or of a score, moves it by."""
    q, k, v = (each.double().abs() for each in (given.q, given.k, given.v))
    k, v = (each.repeat_interleave(case["group"], 1) for each in (k, v))
    weight, probs, scale = given.weight.abs(), probs.nan_to_num(0.0), case["head_dim"] ** -0.5
    if case["scale"] is not None:
        scale = abs(case["scale"])
    added = given.bias[torch.isfinite(given.bias)].abs()
    scores = float((q @ k.transpose(-1, -2)).max()) * scale + (float(added.max()) if added.numel() else 0.0)
    found = {"scores": scores, "out": float(v.max()), "lse": 1.0}
    if not case["gradients"]:
        return found
    dprobs = weight @ v.transpose(-1, -2) + 1.0  # 1: the gradient of lse
    dscores, per_key = probs * dprobs.amax(-1, keepdim=True), probs.transpose(-1, -2)
    found["dq"] = float((dscores @ k).max()) * scale * case["batch_kv"]
    found["dk"] = float((dscores.transpose(-1, -2) @ q).max()) * scale * case["group"] * case["batch_q"]
    found["dv"] = float((per_key @ weight).max()) * case["group"] * case["batch_q"]
    found["dsink"] = float(dprobs.amax(-1).sum((0, 2)).max())
    found["dscale"] = float((dscores * (q @ k.transpose(-1, -2))).sum())
    return found


def _flushed(case: Case, given: Given) -> dict[str, float]:
    """What each result is moved by if all weights, or all gradients of scores, that it is a sum of move by 1."""
    q, k, v = (each.double().abs().sum(-2).amax().item() for each in (given.q, given.k, given.v))
    scale = case["head_dim"] ** -0.5 if case["scale"] is None else abs(case["scale"])
    rows = float(given.weight.abs().sum(-2).amax())
    over_kv = case["group"] * case["batch_q"]
    return {"out": v, "dq": k * scale * case["batch_kv"], "dk": q * scale * over_kv, "dv": rows * over_kv}


def _differing(first: dict[str, Any], second: dict[str, Any]) -> str:
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
