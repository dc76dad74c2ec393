"""Somebody replaces torch's sdpa: context parallelism is found by what it is, all else changes nothing."""

import functools
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

import nki_hf
from nki_hf import UnsupportedProblem

OWN = F.scaled_dot_product_attention
pytestmark = pytest.mark.filterwarnings("ignore::nki_hf.adapters.call_log.FallbackWarning")


def tensors(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, 9, 8, generator=generator).to(dtype) for _ in range(3)]


def exact(q, k, v, softcap=None):
    q, k, v = q.double(), k.double(), v.double()
    scores = q @ k.transpose(-1, -2) * 8**-0.5
    return torch.softmax(scores if softcap is None else softcap * torch.tanh(scores / softcap), -1) @ v


def plain(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    return nki_hf.attention(q, k, v, attn_mask, causal=is_causal, scale=scale)


@functools.wraps(OWN)
def wrapped(*args, **kwargs):
    return plain(*args, **kwargs)


@functools.wraps(OWN)
def counting(*args, **kwargs):
    """A wrapper around torch's own, as a profiler installs it."""
    return OWN(*args, **kwargs)


class Installed:
    def __call__(self, *args, **kwargs):
        return plain(*args, **kwargs)


REPLACEMENTS = {
    "function": plain,
    "functools.wraps": wrapped,
    "partial": functools.partial(plain),
    "object": Installed(),
    "method": Installed().__call__,
    "profiler": counting,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", REPLACEMENTS)
def test_a_replaced_sdpa_that_calls_this_package_runs_the_kernel(name, dtype, monkeypatch):
    """float64 has no kernel: the fallback computes it by torch's own sdpa, not by the one that called."""
    monkeypatch.setattr(F, "scaled_dot_product_attention", REPLACEMENTS[name])
    q, k, v = tensors(dtype)
    nki_hf.explain(reset=True)
    for call in (nki_hf.attention, F.scaled_dot_product_attention):
        torch.testing.assert_close(call(q, k, v).double(), exact(q, k, v), rtol=2e-5, atol=2e-5)
    report = nki_hf.explain()
    assert report.calls == (1 if name == "profiler" else 2)
    assert report.fallbacks == (0 if dtype == torch.float32 else report.calls)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_torch_function_mode_that_calls_this_package_runs_the_kernel(dtype):
    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            chosen = plain if function is OWN else function
            return chosen(*args, **(kwargs or {}))

    q, k, v = tensors(dtype)
    nki_hf.explain(reset=True)
    with Mode():
        out = F.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(out.double(), exact(q, k, v), rtol=2e-5, atol=2e-5)
    assert nki_hf.explain().fallbacks == (0 if dtype == torch.float32 else 1)


def test_a_compiled_call_under_a_replaced_sdpa_runs_the_kernel(monkeypatch):
    monkeypatch.setattr(F, "scaled_dot_product_attention", wrapped)
    torch._dynamo.reset()
    q, k, v = tensors()
    with nki_hf.using(strict=True):
        out = torch.compile(nki_hf.attention, backend="eager", fullgraph=True)(q, k, v)
    torch.testing.assert_close(out.double(), exact(q, k, v), rtol=2e-5, atol=2e-5)


def test_the_package_may_be_imported_while_sdpa_is_replaced():
    code = """
import torch, torch.nn.functional as F
own = F.scaled_dot_product_attention
F.scaled_dot_product_attention = lambda *args, **kwargs: 1 / 0
import nki_hf
q, k, v = torch.randn(3, 1, 2, 5, 8)
inside = nki_hf.attention(q, k, v)
outside = nki_hf.attention(q.double(), k.double(), v.double())
F.scaled_dot_product_attention = own
with nki_hf.using(strict=True):
    after = nki_hf.attention(q, k, v)
expected = own(q.double(), k.double(), v.double())
print([float((out.double() - expected).abs().max()) < 1e-5 for out in (inside, outside, after)], nki_hf.explain().fallbacks)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[True, True, True] 1"


@pytest.fixture
def mesh(tmp_path):
    from torch.distributed.device_mesh import DeviceMesh

    if torch.distributed.is_initialized():
        pytest.skip("another test of this process has a process group")
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield DeviceMesh("cpu", [0])
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("again", [False, True])
def test_context_parallelism_is_refused_by_what_it_is(mesh, again, monkeypatch):
    from torch.distributed.tensor.experimental import context_parallel

    q, k, v = tensors()
    with nki_hf.using(strict=True):
        nki_hf.attention(q, k, v)
        with context_parallel(mesh, buffers=[torch.zeros(1, 4)], buffer_seq_dims=[1]):
            inside = F.scaled_dot_product_attention
            if again:  # and somebody wraps it once more

                @functools.wraps(OWN)
                def outer(*args, **kwargs):
                    return inside(*args, **kwargs)

                monkeypatch.setattr(F, "scaled_dot_product_attention", outer)
            with pytest.raises(UnsupportedProblem, match="context parallelism=on"):
                nki_hf.attention(q, k, v)
            if again:
                monkeypatch.undo()
        nki_hf.attention(q, k, v)


def test_under_context_parallelism_the_fallback_is_its_sdpa_or_an_error(mesh, monkeypatch):
    from torch.distributed.tensor.experimental import context_parallel

    from nki_hf.adapters import context_parallel as adapter

    q, k, v = tensors()
    with context_parallel(mesh, buffers=[torch.zeros(1, 4)], buffer_seq_dims=[1]):
        inside = F.scaled_dot_product_attention
        assert adapter.torch_sdpa() is inside
        monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *args, **kwargs: inside(*args, **kwargs))
        assert adapter.torch_sdpa() is inside
        monkeypatch.undo()
        with pytest.raises(UnsupportedProblem, match="under context parallelism"):
            nki_hf.attention(q, k, v, softcap=2.0)
    assert adapter.torch_sdpa() is OWN
    assert not adapter.context_parallel()


def test_the_dispatcher_of_context_parallelism_is_seen_without_a_replaced_function(mesh):
    from torch.distributed.tensor.experimental import _attention

    from nki_hf.adapters import context_parallel as adapter

    if not hasattr(_attention, "_enable_context_parallel_dispatcher"):
        pytest.skip("this torch has no way to switch the dispatcher alone")
    assert not adapter.context_parallel()
    _attention._enable_context_parallel_dispatcher()
    try:
        assert adapter.context_parallel()
    finally:
        _attention._disable_context_parallel_dispatcher()
    assert not adapter.context_parallel()
