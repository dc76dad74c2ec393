"""The models of docs/ways.md, tiny and random, and what each kind of model is given: ids, padding, labels."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tiny import build, tiny_qwen3, token_ids
from transformers import (
    BertConfig,
    BertForMaskedLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

LAYERS, VOCABULARY, TARGETS = 2, 64, 5
PADDING = 3  # positions on the left of the first sequence
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 64,
    "max_position_embeddings": 256,
}
_BERT = {name: value for name, value in _SIZES.items() if name not in ("num_key_value_heads", "head_dim")}
_T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 64,
    "num_layers": LAYERS,
    "num_heads": 4,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
    "eos_token_id": None,
}


@dataclass(frozen=True)
class Model:
    """A model of the table.

    Attributes:
      build: makes it, in eval mode with eager attention.
      kind: `decoder`, `encoder` or `encoder-decoder`.
      attentions: attention calls of one forward pass.
    """

    build: Callable[[], Any]
    kind: str = "decoder"
    attentions: int = LAYERS


MODELS = {
    "qwen3": Model(tiny_qwen3),
    "llama": Model(lambda: build(LlamaForCausalLM, LlamaConfig(**_SIZES))),
    "mistral, window": Model(lambda: build(MistralForCausalLM, MistralConfig(sliding_window=4, **_SIZES))),
    "gemma2, softcap": Model(
        lambda: build(
            Gemma2ForCausalLM,
            Gemma2Config(sliding_window=4, attn_logit_softcapping=5.0, query_pre_attn_scalar=16, **_SIZES),
        )
    ),
    "gemma3, window": Model(lambda: build(Gemma3ForCausalLM, Gemma3TextConfig(sliding_window=4, **_SIZES))),
    "gpt_oss, sinks": Model(
        lambda: build(GptOssForCausalLM, GptOssConfig(sliding_window=4, num_local_experts=2, num_experts_per_tok=1, **_SIZES))
    ),
    "bert, encoder": Model(
        lambda: build(BertForMaskedLM, BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **_BERT)),
        "encoder",
    ),
    "t5, position bias": Model(
        lambda: build(T5ForConditionalGeneration, T5Config(**_T5)), "encoder-decoder", attentions=3 * LAYERS
    ),
}


def padding(batch, length):
    """The 2D mask `[batch, length]` with padding on the left of the first sequence."""
    mask = torch.ones((batch, length), dtype=torch.long)
    mask[0, :PADDING] = 0
    return mask


def inputs(kind, batch, length, mask=None):
    """The forward pass's arguments by name, and which rows of its logits mean something (None = all)."""
    given = {"input_ids": token_ids(batch, length), "attention_mask": mask}
    if kind == "encoder":
        return given, mask
    given["use_cache"] = False
    if kind == "decoder":
        return given, mask
    return {**given, "decoder_input_ids": token_ids(batch, TARGETS)}, None


def training_inputs(kind, batch, length, mask):
    """The arguments of a training step, labels included: -100 wherever the logits come from a row that is padding.

    Such a row sees no key: eager gives the mean of all values, kernels zero, and neither means anything.
    """
    given, _ = inputs(kind, batch, length, mask)
    if kind == "encoder-decoder":
        labels = given.pop("decoder_input_ids")
    else:
        labels = given["input_ids"].masked_fill(mask == 0, -100)
    if kind == "decoder":
        labels[0, PADDING] = -100  # predicted by the last padded row
    return {**given, "labels": labels}
