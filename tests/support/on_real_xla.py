"""The adapter and its masks on real lazy tensors: in the venv of tools/xla_environment.py.

Run by tests/backends/test_real_xla.py.

The kernel is a stub: torch's math, or the simulator, on what a launch would get, after the checks of a launch. All else is
real: torch_xla's dispatch, its lazy device, Transformers. Each check prints its name; the exit code is 1 if one fails.
"""

import copy
import sys
import traceback
from dataclasses import replace

import torch
import torch_xla
from transformers import Qwen3Config, Qwen3Model

import nki_hf
from nki_hf.adapters import device, torch_op
from nki_hf.adapters import gradients as gradients_module
from nki_hf.backends import neuron_launch
from nki_hf.backends.simulator import SimulatorBackend
from nki_hf.backends.torch_reference import TorchReferenceBackend
from nki_hf.chips import get_chip
from nki_hf.kernels.registry import find

torch.cuda.is_current_stream_capturing = lambda: False  # as a build without CUDA says; this one asks what is not there
DEVICE = torch_xla.device()
SEQLEN, WINDOW = 40, 11
SEEN = []


class Stub:
    """What takes the place of the launch."""

    def run(self, call):
        filled = call.filled()
        parameters = (*filled.tensors, *filled.constants)
        for value in neuron_launch.arguments_of(filled, parameters):
            if isinstance(value, torch.Tensor):
                assert value.device.type == "xla"
                assert value.is_contiguous()
        SEEN.append({name: None if value is None else tuple(value.shape) for name, value in filled.tensors.items()})
        if find(call.kernel).kind == "forward":
            return TorchReferenceBackend().run(call)
        on_cpu = {name: None if value is None else value.cpu() for name, value in filled.tensors.items()}
        found = SimulatorBackend(get_chip("trn2")).run(replace(filled, tensors=on_cpu))
        return replace(found, outputs=tuple(each.to(DEVICE) for each in found.outputs))


for module in (torch_op, gradients_module):
    assert hasattr(module, "backend_of")  # under another name the real launch would run
    module.backend_of = lambda decision: Stub()
device._neuron_target = lambda: ("trn2", 2, "")


def models(window):
    torch.manual_seed(0)
    kind = "full_attention" if window is None else "sliding_attention"
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        num_hidden_layers=2,
        use_sliding_window=window is not None,
        sliding_window=window,
        layer_types=[kind] * 2,
        attn_implementation="eager",
    )
    eager = Qwen3Model(config).eval()
    lazy = Qwen3Model(copy.deepcopy(config)).eval()
    lazy.load_state_dict(eager.state_dict())
    lazy.set_attn_implementation("nki")
    return eager, lazy.to(DEVICE)


def a_model_with(window, padded):
    """The same numbers as eager on the CPU, by a band and at most one mask of keys."""
    eager, lazy = models(window)
    ids = torch.randint(1, 64, (2, SEQLEN), generator=torch.Generator().manual_seed(1))
    padding = None
    if padded:
        padding = torch.ones(2, SEQLEN, dtype=torch.int64)
        padding[0, :13] = 0
        padding[1, 20:30:3] = 0
    SEEN.clear()
    with torch.no_grad(), nki_hf.using(strict=True):
        expected = eager(ids, attention_mask=padding, use_cache=False).last_hidden_state
        found = lazy(ids.to(DEVICE), attention_mask=None if padding is None else padding.to(DEVICE), use_cache=False)
        found = found.last_hidden_state.cpu()
    seen = slice(None) if padding is None else padding.bool()
    torch.testing.assert_close(found[seen], expected[seen], rtol=0, atol=1e-4)
    assert len(SEEN) == 2
    assert {call["bias"] for call in SEEN} == {(2, 1, 1, SEQLEN) if padded else None}
    assert {call["lo"] for call in SEEN} == {None}


def gradients():
    """Of q, k, v on the lazy device: those of torch's own attention."""
    draw = torch.Generator().manual_seed(0)
    inputs = [torch.randn(1, heads, 24, 16, generator=draw) for heads in (4, 2, 2)]
    on_cpu = [x.double().requires_grad_() for x in inputs]
    wide = [on_cpu[0], *(x.repeat_interleave(2, dim=1) for x in on_cpu[1:])]
    torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=True).square().sum().backward()
    leaves = [x.to(DEVICE).requires_grad_() for x in inputs]
    nki_hf.attention(*leaves, causal=True).square().sum().backward()
    for leaf, right in zip(leaves, on_cpu, strict=True):
        torch.testing.assert_close(leaf.grad.cpu().double(), right.grad, rtol=0, atol=1e-4)


def no_view_of_bits():
    """A dense bool mask is converted, for a view of its bits has no lowering here either."""
    q = torch.randn(1, 2, SEQLEN, 16)
    mask = torch.rand(1, 1, SEQLEN, SEQLEN) > 0.3
    found = nki_hf.attention(*(x.to(DEVICE) for x in (q, q, q)), mask=mask.to(DEVICE)).cpu()
    torch.testing.assert_close(
        found, torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask), rtol=0, atol=1e-5
    )


CHECKS = {
    **{
        f"{'window' if window else 'causal'}{', padded' if padded else ''}": (a_model_with, window, padded)
        for window in (None, WINDOW)
        for padded in (False, True)
    },
    "gradients": (gradients,),
    "a dense mask": (no_view_of_bits,),
}

if __name__ == "__main__":
    failed = False
    for name, (check, *arguments) in CHECKS.items():
        try:
            check(*arguments)
            print(f"{name}: ok", flush=True)
        except Exception:  # whatever a check raises is printed with its name, and the others still run
            failed = True
            print(f"{name}: {traceback.format_exc()}", flush=True)
    sys.exit(failed)
