"""What becomes of one call: check shapes, decide, then the kernel's op or the counted fallback. Every adapter ends here."""

from __future__ import annotations

from dataclasses import replace

import torch

from nki_hf.adapters import call_log
from nki_hf.adapters.call import Call, check_tensors, same_batch
from nki_hf.adapters.decision import decide_call, falls_back_in_graph, no_kernel
from nki_hf.adapters.fallback import run_fallback
from nki_hf.adapters.packed.attend import attend_pieces
from nki_hf.adapters.row_parts import RowStatistics, join, of_lse
from nki_hf.adapters.torch_op import attention_op_for, attention_unseen, handed_over
from nki_hf.backends.neuron_eager import warn_of_eager_call
from nki_hf.backends.neuron_launch import LaunchFailed
from nki_hf.dispatch import Decision
from nki_hf.errors import UnsupportedProblem
from nki_hf.problem import LARGEST_SCALE, SMALLEST_SOFTCAP
from nki_hf.settings import settings

__all__ = ["attend", "check_call"]


def attend(call: Call, layer: str = "attention") -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Out `[batch, seqlen_q, num_heads_q, head_dim_v]`, contiguous, in q's dtype (float where q is integer); lse; weights.

    lse is `[batch, num_heads_q, seqlen_q]` float32, None after a fallback; weights are None unless `call.weights`.

    Args:
      call: the call.
      layer: who calls, for `nki_hf.explain()`.

    Raises:
      UnsupportedProblem: the tensors describe no attention; or no kernel takes the call and the settings are strict.
    """
    _check(call)
    (out, *statistics), weights = _attend(_same_dtype(_same_batch(call)), layer)
    return out, statistics[0] if statistics else None, weights


def _attend(call: Call, layer: str) -> tuple[tuple[torch.Tensor, ...], torch.Tensor | None]:
    """Out, lse and, if they are needed, row_shift and row_sum, and out_rest; after a fallback out alone. And the weights, or
    None.
    """
    sink_joins = call.row_sink is not None or (call.sink is not None and call.segments is not None)
    trained = _needs_grad(call) and _gradients_take_statistics(call)
    if sink_joins or trained:
        call = replace(call, row_statistics=True, out_rest=call.out_rest or trained)
    if torch.compiler.is_compiling():
        return _run(call, layer, None, None, fallback=falls_back_in_graph(call))
    decision = decide_call(call)
    if decision.fallback and settings().strict:
        raise UnsupportedProblem(decision.rejected)
    if call.segments is not None and not decision.fallback:
        out, rows = attend_pieces(replace(call, sink=None), call.segments, lambda part: _attend(part, layer)[0])
        return (out, *rows) if call.sink is None else _add_sink(out, rows, _row_sinks(call.sink)), None
    if decision.backend == "neuron" and call.q.device.type == "neuron":  # on xla tensors are lazy: the call is one of a graph
        warn_of_eager_call(layer)
    turns: dict[str, int] = {}
    result = _run(call, layer, decision, turns, fallback=decision.fallback)
    call_log.record(layer, decision, call.q.device.type, turns)  # only what ran counts
    return result


def check_call(call: Call) -> None:
    """Refuse what `attend` would refuse, for a caller that changes something before it.

    Raises:
      UnsupportedProblem: as `attend`.
    """
    _check(call)
    if not torch.compiler.is_compiling() and settings().strict:
        decision = decide_call(_same_dtype(_same_batch(call)))
        if decision.fallback:
            raise UnsupportedProblem(decision.rejected)


def _check(call: Call) -> None:
    check_tensors(call.q, call.k, call.v, call.sink)
    _check_scalars(call)


def _check_scalars(call: Call) -> None:
    """Refuse what has no meaning in float32, in which torch computes scores as well.

    Raises:
      UnsupportedProblem: see the text.
    """
    reasons = []
    if call.softcap is not None and not SMALLEST_SOFTCAP <= call.softcap <= LARGEST_SCALE:
        limit = f"must be above 0 and finite in float32, {SMALLEST_SOFTCAP} to {LARGEST_SCALE}"
        reasons.append(no_kernel("softcap", call.softcap, limit, "None switches it off."))
    if call.scale is not None and not -LARGEST_SCALE <= call.scale <= LARGEST_SCALE:
        reasons.append(no_kernel("scale", call.scale, f"must be finite in float32, at most {LARGEST_SCALE} in size"))
    if not 0 <= call.dropout <= 1:
        reasons.append(no_kernel("dropout", call.dropout, "must be a probability, 0.0 to 1.0"))
    if reasons:
        raise UnsupportedProblem(reasons)


def _run(
    call: Call, layer: str, decision: Decision | None, turns: dict[str, int] | None, *, fallback: bool
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor | None]:
    """As `_attend`; a graph, whose op decides when it runs, has no decision yet. `turns` counts those of
    the kernel's loops of run time.
    """
    if fallback:
        out, weights = run_fallback(call)
        return (out,), weights
    try:
        if decision is None or turns is None:
            results = attention_op_for(call)
        else:
            results = _decided(call, decision, turns)
    except LaunchFailed as error:
        error.add_note(f"This call came from {layer}.")
        raise
    row_sink = call.row_sink
    return results if row_sink is None else _add_sink(results[0], RowStatistics(*results[1:4]), row_sink), None


def _decided(call: Call, decision: Decision, turns: dict[str, int]) -> tuple[torch.Tensor, ...]:
    """The results of a call outside of graphs."""
    if _needs_grad(call):
        call = _saveable(call)
        with handed_over(call, decision, turns):
            return attention_op_for(call)
    unseen = attention_unseen(call, decision, turns)
    if unseen is not None:
        return unseen
    # Autograd's wrapper of the op would only cost time.
    with handed_over(call, decision, turns), torch._C._AutoDispatchBelowAutograd():
        return attention_op_for(call)


def _row_sinks(sink: torch.Tensor) -> torch.Tensor:
    """A sink of either shape as one that broadcasts to lse."""
    return sink[None, :, None] if sink.dim() == 1 else sink[..., 0]


def _add_sink(out: torch.Tensor, rows: RowStatistics, sink: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Output `[batch, seqlen_q, num_heads_q, head_dim_v]` and statistics of the same rows with one more logit each in the
    denominator.

    Args:
      out, rows: of a kernel; the statistics are `[batch, num_heads_q, seqlen_q]`.
      sink: broadcasts to them.
    """
    logits = of_lse(sink.float().expand_as(rows.lse))
    shares, whole = join(RowStatistics(*(torch.stack(pair) for pair in zip(rows, logits, strict=True))), dim=0)
    share = shares[0].transpose(1, 2)[..., None]  # [batch, seqlen_q, num_heads_q, 1]
    return ((out * share).to(out.dtype), *whole)


