"""The gradients of a call: by a backward kernel, decided as the forward call is, or by torch's formulas, which are counted."""

from __future__ import annotations

import torch

from nki_hf.adapters import call_log
from nki_hf.adapters.backend_choice import backend_of
from nki_hf.adapters.backward import Gradients, attention_gradients
from nki_hf.adapters.call import Call
from nki_hf.adapters.decision import decide_gradients
from nki_hf.adapters.layouts import named_outputs, packed_call
from nki_hf.dispatch import Decision
from nki_hf.errors import UnsupportedProblem
from nki_hf.settings import settings

__all__ = ["gradients_of"]


def gradients_of(
    call: Call,
    results: tuple[torch.Tensor, ...],
    dout: torch.Tensor,
    dlse: torch.Tensor | None,
    *,
    bias: bool,
) -> Gradients:
    """The gradients of `call`, each in its tensor's dtype and shape.

    Args:
      call: the call; its sink has one logit per head.
      results: its out and lse; with `call.row_statistics` also row_shift and row_sum, without which rows of equal keys err in
        16 bits where scores are large; with `call.out_rest` that too, without which rows do of which one key has nearly all.
      dout: the output's gradient, `[batch, seqlen_q, num_heads_q, head_dim_v]`.
      dlse: that of the log-sum-exp (None = zero), `[batch, num_heads_q, seqlen_q]` float32.
      bias: True also computes `dbias`.

    Raises:
      UnsupportedProblem: no backward kernel takes the call, and the settings are strict.
    """
    decision = decide_gradients(call, bias=bias)
    if decision.fallback and settings().strict:
        raise UnsupportedProblem(decision.rejected)
    if decision.plan is None or decision.backend == "torch_reference":
        found = attention_gradients(call, dout, dlse, bias=bias, whole=results if call.row_part else None)
    else:
        found = _by_kernel(call, decision, results, dout, dlse)
    call_log.record("gradients", decision, call.q.device.type)
    return found


def _by_kernel(
    call: Call,
    decision: Decision,
    results: tuple[torch.Tensor, ...],
    dout: torch.Tensor,
    dlse: torch.Tensor | None,
) -> Gradients:
    keys, sink = call.keys, call.head_sink
    dlse = torch.zeros_like(results[1]) if dlse is None else dlse
    tensors = {
        **dict(zip(("out", "lse", "row_shift", "row_sum", "out_rest"), results, strict=False)),
        "q": call.q,
        "k": call.k,
        "v": call.v,
        "dout": dout,
        "dlse": dlse,
        "lo": keys.lo,
        "hi": keys.hi,
        "bias": keys.bias,
        "sink": sink,
    }
    found = named_outputs(decision, backend_of(decision).run(packed_call(decision, tensors, exact=keys.inside)))
    dsink, dbias = found.get("dsink"), found.get("dbias")
    return Gradients(
        dq=found["dq"],
        dk=found["dk"],
        dv=found["dv"],
        dsink=None if dsink is None or call.sink is None else dsink.sum(0).to(call.sink.dtype).view(call.sink.shape),
        dbias=None if dbias is None or keys.bias is None else dbias.to(keys.bias.dtype),
    )
