"""Plain torch on a kernel's own arguments, in blocks of query rows. Runs only on request: `NKI_HF_BACKEND=torch_reference`.

It takes the place of a kernel, not of a fallback: the same `KernelCall`, so that what surrounds the kernels can be tried
on models too large to simulate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nki_hf.backends.base import KernelCall, RunResult
from nki_hf.errors import BackendUnavailable
from nki_hf.kernels.binding import Binding
from nki_hf.kernels.call_tensors import TENSORS
from nki_hf.kernels.registry import find
from nki_hf.problem import Band

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TorchReferenceBackend"]

_BLOCK_ELEMENTS = 1 << 22  # scores held at once


class TorchReferenceBackend:
    """Runs the calls of forward kernels as torch math: float32 inside, one rounding at the end."""

    name = "torch_reference"

    def unavailable(self) -> str | None:
        """None if torch is installed."""
        try:
            import torch  # noqa: F401
        except ImportError:
            return 'the back end torch_reference needs torch: pip install "nki_hf[hf]".'
        return None

    def run(self, call: KernelCall) -> RunResult:
        """Run one call on torch tensors; the outputs are those of the kernel, in the axes of its binding.

        Raises:
          BackendUnavailable: the kernel computes something else than attention, or returns something else.
        """
        binding = find(call.kernel)
        if binding is None or binding.kind != "forward" or call.passed & _unknown(binding):
            raise BackendUnavailable(
                f"kernel={call.kernel!r} has no torch form: torch_reference runs attention. Use the simulator."
            )
        import torch

        tensors = _of_call(binding, call.filled())
        q, k, v, sink = tensors["q"], tensors["k"].float(), tensors["v"].float(), tensors.get("sink")
        batch, num_heads_q, seqlen_q, _ = q.shape
        num_heads_kv, seqlen_kv, width = v.shape[1:]
        out, rest = (q.new_empty((batch, seqlen_q, num_heads_q, width), dtype=dtype) for dtype in (q.dtype, torch.float32))
        lse, row_shift, row_sum = (q.new_empty((batch, num_heads_q, seqlen_q), dtype=torch.float32) for _ in range(3))
        rows = max(1, _BLOCK_ELEMENTS // max(1, batch * num_heads_q * seqlen_kv))
        for start in range(0, seqlen_q, rows):
            stop = min(start + rows, seqlen_q)
            part = q[:, :, start:stop].float().reshape(batch, num_heads_kv, -1, q.shape[3])
            scores = (part @ k.transpose(2, 3)).view(batch, num_heads_q, stop - start, seqlen_kv)
            scores = scores * call.constants["softmax_scale"]
            cap = call.constants.get("softcap")
            if cap is not None:
                scores = cap * torch.tanh(scores / cap)
            scores = _mask(binding, call, tensors, scores, start, stop)
            shift = scores.amax(dim=-1)
            if sink is not None:
                shift = torch.maximum(shift, sink.view(1, -1, 1))
            row_shift[:, :, start:stop] = shift
            shift = shift.masked_fill(shift == float("-inf"), 0.0)
            probs = torch.exp(scores - shift[..., None])
            total = probs.sum(dim=-1)
            if sink is not None:
                total = total + torch.exp(sink.view(1, -1, 1) - shift)
            lse[:, :, start:stop] = shift + torch.log(total)
            row_sum[:, :, start:stop] = torch.where(total == 0, 1.0, total)
            result = (probs.view(batch, num_heads_kv, -1, seqlen_kv) @ v).view(batch, num_heads_q, -1, width)
            result = result / torch.where(total == 0, 1.0, total)[..., None]
            out[:, start:stop] = result.transpose(1, 2).to(q.dtype)
            rest[:, start:stop] = result.transpose(1, 2) - out[:, start:stop].float()
        found = {"out": out, "lse": lse, "row_shift": row_shift, "row_sum": row_sum, "out_rest": rest}
        returned = binding.returned(call.passed)
        outputs = [found[item.name].permute([TENSORS[item.name].index(axis) for axis in item.axes]) for item in returned]
        return RunResult(outputs=tuple(output.contiguous() for output in outputs))


def _unknown(binding: Binding) -> set[str]:
    """Outputs that attention has not."""
    return {item.name for item in binding.outputs} - {"out", "lse", "row_shift", "row_sum", "out_rest"}


def _of_call(binding: Binding, call: KernelCall) -> dict[str, Tensor]:
    """The kernel's tensors in the axes of `binding.TENSORS`, those that it has."""
    found = {}
    for item in binding.arguments:
        tensor = call.tensors.get(item.name)
        if tensor is None:
            continue
        own = [axis for axis in item.axes if axis != "1"]
        tensor = (
            tensor.squeeze([number for number, axis in enumerate(item.axes) if axis == "1"]) if "1" in item.axes else tensor
        )
        found[item.name] = tensor.permute([own.index(axis) for axis in TENSORS[item.name]])
    return found


def _mask(binding: Binding, call: KernelCall, tensors: dict[str, Tensor], scores: Tensor, start: int, stop: int) -> Tensor:
    """Scores with the bias added and -inf where a key is hidden."""
    import torch

    position = torch.arange(scores.shape[-1], device=scores.device)
    bias = tensors.get("bias")
    if bias is not None:
        bias = bias[:, :, start:stop] if bias.shape[2] > 1 else bias
        if bias.dtype == torch.uint8:
            scores = scores.masked_fill(bias == 0, float("-inf"))
        else:
            (hidden,) = [item.hidden for item in binding.arguments if item.name == "bias"]
            scores = torch.where(bias == hidden, float("-inf"), scores + bias)
    if "lo" in tensors:
        first, last = (tensors[name][:, None, start:stop, None] for name in ("lo", "hi"))
    else:
        band = Band(**{name: call.constants[name] for name in ("q_offset", "window", "ahead") if name in call.constants})
        first, last = band.edges(torch.arange(start, stop, device=scores.device)[:, None], scores.shape[-1])
    return scores.masked_fill((position < first) | (position >= last), float("-inf"))
