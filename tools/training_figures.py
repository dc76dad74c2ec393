"""What a training step on the simulator costs with the backward kernel, beside one whose gradients are torch's formulas.

    python tools/training_figures.py [--layers 4] [--seqlen 2048] [--pairs 3] [--dtype bfloat16]

The model is Qwen3-0.6B's dimensions with random weights; its vocabulary is small (`--vocabulary`), because the products of a
large one cost the same on both sides and hide the attention. A step is forward, loss, backward and AdamW. Both sides run the
same forward kernel and take turns in one process, the side that begins alternates. The first step of each records the kernels;
the medians are over the others. Seconds are wall clock and CPU of the process; with other programs on the machine only the
latter mean something. Exit code 1: the median CPU ratio is above BAR. The simulator's time says nothing about a chip.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

sys.path.insert(0, str(Path(__file__).parent.parent))

import nki_hf
from nki_hf.adapters import gradients
from nki_hf.adapters.backward import attention_gradients
from nki_hf.tools.model_bench.model import QWEN3_0_6B
from nki_hf.tools.program import finished

BAR = 1.5
SIDES = ("formulas", "flash_backward")


def model_of(layers: int, vocabulary: int, dtype: torch.dtype) -> Any:
    """The preset's model with nki attention."""
    torch.manual_seed(0)
    sizes = {**QWEN3_0_6B, "num_hidden_layers": layers, "vocab_size": vocabulary}
    return Qwen3ForCausalLM(Qwen3Config(**sizes, use_cache=False, attn_implementation="nki")).to(dtype).train()


@contextmanager
def gradients_by(side: str) -> Iterator[None]:
    """Gradients by the decided kernel, or all by the formulas that run where no kernel takes a call."""
    if side == "flash_backward":
        yield
        return

    def formulas(call: Any, decision: Any, results: Any, dout: torch.Tensor, dlse: torch.Tensor | None) -> Any:
        return attention_gradients(call, dout, dlse, bias=False)

    with mock.patch.object(gradients, "_by_kernel", formulas):
        yield


def cost(work: Callable[[], None]) -> tuple[float, float]:
    """Wall-clock and CPU seconds of one call."""
    start = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start[0], time.process_time() - start[1]


def measure(layers: int, seqlen: int, vocabulary: int, pairs: int, dtype: torch.dtype) -> dict[str, list[tuple[float, float]]]:
    """Costs of each side's steps, the recording one first."""
    model = model_of(layers, vocabulary, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    ids = torch.randint(vocabulary, (1, seqlen), generator=torch.Generator().manual_seed(0))

    def step() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    found: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
    with gradients_by("formulas"):
        step()  # records the forward kernel, which both sides run, and makes the optimizer's state
    for number in range(pairs + 1):
        for side in SIDES[:: 1 if number % 2 else -1]:
            with gradients_by(side):
                found[side].append(cost(step))
    return found


def main() -> int:
    """Print the table and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 4), ("seqlen", 2048), ("vocabulary", 1000), ("pairs", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    given = parser.parse_args()
    with nki_hf.using(strict=True):
        found = measure(given.layers, given.seqlen, given.vocabulary, given.pairs, getattr(torch, given.dtype))
    print(f"{given.layers} layers of Qwen3-0.6B, {given.seqlen} tokens, {given.dtype}, vocabulary {given.vocabulary}")
    print(f"{'gradients':16}{'first, wall s':>15}{'CPU s':>8}{'step, wall s':>15}{'CPU s':>8}   median of {given.pairs}")
    for side, (first, *later) in found.items():
        wall, cpu = (statistics.median(each) for each in zip(*later, strict=True))
        print(f"{side:16}{first[0]:15.2f}{first[1]:8.2f}{wall:15.2f}{cpu:8.2f}")
    ratios = {
        kind: [ours[kind] / theirs[kind] for theirs, ours in zip(*(found[side] for side in SIDES), strict=True)]
        for kind in (0, 1)
    }
    wall, cpu = (statistics.median(each[1:]) for each in ratios.values())
    print(
        f"flash_backward / formulas, median of pairs: wall {wall:.2f}, CPU {cpu:.2f} (bar {BAR}); first: CPU {ratios[1][0]:.2f}"
    )
    return int(cpu > BAR)


if __name__ == "__main__":
    raise SystemExit(finished(main))
