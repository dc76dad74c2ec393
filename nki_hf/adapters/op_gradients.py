"""The gradients of the op `nki_hf::attention`: the op `attention_backward`, and what autograd calls for either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.autograd import forward_ad

from nki_hf.adapters.call import Call
from nki_hf.adapters.decision import no_kernel
from nki_hf.adapters.gradients import gradients_of
from nki_hf.adapters.keys import Keys
from nki_hf.errors import Reason, UnsupportedProblem

__all__ = ["attention_backward", "backward", "fake_backward", "gradients_by", "no_tangents", "save", "second_derivative"]


def attention_backward(
    dout: torch.Tensor,
    dlse: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lo: torch.Tensor | None,
    hi: torch.Tensor | None,
    bias: torch.Tensor | None,
    sink: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
    scale: float | None,
    softcap: float | None,
    q_offset: int,
    window: int | None,
    ahead: int | None,
    needs_bias: bool,
    row_shift: torch.Tensor | None = None,
    row_sum: torch.Tensor | None = None,
    row_part: bool = False,
    out_rest: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq, dk, dv, dsink, dbias, each contiguous in its tensor's shape and dtype; without elements where there is none.

    `out` and `lse` are the results of `attention`, of which a kernel starts, `row_shift`, `row_sum` and `out_rest` (which needs
    the two) the further ones of `attention_with_statistics`; torch's formulas need none of them, but for `row_part`: the keys
    are then a part of the rows', and all of these are of whole rows.
    """
    if forward_ad._current_level >= 0:
        tensors = (dout, dlse, q, k, v, bias, sink, out, lse)
        if any(each is not None and forward_ad.unpack_dual(each).tangent is not None for each in tensors):
            no_tangents()
    results: tuple[torch.Tensor, ...] = (out, lse)
    if row_shift is not None and row_sum is not None:
        results = (out, lse, row_shift, row_sum) if out_rest is None else (out, lse, row_shift, row_sum, out_rest)
    keys = Keys(q_offset=q_offset, window=window, ahead=ahead, lo=lo, hi=hi, bias=bias).narrowed(q.shape[2], k.shape[2])
    call = Call(
        q=q,
        k=k,
        v=v,
        keys=keys,
        scale=scale,
        softcap=softcap,
        sink=sink,
        row_statistics=len(results) > 2,
        out_rest=len(results) > 4,
        row_part=row_part,
    )
    grads = gradients_of(call, results, dout, dlse, bias=needs_bias)
    absent = q.new_empty(0)
    return (
        grads.dq,
        grads.dk,
        grads.dv,
        absent if grads.dsink is None else grads.dsink,
        q.new_empty(0) if grads.dbias is None else grads.dbias,
    )


def fake_backward(dout, dlse, q, k, v, lo, hi, bias, sink, out, lse, scale, softcap, q_offset, window, ahead, needs_bias, *_):  # type: ignore[no-untyped-def]
    """Shapes and dtypes of what `attention_backward` returns."""
    dsink = q.new_empty(0) if sink is None else sink.new_empty(sink.shape)
    dbias = bias.new_empty(bias.shape) if needs_bias else q.new_empty(0)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), dsink, dbias


def second_derivative(ctx: Any, *grads: Any) -> NoReturn:
    """Refuse the gradient of a gradient."""
    raise UnsupportedProblem(
        [
            Reason(
                kernel="any kernel",
                field="create_graph",
                value="True",
                limit="must be False, for kernels have no second derivative",
                advice='Use attn_implementation="eager" for this model, or torch.func, whose transforms torch computes.',
            )
        ]
    )


def no_tangents() -> NoReturn:
    """Refuse forward-mode derivatives.

    Raises:
      UnsupportedProblem: always.
    """
    advice = "Call nki_hf.attention outside of compiled graphs: torch computes its tangents."
    limit = "must not be active around the op: no kernel has a tangent"
    raise UnsupportedProblem([no_kernel("forward-mode AD", "active", limit, advice)])


def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    """Keep what the gradients need; what is returned beside out and lse has none."""
    q, k, v, lo, hi, bias, sink, *ctx.options = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[2:])
    ctx.save_for_backward(q, k, v, lo, hi, bias, sink, *output)


def backward(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None, *_: None) -> tuple[torch.Tensor | None, ...]:
    """The gradients on the CPU, through the op `attention_backward`."""
    return gradients_by(ctx, dout, dlse, torch.ops.nki_hf.attention_backward)


def gradients_by(
    ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None, op: Callable[..., tuple[torch.Tensor, ...]]
) -> tuple[torch.Tensor | None, ...]:
    """The gradient of each argument of `attention`, by `attention_backward` or an op around it."""
    q, k, v, lo, hi, bias, sink, out, lse, *statistics = ctx.saved_tensors
    scalars = ctx.options[:5]  # of attention_with_statistics one more says whether out_rest is wanted
    further: tuple[Any, ...] = ()
    if statistics:
        row_shift, row_sum, rest = statistics
        further = (row_shift, row_sum, False, rest if rest.dim() > 1 else None)
    needs_bias = ctx.needs_input_grad[5] and bias is not None and bias.is_floating_point()
    dout = torch.zeros_like(out) if dout is None else dout
    dq, dk, dv, dsink, dbias = op(dout, dlse, q, k, v, lo, hi, bias, sink, out, lse, *scalars, needs_bias, *further)
    return dq, dk, dv, None, None, dbias if needs_bias else None, None if sink is None else dsink, *[None] * len(ctx.options)
