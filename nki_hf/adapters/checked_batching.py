"""Continuous batching that refuses, alone, a request which would end its worker and with it everybody else's.

Transformers takes any request. One that the whole paged cache cannot hold ends the worker ("No requests can be scheduled and no
requests can be offloaded"), and so does one whose tokens or positions an embedding table does not have ("index out of range"):
all requests fail, later ones too, with any attention. No option of Transformers limits a request. Its schedulers are found by
name in a table, though, and an error that a scheduler raises for a new request fails that request alone.
"""

from __future__ import annotations

import copy
import importlib.metadata
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nki_hf.errors import require

if TYPE_CHECKING:
    from transformers import ContinuousBatchingConfig

__all__ = ["checked_batching", "largest", "model_refusal", "refusal"]

_FLOOR = (5, 18)
"""The oldest Transformers whose caches are made of allocators for each kind of layer, which `largest` asks."""
_PREFIX = "nki_hf_checked_"
_ANY = 2**31
"""More tokens than any cache holds; what holds so many holds any number."""


def checked_batching(config: ContinuousBatchingConfig | None = None, *, model: Any = None) -> ContinuousBatchingConfig:
    """A configuration for `generate_batch` and `init_continuous_batching` with which an unservable request is refused alone.

    The refused request's output has the reason as `error` and no tokens; all others go on. What is refused: see `refusal`.
    Where the worker ends all the same, by an exception without a text, the reason is the exception's type.

    Args:
      config: how to batch; it is not changed. Default: Transformers' defaults.
      model: the model that will be served, with its attention implementation set: it is checked, too (see `model_refusal`).

    Returns:
      The same configuration with a scheduler that checks requests and else is the one of `config`.

    Raises:
      BackendUnavailable: Transformers is not installed.
      ValueError: this Transformers is too old, or has no scheduler of that name; no request of this model could be served.
    """
    require("nki_hf.checked_batching", "hf", "transformers")
    problem = "" if model is None else model_refusal(model)
    if problem:
        raise ValueError(problem)
    from transformers import ContinuousBatchingConfig
    from transformers.generation.continuous_batching.scheduler import SCHEDULER_MAPPING

    version = importlib.metadata.version("transformers")
    if tuple(map(int, version.split(".")[:2])) < _FLOOR:
        raise ValueError(f"transformers={version} is too old for checked requests: upgrade it to 5.18 or newer.")
    config = copy.copy(config) if config is not None else ContinuousBatchingConfig()
    name = config.scheduler_type.removeprefix(_PREFIX)
    if name not in SCHEDULER_MAPPING:
        known = ", ".join(sorted(each for each in SCHEDULER_MAPPING if not each.startswith(_PREFIX)))
        raise ValueError(f"scheduler_type={name!r} is none of Transformers' schedulers: {known}.")
    SCHEDULER_MAPPING.setdefault(_PREFIX + name, _checked(SCHEDULER_MAPPING[name]))
    config.scheduler_type = _PREFIX + name
    return config


def _checked(scheduler: type) -> type:
    """A scheduler that refuses what cannot be served; what it took in once, and Transformers queues again, still fits."""

    class Checked(scheduler):  # type: ignore[misc]
        def add_waiting_request(self, state: Any) -> None:
            problem = refusal(self.cache, state.initial_tokens, state.max_new_tokens)
            if problem or (state.num_children and not _can_fork(self.cache, len(state.initial_tokens))):
                self._add_children(state, problem)
            if problem:
                raise ValueError(problem)
            super().add_waiting_request(state)

        def get_active_request_static_outputs(self, request_id: str) -> list[int]:
            # Asked for each request that fails, while the exception is handled whose text becomes the reason.
            _name_itself(sys.exception(), str(self.cache.dtype))
            return super().get_active_request_static_outputs(request_id)

        def _add_children(self, state: Any, problem: str) -> None:
            """Queue the further answers (`num_return_sequences`) as requests of their own, under the names of forked ones.

            Those of a refused request answer nothing, with its reason: `generate_batch` waits for every one of them.
            """
            for number in range(state.num_children):
                name = f"{state.request_id}__child#{number}"
                if problem:
                    child = type(state)(request_id=name, initial_tokens=[0], max_new_tokens=0, error=problem)
                else:
                    child = state.fork(name)
                child.num_children = 0
                super().add_waiting_request(child)
            state.num_children = 0

    return Checked


def _name_itself(error: BaseException | None, dtype: str) -> None:
    """Give an exception without a text its type's name as one."""
    if error is None or str(error):
        return
    advice = ""
    if isinstance(error, StopIteration) and dtype == "torch.float32":
        advice = (
            " In float32, FlashAttention's name and a kernel's end so where attention layers have no torch.nn.Linear (GPT-2): "
            "load the model in a 16-bit dtype."
        )
    error.args = (f"{type(error).__name__}, an exception without a text; its traceback is in the log.{advice}",)


