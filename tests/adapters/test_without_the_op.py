"""Calls that record no gradient leave the op out, unless somebody waits for it; who watches sees what he saw before."""

import runpy
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import nki_hf
from nki_hf.backends.simulator import simulator_backend

ROOT = Path(__file__).parents[2]
OP = "nki_hf::attention"


@pytest.fixture(autouse=True)
def _strict():
    with torch.no_grad(), nki_hf.using(strict=True):
        yield


def tensors():
    return torch.randn(3, 1, 2, 20, 16, generator=torch.Generator().manual_seed(0))


def close(found, q, k, v):
    expected = F.scaled_dot_product_attention(q.double(), k.double(), v.double())
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)


def test_the_profiler_counts_the_op():
    q, k, v = tensors()
    with torch.profiler.profile() as profile:
        close(nki_hf.attention(q, k, v), q, k, v)
    assert OP in {event.key for event in profile.key_averages()}


class _Dispatch(TorchDispatchMode):
    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.name())
        return func(*args, **kwargs or {})


class _Function(TorchFunctionMode):
    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.name() if isinstance(func, torch._ops.OpOverload) else "")
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("mode", [_Dispatch, _Function])
def test_a_mode_sees_the_op(mode):
    q, k, v = tensors()
    seen = []
    with mode(seen):
        out = nki_hf.attention(q, k, v)
    assert OP in seen
    close(out, q, k, v)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_trace_keeps_the_op():
    q, k, v = tensors()
    traced = torch.jit.trace(lambda q, k, v: nki_hf.attention(q, k, v), (q, k, v), check_trace=False)
    assert OP in str(traced.graph)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_view_that_is_the_negative_of_its_memory(place):
    given = list(tensors())
    given[place] = torch._neg_view(given[place])
    close(nki_hf.attention(*given), *given)


def test_inference_tensors_and_parameters_are_plain():
    with torch.inference_mode():
        q, k, v = tensors()
        close(nki_hf.attention(q, torch.nn.Parameter(k.clone(), requires_grad=False), v), q, k, v)


def test_the_tool_that_times_the_adapter_runs_no_kernel(monkeypatch, capsys):
    before = simulator_backend("trn2").programs_recorded
    monkeypatch.setattr("nki_hf.adapters.backend_choice.simulator_backend", simulator_backend)  # and put it back
    monkeypatch.setattr(sys, "argv", ["adapter_overhead.py", "--calls", "10", "--calls-only"])
    runpy.run_path(str(ROOT / "tools" / "adapter_overhead.py"), run_name="__main__")
    assert capsys.readouterr().out.count(" over the bare op") == 3
    assert simulator_backend("trn2").programs_recorded == before
