"""What the adapter costs per call, with a back end that computes nothing.

    PYTHONPATH=. python tools/adapter_overhead.py [--calls 2000] [--calls-only]

Times `nki_attention` from Transformers' arguments to the output at 128 queries and keys and 8 heads, and a bare torch op of
the same outputs; prints both and the difference: from a bare module, and from the layer of a Llama model that is running.
Also the memory that a mask of 8,192 tokens costs on its way to bounds.
"""

import argparse
import functools
import time
import tracemalloc
from types import SimpleNamespace

import torch
from transformers import AttentionInterface, LlamaConfig, LlamaModel

import nki_hf
from nki_hf.adapters import backend_choice
from nki_hf.adapters.masks import read_mask
from nki_hf.adapters.transformers import nki_attention
from nki_hf.backends.base import RunResult


@torch.library.custom_op("nki_hf_overhead::bare", mutates_args=())
def bare(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The outputs of an attention, not computed."""
    batch, heads, seqlen, _ = q.shape
    return _outputs(q, batch, heads, seqlen, v.shape[3])


def _outputs(q, batch, heads, seqlen, head_dim_v):
    return q.new_empty((batch, seqlen, heads, head_dim_v)), q.new_empty((batch, heads, seqlen), dtype=torch.float32)


class Nothing:
    """A back end that allocates the outputs and computes nothing."""

    name = "simulator"

    def run(self, call):
        """Fresh outputs of the right shape."""
        q = call.tensors["q"]
        batch, heads, _, seqlen = q.shape
        return RunResult(outputs=_outputs(q, batch, heads, seqlen, call.tensors["v"].shape[3]))


def per_call_us(function, calls, repeats=100):
    """Fewest microseconds per call over some repeats, short ones, since neighbours only ever add to it."""
    best, calls = float("inf"), max(1, calls // 10)
    for _ in range(repeats):
        start = time.thread_time()
        for _ in range(calls):
            function()
        best = min(best, (time.thread_time() - start) / calls)
    return best * 1e6


def inside_a_model(calls):
    """Microseconds per call from the layer of a running model of one layer."""
    found = []

    def timed(module, *tensors, **kwargs):
        found.append(per_call_us(lambda: nki_attention(module, *tensors, **kwargs), calls))
        return nki_attention(module, *tensors, **kwargs)

    AttentionInterface.register("nki_timed", timed)
    sizes = {"hidden_size": 512, "intermediate_size": 64, "num_attention_heads": 8, "num_hidden_layers": 1, "vocab_size": 9}
    model = LlamaModel(LlamaConfig(**sizes)).eval()
    model.config._attn_implementation = "nki_timed"
    model(torch.zeros(1, 128, dtype=torch.long))
    return found[0]


def mask_bytes(seqlen, padded):
    """Peak of Python's and NumPy's allocations, and of torch's largest tensor, while a bool mask becomes bounds."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            given = {tensor.untyped_storage().data_ptr() for tensor in args if isinstance(tensor, torch.Tensor)}
            if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() not in given:
                self.seen = max(self.seen, result.untyped_storage().nbytes())
            return result

    mask = torch.ones(seqlen, seqlen, dtype=torch.bool).tril()[None, None]
    if padded:
        mask[..., : seqlen // 4] = False
    tracemalloc.start()
    with Largest() as largest:
        read_mask(mask, q=torch.empty(1, 1, seqlen, 1), seqlen_kv=seqlen, causal=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak, largest.seen


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--calls-only", action="store_true", help="leave out the memory of masks")
    options = parser.parse_args()
    calls = options.calls
    torch.set_num_threads(1)
    backend_choice.simulator_backend = lambda chip: Nothing()
    module = SimpleNamespace(training=False, is_causal=True, layer_idx=0)
    q, k, v = (torch.randn(1, 128, 8, 64).transpose(1, 2) for _ in range(3))
    mask = torch.ones(1, 1, 128, 128, dtype=torch.bool).tril()
    mask[..., :5] = False
    with torch.no_grad(), nki_hf.using(strict=True):
        base = per_call_us(lambda: bare(q, k, v), calls)
        print(f"bare torch op: {base:.1f} us a call")
        found = {}
        for name, given in (("no mask", None), ("bool mask, seen before", mask)):
            call = functools.partial(nki_attention, module, q, k, v, given, scaling=0.125, dropout=0.0)
            found[name] = per_call_us(call, calls)
        found["no mask, in a model"] = inside_a_model(calls)
        for name, cost in found.items():
            print(f"nki_attention, {name}: {cost:.1f} us a call, {cost - base:.1f} us over the bare op")
    if options.calls_only:
        return
    for name, padded in (("causal", False), ("left-padded", True)):
        peak, largest = mask_bytes(8192, padded)
        print(f"{name} mask of 8,192 tokens ({8192 * 8192:,} B): {peak:,} B of scratch, largest new tensor {largest:,} B")


if __name__ == "__main__":
    main()
