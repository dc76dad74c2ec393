"""The torch op `nki_hf::attention`: what a graph sees of a kernel call, and the one place that picks the back end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.autograd import forward_ad

from nki_hf.adapters import call_log
from nki_hf.adapters.backend_choice import backend_of
from nki_hf.adapters.call import Call
from nki_hf.adapters.decision import decide_call
from nki_hf.adapters.fallback import run_fallback_with_lse
from nki_hf.adapters.keys import Keys
from nki_hf.adapters.layouts import outputs_of, packed_call, result_of, trivial_result
from nki_hf.adapters.op_definition import define
from nki_hf.adapters.op_gradients import (
    attention_backward,
    backward,
    fake_backward,
    gradients_by,
    no_tangents,
    save,
    second_derivative,
)
from nki_hf.backends.neuron_op import direct_op, register_native_op
from nki_hf.dispatch import Decision
from nki_hf.errors import UnsupportedProblem
from nki_hf.settings import settings

__all__ = [
    "attention",
    "attention_with_statistics",
    "attention_op",
    "attention_op_for",
    "attention_unseen",
    "backward_op_for",
    "handed_over",
    "native_ops_are_registered",
]


GRAPH = "a compiled graph"
"""The layer of calls that a graph runs: it does not know whose they are."""


class _Handed(threading.local):
    """The call that this thread is running, with its decision, so that the op need not make either again."""

    call: Call | None = None
    decision: Decision | None = None
    turns: dict[str, int] | None = None


_handed = _Handed()


class handed_over:  # noqa: N801  (used like a function; contextlib's costs more than the decision)
    """A block in which the op finds the decision of `call` made, and adds the turns of its kernel's loops to `turns`."""

    def __init__(self, call: Call, decision: Decision, turns: dict[str, int]) -> None:
        self.call, self.decision, self.turns = call, decision, turns

    def __enter__(self) -> None:
        _handed.call, _handed.decision, _handed.turns = self.call, self.decision, self.turns

    def __exit__(self, *_: object) -> None:
        _handed.call = _handed.decision = _handed.turns = None


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lo: torch.Tensor | None,
    hi: torch.Tensor | None,
    bias: torch.Tensor | None,
    sink: torch.Tensor | None,
    scale: float | None,
    softcap: float | None,
    q_offset: int,
    window: int | None,
    ahead: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Out `[batch, seqlen_q, num_heads_q, head_dim_v]` in q's dtype, contiguous, and lse `[batch, num_heads_q, seqlen_q]` fp32.

    Arguments as in `Call` and `Keys`.
    """
    keys = Keys(q_offset=q_offset, window=window, ahead=ahead, lo=lo, hi=hi, bias=bias)
    out, lse = _computed(Call(q=q, k=k, v=v, keys=keys, scale=scale, softcap=softcap, sink=sink))
    return out, lse


def attention_with_statistics(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lo: torch.Tensor | None,
    hi: torch.Tensor | None,
    bias: torch.Tensor | None,
    sink: torch.Tensor | None,
    scale: float | None,
    softcap: float | None,
    q_offset: int,
    window: int | None,
    ahead: int | None,
    out_rest: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """`attention` of a call with `row_statistics`: row_shift and row_sum as well, like lse, and out_rest, like out in float32
    (`call_tensors.TENSORS`), which the gradients of this op need; without elements if it is not wanted, or out is float32.
    """
    keys = Keys(q_offset=q_offset, window=window, ahead=ahead, lo=lo, hi=hi, bias=bias)
    wanted = out_rest and q.dtype != torch.float32
    call = Call(q=q, k=k, v=v, keys=keys, scale=scale, softcap=softcap, sink=sink, row_statistics=True, out_rest=wanted)
    out, lse, row_shift, row_sum, *rest = _computed(call)
    return out, lse, row_shift, row_sum, rest[0] if wanted else q.new_empty(0, dtype=torch.float32)


def _computed(given: Call) -> tuple[torch.Tensor, ...]:
    """The results of a call as an op gets it: out and lse, with `row_statistics` also row_shift and row_sum, with `out_rest`
    that too.
    """
    call, decision = _handed.call, _handed.decision
    # Tracers call this with tensors of their own, and a graph with none handed over.
    mine = call is not None and call.q is given.q and call.k is given.k and call.v is given.v
    same = call is not None and (call.row_statistics, call.out_rest) == (given.row_statistics, given.out_rest)
    if call is None or decision is None or not mine or not same:
        # torch.func.jvp has taken the tangents off by now, so that those of other tensors cannot be told from the call's own.
        if forward_ad._current_level >= 0:
            no_tangents()
        call = replace(given, keys=given.keys.narrowed(given.q.shape[2], given.k.shape[2]))
        decision = decide_call(call, running=True)
        if decision.fallback:
            return _fall_back(call, decision)
        if _handed.call is None:
            turns: dict[str, int] = {}
            results = _run_kernel(call, decision, turns)
            call_log.record(GRAPH, decision, call.q.device.type, turns)
            return results
    return _run_kernel(call, decision, _handed.turns)


def _fall_back(call: Call, decision: Decision) -> tuple[torch.Tensor, ...]:
    """What a graph runs where no kernel takes the lengths that it meets: counted and warned about as outside of a graph."""
    if settings().strict:
        raise UnsupportedProblem(decision.rejected)
    result = run_fallback_with_lse(call)
    call_log.record(GRAPH, decision, call.q.device.type)
    return _with_statistics(call, result)


def _with_statistics(call: Call, results: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """The results, with lse for row_shift and row_sum where the call asks for them and what ran has none; and zeros for
    out_rest, without which gradients are those of a rounded output.
    """
    if call.row_statistics and len(results) == 2:
        results = (*results, results[1].clone(), torch.full_like(results[1], 1.0))
    if call.out_rest and len(results) == 4:
        results = (*results, torch.zeros_like(results[0], dtype=torch.float32))
    return results


def _op(**code: Any) -> Any:
    """The op, calling `code`."""
    vars(define()).update(code)
    return torch.ops.nki_hf.attention.default


def _fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return outputs_of(q, v)


def _fake_statistics(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: Any, out_rest: bool = True
) -> tuple[torch.Tensor, ...]:
    out, lse = outputs_of(q, v)
    wanted = (options[9] if len(options) > 9 else out_rest) and q.dtype != torch.float32
    rest = torch.empty_like(out, dtype=torch.float32) if wanted else q.new_empty(0, dtype=torch.float32)
    return out, lse, torch.empty_like(lse), torch.empty_like(lse), rest


def _run_kernel(call: Call, decision: Decision, turns: dict[str, int] | None) -> tuple[torch.Tensor, ...]:
    keys, sink = call.keys, call.head_sink
    trivial = trivial_result(decision.problem, call.q, call.v, sink)
    if trivial is not None:
        return _with_statistics(call, trivial)
    tensors = {"q": call.q, "k": call.k, "v": call.v, "lo": keys.lo, "hi": keys.hi, "bias": keys.bias, "sink": sink}
    result = backend_of(decision).run(packed_call(decision, tensors, exact=keys.inside))
    if turns is not None:
        for name, count in result.turns.items():
            turns[name] = turns.get(name, 0) + count
    return _with_statistics(call, result_of(decision, result, sink))


attention_op = _op(
    attention=attention,
    attention_with_statistics=attention_with_statistics,
    fake=_fake,
    fake_statistics=_fake_statistics,
    backward=backward,
    save=save,
    attention_backward=attention_backward,
    fake_backward=fake_backward,
    second=second_derivative,
)
"""`attention` on CPU tensors."""


# ---- Neuron devices -------------------------------------------------------------------------------------------------


def _xla_backward(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None, *_: None) -> tuple[torch.Tensor | None, ...]:
    return gradients_by(ctx, dout, dlse, attention_backward)


def _native_backward(
    ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None, *_: None
) -> tuple[torch.Tensor | None, ...]:
    return gradients_by(ctx, dout, dlse, torch.ops.nki_hf_neuron.attention_backward)


_xla_op = direct_op(attention, _xla_backward, save)
_xla_statistics_op = direct_op(attention_with_statistics, _xla_backward, save)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator,unused-ignore]
def native_ops_are_registered() -> bool:
    """True, once the ops for tensors on `neuron` are there, so that saved programs find them too.

    Raises:
      BackendUnavailable: this process does not have the native world.
    """
    register_native_op("nki_hf_neuron::attention_backward", attention_backward)
    register_native_op("nki_hf_neuron::attention_with_statistics", attention_with_statistics, _native_backward, save)
    return register_native_op("nki_hf_neuron::attention", attention, _native_backward, save)


def _keys_of(tensor: torch.Tensor) -> int:
    return int(torch._C._dispatch_keys(tensor).raw_repr())


def _plain_keys() -> frozenset[int]:
    found = set()
    for inference in (False, True):
        with torch.inference_mode(inference):
            found.add(_keys_of(torch.empty(0, device="cpu")))
    return frozenset(found)


_PLAIN_KEYS = _plain_keys()


def attention_unseen(call: Call, decision: Decision, turns: dict[str, int]) -> tuple[torch.Tensor, ...] | None:
    """`attention` of a call that records no gradient, without the op; None if somebody waits for the op.

    Those are tracers, modes and the profiler; or what torch makes of a tensor before an op gets it (a negative view). Going
    through torch's dispatcher costs about as much as the rest of the adapter.
    """
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack() or torch._C._get_tracing_state():
        return None
    if torch.autograd._profiler_enabled():
        return None
    keys = call.keys
    for tensor in (call.q, call.k, call.v, keys.lo, keys.hi, keys.bias, call.sink):
        if tensor is not None and _keys_of(tensor) not in _PLAIN_KEYS:
            return None
    return _run_kernel(call, decision, turns)


def backward_op_for(call: Call) -> Callable[..., tuple[torch.Tensor, ...]]:
    """`attention_backward` through the op of the tensors' device, for a caller that has no autograd node of `attention`."""
    if call.q.device.type == "neuron":
        native_ops_are_registered()
        return torch.ops.nki_hf_neuron.attention_backward
    return attention_backward if call.q.device.type == "xla" else torch.ops.nki_hf.attention_backward


def attention_op_for(call: Call) -> tuple[torch.Tensor, ...]:
    """`attention` of a call, or `attention_with_statistics`, through the op of its tensors' device: the one place that chooses.

    Raises:
      BackendUnavailable: tensors on `neuron` in a process without the native world.
    """
    keys, device_type = call.keys, call.q.device.type
    arguments = (
        *(call.q, call.k, call.v, keys.lo, keys.hi, keys.bias, call.head_sink),
        *(call.scale, call.softcap, keys.q_offset, keys.window, keys.ahead),
    )
    if device_type == "neuron":
        native_ops_are_registered()
        ops = (torch.ops.nki_hf_neuron.attention, torch.ops.nki_hf_neuron.attention_with_statistics)
    elif device_type == "xla":
        ops = (_xla_op, _xla_statistics_op)
    else:
        ops = (attention_op, torch.ops.nki_hf.attention_with_statistics)
    if not call.row_statistics:
        return tuple(ops[0](*arguments))
    return tuple(ops[1](*arguments, call.out_rest))[: 5 if call.out_rest else 4]
