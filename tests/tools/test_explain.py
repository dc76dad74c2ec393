"""What ran and why: the report of a process, the report of a switch, and the forecast for a model."""

import json
import warnings
from pathlib import Path

import pytest
import torch
import transformers
from tiny import build, logits, tiny_qwen3, token_ids
from typer.testing import CliRunner

import nki_hf
from nki_hf.adapters import decision
from nki_hf.cli import app
from nki_hf.dispatch import decide
from nki_hf.kernels import registry
from nki_hf.tools import explain as tool
from nki_hf.tools.support_table import support_table


def test_every_layer_and_phase_is_counted():
    model = tiny_qwen3()
    model.set_attn_implementation("nki")
    nki_hf.explain(reset=True)
    model.generate(token_ids(), max_new_tokens=3, do_sample=False, pad_token_id=0)
    report = nki_hf.explain()
    counted = {(row.layer, row.phase): row.calls for row in report.rows}
    layers = ("Qwen3Attention 0", "Qwen3Attention 1")
    assert counted == {(layer, phase): calls for layer in layers for phase, calls in (("prefill", 1), ("decode", 2))}
    assert (report.calls, report.fallbacks, report.reasons()) == (6, 0, {})
    assert "8 to 9" in str(report)  # the decode steps' keys


@pytest.fixture
def one_kernel(monkeypatch):
    """Only the first of the package: which calls another takes is not what the test is about."""
    monkeypatch.setattr(registry, "PACKAGES", registry.PACKAGES[:1])
    caches = decide, decision._decided
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.usefixtures("one_kernel")
def test_the_lengths_shown_are_the_least_and_the_most_in_any_order():
    nki_hf.explain(reset=True)
    for seqlen_q, seqlen_kv in ((9, 20), (3, 1200), (12, 30), (5, 21)):
        nki_hf.attention(torch.randn(1, 1, seqlen_q, 8), *(torch.randn(1, 1, seqlen_kv, 8) for _ in range(2)))
    (row,) = nki_hf.explain().rows
    assert (row.seqlens_q, row.seqlens_kv, row.calls) == ((3, 12), (20, 1200), 4)
    assert "3 to 12   20 to 1,200" in str(nki_hf.explain())


def test_query_tiles_that_fail_the_certificate_are_counted():
    """Scores of row 130 reach 200, far above what a constant shift can do: its tile of one head runs again, of 2 x 2 x 2."""
    nki_hf.explain(reset=True)
    q, k, v = (torch.randn(2, 2, 256, 64, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(0)) for _ in range(3))
    q[1, 0, 130] = 200.0 * k[1, 0, 5] / k[1, 0, 5].float().square().sum() * 8
    for _ in range(2):  # recorded, replayed
        nki_hf.attention(q, k, v)
    (row,) = nki_hf.explain().rows
    assert row.first.kernel == "flash_const_max"
    assert row.turns == {"recomputed_tile": (2, 16)}
    assert "recomputed_tile 2 of 16" in str(nki_hf.explain())
    q[1, 0, 130] = 0.0
    nki_hf.explain(reset=True)
    nki_hf.attention(q, k, v)
    assert nki_hf.explain().rows[0].turns == {"recomputed_tile": (0, 8)}


def test_a_decision_names_kernel_tiles_chip_and_cores():
    nki_hf.explain(reset=True)
    with nki_hf.using(chip="trn1"):
        nki_hf.attention(*(torch.randn(1, 2, 19, 8) for _ in range(3)), causal=True)
    decision = nki_hf.explain().rows[0].first
    assert (decision.kernel, decision.backend, decision.chip, decision.lnc) == ("flash_prefill", "simulator", "trn1", 1)
    assert decision.tiles["tile_q"] == 128
    assert decision.problem.mask.causal


def test_reasons_are_counted_per_call():
    nki_hf.explain(reset=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            nki_hf.attention(*(torch.randn(1, 2, 9, 8).double() for _ in range(3)))
    reasons = nki_hf.explain().reasons()
    assert {count for text, count in reasons.items() if text.startswith("dtype=float64 ")} == {3}
    assert "dtype=float64" in str(nki_hf.explain())


def test_a_report_before_any_call_says_so():
    nki_hf.explain(reset=True)
    assert str(nki_hf.explain()) == "No attention call yet."


def test_apply_switches_and_reports_every_part():
    model = tiny_qwen3()
    report = nki_hf.apply(model)
    assert model.config._attn_implementation == "nki"
    assert [(row.part, row.status) for row in report.rows] == [("(model)", "routed"), ("model", "routed")]
    assert report.complete
    assert "All parts" in str(report)


def test_apply_names_what_keeps_its_own_attention():
    config = transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=4)
    report = nki_hf.apply(build(transformers.BloomForCausalLM, config))
    assert not report.complete
    assert {row.status for row in report.rows} == {"unsupported"}
    assert "does not use Transformers' attention interface" in str(report)


