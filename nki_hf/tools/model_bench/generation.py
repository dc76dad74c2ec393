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

    The decode steps are run twice over: the first time meets every cache length once (and may trace or compile), only the
    second is timed.
    """
    from transformers import DynamicCache

    length = prompt.input_ids.shape[1] - steps
    cache = DynamicCache(config=model.config)
    # Newer Transformers call it `cache`, and warn about the old name.
    keyword = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    def forward(first: int, end: int) -> torch.Tensor:
        mask = None if prompt.attention_mask is None else prompt.attention_mask[:, :end]
        with torch.no_grad():
            out = model(input_ids=prompt.input_ids[:, first:end], attention_mask=mask, use_cache=True, **{keyword: cache})
        return out.last_hidden_state

    def prefill() -> torch.Tensor:
        nonlocal cache
        cache = DynamicCache(config=model.config)
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
    cache.crop(-steps)
    _, seconds = decode("decode")
    states = torch.cat([out[:, -1:], *hidden], dim=1)
    step_times = Timing.of(first_seconds[0], seconds)
    return Generation(hidden=states.to("cpu").float(), prefill=prefill_times, step=step_times)
