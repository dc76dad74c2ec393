"""Failures that were reported elsewhere, as regression tests of tiny models against eager."""

import pytest
import torch
import transformers
from tiny import build, logits, tiny_qwen3, token_ids, worst

import nki_hf
from nki_hf import UnsupportedProblem
from nki_hf.adapters.transformers import nki_attention

TOLERANCE = 1e-4


@pytest.fixture(autouse=True)
def _strict():
    with nki_hf.using(strict=True):
        yield


@pytest.fixture
def seen(monkeypatch):
    """The masks and keyword arguments that reach the attention function."""
    calls = []

    def spy(module, query, key, value, attention_mask, **kwargs):
        calls.append({"mask": attention_mask, "seqlen_kv": key.shape[2], **kwargs})
        return nki_attention(module, query, key, value, attention_mask, **kwargs)

    table = transformers.modeling_utils.AttentionInterface._global_mapping
    monkeypatch.setitem(table, "nki", spy)
    return calls


def padded(side="left", length=7, pads=3):
    mask = torch.ones(2, length, dtype=torch.long)
    mask[0, slice(0, pads) if side == "left" else slice(length - pads, None)] = 0
    return mask


def louder(model, factor=20):
    """Weights large enough for an option of the scores to show."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                weight.mul_(factor)
    return model


def mistral(**changes):
    return build(
        transformers.MistralForCausalLM, transformers.MistralConfig(**{**tiny_sizes(), "sliding_window": 4, **changes})
    )


def tiny_sizes():
    return {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 64,
        "max_position_embeddings": 128,
    }


def test_padding_reaches_the_kernel():
    model, ids, mask = tiny_qwen3(), token_ids(), padded()
    expected = logits(model, "eager", ids, attention_mask=mask)
    assert worst(logits(model, "nki", ids, attention_mask=mask), expected, mask) <= TOLERANCE
    assert worst(logits(model, "nki", ids), expected, mask) > 0.01  # what it costs to lose the mask


def test_the_mask_that_arrives_is_boolean_4d_or_none(seen):
    model, ids = tiny_qwen3(), token_ids()
    logits(model, "nki", ids)
    logits(model, "nki", ids, attention_mask=padded())
    assert [call["mask"] is None for call in seen] == [True, True, False, False]
    assert (seen[2]["mask"].dtype, seen[2]["mask"].shape) == (torch.bool, (2, 1, 7, 7))
    assert seen[2]["mask"][1, 0].equal(torch.ones(7, 7, dtype=torch.bool).tril())


def test_output_attentions_are_never_silently_empty():
    model, ids = tiny_qwen3(), token_ids()
    model.set_attn_implementation("eager")
    expected = model(ids, output_attentions=True).attentions
    model.set_attn_implementation("nki")
    with pytest.raises(UnsupportedProblem, match="output_attentions"):
        model(ids, output_attentions=True)
    with nki_hf.using(strict=False):
        found = model(ids, output_attentions=True).attentions
    assert len(found) == 2
    assert max(worst(a.detach(), b.detach()) for a, b in zip(found, expected, strict=True)) <= 1e-6


def test_softcap_arrives_and_counts():
    config = transformers.Gemma2Config(**tiny_sizes(), attn_logit_softcapping=5.0, query_pre_attn_scalar=64, sliding_window=4)
    model, ids = louder(build(transformers.Gemma2ForCausalLM, config)), token_ids()
    expected = logits(model, "eager", ids)
    assert worst(logits(model, "nki", ids), expected) <= TOLERANCE
    for each in model.modules():
        if hasattr(each, "attn_logit_softcapping"):
            each.attn_logit_softcapping = None
    assert worst(logits(model, "nki", ids), expected) > 10 * TOLERANCE


def test_scaled_scores_of_ten_and_zero_under_a_cap_of_five():
    q, k = torch.ones(1, 1, 1, 1), torch.tensor([10.0, 0.0]).view(1, 1, 2, 1)
    v = torch.eye(2).view(1, 1, 2, 2)
    out = nki_hf.attention(q, k, v, scale=1.0, softcap=5.0)
    torch.testing.assert_close(out.flatten(), torch.tensor([0.99200, 0.00800]), rtol=0, atol=1e-5)


def test_sinks_count_and_learn():
    config = transformers.GptOssConfig(**tiny_sizes(), num_local_experts=2, num_experts_per_tok=1, sliding_window=4)
    model, ids = build(transformers.GptOssForCausalLM, config), token_ids()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.sinks.copy_(torch.tensor([0.5, -1.0, 2.0, 1.0]))
    expected = logits(model, "eager", ids)
    assert worst(logits(model, "nki", ids), expected) <= TOLERANCE
    grads = {}
    for name in ("eager", "nki"):
        model.zero_grad()
        model.set_attn_implementation(name)
        model(ids, labels=ids).loss.backward()
        grads[name] = model.model.layers[0].self_attn.sinks.grad.clone()
    torch.testing.assert_close(grads["nki"], grads["eager"], rtol=1e-4, atol=1e-7)


def test_a_sink_of_zero_beside_three_zero_scores_takes_a_quarter():
    q, k = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 3, 4)
    out, lse = nki_hf.attention(q, k, torch.eye(3)[None, None], sink=torch.zeros(1), return_lse=True)
    torch.testing.assert_close(out.flatten(), torch.full((3,), 0.25))
    assert float(lse) == pytest.approx(1.38629, abs=1e-5)


@pytest.mark.parametrize("family", ["Gemma2", "Gemma3"])
def test_a_scale_of_its_own(family):
    name = "Gemma3TextConfig" if family == "Gemma3" else "Gemma2Config"
    config = getattr(transformers, name)(**{**tiny_sizes(), "head_dim": 128, "query_pre_attn_scalar": 144, "sliding_window": 4})
    model, ids = louder(build(getattr(transformers, f"{family}ForCausalLM"), config), 4), token_ids()
    assert worst(logits(model, "nki", ids), logits(model, "eager", ids)) <= TOLERANCE


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_batch_is_its_prompts_one_by_one(side):
    model, ids, mask = tiny_qwen3(), token_ids(), padded(side)
    model.set_attn_implementation("nki")
    ids = ids.masked_fill(mask == 0, 0)
    with torch.no_grad():
        together = model.model(ids, attention_mask=mask).last_hidden_state
    for row in range(2):
        with torch.no_grad():
            alone = model.model(ids[row : row + 1, mask[row].bool()]).last_hidden_state[0, -1]
        last = int(mask[row].nonzero()[-1])
        assert float((together[row, last] - alone).abs().max()) <= 1e-5
        assert float(torch.cosine_similarity(together[row, last], alone, dim=0)) > 0.99999


def test_greedy_tokens_of_a_padded_batch_are_those_of_each_prompt():
    model, ids, mask = tiny_qwen3(), token_ids(), padded()
    model.set_attn_implementation("nki")
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    together = model.generate(ids.masked_fill(mask == 0, 0), attention_mask=mask, **options)[:, 7:]
    for row in range(2):
        alone = model.generate(ids[row : row + 1, mask[row].bool()], **options)[:, -4:]
        assert torch.equal(together[row : row + 1], alone)


@pytest.mark.parametrize(("window", "visible"), [(4, [1, 2, 3, 4, 4, 4, 4]), (1, [1] * 7), (7, None), (9, None)])
def test_the_window_counts_the_query_itself(window, visible, seen):
    model, ids = mistral(sliding_window=window), token_ids()
    assert worst(logits(model, "nki", ids), logits(model, "eager", ids)) <= TOLERANCE
    mask = seen[0]["mask"]
    expected = list(range(1, 8)) if visible is None else visible
    assert mask is None or mask[0, 0].sum(-1).tolist() == expected
    out = nki_hf.attention(
        torch.zeros(1, 1, 7, 8), torch.zeros(1, 1, 7, 8), torch.eye(7)[None, None], causal=True, window=window
    )
    assert (out[0, 0] > 0).sum(-1).tolist() == expected


def test_the_window_is_that_of_the_call_not_of_the_configuration():
    ids = token_ids(length=12)
    unused = tiny_qwen3(sliding_window=4, use_sliding_window=False)
    full = tiny_qwen3(sliding_window=None)
    assert worst(logits(unused, "nki", ids), logits(unused, "eager", ids)) <= TOLERANCE
    assert worst(logits(unused, "nki", ids), logits(full, "nki", ids)) <= TOLERANCE
    mixed = tiny_qwen3(sliding_window=4, use_sliding_window=True, layer_types=["sliding_attention", "full_attention"])
    expected = logits(mixed, "eager", ids)
    assert worst(logits(mixed, "nki", ids), expected) <= TOLERANCE
    assert worst(expected, logits(full, "eager", ids)) > 1e-3


def _in_steps(model, ids, steps):
    """Logits of the last tokens of each step, with a dynamic cache."""
    cache = transformers.DynamicCache(config=model.config)
    parts = []
    with torch.no_grad():
        for start, stop in steps:
            parts.append(model(ids[:, start:stop], past_key_values=cache, use_cache=True).logits)
    return torch.cat(parts, 1)


def test_decoding_past_the_window_equals_the_uncached_forward(seen):
    model, ids = mistral(), token_ids(length=11)
    model.set_attn_implementation("nki")
    found = _in_steps(model, ids, [(0, 7), (7, 8), (8, 11)])
    widths = [(call["seqlen_kv"], None if call["mask"] is None else tuple(call["mask"].shape)) for call in seen[2::2]]
    assert worst(found, logits(model, "eager", ids)) <= TOLERANCE
    assert widths == [(4, (2, 1, 1, 4)), (6, (2, 1, 3, 6))]


def test_a_later_chunk_sees_the_context():
    model, ids = tiny_qwen3(), token_ids(length=11)
    model.set_attn_implementation("nki")
    found = _in_steps(model, ids, [(0, 8), (8, 11)])
    assert worst(found, logits(model, "eager", ids)) <= TOLERANCE


def test_packed_sequences_are_separate(seen):
    model, ids = tiny_qwen3(), token_ids(1)
    model.set_attn_implementation("nki")
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
    with torch.no_grad():
        packed = model(ids, position_ids=positions, use_cache=False).logits
        parts = [model(ids[:, :3]).logits, model(ids[:, 3:]).logits]
    assert worst(packed, torch.cat(parts, 1)) <= TOLERANCE
    assert seen[0]["mask"].shape == (1, 1, 7, 7)


def test_positions_that_do_not_start_at_zero_are_plain_causal():
    model, ids = tiny_qwen3(), token_ids(1)
    positions = torch.arange(5, 12)[None]
    options = {"position_ids": positions, "use_cache": False}
    assert worst(logits(model, "nki", ids, **options), logits(model, "eager", ids, **options)) <= TOLERANCE


def test_new_tokens_after_a_cache_are_not_packed():
    model, ids = tiny_qwen3(), token_ids(1, length=11)
    expected = logits(model, "eager", ids)[:, 8:]
    model.set_attn_implementation("nki")
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids[:, :8], past_key_values=cache)
        found = model(ids[:, 8:], past_key_values=cache, position_ids=torch.arange(8, 11)[None]).logits
    assert worst(found, expected) <= TOLERANCE


def test_an_encoder_sees_both_ways():
    sizes = {key: value for key, value in tiny_sizes().items() if key not in ("num_key_value_heads", "head_dim")}
    model, ids = build(transformers.BertModel, transformers.BertConfig(**sizes)), token_ids()
    found = {}
    for name in ("eager", "nki"):
        model.set_attn_implementation(name)
        with torch.no_grad():
            found[name] = model(ids).last_hidden_state
            changed = model(torch.cat([ids[:, :-1], ids[:, -1:] % 63 + 1], 1)).last_hidden_state
    assert worst(found["nki"], found["eager"]) <= TOLERANCE
    assert float((changed[:, 0] - found["nki"][:, 0]).abs().max()) > 1e-4


def test_a_head_dim_of_256_is_contracted_in_chunks():
    config = transformers.Gemma2Config(
        **{**tiny_sizes(), "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 256, "max_position_embeddings": 256},
        sliding_window=64,
    )
    model, ids = build(transformers.Gemma2ForCausalLM, config), token_ids(1, length=130)
    assert worst(logits(model, "nki", ids), logits(model, "eager", ids)) <= TOLERANCE


def test_one_training_step_gives_every_projection_eagers_gradient():
    model, ids = tiny_qwen3(), token_ids()
    grads = {}
    for name in ("eager", "nki"):
        model.zero_grad()
        model.set_attn_implementation(name)
        model(ids, labels=ids).loss.backward()
        grads[name] = {key: weight.grad.clone() for key, weight in model.named_parameters()}
    projections = [key for key in grads["eager"] if any(part in key for part in ("q_proj", "k_proj", "v_proj"))]
    assert len(projections) == 6
    for key in projections:
        torch.testing.assert_close(grads["nki"][key], grads["eager"][key], rtol=1e-4, atol=1e-7)


def _bert_with_dropout():
    sizes = {key: value for key, value in tiny_sizes().items() if key not in ("num_key_value_heads", "head_dim")}
    config = transformers.BertConfig(**sizes, attention_probs_dropout_prob=0.5, hidden_dropout_prob=0.0)
    return build(transformers.BertModel, config), token_ids()


def test_dropout_is_off_in_eval():
    model, ids = _bert_with_dropout()
    found = {}
    for name in ("eager", "nki"):
        model.set_attn_implementation(name)
        with torch.no_grad():
            found[name] = model(ids).last_hidden_state
    assert worst(found["nki"], found["eager"]) <= TOLERANCE
    with torch.no_grad():
        assert torch.equal(model(ids).last_hidden_state, found["nki"])


def test_dropout_in_training_is_torchs_counted_and_refused_in_strict():
    model, ids = _bert_with_dropout()
    model.set_attn_implementation("nki")
    with torch.no_grad():
        undropped = model(ids).last_hidden_state
    model.train()
    with pytest.raises(UnsupportedProblem, match=r"dropout=0\.5"):
        model(ids)

    def run(seed):
        torch.manual_seed(seed)
        with torch.no_grad(), nki_hf.using(strict=False):
            return model(ids).last_hidden_state

    nki_hf.explain(reset=True)
    first = run(0)
    assert first.isfinite().all()
    assert torch.equal(first, run(0))
    assert not torch.equal(first, run(1))
    assert nki_hf.explain().fallbacks == 6
    mean = torch.stack([run(seed) for seed in range(100, 300)]).mean(0)
    spread = torch.stack([run(seed) for seed in range(20)]).std(0).mean()
    assert float((mean - undropped).abs().mean()) <= 0.5 * float(spread)


def test_the_op_has_a_fake_form_of_the_right_shape_stride_and_dtype():
    from torch._subclasses.fake_tensor import FakeTensorMode

    from nki_hf.adapters.torch_op import attention_op

    options = (None, None, None, None, 0.3, None, 0, None, 1)
    q, k, v = (torch.randn(2, 4, 9, 8).bfloat16().transpose(1, 2).contiguous().transpose(1, 2) for _ in range(3))
    real = attention_op(q, k, v, *options)
    with FakeTensorMode() as mode:
        fake = attention_op(*(mode.from_tensor(tensor) for tensor in (q, k, v)), *options)
    for ours, theirs in zip(fake, real, strict=True):
        assert (ours.shape, ours.stride(), ours.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)
