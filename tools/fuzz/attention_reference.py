"""What a random attention problem should give: torch formulas with autograd, `kernels.reference`, and sizes of their terms."""

from __future__ import annotations

from typing import Any

import torch

from nki_hf.kernels import reference
from nki_hf.problem import Mask, Problem
from tools.fuzz.attention_given import Given
from tools.fuzz.attention_problems import VANISHING, Case

__all__ = ["flushed", "formulas", "oracle", "output", "sizes_of"]

_INF = torch.inf


def formulas(case: Case, given: Given, dtype: torch.dtype) -> dict[str, Any]:
    """What autograd of plain formulas gives in a dtype; softmax in float32 at least, as eager attention does."""
    wide = torch.promote_types(dtype, torch.float32)
    grads = case["gradients"]
    sink = None if given.sink is None else given.sink.to(wide)
    scale = torch.tensor(case["head_dim"] ** -0.5 if case["scale"] is None else case["scale"], dtype=torch.float64)
    leaves = {"q": given.q.to(dtype), "k": given.k.to(dtype), "v": given.v.to(dtype), "sink": sink, "scale": scale}
    leaves.update({name: None if each is None else each.double() for name, each in _biases(given).items()})
    leaves = {name: None if each is None else each.detach().clone().requires_grad_(grads) for name, each in leaves.items()}
    q, k, v = (leaves[name] for name in ("q", "k", "v"))
    k, v = k.repeat_interleave(case["group"], 1), v.repeat_interleave(case["group"], 1)
    scores = (q @ k.transpose(-1, -2)).to(wide) * leaves["scale"].to(wide)
    if case["softcap"] is not None:
        scores = case["softcap"] * torch.tanh(scores / case["softcap"])
    bias = given.bias
    for name in _biases(given):
        # 0 with the gradient of what the bias is a sum of
        bias = torch.where(torch.isfinite(bias), bias + (leaves[name] - leaves[name].detach()), bias)
    scores = scores + bias.to(wide)
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
        loss = (out.double() * given.weight).sum() if case["loss"] != "lse" or not case["lse"] else 0.0
        if case["lse"] and case["loss"] != "out":
            loss = loss + lse.double().masked_fill(lse < -VANISHING, 0.0).sin().sum()
        loss.backward()
        for name, leaf in leaves.items():
            found[f"d{name}"] = None if leaf is None else torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    return {name: None if each is None else each.double() for name, each in found.items()}


def output(case: Case, given: Given, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """The output in float64, of tensors in the place of the problem's q, k, v and sink; autograd follows it twice."""
    q, k, v = (tensors.get(name, getattr(given, name)).double() for name in ("q", "k", "v"))
    k, v = (each.repeat_interleave(case["group"], 1) for each in (k, v))
    scores = q @ k.transpose(-1, -2) * (case["head_dim"] ** -0.5 if case["scale"] is None else case["scale"])
    if case["softcap"] is not None:
        scores = case["softcap"] * torch.tanh(scores / case["softcap"])
    scores = scores + given.bias
    sink = tensors.get("sink", given.sink)
    if sink is not None:
        scores = torch.cat([scores, sink.double().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    dead = (scores == -_INF).all(-1, keepdim=True)
    probs = torch.softmax(scores.masked_fill(dead, 0.0), -1).masked_fill(dead, 0.0)
    return probs[..., : case["seqlen_kv"]] @ v


def _biases(given: Given) -> dict[str, torch.Tensor]:
    """What is added to scores and may have a gradient; of a position bias what stands at a key."""
    position_bias = None if given.position_bias is None else given.position_bias[..., : given.bias.shape[3]]
    both = {"mask": given.mask, "position_bias": position_bias}
    return {name: each for name, each in both.items() if each is not None and each.is_floating_point()}


def oracle(case: Case, given: Given) -> dict[str, torch.Tensor]:
    """Output and lse of `kernels.reference`, which has the whole mask as its bias."""
    batch = given.bias.shape[0]
    problem = Problem(
        batch=batch,
        num_heads_q=given.q.shape[1],
        num_heads_kv=given.k.shape[1],
        seqlen_q=case["seqlen_q"],
        seqlen_kv=case["seqlen_kv"],
        head_dim=case["head_dim"],
        head_dim_v=case["head_dim_v"],
        softmax_scale=case["scale"],
        mask=Mask(bias="additive", bias_batch=batch > 1, bias_heads=given.q.shape[1] > 1, bias_rows=True),
        softcap=case["softcap"],
        sink=given.sink is not None,
    )
    arrays = [each.double().expand(batch, -1, -1, -1).numpy() for each in (given.q, given.k, given.v)]
    sink = None if given.sink is None else given.sink.double().numpy()
    out, lse = reference.attention(problem, *arrays, bias=given.bias.numpy(), sink=sink)
    return {"out": torch.from_numpy(out), "lse": torch.from_numpy(lse)}


def sizes_of(case: Case, given: Given, probs: torch.Tensor) -> dict[str, float]:
    """How large the terms are that each result is a sum of: what the rounding of a weight, or of a score, moves it by."""
    q, k, v = (each.double().abs() for each in (given.q, given.k, given.v))
    k, v = (each.repeat_interleave(case["group"], 1) for each in (k, v))
    weight, probs, scale = given.weight.abs(), probs.nan_to_num(0.0), case["head_dim"] ** -0.5
    if case["scale"] is not None:
        scale = abs(case["scale"])
    added = given.bias[given.bias.abs() < VANISHING].abs()
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
    found.update({f"d{name}": float(dscores.sum_to_size(each.shape).max()) for name, each in _biases(given).items()})
    found["dscale"] = float((dscores * (q @ k.transpose(-1, -2))).sum())
    return found


def flushed(case: Case, given: Given) -> dict[str, float]:
    """What each result is moved by if all weights, or all gradients of scores, that it is a sum of move by 1."""
    q, k, v = (each.double().abs().sum(-2).amax().item() for each in (given.q, given.k, given.v))
    scale = case["head_dim"] ** -0.5 if case["scale"] is None else abs(case["scale"])
    rows = float(given.weight.abs().sum(-2).amax())
    over_kv = case["group"] * case["batch_q"]
    found = {"out": v, "dq": k * scale * case["batch_kv"], "dk": q * scale * over_kv, "dv": rows * over_kv}
    return {**found, **{f"d{name}": given.bias.numel() / each.numel() for name, each in _biases(given).items()}}
