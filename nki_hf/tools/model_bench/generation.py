"""Prefill and cached decode, timed apart: the prompt in one pass, its last tokens one by one with a key-value cache."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from nki_hf.tools.model_bench.measure import Timing, measure
from nki_hf.tools.model_bench.model import Prompt

__all__ = ["Generation", "generate"]


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What `generate` gave.

    Attributes:
      hidden: `[batch, steps + 1, hidden]` float32 on CPU: the last prompt token and every decoded token.
      prefill, step: times.
    """

    hidden: torch.Tensor
    prefill: Timing
    step: Timing


def generate(
    model: Any,
    prompt: Prompt,
    *,
    steps: int,
    warmup: int,
    iters: int,
    wait: Callable[[], None],
    say: Callable[[str], None],
) -> Generation:
    """Run the prompt without its last `steps` tokens, then these one by one, so that one reference serves both.

    The decode steps are run twice over, each time after a prompt: the first time may trace or compile, only the second is
    timed. On a CPU the cache grows. On a device it has its full length from the start, as deployments have it there: the
    shapes of every operation, the model's own too, are then the same in each step, and each is compiled once.
    """
    length = prompt.input_ids.shape[1] - steps
    cache = _cache(model, prompt)
    # Newer Transformers call it `cache`, and warn about the old name.
    keyword = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    def forward(first: int, end: int) -> torch.Tensor:
        known = end if _grows(prompt) else None  # a cache of full length has a mask of its length; nothing sees ahead
        mask = None if prompt.attention_mask is None else prompt.attention_mask[:, :known]
        with torch.no_grad():
            out = model(input_ids=prompt.input_ids[:, first:end], attention_mask=mask, use_cache=True, **{keyword: cache})
        return out.last_hidden_state

    def prefill() -> torch.Tensor:
        nonlocal cache
        cache = _cache(model, prompt)
        return forward(0, length)

    def decode(what: str) -> tuple[list[torch.Tensor], list[float]]:
        hidden, seconds = [], []
        for position in range(length, length + steps):
            say(f"{what} step {position - length + 1}/{steps}")
            wait()
            start = time.perf_counter()
            hidden.append(forward(position, position + 1))
            wait()
            seconds.append(time.perf_counter() - start)
        return hidden, seconds

    out, prefill_times = measure(prefill, wait=wait, warmup=warmup, iters=iters, step=lambda what: say(f"prefill {what}"))
    hidden, first_seconds = decode("decode warm-up")
    prefill()
    _, seconds = decode("decode")
    states = torch.cat([out[:, -1:], *hidden], dim=1)
    step_times = Timing.of(first_seconds[0], seconds)
    return Generation(hidden=states.to("cpu").float(), prefill=prefill_times, step=step_times)


def _grows(prompt: Prompt) -> bool:
    return prompt.input_ids.device.type == "cpu"


def _cache(model: Any, prompt: Prompt) -> Any:
    from transformers import DynamicCache, StaticCache

    if _grows(prompt):
        return DynamicCache(config=model.config)
    return StaticCache(config=model.config, max_cache_len=prompt.input_ids.shape[1])
