"""The benchmark end to end on a tiny model: rows, verdict, controls that must fail, padding, decode, cache, bad input."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from pydantic import TypeAdapter

from nki_hf.chips import CHIPS
from nki_hf.errors import BackendUnavailable
from nki_hf.tools.model_bench import eager_in_rows
from nki_hf.tools.model_bench.memory import eager_score_bytes, eager_skip_reason
from nki_hf.tools.model_bench.model import QWEN3_0_6B, load_subject
from nki_hf.tools.model_bench.options import BenchOptions, WrongUse
from nki_hf.tools.model_bench.record import BenchResult, schema
from nki_hf.tools.model_bench.run import _verdict, run


@pytest.fixture
def tiny(tiny_folder, tmp_path):
    def options(**changes):
        given = {"layers": 2, "seqlen": 160, "iters": 2, "device": "cpu", "attn": ("eager", "sdpa")}
        return BenchOptions(model=str(tiny_folder), cache_dir=tmp_path / "cache", json=tmp_path / "r.json", **given | changes)

    return options


def _silent(text):
    raise AssertionError(f"nothing was to be said: {text}")


def _run(options):
    return run(options, say=_silent)


def _probs(query, key, mask, scaling, keep_mask=True):
    group = query.shape[1] // key.shape[1]
    scores = query.float() @ key.repeat_interleave(group, 1).float().transpose(2, 3) * scaling
    if keep_mask:
        causal = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~causal, -torch.inf)
    return scores.softmax(-1)


def _out(probs, value):
    group = probs.shape[1] // value.shape[1]
    return (probs @ value.repeat_interleave(group, 1).float()).to(value.dtype)


def test_a_folder_without_a_tokenizer_is_one_line(tiny_folder, tmp_path):
    for file in ("config.json", "model.safetensors"):
        shutil.copy(tiny_folder / file, tmp_path)
    options = BenchOptions(model=str(tmp_path), layers=2, seqlen=16, device="cpu")
    with pytest.raises(WrongUse, match="tokenizer") as caught:
        load_subject(options)
    assert "\n" not in str(caught.value)


CONTROLS = {
    "uniform_weights": lambda q, k, v, m, s: _out(_probs(q * 0, k, m, s), v),
    "double_scale": lambda q, k, v, m, s: _out(_probs(q, k, m, 2 * s), v),
    "no_mask": lambda q, k, v, m, s: _out(_probs(q, k, m, s, keep_mask=False), v),
    "swapped_heads": lambda q, k, v, m, s: _out(_probs(q, k, m, s), v).roll(1, dims=1),
    "zeros": lambda q, k, v, m, s: torch.zeros_like(q),
}
SOUND = {"sound": lambda q, k, v, m, s: _out(_probs(q, k, m, s), v)}


@pytest.fixture
def registered(monkeypatch):
    """Registers an attention for one test, under the name `control`."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def register(function):
        def attention(module, query, key, value, attention_mask, scaling, **_):
            return function(query, key, value, attention_mask, scaling).transpose(1, 2).contiguous(), None

        ALL_ATTENTION_FUNCTIONS.register("control", attention)
        ALL_MASK_ATTENTION_FUNCTIONS.register("control", ALL_MASK_ATTENTION_FUNCTIONS["eager"])
        return "control"

    return register


def test_eager_and_sdpa_pass(tiny):
    result = _run(tiny())
    assert result.passed, result.verdict
    eager, sdpa = result.rows
    assert eager.accuracy.rms_ratio == pytest.approx(1.0, abs=0.02)
    assert sdpa.accuracy.rms_ratio < 1.2
    assert eager.speed_against_eager == 1.0
    assert sdpa.speed_against_eager == pytest.approx(eager.timing.mean_s / sdpa.timing.mean_s)
    assert sdpa.prompts_per_s == pytest.approx(1 / sdpa.timing.mean_s)
    assert sdpa.tokens_per_s == pytest.approx(160 / sdpa.timing.mean_s)
    assert len(sdpa.timing.iterations_s) == 2
    assert "simulator" in result.header["nki kernels"]
    assert "alice" in result.header["input"]


@pytest.mark.parametrize("name", CONTROLS)
def test_a_wrong_attention_fails_the_verdict(tiny, registered, name):
    result = _run(tiny(attn=(registered(CONTROLS[name]),), iters=1, warmup=0))
    assert not result.passed
    assert "times that of eager" in result.verdict


def test_the_controls_fail_for_what_they_change_alone(tiny, registered):
    result = _run(tiny(attn=(registered(SOUND["sound"]),), iters=1, warmup=0))
    assert result.passed, result.verdict


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTROLS)
def test_a_wrong_attention_fails_on_the_offline_preset(registered, tmp_path, name):
    options = BenchOptions(attn=(registered(CONTROLS[name]),), seqlen=256, iters=1, warmup=0, device="cpu", cache_dir=tmp_path)
    assert not _run(options).passed


def test_the_reference_comes_from_the_cache_the_second_time(tiny):
    assert _run(tiny(attn=("sdpa",))).reference["from_cache"] == "no"
    assert _run(tiny(attn=("sdpa",))).reference["from_cache"] == "yes"
    assert _run(tiny(attn=("sdpa",), seqlen=161)).reference["from_cache"] == "no"


