"""From torch tensors to a kernel's layouts and back: views where memory allows it, copies only where it does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from nki_hf.adapters.keys import Keys
from nki_hf.backends.base import KernelCall, RunResult
from nki_hf.dispatch import Decision, kernel_call
from nki_hf.kernels.call_tensors import TENSORS
from nki_hf.problem import Band, Problem

__all__ = ["TorchArrays", "keep_conversions", "named_outputs", "outputs_of", "packed_call", "result_of", "trivial_result"]


_kept: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def keep_conversions(tensor: Tensor) -> None:
    """Make what kernels need of a device tensor (another dtype, other values for -inf) once, and keep it as long as the tensor.

    The caller sees to it that the tensor's values stay as they are.
    """
    _kept[tensor] = {}


class TorchArrays:
    """`kernels.packing.Arrays` of torch."""

    def permuted(self, array: Tensor, order: tuple[int, ...]) -> Tensor:
        """See `Arrays`."""
        return array.transpose(2, 3) if order == (0, 1, 3, 2) else array.permute(order)

    def cast(self, array: Tensor, dtype: str, hidden: float | None, lowest: float | None) -> Tensor:
        """See `Arrays`."""
        kept = None if array.is_cpu or torch.compiler.is_compiling() else _kept.get(array)
        if kept is None:
            return self._cast(array, dtype, hidden, lowest)
        key = (dtype, hidden, lowest)
        if key not in kept:
            kept[key] = self._cast(array, dtype, hidden, lowest)
        return kept[key]

    def _cast(self, array: Tensor, dtype: str, hidden: float | None, lowest: float | None) -> Tensor:
        if dtype == "uint8":
            if array.dtype == torch.uint8:
                return array
            # The CPU shares memory; elsewhere the lowering refuses a view of another width, which a bool's bit is.
            return array.view(torch.uint8) if array.device.type == "cpu" else array.to(torch.uint8)
        values = (array.detach() if array.requires_grad else array).to(getattr(torch, dtype))
        if lowest is None:
            return values
        raised = values.clamp(min=lowest)
        return raised if hidden is None else torch.where(torch.isneginf(values), hidden, raised)

    def padded(self, array: Tensor, axis: int, length: int, value: float) -> Tensor:
        """See `Arrays`."""
        behind = [0] * (2 * (array.dim() - axis))
        behind[-1] = length - array.shape[axis]
        return F.pad(array, behind, value=value)

    def bounds(self, band: Band, seqlen_q: int, seqlen_kv: int, tensors: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """See `Arrays`."""
        keys = Keys(q_offset=band.q_offset, window=band.window, ahead=band.ahead, lo=tensors.get("lo"), hi=tensors.get("hi"))
        return keys.bounds(seqlen_q, seqlen_kv, tensors["q"].device)


_ARRAYS = TorchArrays()


def packed_call(decision: Decision, tensors: Mapping[str, Tensor | None], *, exact: bool = False) -> KernelCall:
    """The kernel's call.

    Args:
      decision: one that has a plan.
      tensors: the tensors of the call by name (see `binding.TENSORS`), any strides, on one device.
      exact: see `Packing`.
    """
    packing = decision.packing
    return kernel_call(decision, packing(tensors, _ARRAYS, exact=exact), packing.extended)


def named_outputs(decision: Decision, result: RunResult) -> dict[str, Tensor]:
    """A kernel's outputs by name; those of `binding.TENSORS` in its axes, whatever the kernel's, contiguous."""
    return {
        name: (tensor if order is None else tensor.permute(order)).contiguous()
        for (name, order), tensor in zip(decision.unpacking, result.outputs, strict=True)
    }


def result_of(decision: Decision, result: RunResult, sink: Tensor | None = None) -> tuple[Tensor, ...]:
    """Output and lse as `binding.TENSORS` has them, whatever the kernel's axes; row_shift, row_sum, out_rest if it has them."""
    found = named_outputs(decision, result)
    lse = found["lse"]
    if sink is not None:
        # The kernel may have been given a higher one than the lowest of sinks (`Argument.lowest`), and calls its rows empty.
        lse = torch.maximum(lse, sink.detach().to(torch.float32)[None, :, None])
    further = [found[name] for name in ("row_shift", "row_sum", "out_rest") if name in found]
    return found["out"], lse.contiguous(), *further


def outputs_of(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Empty output and lse of a call, of sizes that may be symbolic."""
    batch, num_heads_q, seqlen_q = q.shape[:3]
    sizes = {"batch": batch, "num_heads_q": num_heads_q, "seqlen_q": seqlen_q, "head_dim_v": v.shape[3]}
    out, lse = ([sizes[axis] for axis in TENSORS[name]] for name in ("out", "lse"))
    return q.new_empty(out), q.new_empty(lse, dtype=torch.float32)


def trivial_result(problem: Problem, q: Tensor, v: Tensor, sink: Tensor | None = None) -> tuple[Tensor, Tensor] | None:
    """The result of a call that needs no kernel (no batch, no queries or no keys), as `outputs_of` has it; None if it needs
    one. Without keys every row is empty: zeros, and lse = sink or -inf.
    """
    if problem.batch and problem.seqlen_q and problem.seqlen_kv:
        return None
    out, lse = outputs_of(q, v)
    out = out.zero_() if q.is_floating_point() else out.to(torch.float32).zero_()
    lse.fill_(-torch.inf)
    if sink is not None:
        # a copy even where the shapes are equal: an op may not return a view of its input
        lse = sink.to(torch.float32)[None, :, None].expand_as(lse).clone(memory_format=torch.contiguous_format)
    return out, lse