def model_refusal(model: Any) -> str:
    """Why no request of a model can be served by FlashAttention's name or a kernel's, and what to do; empty if they can.

    Transformers looks for a torch.nn.Linear among an attention layer's modules, to learn which dtype float32 queries are to be
    cast to, and raises a bare StopIteration where there is none: GPT-2 and its relatives have Conv1D instead. Quantized models
    tell the dtype otherwise.

    Args:
      model: a PreTrainedModel with its attention implementation set.
    """
    import torch

    name = str(getattr(model.config, "_attn_implementation", None) or "")
    if model.dtype != torch.float32 or not ("/" in name or "flash_attention" in name):
        return ""
    for layer in model.modules():
        config = getattr(layer, "config", None)
        if not hasattr(layer, "is_causal") or hasattr(config, "_is_quantized"):
            continue
        if not any(isinstance(inner, torch.nn.Linear) for inner in layer.modules()):
            return (
                f"dtype=float32 with attn_implementation={name!r}: {type(layer).__name__} has no torch.nn.Linear, from which "
                "Transformers takes the dtype for such a name, so that every request would fail. Load it in a 16-bit dtype: "
                "dtype=torch.bfloat16, or --dtype bfloat16."
            )
    return ""


def _can_fork(cache: Any, length: int) -> bool:
    """True if Transformers can fork a prompt of so many tokens: it holds the last one back, and ends where it is alone.

    It is alone in a prompt of one token, and behind whole pages that another request has computed.
    """
    pages = [allocator.tokens_per_page for allocator in cache.cache_allocators.values()] if cache.use_prefix_sharing else []
    return length > 1 and not any(length % page == 1 for page in pages)


def refusal(cache: Any, prompt: Sequence[int], new_tokens: int | None) -> str:
    """Why a request cannot be served, and what to do; empty if it can.

    Refused are an empty prompt (Transformers takes another request's logits for it), tokens outside of the vocabulary, an
    answer without a limit or below 0, and a prompt and answer that the whole cache, or a model's table of positions, cannot
    hold. The last token of an answer is never an input, so that it takes no place.

    Args:
      cache: Transformers' `PagedAttentionCache`.
      prompt: tokens.
      new_tokens: most tokens of the answer; None: no limit.
    """
    vocabulary = cache.config.vocab_size
    if not len(prompt):
        return "the prompt has no tokens: send at least 1."
    if not 0 <= min(prompt) <= max(prompt) < vocabulary:
        wrong = next(token for token in prompt if not 0 <= token < vocabulary)
        return f"the prompt has the token {wrong}: this model has the tokens 0 to {vocabulary - 1}."
    room, why = _room(cache)
    left = "" if room is None else f" Send a prompt and an answer of at most {room + 1:,} tokens together"
    if new_tokens is None:
        return (
            "the request has no limit on new tokens, and an answer without end can end the server. Pass max_new_tokens: "
            f"continuous batching does not read max_length.{left}{'.' if left else ''}"
        )
    if new_tokens < 0:
        return f"max_new_tokens={new_tokens}: an answer has at least 0 tokens."
    if room is not None and len(prompt) + max(new_tokens, 1) - 1 > room:
        few = f": max_tokens of at most {room + 1 - len(prompt):,} for this prompt" if len(prompt) <= room else ""
        return f"a prompt of {len(prompt):,} tokens and up to {new_tokens:,} new ones do not fit {why}.{left}{few}."
    return ""


def _room(cache: Any) -> tuple[int | None, str]:
    """The inputs that one request may have, None: any number; and what limits them."""
    held, config = largest(cache), cache.config
    # Rotary positions have no table that ends.
    rotary = getattr(config, "rope_parameters", None) or getattr(config, "rope_theta", None)
    positions = None if rotary else getattr(config, "max_position_embeddings", None)
    if positions is not None and (held is None or positions < held):
        return positions, f"the model's {positions:,} positions"
    return held, "" if held is None else f"the whole cache of {held:,} tokens"


def largest(cache: Any) -> int | None:
    """The most tokens that a request may have in an empty cache; None: any number, if all layers see a window only."""

    def fits(tokens: int) -> bool:
        sectors = 0
        for allocator in cache.cache_allocators.values():
            blocks = allocator.needs_new_blocks("", past_length=0, query_length=tokens)  # "" has no blocks yet
            sectors += -(-blocks // allocator.blocks_per_sector)
        return sectors <= cache.pool.num_sectors

    if fits(_ANY):
        return None
    low, high = 0, _ANY
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
