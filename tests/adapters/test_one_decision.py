"""One decision per call: eager calls, graphs, dry runs and dispatch itself give the same verdict for the same reasons."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nki_hf
from nki_hf.adapters import call_log, torch_op
from nki_hf.adapters import decision as made
from nki_hf.adapters.call import Call, problem_from, problem_key
from nki_hf.adapters.call_log import FallbackWarning
from nki_hf.adapters.decision import Where, decide_call
from nki_hf.adapters.keys import Keys
from nki_hf.chips import CHIPS
from nki_hf.dispatch import SIZES, decide
from nki_hf.errors import Reason, UnsupportedProblem
from nki_hf.tools.explain import run_shape

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int32)
UNKNOWN_IN_GRAPHS = {*SIZES, "softmax_scale", "softcap", "sbuf_bytes", "mask.bias", "chip"}  # chip: after those of sizes
FAR = (1 << 24) + 1


def _tensor(*sizes, dtype=torch.float32, grad=False):
    """A tensor of any size that takes no memory."""
    found = torch.zeros((1,) * len(sizes), dtype=dtype)
    return (found.requires_grad_() if grad and dtype.is_floating_point else found).expand(sizes)


@st.composite
def calls(draw):
    batch, group, heads = draw(st.integers(0, 3)), draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 40_000]))
    seqlen_q, seqlen_kv = draw(st.sampled_from([0, 1, 33, 4096])), draw(st.sampled_from([0, 1, 700, FAR - 1, FAR]))
    head_dim, head_dim_v = (draw(st.sampled_from([1, 64, 256, 257])) for _ in range(2))
    dtypes = [draw(st.sampled_from(DTYPES))] * 3 if draw(st.booleans()) else [draw(st.sampled_from(DTYPES)) for _ in range(3)]
    grad = draw(st.booleans())
    q = _tensor(batch, group * heads, seqlen_q, head_dim, dtype=dtypes[0], grad=grad)
    k = _tensor(batch, heads, seqlen_kv, head_dim, dtype=dtypes[1])
    v = _tensor(batch, heads, seqlen_kv, head_dim_v, dtype=dtypes[2], grad=grad)
    window, ahead = (draw(st.none() | st.sampled_from([1, 7, 600])) for _ in range(2))
    lo = _tensor(1, seqlen_q, dtype=torch.int32) if draw(st.booleans()) else None
    bias = draw(st.none() | st.sampled_from([torch.bool, torch.float32]))
    rows = draw(st.sampled_from([1, seqlen_q]))
    sink = draw(st.sampled_from([None, "heads", "rows"]))
    sizes = {"heads": (group * heads,), "rows": (batch, group * heads, seqlen_q, 1)}
    reason = Reason(kernel="any kernel", field="unheard_of", value="int", limit="is not a known argument")
    return Call(
        q=q,
        k=k,
        v=v,
        keys=Keys(
            q_offset=draw(st.integers(-5, 5)),
            window=window,
            ahead=ahead,
            lo=lo,
            hi=lo,
            bias=None if bias is None else _tensor(1, 1, rows, seqlen_kv, dtype=bias),
        ),
        scale=draw(st.sampled_from([None, 0.0, -1.0, 0.3, 1e-35])),
        softcap=draw(st.sampled_from([None, 30.0, 1e31])),
        sink=None if sink is None else _tensor(*sizes[sink]),
        dropout=draw(st.sampled_from([0.0, 0.0, 0.1])),
        weights=draw(st.sampled_from([False, False, True])),
        refused=draw(st.sampled_from([(), (), (reason,)])),
    )


@pytest.fixture
def traced(monkeypatch):
    """A function that decides as a traced graph and its op do."""

    def decided(call):
        with monkeypatch.context() as patch:
            patch.setattr(torch.compiler, "is_compiling", lambda: True)
            in_graph = decide_call(call)
        return in_graph, in_graph if in_graph.fallback else decide_call(call, running=True)

    return decided


def _on_meta(call):
    """The call as a dry run meets it: no values."""
    tensors = {name: getattr(call, name).to("meta") for name in "qkv"}
    return replace(call, **tensors)


@pytest.mark.parametrize("chip", CHIPS)
def test_every_way_to_ask_gives_one_answer(chip, traced):
    seen = set()

    @settings(max_examples=100, derandomize=True, deadline=None)
    @given(calls())
    def check(call):
        with nki_hf.using(chip=chip):
            eager = decide_call(call)
            dry = decide_call(_on_meta(call), Where("simulator", chip))
            fallback = "eager" if call.softcap is not None or call.sink is not None or call.weights else "sdpa"
            rest = [reason for reason in eager.rejected if reason.kernel == "any kernel" and reason.field != "dtype"]
            direct = decide(
                problem_from(problem_key(call)), backend="simulator", chip=chip, fallback=fallback, refused=tuple(rest)
            )
            graph, run = traced(call)
        assert dry == eager == direct
        assert eager.fallback == (eager.plan is None and eager.kernel != "empty")
        if eager.kernel == "empty" and graph.fallback:
            return  # a graph does not know that there is nothing to compute; torch computes it in any dtype
        assert (run.kernel, run.backend) == (eager.kernel, eager.backend)
        known = [reason for reason in eager.rejected if reason.field not in UNKNOWN_IN_GRAPHS]
        if graph.fallback:  # for reasons that hold whatever the lengths are
            assert [reason for reason in graph.rejected if reason.field not in UNKNOWN_IN_GRAPHS] == known
            assert known
        else:
            assert run == eager
            assert graph.plan is None
        seen.add((eager.fallback, graph.fallback))

    check()
    # Kernels, what a graph falls back from, and what its op does.
    assert seen == {(False, False), (True, True), (True, False)}


def test_gradients_change_no_verdict():
    for grad in (True, False):
        q = _tensor(1, 2, 40, 64, grad=grad)
        assert decide_call(Call(q=q, k=q, v=q, keys=Keys())).kernel == "flash_prefill"


def test_an_eager_call_is_decided_once(monkeypatch):
    counts = {"decide_call": 0, "key": 0}

    def counting(name, real):
        def wrapped(*args, **kwargs):
            counts[name] += 1
            return real(*args, **kwargs)

        return wrapped

    monkeypatch.setattr(made, "problem_key", counting("key", made.problem_key))
    monkeypatch.setattr(torch_op, "decide_call", counting("decide_call", torch_op.decide_call))
    for grad in (False, True):
        q = torch.randn(1, 2, 40, 16, requires_grad=grad)
        nki_hf.attention(q, q, q, causal=True)
    assert counts == {"decide_call": 0, "key": 2}


def test_what_one_call_hands_over_no_other_takes():
    """A call that fails leaves nothing behind, and a call of other tensors is decided for itself."""
    q = torch.randn(1, 2, 40, 16)
    other = torch.randn(1, 2, 30, 16)
    call = Call(q=other, k=other, v=other, keys=Keys())
    with torch_op.handed_over(call, decide_call(call), Counter()):
        out, _ = torch_op.attention(q, q, q, *[None] * 6, 0, None, None)
    assert out.shape == (1, 40, 2, 16)
    assert torch_op._handed.call is torch_op._handed.decision is torch_op._handed.turns is None


def _axes(*names, additive):
    """A mask `[batch 2 or 1, heads 4 or 1, rows 600 or 1, keys 600]` that has these axes and no run of keys in a row."""
    draw = torch.Generator().manual_seed(0)
    mask = torch.randn(
        *(size if name in names else 1 for name, size in (("batch", 2), ("heads", 4), ("rows", 600))), 600, generator=draw
    )
    return mask if additive else mask > 0


@pytest.mark.parametrize("chip", sorted(CHIPS))
@pytest.mark.parametrize("band", [{}, {"ahead": 1}, {"ahead": 1, "window": 64}, {"ahead": 1, "q_offset": -100}])
@pytest.mark.parametrize("word", ["bias=heads", "bias=one", "mask=batch+rows", "mask=heads+rows"])
def test_a_mask_and_a_band_together_are_decided_as_explain_says(word, band, chip):
    """The band stays one beside the mask, so that the kernel skips the blocks that it hides."""
    kind, _, names = word.partition("=")
    q, k = torch.zeros(2, 4, 600, 64, dtype=torch.bfloat16), torch.zeros(2, 2, 600, 64, dtype=torch.bfloat16)
    words = {"ahead": "causal", "window": "window=64", "q_offset": "offset=-100"}
    said = run_shape(",".join(["b=2,hq=4,hkv=2,sq=600,d=64", word, *(words[name] for name in band)]), chip=chip)
    with nki_hf.using(chip=chip):
        nki_hf.explain(reset=True)
        nki_hf.attention(q, k, k, _axes(*names.split("+"), additive=kind == "bias"), **band)
    (row,) = nki_hf.explain(reset=True).rows
    assert (row.first.kernel, dict(row.first.tiles)) == (said.kernel, said.tiles)
    mask = row.first.problem.mask
    assert (mask.ahead, mask.window, mask.runtime_bounds) == (band.get("ahead"), band.get("window"), False)


@pytest.mark.parametrize("first", [{}, {"mask": (1, 1, 70, 70)}])
@pytest.mark.parametrize(
    "later",
    [
        {"lo": (3, 64), "hi": (3, 64)},
        {"lo": (1, 64), "hi": (1, 64)},
        {"mask": (3, 1, 64, 64)},
        {"mask": (1, 2, 1, 64)},
        {"sink": (3, 2, 64, 1)},
        {"sink": (1, 2, 1, 1)},
    ],
)
def test_a_graph_whose_lengths_are_symbols_takes_a_tensor_that_it_meets_for_the_first_time(first, later):
    """Its sizes are numbers then, and q's are symbols: `size in (1, symbol)` is False for Dynamo even where they are equal."""
    torch.compiler.reset()

    def call(q, k, given):
        return nki_hf.attention(q, k, k, **given)

    def made(name, shape):
        return torch.full(shape, {"lo": 0, "hi": 50}[name]) if name in ("lo", "hi") else torch.randn(shape)

    compiled = torch.compile(call, backend="eager", fullgraph=True)
    for batch, seqlen in ((2, 64), (3, 70)):  # so that both become symbols
        compiled(torch.randn(batch, 2, seqlen, 32), torch.randn(batch, 2, seqlen, 32), {})
    if first:
        given = {name: made(name, shape) for name, shape in first.items()}
        compiled(torch.randn(3, 2, 70, 32), torch.randn(3, 2, 70, 32), given)
    q, k = torch.randn(3, 2, 64, 32), torch.randn(3, 2, 64, 32)
    given = {name: made(name, shape) for name, shape in later.items()}
    torch.testing.assert_close(compiled(q, k, given), call(q, k, given), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("strict", [False, True])
def test_a_graph_that_meets_a_length_beyond_the_limit_runs_what_the_eager_call_runs(strict):
    """Keys are counted in float32, up to 2^24 (nki.isa.range_select); a graph is traced for any length."""
    torch.compiler.reset()
    draw = torch.Generator().manual_seed(0)
    q, k = torch.randn(1, 1, 2, 1, generator=draw), torch.randn(1, 1, FAR, 1, generator=draw)
    v = torch.randn(1, 1, FAR, 1, generator=draw)
    compiled = torch.compile(nki_hf.attention, backend="eager", dynamic=True, fullgraph=True)
    short = [tensor[:, :, :40] for tensor in (k, v)]
    torch.testing.assert_close(compiled(q, *short), nki_hf.attention(q, *short), rtol=0, atol=0)
    with nki_hf.using(strict=strict):
        if strict:
            with pytest.raises(UnsupportedProblem, match=r"seqlen_kv=16,777,217 .* must be at most 16,777,216"):
                torch_op.attention(q, k, v, *[None] * 6, 0, None, None)
            return
        nki_hf.explain(reset=True)
        with pytest.warns(FallbackWarning, match="seqlen_kv"):
            expected = nki_hf.attention(q, k, v)
        found = compiled(q, k, v)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    eager, graph = nki_hf.explain(reset=True).rows
    assert graph.layer == "a compiled graph"
    assert (graph.first.rejected, graph.first.backend) == (eager.first.rejected, "torch")


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("grad", [False, True])
def test_calls_that_a_graph_runs_are_counted(backend, grad):
    """Once for each, under the graph's name, as the same calls outside of it; and not while it is traced."""
    torch.compiler.reset()
    compiled = torch.compile(nki_hf.attention, backend=backend, dynamic=True, fullgraph=True)
    rows = {}
    for name, function in (("eager", nki_hf.attention), ("graph", compiled)):
        nki_hf.explain(reset=True)
        for rows_q in (4, 4, 40):
            q, k = torch.randn(1, 4, rows_q, 64, requires_grad=grad), torch.randn(1, 2, 700, 64)
            out = function(q, k, k)
            if grad:
                out.sum().backward()
        rows[name] = {(row.phase, row.first.kernel): row.calls for row in nki_hf.explain().rows}
        layers = {row.layer for row in nki_hf.explain(reset=True).rows} - {"gradients"}
    assert layers == {"a compiled graph"}
    assert rows["graph"] == rows["eager"]
    assert sum(calls for (phase, _), calls in rows["graph"].items() if phase != "backward") == 3


@pytest.mark.parametrize(("head_dim", "dtype", "field"), [(257, torch.float32, "head_dim"), (64, torch.float64, "dtype")])
def test_a_graph_that_runs_torch_says_so_when_it_is_traced(head_dim, dtype, field):
    """What it runs later is plain torch: said and counted once, with an eager call's reasons but for lengths."""
    torch.compiler.reset()
    q = torch.randn(1, 2, 40, head_dim, dtype=dtype)
    compiled = torch.compile(nki_hf.attention, backend="eager", dynamic=True, fullgraph=True)
    nki_hf.explain(reset=True)
    with pytest.warns(FallbackWarning, match=field):
        compiled(q, q, q)
    compiled(q, q, q)
    (row,) = nki_hf.explain(reset=True).rows
    assert (row.layer, row.calls, row.first.backend) == (call_log.TRACED, 1, "torch")
    with pytest.warns(FallbackWarning, match=field):
        nki_hf.attention(q, q, q)
    (eager,) = nki_hf.explain(reset=True).rows
    known = [reason for reason in eager.first.rejected if reason.field not in SIZES]
    assert list(row.first.rejected) == known
    assert {reason.field for reason in known} >= {field}


def test_the_reasons_of_a_graph_name_no_softcap_that_was_not_given():
    torch.compiler.reset()
    q = torch.randn(1, 2, 40, 257)
    compiled = torch.compile(nki_hf.attention, backend="eager", dynamic=True, fullgraph=True)
    nki_hf.explain(reset=True)
    with pytest.warns(FallbackWarning, match="head_dim"):
        compiled(q, q, q, softcap=30.0)
    (row,) = nki_hf.explain(reset=True).rows
    said = [reason.value for reason in row.first.rejected if reason.field == "softcap"]
    assert said
    assert set(said) <= {"given", "30.0"}


def test_the_phase_is_that_of_the_kernel_that_ran():
    """A few rows decode where the decode kernel runs them; one row decodes whatever runs it."""
    nki_hf.explain(reset=True)
    seen = []
    for rows_q, group, bias in ((8, 4, False), (8, 4, True), (1, 4, True), (40, 4, False)):
        q, k = torch.randn(1, 2 * group, rows_q, 64).bfloat16(), torch.randn(1, 2, 3000, 64).bfloat16()
        mask = torch.randn(1, 1, rows_q, 3000).bfloat16() if bias else None
        nki_hf.attention(q, k, k, mask=mask)
        row = nki_hf.explain(reset=True).rows[0]
        seen.append((row.phase, row.first.kernel == "flash_decode"))
    assert seen == [("decode", True), ("prefill", False), ("decode", False), ("prefill", False)]
