"""Score blocks a head that a model's masks leave to the kernel on a device, beside the CPU's, and their simulated time.

python tests/fakes/rehearse.py native tools/mask_blocks.py [--seqlen N ...]

The masks are those that a Qwen3 model of one layer makes, eager and compiled, on the stand-in's device; the kernel itself is
replaced by empty outputs, so that only its plan is asked. Times are those of `nki_hf bench`: the kernel on one trn2 core, 4
query heads on 2 kv heads of 128.
"""

from __future__ import annotations

import argparse
import importlib
from dataclasses import replace
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3Model

import nki_hf
from nki_hf.adapters import torch_op
from nki_hf.adapters.layouts import outputs_of
from nki_hf.chips import get_chip
from nki_hf.problem import Problem
from nki_hf.tools.latency import attention_us

__all__ = ["main", "row"]

WINDOW = {1024: 128, 16384: 2048}
CASES = {"causal": (False, False), "left-padded": (False, True), "window": (True, False), "window, left-padded": (True, True)}


def row(case: str, seqlen: int) -> tuple[dict[str, int], Problem]:
    """Blocks a head by where the mask was made (`cpu`, `eager`, `compiled`), and the problem of the compiled call."""
    sliding, padded = CASES[case]
    window = WINDOW.get(seqlen, seqlen // 8) if sliding else None
    importlib.import_module("torch_neuronx")  # makes the device known to torch
    seen: list[Any] = []
    run = torch_op._run_kernel

    def planned(call: Any, decision: Any, turns: Any) -> tuple[torch.Tensor, torch.Tensor]:
        del turns
        seen.append(decision)
        return tuple(each.zero_() for each in outputs_of(call.q, call.v))  # type: ignore[return-value]

    torch_op._run_kernel = planned
    blocks = {}
    try:
        for place in ("cpu", "eager", "compiled"):
            torch._dynamo.reset()
            seen.clear()
            _forward(window, seqlen, padded, place)
            # A graph's op is called while it is traced, too.
            (blocks[place],) = {each.tiles["blocks_per_head"] for each in seen}
    finally:
        torch_op._run_kernel = run
    return blocks, seen[-1].problem


def _forward(window: int | None, seqlen: int, padded: bool, place: str) -> None:
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=128,
        num_hidden_layers=1,
        max_position_embeddings=seqlen,
        use_sliding_window=window is not None,
        sliding_window=window,
        layer_types=["full_attention" if window is None else "sliding_attention"],
        attn_implementation="nki",
    )
    device = "cpu" if place == "cpu" else "neuron"
    model = Qwen3Model(config).to(torch.bfloat16).eval().to(device)
    ids, padding = torch.ones(1, seqlen, dtype=torch.int32), torch.ones(1, seqlen, dtype=torch.int32)
    padding[:, : seqlen // 5] = 0

    def forward(ids: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        found: torch.Tensor = model(ids, attention_mask=padding, use_cache=False).last_hidden_state
        return found

    called = torch.compile(forward, backend="neuron", fullgraph=True, dynamic=False) if place == "compiled" else forward
    with torch.no_grad(), nki_hf.using(strict=True):
        called(ids.to(device), padding.to(device) if padded else None)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seqlen", type=int, nargs="+", default=[1024, 16384], help="default: 1024 16384")
    options = parser.parse_args()
    print("| tokens | mask | form | blocks a head: CPU | device, eager | device, compiled | simulated us |")
    print("|---|---|---|---|---|---|---|")
    for seqlen in options.seqlen:
        for case in CASES:
            blocks, problem = row(case, seqlen)
            us = attention_us(replace(problem, dtype="bfloat16"), get_chip("trn2")).us
            counts = " | ".join(f"{blocks[place]:,}" for place in ("cpu", "eager", "compiled"))
            print(f"| {seqlen:,} | {case} | {problem.mask.form} | {counts} | {us:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
