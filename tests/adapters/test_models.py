"""Tiny random models of many architectures under "nki" give eager's numbers, through the kernels on the simulator."""

import pytest
from zoo import ARCHITECTURES, MODES, Architecture, build, deviation, run_mode, verdict

import nki_hf

REPRESENTATIVE = """
    decoder/llama decoder/qwen3 decoder/gemma2 decoder/gemma3_text decoder/gpt_oss decoder/mistral decoder/deepseek_v3
    decoder/deepseek_v32 decoder/minimax_m3_vl_text decoder/doge decoder/gpt2 encoder/bert encoder/modernbert seq2seq/t5
    seq2seq/bart vision/vit two_towers/clip audio/wav2vec2 audio2text/whisper multimodal/gemma3 multimodal/llava
""".split()

WITHOUT_MODE = {
    ("deepseek_v4", "static"): "its compressed layers have no static cache, in eager either",
}


def _identity(architecture: Architecture) -> str:
    return f"{architecture.kind.replace(' ', '_')}/{architecture.name}"


def _parameters():
    for architecture in ARCHITECTURES:
        identity = _identity(architecture)
        marks = () if identity in REPRESENTATIVE else (pytest.mark.slow,)
        yield pytest.param(architecture, id=identity, marks=marks)


SHARP = 3.0
"""Times the weights of query and key: scores nine times as large, so that the wrong keys cost more than the tolerance."""


@pytest.mark.parametrize("scale", [1.0, pytest.param(SHARP, id="sharp")])
@pytest.mark.parametrize("architecture", list(_parameters()))
def test_every_mode_equals_eager_through_the_kernels(architecture, scale):
    model = build(architecture, scale=scale)
    for mode in MODES[architecture.kind]:
        if (architecture.name, mode) in WITHOUT_MODE:
            continue
        expected = run_mode(architecture, model, "eager", mode)
        nki_hf.explain(reset=True)
        with nki_hf.using(strict=True):
            found = run_mode(architecture, model, "nki", mode)
        report = nki_hf.explain()
        assert report.calls > 0, mode
        assert report.fallbacks == 0, mode
        assert verdict(found, expected, architecture, model, mode) in ("equal", "as sdpa"), mode


def test_the_zoo_covers_at_least_sixty_architectures_of_text_vision_audio_and_both():
    assert len({architecture.name for architecture in ARCHITECTURES}) >= 60
    assert {architecture.kind for architecture in ARCHITECTURES} == set(MODES)
    assert set(REPRESENTATIVE) <= {_identity(architecture) for architecture in ARCHITECTURES}


UNROUTED = {
    "bloom": "BloomForCausalLM",
    "gpt_neox_japanese": "GPTNeoXJapaneseForCausalLM",
    "mpt": "MptForCausalLM",
    "mvp": "MvpForCausalLM",
    "rembert": "RemBertForCausalLM",
    "roformer": "RoFormerForCausalLM",
    "xglm": "XGLMForCausalLM",
}


@pytest.mark.parametrize("name", UNROUTED)
def test_a_model_that_never_asks_for_an_attention_is_not_corrupted_by_the_mask(name):
    architecture = Architecture(name=name, model=UNROUTED[name], kind="decoder")
    model = build(architecture)
    expected = run_mode(architecture, model, "eager", "left")
    model.config._attn_implementation = "nki"  # set_attn_implementation declines
    nki_hf.explain(reset=True)
    found = run_mode(architecture, model, "nki", "left")
    assert nki_hf.explain().calls == 0
    assert deviation(found, expected) <= 1e-6