def _saveable(call: Call) -> Call:
    """The call with bounds and bias that a backward can keep: tensors made in inference mode cannot be saved."""
    made = {name: getattr(call.keys, name) for name in ("lo", "hi", "bias")}
    copies = {name: each.clone() for name, each in made.items() if each is not None and each.is_inference()}
    return replace(call, keys=replace(call.keys, **copies)) if copies else call


def _needs_grad(call: Call) -> bool:
    tensors = (call.q, call.k, call.v, call.sink, call.keys.bias)
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _gradients_take_statistics(call: Call) -> bool:
    """True if the backward kernel starts from row statistics; with others it makes a pass of its own over the keys."""
    return call.q.dtype != torch.float32 and (call.keys.bias is None or call.keys.hides)


def _same_batch(call: Call) -> Call:
    if call.q.shape[0] == call.k.shape[0]:
        return call
    q, k, v = same_batch(call.q, call.k, call.v)
    return replace(call, q=q, k=k, v=v)


def _same_dtype(call: Call) -> Call:
    """Under autocast q, k, v of different dtypes get its dtype, as torch's own products do; else the call is as it was."""
    if call.q.dtype == call.k.dtype == call.v.dtype or not torch.is_autocast_enabled(call.q.device.type):
        return call
    dtype = torch.get_autocast_dtype(call.q.device.type)
    return replace(call, q=call.q.to(dtype), k=call.k.to(dtype), v=call.v.to(dtype))
