"""Training steps of whole models with nki attention: the losses are those of eager, and every gradient comes from a kernel."""

import copy

import pytest
import torch
from tiny import SIZES, build, tiny_qwen3
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import nki_hf

LENGTH = 48


def gemma3():
    return build(
        Gemma3ForCausalLM, Gemma3TextConfig(**SIZES, sliding_window=16, layer_types=["sliding_attention", "full_attention"])
    )


def gpt_oss():
    config = GptOssConfig(**SIZES, num_local_experts=2, num_experts_per_tok=1, sliding_window=16)
    return build(GptOssForCausalLM, config)


def t5():
    sizes = {"vocab_size": 64, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0}
    return build(T5ForConditionalGeneration, T5Config(**sizes, decoder_start_token_id=0))


def batch(step, *, padded=False, packed=False):
    draw = torch.Generator().manual_seed(step)
    ids = torch.randint(1, 64, (2, LENGTH), generator=draw)
    inputs = {"input_ids": ids, "labels": ids.clone()}
    if padded:
        inputs["attention_mask"] = torch.ones_like(ids)
        inputs["attention_mask"][1, 30:] = 0
        inputs["labels"][1, 30:] = -100
    if packed:
        lengths = (11, 20, 17)
        inputs = {"input_ids": ids[:1], "labels": ids[:1].clone()}
        inputs["position_ids"] = torch.cat([torch.arange(length) for length in lengths])[None]
    return inputs


def losses(model, implementation, steps, *, checkpointing=False, **kind):
    model = copy.deepcopy(model).train()
    model.set_attn_implementation(implementation)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    found = []
    for step in range(steps):
        loss = model(**batch(step % 4, **kind), **({} if "T5" in type(model).__name__ else {"use_cache": False})).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


CASES = {
    "qwen3": (tiny_qwen3, {}),
    "qwen3_padded": (tiny_qwen3, {"padded": True}),
    "qwen3_packed": (tiny_qwen3, {"packed": True}),
    "qwen3_checkpointed": (tiny_qwen3, {"checkpointing": True}),
    "gemma3": (gemma3, {}),
    "gpt_oss": (gpt_oss, {}),
    "t5": (t5, {"padded": True}),
}


def check(name, steps):
    make, kind = CASES[name]
    model = make()
    expected = losses(model, "eager", steps, **kind)
    nki_hf.explain(reset=True)
    found = losses(model, "nki", steps, **kind)
    report = nki_hf.explain(reset=True)
    assert expected[-1] < expected[0] - 0.1 * (steps > 10)
    assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) <= 1e-3
    assert report.gradients >= 2 * steps
    assert report.fallbacks == 0, report.reasons()


@pytest.mark.parametrize("name", CASES)
def test_five_steps_are_those_of_eager(name):
    check(name, 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_twenty_steps_are_those_of_eager(name):
    check(name, 20)


def test_strict_settings_refuse_gradients_that_no_kernel_computes():
    # A kernel takes the forward call; without one for its gradients the formulas run, and are counted.
    from unittest import mock

    from nki_hf.kernels import registry

    q, k, v = (torch.randn(1, 2, 9, 16, requires_grad=True) for _ in range(3))
    only = [each for each in registry.PACKAGES if "backward" not in each]
    from nki_hf.adapters import decision
    from nki_hf.dispatch import decide

    with mock.patch.object(registry, "PACKAGES", only):
        decide.cache_clear()
        decision._decided_gradients.cache_clear()
        try:
            nki_hf.explain(reset=True)
            with pytest.warns(UserWarning, match="gradients"):
                nki_hf.attention(q, k, v, causal=True)[0].sum().backward()
            report = nki_hf.explain(reset=True)
            assert (report.gradients, report.fallbacks) == (1, 1)
            with nki_hf.using(strict=True), pytest.raises(nki_hf.UnsupportedProblem):
                nki_hf.attention(q, k, v, causal=True)[0].sum().backward()
        finally:
            decide.cache_clear()
            decision._decided_gradients.cache_clear()
