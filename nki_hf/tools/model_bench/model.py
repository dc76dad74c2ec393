"""The model under test and its input: loaded or made once on CPU, in the run's dtype, cut to a few layers."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nki_hf.adapters.model_source import ModelAbsent, UntrustedCode, loading_options, refused_code
from nki_hf.errors import BackendUnavailable
from nki_hf.tools.model_bench.memory import available_bytes, check_memory
from nki_hf.tools.model_bench.options import OFFLINE_LAYERS, OFFLINE_MODEL, BenchOptions, WrongUse

__all__ = ["QWEN3_0_6B", "LastHidden", "Prompt", "Subject", "english_text", "load_subject", "random_weight", "text_config"]

QWEN3_0_6B: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": OFFLINE_LAYERS,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "tie_word_embeddings": True,
}
"""The published configuration of Qwen/Qwen3-0.6B."""

Q_NORM = 2.0
"""Weight of q_norm in the random model: scores of standard deviation 2, so that attention is neither flat nor one-hot."""


class LastHidden(torch.nn.Module):  # type: ignore[misc]
    """The model as a function of tensors: last hidden state `[batch, seqlen, hidden]`, no cache, never logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """One prefill without a cache."""
        return self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """The input of every forward pass.

    Attributes:
      input_ids: `[batch, seqlen]` int64.
      attention_mask: `[batch, seqlen]` int64, 0 on the left padding; None without padding.
      source: where the tokens come from, in words.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor | None
    source: str

    @property
    def valid(self) -> torch.Tensor:
        """`[batch, seqlen]` bool: True on real tokens."""
        if self.attention_mask is None:
            return torch.ones_like(self.input_ids, dtype=torch.bool)
        return self.attention_mask.bool()

    @property
    def tokens(self) -> int:
        """Real tokens, padding not counted."""
        return int(self.valid.sum())


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is benchmarked.

    Attributes:
      name: the model's name as asked for.
      model: the base model (no LM head) in the run's dtype, eval mode, on CPU.
      prompt: its input.
    """

    name: str
    model: Any
    prompt: Prompt

    @property
    def text_config(self) -> Any:
        """The decoder's configuration."""
        return self.model.config.get_text_config()

    def fingerprint(self) -> dict[str, Any]:
        """Everything the outputs depend on but dtype and library versions: configuration, weights and input, hashed."""
        config = {key: value for key, value in self.model.config.to_dict().items() if key not in _NOT_NUMERIC}
        return {
            "model": self.name,
            "config": config,
            "weights_sha256": _sha256(tensor for _, tensor in sorted(self.model.state_dict().items())),
            "input_ids_sha256": _sha256([self.prompt.input_ids]),
            "input_shape": list(self.prompt.input_ids.shape),
            "attention_mask_sha256": None if self.prompt.attention_mask is None else _sha256([self.prompt.attention_mask]),
        }


_TEXT = "alice_chapter_1.txt"
_NOT_NUMERIC = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype", "use_cache")


def load_subject(options: BenchOptions) -> Subject:
    """The model and its prompt, on CPU.

    Raises:
      WrongUse: a model folder that does not exist or holds no model, a model's own code that is not trusted, or sizes that do
        not fit.
      BackendUnavailable: a hub model that cannot be fetched from here.
    """
    if options.model == OFFLINE_MODEL:
        model = _random_qwen3(options)
        source = f"fixed random token ids (seed {options.seed})"
        ids = _random_ids(options, model.config.vocab_size)
    else:
        with _loading(options.model):
            loading = loading_options(options.model, trust_remote_code=options.trust_remote_code)
        model = _pretrained(options, loading)
        ids, source = _encoded_text(options, loading)
    model.eval().requires_grad_(False)
    ids = ids.expand(options.batch_size, -1).contiguous()
    return Subject(
        name=options.model, model=model, prompt=Prompt(input_ids=ids, attention_mask=_padding(options), source=source)
    )


def text_config(options: BenchOptions) -> Any:
    """The decoder's configuration alone, without weights; errors as of `load_subject`."""
    if options.model == OFFLINE_MODEL:
        from transformers import Qwen3Config

        return Qwen3Config(**{**QWEN3_0_6B, "num_hidden_layers": options.layers})
    from transformers import AutoConfig

    with _loading(options.model):
        loading = loading_options(options.model, trust_remote_code=options.trust_remote_code)
        return AutoConfig.from_pretrained(options.model, **loading).get_text_config()


def english_text() -> str:
    """The text that real models read: the opening of Alice's Adventures in Wonderland (1865), about 1,500 tokens."""
    return (Path(__file__).parent / _TEXT).read_text(encoding="utf-8")


