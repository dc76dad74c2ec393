"""Shared fixtures: every test runs with fixed seeds and no settings from outside."""

import os
import random
import signal

import numpy as np
import pytest

os.environ["NKI_HF_PROGRESS"] = "0"  # how long a test takes decides nothing that it prints
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it runs in the background with SIGINT ignored, and every child of it inherits that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _fixed_seed():
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (some libraries under test draw from the global state)


@pytest.fixture
def interrupts():
    """SIGINT interrupts this process and those it starts; a shell's background jobs ignore it, and pass that on."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """A Qwen3 of two layers with grouped heads, and a word-level tokenizer, saved as a local model folder."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3Model

    from nki_hf.tools.model_bench.model import english_text, random_weight

    folder = tmp_path_factory.mktemp("tiny")
    words = sorted({word for word, _ in pre_tokenizers.Whitespace().pre_tokenize_str(english_text())})
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(["?", *words])}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?").save_pretrained(folder)
    config = Qwen3Config(
        vocab_size=len(words) + 1,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
    )
    model = Qwen3Model(config)
    draw = torch.Generator().manual_seed(0)
    model.load_state_dict({name: random_weight(name, weight.shape, draw) for name, weight in model.named_parameters()})
    model.save_pretrained(folder)
    return folder
