"""A compiled graph under settings that change after it was traced gives the verdict of the eager call."""

import threading
import warnings

import pytest
import torch

import nki_hf
from nki_hf.adapters import call_log
from nki_hf.adapters.call_log import FallbackWarning
from nki_hf.adapters.graph_guard import _Guard
from nki_hf.errors import UnsupportedProblem

# Settings one after the other, for head_dim 257 in bfloat16, which no kernel of trn1 takes and one of trn2 does.
SETTINGS = (
    {"chip": "trn1"},
    {"chip": "trn1"},
    {"chip": "trn1", "strict": True},
    {"chip": "trn2", "strict": True},
    {"chip": "trn1"},
    {"chip": "trn2"},
    {"chip": "trn1", "strict": True},
)


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()
    nki_hf.explain(reset=True)
    yield
    nki_hf.explain(reset=True)


def call(dtype=torch.bfloat16):
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, 40, 257, generator=draw).to(dtype) for _ in range(3)]


def verdict(function, tensors):
    """Refused, a kernel's name or torch; and the output."""
    nki_hf.explain(reset=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            out = function(*tensors)
    except Exception as error:
        if "is not supported by flash_prefill" not in str(error):  # torch wraps what its tracer meets
            raise
        return "refused", None
    ran = {row.first.kernel for row in nki_hf.explain().rows if row.layer != call_log.TRACED and not row.first.fallback}
    return ran.pop() if ran else "torch", out


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("options", [{"fullgraph": True}, {}, {"dynamic": True}], ids=str)
def test_a_graph_gives_the_verdict_of_the_eager_call_under_any_settings(backend, options):
    compiled = torch.compile(nki_hf.attention, backend=backend, **options)
    seen = []
    for chosen in SETTINGS:
        with nki_hf.using(**chosen):
            (expected, out), (found, traced) = verdict(nki_hf.attention, call()), verdict(compiled, call())
        assert found == expected, chosen
        if out is not None:
            # Where the op falls back it computes its log-sum-exp too, with weights in bfloat16: an error of 2^-8 each.
            torch.testing.assert_close(traced, out, rtol=0, atol=2**-6 if found == "torch" else 0)
        seen.append(found)
    assert seen == ["torch", "torch", "refused", "flash_const_max", "torch", "flash_const_max", "refused"]


def test_settings_of_the_process_and_of_another_thread_count_too(monkeypatch):
    compiled = torch.compile(nki_hf.attention, backend="eager", fullgraph=True)
    tensors, before = call(torch.float64), nki_hf.settings.settings()
    assert verdict(compiled, tensors)[0] == "torch"
    seen = []
    with nki_hf.using(strict=True):  # of this thread: the other one keeps the settings of the process
        thread = threading.Thread(target=lambda: seen.append(verdict(compiled, tensors)[0]))
        thread.start()
        thread.join()
    try:
        nki_hf.configure(strict=True)
        seen.append(verdict(compiled, tensors)[0])
    finally:
        nki_hf.configure(strict=before.strict)
    assert seen == ["torch", "refused"]


def test_a_graph_is_traced_once_for_each_choice_of_settings():
    """The guard compares settings by what they say, so that a block that changes nothing traces nothing."""
    compiled = torch.compile(nki_hf.attention, backend="eager", fullgraph=True)
    tensors = call(torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        for chip in ("trn1", "trn2", "trn1", "trn2", "trn1"):
            with nki_hf.using(chip=chip):
                compiled(*tensors)
    assert sum(row.calls for row in nki_hf.explain().rows) == 2


def test_a_graph_of_kernels_needs_no_guard():
    compiled = torch.compile(nki_hf.attention, backend="eager", fullgraph=True)
    tensors = [torch.randn(1, 2, 24, 64) for _ in range(3)]
    for strict in (False, True):
        with nki_hf.using(strict=strict):
            compiled(*tensors)
    assert {row.layer for row in nki_hf.explain().rows} == {"a compiled graph"}
    assert len(torch._dynamo.eval_frame._debug_get_cache_entry_list(nki_hf.attention.__code__)) == 1


def test_a_torch_that_takes_no_such_guard_is_said(monkeypatch):
    text = r"takes no guard on the settings of nki_hf .*torch\.compiler\.reset\(\)"
    with pytest.warns(UserWarning, match=text):
        _Guard()(object(), None)  # where the guards are made
    monkeypatch.delattr("torch._dynamo.source.GlobalStateSource")
    compiled = torch.compile(nki_hf.attention, backend="eager", fullgraph=True)
    with pytest.warns(UserWarning, match=text):
        compiled(*call(torch.float64))


def test_strict_refuses_as_the_graph_is_made_and_torch_names_our_error():
    compiled = torch.compile(nki_hf.attention, backend="eager")
    with nki_hf.using(strict=True):
        with pytest.raises(UnsupportedProblem):
            nki_hf.attention(*call(torch.float64))
        with pytest.raises(Exception, match="UnsupportedProblem: dtype=float64"):
            compiled(*call(torch.float64))


@pytest.mark.parametrize("strict", [False, True], ids=["torch.export", "torch.export, strict tracer"])
def test_a_program_is_refused_as_it_is_exported(strict):
    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return nki_hf.attention(q, k, v)

    with nki_hf.using(strict=True), pytest.raises(Exception, match="dtype=float64 is not supported"):
        torch.export.export(Layer(), tuple(call(torch.float64)), strict=strict)
    with pytest.warns(FallbackWarning, match="dtype=float64"):
        torch.export.export(Layer(), tuple(call(torch.float64)), strict=strict)
