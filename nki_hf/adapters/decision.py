"""The decision of one call: made once, in one way, for eager calls, graphs and dry runs.

`dispatch.decide` decides; here stands what only the tensors and the caller tell. A graph is traced with lengths that stand for
any, so its decision leaves open what depends on them (`Decision.plan` is None): the op asks again when it runs, and then runs
what the same call outside of a graph would.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from nki_hf.adapters import call_log, device
from nki_hf.adapters.call import Call, ProblemKey, problem_from, problem_key
from nki_hf.adapters.context_parallel import context_parallel
from nki_hf.adapters.fallback import fallback_name
from nki_hf.adapters.graph_guard import keep_to_settings
from nki_hf.dispatch import SIZES, Decision, decide
from nki_hf.errors import Reason, UnsupportedProblem
from nki_hf.problem import Mask, Problem
from nki_hf.settings import settings

__all__ = ["Where", "decide_call", "decide_gradients", "falls_back_in_graph", "no_kernel"]


class Where(NamedTuple):
    """What a call is decided for: back end, chip, logical-core degree (None = the chip's default)."""

    backend: str
    chip: str
    lnc: int | None = None


def decide_call(call: Call, where: Where | None = None, *, running: bool = False) -> Decision:
    """The decision for a call.

    Args:
      call: the call.
      where: what it is decided for; None = the device of its tensors and the settings in force.
      running: True where the op runs or is lowered, with the real lengths; only lengths can refuse the call by then.
    """
    if not running and torch.compiler.is_compiling():
        return _decided_of_graph(*_known_in_graph(call, where))
    refused = () if running else (*call.refused, *_refusals(call, here=where is None))
    return _decided(problem_key(call), where or _where(call), fallback_name(call), refused)


def decide_gradients(call: Call, *, bias: bool, where: Where | None = None) -> Decision:
    """The decision for the gradients of a call that a kernel ran, with its real lengths.

    Args:
      call: the call.
      bias: True if that of its additive bias is wanted.
      where: as in `decide_call`.
    """
    return _decided_gradients(problem_key(call), where or _where(call), bias)


def falls_back_in_graph(call: Call) -> bool:
    """True if the graph being traced runs torch for the call; the same decision, as the value that a tracer understands.

    That is said and counted now, once: what the graph then runs is plain torch, which nobody counts. Such a graph is of the
    settings in force now: under others it is traced again, and then this decides anew (graph_guard.py).

    Raises:
      UnsupportedProblem: that is so, and the settings are strict.
    """
    return _falls_back(*_known_in_graph(call, None))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator,unused-ignore]
def _falls_back(*known: Any) -> bool:
    decision = _decided_of_graph(*known)
    if decision.fallback and settings().strict:
        raise UnsupportedProblem(decision.rejected)
    if decision.fallback:
        keep_to_settings()
        call_log.record(call_log.TRACED, decision)
    return decision.fallback


def _where(call: Call) -> Where:
    device_type = call.q.device.type
    if device_type == "cpu":
        chosen = device.settings_of_graph()
        return Where(chosen.backend, chosen.chip, chosen.lnc)
    chip, lnc, _ = device.target(device_type)
    return Where(device.backend_name(device_type) or "simulator", chip, lnc)


def _known_in_graph(call: Call, where: Where | None) -> tuple[Any, ...]:
    """The arguments of `_decided_of_graph`."""
    refused = (*call.refused, *_refusals(call, here=where is None))
    where = where or _where(call)
    q, k, v, keys = call.q, call.k, call.v, call.keys
    return (
        tuple(str(each.dtype).removeprefix("torch.") for each in (q, k, v)),
        (operator.index(q.shape[3]), operator.index(v.shape[3])),  # constants, also where every size is a symbol (dynamic=True)
        (keys.window is not None, keys.ahead is not None, keys.lo is not None, None if keys.bias is None else keys.hides),
        (call.softcap is not None, call.head_sink is not None),
        (where.backend, where.chip, where.lnc),
        fallback_name(call),
        tuple((reason.kernel, reason.field, reason.value, reason.limit, reason.advice) for reason in refused),
    )


