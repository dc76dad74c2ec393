"""Plain torch on a kernel's own arguments, in blocks of query rows. Runs only on request: `NKI_HF_BACKEND=torch_reference`.

It takes the place of a kernel, not of a fallback: the same `KernelCall`, so that what surrounds the kernels can be tried
on models too large to simulate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nki_hf.backends.base import KernelCall, RunResult
from nki_hf.errors import BackendUnavailable

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TorchReferenceBackend"]

_BLOCK_ELEMENTS = 1 << 22  # scores held at once
_HIDDEN = -3.4028235e38  # what an additive bias holds where a key is hidden: float32's lowest


class TorchReferenceBackend:
    """Runs `flash_prefill` calls as torch math: float32 inside, one rounding at the end."""

    name = "torch_reference"

    def unavailable(self) -> str | None:
        """None if torch is installed."""
        try:
            import torch  # noqa: F401
        except ImportError:
            return 'the back end torch_reference needs torch: pip install "nki_hf[hf]".'
        return None

    def run(self, call: KernelCall) -> RunResult:
        """Run one call on torch tensors; the outputs are those of the kernel (see kernels/flash_prefill/call.py)."""
        if call.kernel != "flash_prefill":
            raise BackendUnavailable(
                f"kernel={call.kernel!r} has no torch form: torch_reference runs flash_prefill. Use the simulator."
            )
        import torch

        call = call.filled()
        q = call.tensors["q"].transpose(2, 3)
        k, v = call.tensors["k"].float(), call.tensors["v"]
        batch, num_heads_q, seqlen_q, _ = q.shape
        num_heads_kv, seqlen_kv, width = v.shape[1:]
        out = q.new_empty((batch, seqlen_q, num_heads_q, width))
        lse = q.new_empty((batch, num_heads_q, seqlen_q), dtype=torch.float32)
        values = v.float()
        rows = max(1, _BLOCK_ELEMENTS // max(1, batch * num_heads_q * seqlen_kv))
        for start in range(0, seqlen_q, rows):
            stop = min(start + rows, seqlen_q)
            part = q[:, :, start:stop].float().reshape(batch, num_heads_kv, -1, q.shape[3])
            scores = (part @ k).view(batch, num_heads_q, stop - start, seqlen_kv) * call.constants["softmax_scale"]
            cap = call.constants["softcap"]
            if cap is not None:
                scores = cap * torch.tanh(scores / cap)
            scores = _mask(call, scores, start, stop)
            shift, sink = scores.amax(dim=-1), call.tensors["sink"]
            if sink is not None:
                shift = torch.maximum(shift, sink.view(1, -1, 1))
            shift = shift.masked_fill(shift == float("-inf"), 0.0)
            probs = torch.exp(scores - shift[..., None])
            total = probs.sum(dim=-1)
            if sink is not None:
                total = total + torch.exp(sink.view(1, -1, 1) - shift)
            lse[:, :, start:stop] = shift + torch.log(total)
            result = (probs.view(batch, num_heads_kv, -1, seqlen_kv) @ values).view(batch, num_heads_q, -1, width)
            result = result / torch.where(total == 0, 1.0, total)[..., None]
            out[:, start:stop] = result.transpose(1, 2).to(q.dtype)
        return RunResult(outputs=(out, lse))


def _mask(call: KernelCall, scores: Tensor, start: int, stop: int) -> Tensor:
    """Scores with the bias added and -inf where a key is hidden."""
    import torch

    lo, hi, bias = (call.tensors[name] for name in ("lo", "hi", "bias"))
    position = torch.arange(scores.shape[-1], device=scores.device)
    if bias is not None:
        bias = bias[:, :, start:stop] if bias.shape[2] > 1 else bias
        if bias.dtype == torch.uint8:
            scores = scores.masked_fill(bias == 0, float("-inf"))
        else:
            scores = torch.where(bias == _HIDDEN, float("-inf"), scores + bias)
    if lo is not None:
        first, last = lo[:, None, start:stop, None], hi[:, None, start:stop, None]
        return scores.masked_fill((position < first) | (position >= last), float("-inf"))
    row = torch.arange(start, stop, device=scores.device)[:, None] + call.constants["q_offset"]
    if call.constants["window"] is not None:
        scores = scores.masked_fill(position <= row - call.constants["window"], float("-inf"))
    if call.constants["ahead"] is not None:
        scores = scores.masked_fill(position >= row + call.constants["ahead"], float("-inf"))
    return scores
