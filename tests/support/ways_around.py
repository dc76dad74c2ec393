"""Ways around a model: Trainer with gradient checkpointing, pipelines, autocast, saving and loading again."""

import copy
import tempfile
from pathlib import Path

import torch
from tiny import worst
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Trainer, TrainingArguments, pipeline
from ways_graphs import Figure
from ways_models import VOCABULARY, inputs, padding, training_inputs


def trained_by_trainer(model, kind):
    """Three steps of Trainer with gradient checkpointing: the farthest weight from eager's."""
    given = training_inputs(kind, 8, 9, padding(8, 9))
    given.pop("use_cache", None)
    data = [{name: tensor[row] for name, tensor in given.items()} for row in range(8)]
    weights = {}
    with tempfile.TemporaryDirectory() as folder:
        for implementation in ("eager", "nki"):
            each = copy.deepcopy(model)
            each.set_attn_implementation(implementation)
            arguments = TrainingArguments(
                output_dir=str(Path(folder) / implementation),
                max_steps=3,
                per_device_train_batch_size=4,
                use_cpu=True,
                seed=0,
                gradient_checkpointing=True,
                report_to=[],
                save_strategy="no",
                disable_tqdm=True,
                learning_rate=0.01,
                optim="sgd",
                lr_scheduler_type="constant",
                logging_strategy="no",
            )
            Trainer(model=each, args=arguments, train_dataset=data).train()
            weights[implementation] = [weight.detach() for weight in each.parameters()]
    moved = max(map(worst, weights["nki"], (weight.detach() for weight in model.parameters())))
    assert moved > 1e-4, "the training moved nothing"
    return Figure(max(map(worst, weights["nki"], weights["eager"])))


def in_autocast(model, kind):
    """Under bfloat16 autocast: by how much farther from eager in float32 than eager under the same autocast."""
    given, rows = inputs(kind, 2, 9, padding(2, 9))
    exact = _logits(model, "eager", given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain, got = _logits(model, "eager", given), _logits(model, "nki", given)
    assert worst(plain, exact, rows) > 1e-4, "the autocast changed nothing"
    return Figure(max(0.0, worst(got, exact, rows) - worst(plain, exact, rows)))


def saved_and_loaded(model, kind):
    """The logits after `save_pretrained` and `from_pretrained`: the choice is not saved, so it is made again."""
    given, _ = inputs(kind, 2, 9, padding(2, 9))
    before = _logits(model, "nki", given)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        assert "nki" not in (Path(folder) / "config.json").read_text()
        plain = type(model).from_pretrained(folder)
        assert plain.config._attn_implementation != "nki"
        again = type(model).from_pretrained(folder, attn_implementation="nki")
    assert again.config._attn_implementation == "nki"
    with torch.no_grad():
        return Figure(worst(again(**given).logits, before))


def in_pipeline(model, kind):
    """A pipeline over a saved folder: tokens of the text (decoders) or of the best fillings (encoders) that differ."""
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        _tokenizer().save_pretrained(folder)
        for implementation in ("eager", "nki"):
            task = "fill-mask" if kind == "encoder" else "text-generation"
            run = pipeline(task, model=folder, device="cpu", model_kwargs={"attn_implementation": implementation})
            assert run.model.config._attn_implementation == implementation
            if kind == "encoder":
                texts = ["w3 w9 [MASK] w7 w30", "[MASK] w5 w6"]
                results[implementation] = [[best["token"] for best in found] for found in run(texts, batch_size=2)]
            else:
                found = run("w3 w9 w4 w7 w30", max_new_tokens=5, do_sample=False, return_tensors=True)
                results[implementation] = [each["generated_token_ids"] for each in found]
    got, expected = (torch.tensor(results[name]) for name in ("nki", "eager"))
    return Figure(int((got != expected).sum()))


def _tokenizer():
    """One word per token of the vocabulary."""
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    words = [*special.values(), *(f"w{number}" for number in range(len(special), VOCABULARY))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **special)


def _logits(model, implementation, given):
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        return model(**given).logits