@lru_cache(maxsize=4096)
def _decided(key: ProblemKey, where: Where, fallback: str, refused: tuple[Reason, ...]) -> Decision:
    return decide(problem_from(key), backend=where.backend, chip=where.chip, lnc=where.lnc, fallback=fallback, refused=refused)


@lru_cache(maxsize=4096)
def _decided_gradients(key: ProblemKey, where: Where, bias: bool) -> Decision:
    problem = replace(problem_from(key), bias_gradient=bias)
    return decide(
        problem, backend=where.backend, chip=where.chip, lnc=where.lnc, fallback="formulas of its gradients", kind="backward"
    )


_SEQLEN = 128  # stands for any length, as one head stands for any number
_ANY = "given"  # in the reasons of a graph, what stands for any softcap


def _decided_of_graph(
    dtypes: tuple[str, str, str],
    head_dims: tuple[int, int],
    mask: tuple[bool, bool, bool, bool | None],
    options: tuple[bool, bool],
    where: tuple[str, str, int | None],
    fallback: str,
    refused: tuple[tuple[str, str, str, str, str], ...],
) -> Decision:
    """The decision of the calls of a graph: everything that is the same in all of them, as plain values."""
    window, ahead, bounds, hides = mask
    softcap, sink = options
    kind = None if hides is None else "boolean" if hides else "additive"
    problem = Problem(
        batch=1,
        num_heads_q=1,
        num_heads_kv=1,
        seqlen_q=_SEQLEN,
        seqlen_kv=_SEQLEN,
        head_dim=head_dims[0],
        head_dim_v=head_dims[1],
        dtype=dtypes[0],
        dtypes=None if len(set(dtypes)) == 1 else dtypes,
        mask=Mask(window=1 if window else None, ahead=1 if ahead else None, runtime_bounds=bounds, bias=kind),
        softcap=1.0 if softcap else None,
        sink=sink,
    )
    reasons = tuple(
        Reason(kernel=kernel, field=field, value=value, limit=limit, advice=advice)
        for kernel, field, value, limit, advice in refused
    )
    backend, chip, lnc = where
    decision = decide(problem, backend=backend, chip=chip, lnc=lnc, fallback=fallback, refused=reasons, unknown=SIZES)
    told = (replace(reason, value=_ANY) if reason.field == "softcap" else reason for reason in decision.rejected)
    return replace(decision, rejected=tuple(told))


def _refusals(call: Call, *, here: bool) -> list[Reason]:
    """Why no kernel may run the call; `here` = where its tensors are."""
    reasons: list[Reason] = []
    if call.dropout > 0:
        reasons.append(no_kernel("dropout", call.dropout, "must be 0.0: no kernel drops weights", "Use torch for this layer."))
    if not torch.compiler.is_compiling() and call.transformed:
        limit = "must not be active: no kernel has a tangent, a second derivative or a batching rule"
        reasons.append(no_kernel("torch.func transform or forward-mode AD", "active", limit))
    if call.weights:
        reasons.append(no_kernel("output_attentions", True, "must be False: no kernel writes the attention weights"))
    where = call.q.device.type
    if here and where != "cpu":
        if device.backend_name(where) is None:
            reasons.append(no_kernel("device", where, "must be cpu, neuron or xla"))
        problem = device.target(where)[2]
        if problem:
            reasons.append(no_kernel("device", where, f"cannot run kernels here: {problem}"))
    for name, tensor in (("q", call.q), ("k", call.k), ("v", call.v), ("sink", call.sink), ("mask", call.keys.bias)):
        if tensor is not None and type(tensor) not in device.PLAIN_TENSORS:
            reasons.append(no_kernel(name, type(tensor).__name__, "must be a plain tensor", "Pass the local tensor."))
    if context_parallel():
        limit = "must be off: a kernel would see the keys of its own shard only"
        advice = "Train without context parallelism, or use attn_implementation='sdpa'."
        reasons.append(no_kernel("context parallelism", "on", limit, advice))
    return reasons


def no_kernel(field: str, value: Any, limit: str, advice: str = "") -> Reason:
    """The reason why no kernel at all can take a call."""
    return Reason(kernel="any kernel", field=field, value=str(value), limit=limit, advice=advice)