def _random_qwen3(options: BenchOptions) -> Any:
    from transformers import Qwen3Config, Qwen3Model

    config = Qwen3Config(**{**QWEN3_0_6B, "num_hidden_layers": options.layers})
    _check_memory(config, options)
    _set_window(config, options)
    with torch.device("meta"):
        shapes = {name: weight.shape for name, weight in Qwen3Model(config).named_parameters()}
    dtype = getattr(torch, options.torch_dtype)
    draw = torch.Generator().manual_seed(options.seed)
    weights = {name: random_weight(name, shape, draw).to(dtype) for name, shape in shapes.items()}
    return Qwen3Model.from_pretrained(None, config=config, state_dict=weights, dtype=dtype, attn_implementation="eager")


def _check_memory(config: Any, options: BenchOptions) -> None:
    check_memory(config, batch_size=options.batch_size, seqlen=options.seqlen, available=available_bytes("cpu"))


def _set_window(config: Any, options: BenchOptions) -> None:
    if options.window is None:
        return
    if not hasattr(config, "sliding_window") or not hasattr(config, "layer_types"):
        raise WrongUse(f"window={options.window} cannot be set: {options.model} knows no sliding window. Leave --window out.")
    config.use_sliding_window = True
    config.sliding_window = options.window
    config.layer_types = ["sliding_attention"] * options.layers


def random_weight(name: str, shape: torch.Size, draw: torch.Generator) -> torch.Tensor:
    """Norms constant, everything else normal with a standard deviation that keeps the variance of its input."""
    if name.endswith("norm.weight"):
        return torch.full(shape, Q_NORM if "q_norm" in name else 1.0)
    std = 1.0 if "embed_tokens" in name else shape[-1] ** -0.5
    return torch.empty(shape).normal_(std=std, generator=draw)


def _random_ids(options: BenchOptions, vocab_size: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(options.seed)
    return torch.randint(vocab_size, (1, options.seqlen), generator=draw)


def _pretrained(options: BenchOptions, loading: dict[str, Any]) -> Any:
    from transformers import AutoConfig, AutoModel

    with _loading(options.model):
        config = AutoConfig.from_pretrained(options.model, **loading)
        text = config.get_text_config()
        if options.layers > text.num_hidden_layers:
            raise WrongUse(
                f"layers={options.layers} is more than {options.model} has: it has {text.num_hidden_layers}; lower --layers."
            )
        text.num_hidden_layers = options.layers
        if getattr(text, "layer_types", None):
            text.layer_types = text.layer_types[: options.layers]
        _set_window(text, options)
        _check_memory(text, options)
        dtype = getattr(torch, options.torch_dtype)
        return AutoModel.from_pretrained(options.model, config=config, dtype=dtype, attn_implementation="eager", **loading)


def _encoded_text(options: BenchOptions, loading: dict[str, Any]) -> tuple[torch.Tensor, str]:
    """`[1, seqlen]` ids: the shipped text, repeated until it fills the prompt."""
    from transformers import AutoTokenizer

    with _loading(options.model):
        tokenizer = AutoTokenizer.from_pretrained(options.model, **loading)
    once = tokenizer(english_text(), return_tensors="pt").input_ids
    if once.shape[1] == 0:
        raise WrongUse(f"model={options.model!r} has no tokenizer that reads text: save its tokenizer beside the weights.")
    repeats = -(-options.seqlen // once.shape[1])
    return once.repeat(1, repeats)[:, : options.seqlen], f"{_TEXT}, {once.shape[1]:,} tokens, repeated"


def _padding(options: BenchOptions) -> torch.Tensor | None:
    """Left padding, each row by another length, at most half of it."""
    if not options.padded:
        return None
    mask = torch.ones(options.batch_size, options.seqlen, dtype=torch.int64)
    for row in range(options.batch_size):
        mask[row, : options.seqlen * (row + 1) // (2 * options.batch_size)] = 0
    return mask


@contextlib.contextmanager
def _loading(model: str) -> Iterator[None]:
    """Turns Transformers' long errors about a missing model into one sentence."""
    looks_local = model.startswith((".", "/", "~")) or model.count("/") != 1
    if looks_local and not Path(model).is_dir():
        raise WrongUse(f"model={model!r} is no folder: --model takes a local folder, a hub id (owner/name) or {OFFLINE_MODEL}.")
    try:
        yield
    except (WrongUse, MemoryError):
        raise
    except UntrustedCode as error:
        raise WrongUse(str(error)) from error
    except Exception as error:  # a folder may hold anything, and a model's own code raise anything
        if "trust_remote_code" in str(error):
            raise WrongUse(str(refused_code(model))) from error
        text = error.why if isinstance(error, ModelAbsent) else str(error)
        first = f"{text.strip() or type(error).__name__}.".splitlines()[0]
        if Path(model).exists() or not isinstance(error, OSError | ModelAbsent):
            raise WrongUse(f"model={model!r} holds no model that Transformers can load: {first}") from error
        raise BackendUnavailable(
            f"model={model!r} cannot be fetched from the hub: {first} "
            f"Use --model with a local folder, or the offline default {OFFLINE_MODEL}."
        ) from error


def _sha256(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(json.dumps([str(tensor.dtype), list(tensor.shape)]).encode())
        flat = tensor.detach().reshape(-1).clone(memory_format=torch.contiguous_format)  # a stride of 1, of one element too
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