def test_apply_reaches_a_part_that_holds_a_copy_of_its_configuration():
    import copy

    model = tiny_qwen3()
    model.model.config = copy.deepcopy(model.config)
    assert nki_hf.apply(model).complete
    nki_hf.explain(reset=True)
    model(token_ids())
    assert nki_hf.explain().calls == 2


def test_apply_refuses_anything_else():
    with pytest.raises(TypeError, match="model=Linear"):
        nki_hf.apply(torch.nn.Linear(2, 2))


def two_kinds():
    return tiny_qwen3(sliding_window=4, use_sliding_window=True, layer_types=["sliding_attention", "full_attention"])


@pytest.fixture
def folder(tmp_path):
    tiny_qwen3(
        sliding_window=4, use_sliding_window=True, layer_types=["sliding_attention", "full_attention"]
    ).config.save_pretrained(tmp_path)
    return str(tmp_path)


def test_the_forecast_is_what_the_model_then_runs(folder):
    rows = tool.run(folder, seqlen=7, batch=2, padded=True, dtype="float32", decode=False)
    model = two_kinds()
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[0, :3] = 0
    nki_hf.explain(reset=True)
    logits(model, "nki", token_ids(), attention_mask=mask)
    ran = nki_hf.explain().rows
    assert [(row.layer, row.kernel, row.tiles) for row in rows] == [
        (row.layer, row.first.kernel, dict(row.first.tiles)) for row in ran
    ]
    assert [row.mask for row in rows] == ["band + bounds: ahead 1, window 4, offset 0", "band + bounds: ahead 1, offset 0"]


def test_the_command_prints_layers_phases_and_a_verdict(folder):
    done = CliRunner().invoke(app, ["explain", "--model", folder, "--seqlen", "16"], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert "prefill" in done.output
    assert "decode" in done.output
    assert "4 attention calls, 0 of them run torch instead of a kernel." in done.output


def test_the_command_says_why_a_layer_falls_back(tmp_path):
    tiny_qwen3(head_dim=300).config.save_pretrained(tmp_path)
    done = CliRunner().invoke(app, ["explain", "--model", str(tmp_path), "--seqlen", "16", "--json"])
    rows = json.loads(done.stdout)
    assert {row["kernel"] for row in rows} == {"sdpa"}
    assert all("head_dim=300" in row["reasons"][0] for row in rows)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--model", "no_such_type"], "model='no_such_type' is not"),
        (["--model", "qwen3", "--dtype", "float8"], "dtype='float8'"),
        (["--model", "qwen3", "--chip", "trn9"], "trn1, trn2, trn3"),
    ],
)
def test_wrong_use_exits_with_two_and_one_line(arguments, text):
    done = CliRunner().invoke(app, ["explain", *arguments])
    assert done.exit_code == 2
    assert text in done.output


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("falcon", "FalconForCausalLM is unsupported, its attention does not use Transformers' attention interface"),
        ("bloom", "BloomForCausalLM is unsupported, its attention does not use Transformers' attention interface"),
        ("mamba", "MambaForCausalLM is no attention, its file has no attention class"),
    ],
)
def test_a_model_that_does_not_route_is_named_with_the_reason(model, text):
    done = CliRunner().invoke(app, ["explain", "--model", model, "--seqlen", "16"])
    assert done.exit_code == 2
    assert f"model='{model}' has no attention that could reach a kernel" in done.output
    assert text in done.output


def test_support_table_is_current():
    page = Path(__file__).parents[2] / "docs" / "support.md"
    assert page.read_text() == support_table(), "run: python -m nki_hf explain --support > docs/support.md"


def test_support_table_says_what_calls_meet():
    rows = {line.split(" | ")[0].strip("| "): line for line in support_table().splitlines() if line.startswith("| ")}
    assert rows["head_dim 256"].count("`flash_") == 3
    assert rows["head_dim 257"].count("torch: head_dim must be 1 to 256") == 1  # trn1 has no kernel of 512
    assert rows["gradients of any of these, head_dim up to 256"].count("`flash_backward`") == 3
    assert rows["head_dim 513"].count("torch: head_dim must be 1 to 256") == 3
