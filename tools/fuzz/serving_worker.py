"""Serves the requests of `serving_problems`, one case a line on standard input, and answers what is wrong with them."""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
import time
from typing import Any

import torch

import nki_hf  # before Transformers: it tells where our kernel is
from nki_hf.adapters.checked_batching import checked_batching
from nki_hf.adapters.hub_kernel import HUB_NAME

__all__ = ["main", "wrong_with"]

_SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 64,
    "max_position_embeddings": 2048,
}
_PATIENCE_S = 120.0


@functools.cache
def _model(kind: str) -> Any:
    import transformers

    mixed = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 24}
    name, changes = {
        "full": ("Qwen3", {}),
        "few heads": ("Llama", {"num_key_value_heads": 1, "head_dim": 8}),
        "windows": ("Mistral", {"sliding_window": 24}),
        "windows of all": ("Mistral", {"sliding_window": 1000}),
        "windows and full": ("Gemma3", mixed),
    }[kind]
    config = getattr(transformers, f"{name}TextConfig" if name == "Gemma3" else f"{name}Config")(**{**_SIZES, **changes})
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def _prompts(case: dict[str, Any]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(case["seed"])

    def tokens(count: int) -> list[int]:
        return list(map(int, torch.randint(1, 64, (count,), generator=generator)))

    common = tokens(200)
    return [common[:shared] + tokens(own) for shared, own, _, _ in case["requests"]]


def wrong_with(case: dict[str, Any]) -> str:
    """What is wrong with the answers to a case."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    model, prompts = _model(case["model"]), _prompts(case)
    # A window alone ends nowhere: of it only what the model has positions for is too long.
    room = case["page"] * case["blocks"]
    model.set_attn_implementation(HUB_NAME)
    nki_hf.explain(reset=True)
    config = ContinuousBatchingConfig(
        page_size=case["page"],
        num_blocks=case["blocks"],
        max_batch_tokens=case["batch_tokens"],
        allow_block_sharing=case["sharing"],
        scheduler_type=case["scheduler"],
    )
    generation = GenerationConfig(max_new_tokens=4, do_sample=False, eos_token_id=-1, pad_token_id=0)
    manager = model.init_continuous_batching(generation, checked_batching(config))
    manager.start()
    found: dict[str, Any] = {}
    try:
        for number, (prompt, (*_, new, cancelled)) in enumerate(zip(prompts, case["requests"], strict=True)):
            manager.add_request(prompt, request_id=str(number), max_new_tokens=new)
            if cancelled:
                manager.cancel_request(str(number))
        wanted = {str(number) for number, request in enumerate(case["requests"]) if not request[3]}
        until = time.monotonic() + _PATIENCE_S
        while not wanted <= found.keys() and time.monotonic() < until:
            output = manager.get_result(timeout=0.2)
            if not manager.is_running():
                return "the worker ended"
            if output is not None:
                found[output.request_id] = output
    finally:
        manager.stop(block=True, timeout=20, hard_stop=True)
    if not wanted <= found.keys():
        return f"no answer to the requests {sorted(wanted - found.keys())}"
    report = nki_hf.explain(reset=True)
    if report.fallbacks:
        return f"{report.fallbacks} fallbacks in a served model"
    model.set_attn_implementation("eager")
    for name in sorted(wanted, key=int):
        prompt, new = prompts[int(name)], case["requests"][int(name)][2]
        output = found[name]
        if output.error:
            # The last new token is no input. A cache of two kinds of layers may hold less of each.
            if len(prompt) + new - 1 > room // (2 if case["model"] == "windows and full" else 1):
                continue
            return f"request {name} was refused: {output.error}"
        wrong = _against_eager(model, prompt, output.generated_tokens, new)
        if wrong:
            return f"request {name}, {len(prompt)} tokens: {wrong}"
    return ""


def _against_eager(model: Any, prompt: list[int], tokens: list[int], new: int) -> str:
    """Each token must be the most likely one after those before it, or as likely but for float32's rounding."""
    if len(tokens) != new:
        return f"{len(tokens)} tokens, and {new} were asked for"
    with torch.no_grad():
        logits = model(torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :].double()
    for place, token in enumerate(tokens):
        row = logits[place]
        short = float(row.max() - row[token])
        if short > 1e-4 * (1 + float(row.abs().max())):
            return f"token {place} is {token}, and eager alone takes {int(row.argmax())} (logits {short:.3g} apart)"
    return ""


def main() -> None:
    """Answer each line with a line."""
    logging.disable(logging.ERROR)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what else is printed is no answer
    for line in sys.stdin:
        try:
            why = wrong_with(json.loads(line))
        except Exception as error:  # any exception of a case is a finding
            why = f"{type(error).__name__}: {error}"
        answers.write(json.dumps(why) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