def test_a_damaged_reference_is_said_and_computed_again(tiny):
    options = tiny(attn=("sdpa",))
    first = _run(options)
    for path in options.reference_dir.glob("*.ref"):
        path.write_bytes(path.read_bytes()[:-1])
    said = []
    again = run(options, say=said.append)
    assert [("cannot be used" in text) for text in said] == [True, True]
    assert again.rows[0].accuracy == first.rows[0].accuracy


def test_padding_is_neither_counted_nor_compared(tiny):
    result = _run(tiny(padded=True, batch_size=2))
    assert result.passed, result.verdict
    row = result.rows[1]
    assert row.tokens_per_s == pytest.approx((320 - 40 - 80) / row.timing.mean_s)
    assert row.prompts_per_s == pytest.approx(2 / row.timing.mean_s)


def test_decode_with_a_cache_is_timed_apart_and_checked(tiny):
    result = _run(tiny(decode_steps=3, padded=True, batch_size=2))
    assert result.passed, result.verdict
    decode = result.rows[0].decode
    assert (len(decode.prefill.iterations_s), len(decode.step.iterations_s)) == (2, 3)
    assert decode.accuracy.rms_ratio == pytest.approx(1.0, abs=0.25)


def test_a_wrong_decode_alone_fails_the_verdict(tiny, registered):
    def forgets_the_cache(q, k, v, m, s):
        return _out(_probs(q, k, m, s), v) if q.shape[2] > 1 else v[:, :, -1:].repeat_interleave(q.shape[1] // v.shape[1], 1)

    result = _run(tiny(attn=(registered(forgets_the_cache),), decode_steps=2, iters=1))
    assert result.rows[0].accuracy.passed
    assert not result.rows[0].decode.accuracy.passed
    assert not result.passed


def test_float32_is_judged_against_float64(tiny):
    result = _run(tiny(dtype="fp32"))
    assert result.reference["what"].startswith("eager in float64")
    assert 0 < result.baseline_rms < 1e-5
    assert result.passed, result.verdict


@pytest.mark.parametrize("block_bytes", [1, 40_000, 2**30])
@pytest.mark.parametrize("padded", [False, True])
def test_eager_in_rows_is_eager(tiny, block_bytes, padded, monkeypatch):
    monkeypatch.setattr(eager_in_rows, "BLOCK_BYTES", block_bytes)
    subject = load_subject(tiny(dtype="fp32", padded=padded, batch_size=2))
    out = {}
    for name in ("eager", eager_in_rows.register()):
        subject.model.set_attn_implementation(name)
        with torch.inference_mode():
            out[name] = subject.model(
                input_ids=subject.prompt.input_ids, attention_mask=subject.prompt.attention_mask
            ).last_hidden_state
    valid = subject.prompt.valid
    torch.testing.assert_close(out["eager_in_rows"][valid], out["eager"][valid], atol=2e-5, rtol=0)


def test_eager_is_skipped_with_the_figure_where_its_scores_do_not_fit(tiny):
    subject = load_subject(tiny(seqlen=128, batch_size=2))
    needed = 2 * 4 * 128 * 128 * (2 + 2 + 4 + 4)
    assert eager_score_bytes(subject) == needed
    assert eager_skip_reason(subject, "cpu", needed) == ""
    assert "2 x 4 heads x 128 x 128" in eager_skip_reason(subject, "cpu", needed - 1)
    assert eager_skip_reason(subject, "cpu", None) == ""


def test_a_skipped_eager_row_leaves_the_others_running(tiny, monkeypatch):
    monkeypatch.setattr("nki_hf.tools.model_bench.run.available_bytes", lambda device: 1000)
    result = _run(tiny())
    assert "GiB" in result.rows[0].skipped
    assert result.rows[0].timing is None
    assert result.rows[1].speed_against_eager is None
    assert result.passed, result.verdict


def test_the_json_file_holds_the_record_and_fits_the_schema(tiny):
    options = tiny(decode_steps=2)
    result = _run(options)
    result.write(options.json)
    text = options.json.read_text()
    assert TypeAdapter(BenchResult).validate_json(text) == result
    assert set(json.loads(text)) == set(schema()["properties"])
    assert not list(options.json.parent.glob(".writing-*"))


def test_the_same_seed_gives_the_same_model_and_another_seed_another(monkeypatch):
    monkeypatch.setitem(QWEN3_0_6B, "vocab_size", 512)
    first, again, other = (load_subject(BenchOptions(layers=1, seqlen=8, seed=seed)).fingerprint() for seed in (0, 0, 1))
    assert first == again
    assert first["weights_sha256"] != other["weights_sha256"]
    assert first["input_ids_sha256"] != other["input_ids_sha256"]


def test_the_offline_model_has_the_published_dimensions():
    subject = load_subject(BenchOptions(layers=1, seqlen=8))
    layer = subject.model.layers[0]
    assert tuple(subject.model.embed_tokens.weight.shape) == (151936, 1024)
    assert tuple(layer.self_attn.q_proj.weight.shape) == (16 * 128, 1024)
    assert tuple(layer.self_attn.k_proj.weight.shape) == (8 * 128, 1024)
    assert tuple(layer.mlp.up_proj.weight.shape) == (3072, 1024)
    assert subject.model.dtype == torch.bfloat16
    assert subject.model.rotary_emb.inv_freq[1].item() == pytest.approx(1e6 ** (-2 / 128))


def test_a_model_folder_that_does_not_exist_is_named(tiny):
    with pytest.raises(WrongUse, match=r"model='/no/such/folder' is no folder: --model takes a local folder"):
        load_subject(BenchOptions(model="/no/such/folder"))


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(WrongUse, match=r"holds no model that Transformers can load"):
        load_subject(BenchOptions(model=str(tmp_path)))


def test_more_layers_than_the_model_has_are_refused(tiny):
    with pytest.raises(WrongUse, match=r"layers=3 is more than .* has: it has 2"):
        load_subject(tiny(layers=3))


def test_a_device_that_is_not_here_is_one_line(tiny):
    with pytest.raises(BackendUnavailable, match=r"^device='neuron' is not on this machine: .*") as caught:
        _run(tiny(device="neuron"))
    assert "\n" not in str(caught.value)


def test_nki_runs_strict_without_fallback_and_counts_its_kernel_calls(tiny):
    result = _run(tiny(attn=("eager", "sdpa", "nki"), padded=True, batch_size=2))
    assert result.passed, result.verdict
    row = result.rows[2]
    assert (row.kernel_calls, row.fallbacks) == (2 * (1 + 1 + 2), 0)  # layers x (first + warm-up + timed)
    assert row.accuracy.rms_ratio <= 1.2
    assert [(ran.kernel, ran.phase, ran.calls) for ran in row.ran] == [("flash_const_max", "prefill", 4)] * 2
    assert (result.rows[0].kernel_calls, result.rows[0].ran) == (None, ())


def test_nki_decodes_with_a_cache(tiny):
    result = _run(tiny(attn=("nki",), decode_steps=3, batch_size=2))
    assert result.passed, result.verdict
    (row,) = result.rows
    assert row.decode.accuracy.passed
    assert row.decode.tokens_per_s == pytest.approx(2 / row.decode.step.mean_s)
    assert {ran.kernel for ran in row.ran if ran.phase == "decode"} == {"flash_decode"}
    (steps,) = result.modelled_decode
    assert steps.layers == 2
    assert [(step["chip"], step["kernel"]) for step in steps.rows] == [(chip, "flash_decode") for chip in CHIPS]
    for step in steps.rows:
        assert step["tokens_per_s_simulated"] == pytest.approx(2 * 1e6 / (2 * step["us_simulated"]))
        assert 0 < step["bandwidth_share_simulated"] < 1
        assert step["band"].startswith(f"decode attention, {step['chip']}: ")


@pytest.mark.parametrize(
    ("calls", "fallbacks", "text"), [(5, 3, "3 calls fell back to torch"), (0, 0, "no call reached a kernel")]
)
def test_a_fallback_fails_the_verdict_whatever_the_accuracy(tiny, calls, fallbacks, text):
    row = replace(_run(tiny(attn=("sdpa",))).rows[0], attn="nki", kernel_calls=calls, fallbacks=fallbacks)
    passed, verdict = _verdict([row])
    assert not passed
    assert text in verdict


def test_profile_writes_every_event_of_the_kernels_as_json_lines(tiny):
    options = tiny(attn=("nki", "sdpa"), iters=1, profile=True)
    said = []
    run(options, say=said.append)
    lines = [json.loads(line) for line in options.profile_path.read_text().splitlines()]
    (launch,) = (line["launch"] for line in lines if "launch" in line)
    assert launch["kernel"] == "flash_const_max"
    assert (launch["problem"]["seqlen_q"], launch["problem"]["num_heads_q"], launch["mask"]["ahead"]) == (160, 4, 1)
    events = [line for line in lines if "launch" not in line]
    assert said == [f"{len(events):,} events of 1 launches: {options.profile_path}"]
    assert {"tensor", "scalar", "vector", "dma"} <= {event["engine"] for event in events}
    written = sum(r["bytes"] for event in events for r in event["writes"] if r["space"] == "shared_hbm")
    assert written == 160 * 4 * (32 * 2 + 4)  # out in bf16 and lse in fp32, each element once


def test_the_modelled_times_are_of_the_calls_that_ran_and_say_simulated(tiny):
    result = _run(tiny(attn=("nki",), iters=1))
    (entry,) = result.modelled
    assert entry.layers == 2
    assert "seqlen_q=160" in entry.problem
    assert [row["chip"] for row in entry.rows] == ["trn1", "trn2", "trn3"]
    for row in entry.rows:
        assert 0 < row["nki_us_simulated"]
        assert row["nki_model_ms_simulated"] == pytest.approx(2 * row["nki_us_simulated"] / 1e3)
    assert _run(tiny(attn=("sdpa",), iters=1)).modelled == ()
