"""Around a model: Trainer with gradient checkpointing, a pipeline, saving and loading again."""

import copy

import pytest
import torch
from tiny import logits, tiny_qwen3, token_ids, worst
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments, pipeline

import nki_hf


@pytest.fixture(autouse=True)
def _strict():
    with nki_hf.using(strict=True):
        yield


def test_trainer_with_gradient_checkpointing_arrives_at_eagers_weights(tmp_path):
    ids = token_ids(8, 9)
    data = [{"input_ids": row, "labels": row, "attention_mask": torch.ones_like(row)} for row in ids]
    start, results = tiny_qwen3(), {}
    for implementation in ("eager", "nki"):
        model = copy.deepcopy(start)
        model.set_attn_implementation(implementation)
        arguments = TrainingArguments(
            output_dir=str(tmp_path / implementation), max_steps=3, per_device_train_batch_size=4, use_cpu=True, seed=0,
            gradient_checkpointing=True, report_to=[], save_strategy="no", disable_tqdm=True, learning_rate=0.01,
            optim="sgd", lr_scheduler_type="constant", logging_strategy="no",
        )  # fmt: skip
        Trainer(model=model, args=arguments, train_dataset=data).train()
        results[implementation] = model
    weights = [[p.detach() for p in each.parameters()] for each in (results["nki"], results["eager"], start)]
    got, expected, before = weights
    assert max(map(worst, got, before)) > 1e-4
    assert max(map(worst, got, expected)) < 1e-6


def test_a_pipeline_generates_eagers_text(tiny_folder):
    texts = {}
    for implementation in ("eager", "nki"):
        torch.manual_seed(0)  # the folder holds no head
        generate = pipeline(
            "text-generation", model=str(tiny_folder), device="cpu", model_kwargs={"attn_implementation": implementation}
        )
        assert generate.model.config._attn_implementation == implementation
        texts[implementation] = generate("Alice was beginning", max_new_tokens=5, do_sample=False)[0]["generated_text"]
    assert texts["nki"] == texts["eager"]


def test_saving_keeps_the_weights_but_not_the_choice(tmp_path):
    model, ids = tiny_qwen3(), token_ids()
    expected = logits(model, "nki", ids)
    model.save_pretrained(tmp_path)
    assert "nki" not in (tmp_path / "config.json").read_text()
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert plain.config._attn_implementation != "nki"
    again = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="nki")
    with torch.no_grad():
        assert torch.equal(again(ids).logits, expected)
