"""Changes that make kernels faster on this machine; an agent is reminded of some at a time, so that tries differ."""

from __future__ import annotations

import random

__all__ = ["MENU", "some"]

MENU: tuple[str, ...] = (
    "keep intermediates in SBUF instead of storing them to HBM and loading them again",
    "load what a loop needs again and again once, before it",
    "move larger pieces per dma_copy: rows of 512 B or more, tiles of 128 partitions",
    "start loads of the next tile before the work on this one (a second buffer)",
    "fuse two passes over a tile into one instruction (tensor_scalar with two operators, scalar_tensor_tensor)",
    "let activation_reduce compute a function and the row sum in one instruction",
    "let tensor_scalar_reduce evict PSUM and reduce in one instruction",
    "use activation's bias and scale in place of an instruction that shifts or scales before it",
    "read PSUM where it lies, without a copy to SBUF first",
    "delay a division or a scale from a large tile to the smaller output",
    "give the Tensor engine bfloat16 operands where the task allows it",
    "widen the moving operand of matmuls to 512 columns",
    "exchange stationary and moving operand, so that the output needs no transpose",
    "accumulate in PSUM over the contraction instead of adding in SBUF",
    "transpose several tiles into one PSUM bank and evict them by one instruction",
    "move evictions to the engine that idles (engine=nisa.engine.vector or scalar)",
    "move small or regular work from the busiest engine to GpSimd",
    "transpose by DMA or on the Vector engine (32 x 32) where the Tensor engine is the bottleneck",
    "interleave two independent tiles, so that no engine waits for another's result",
    "pipeline the loop by stages: loads of tile i + 2, products of i + 1, output of i",
    "block the loops so that an operand that is loaded is used for more outputs",
    "skip what a mask hides: whole tiles are never computed",
    "store the output in fewer, longer transfers",
)

_KEPT = 0.75
"""Share of the menu that one round sees."""


def some(seed: int) -> list[str]:
    """Three quarters of the menu, in its order; which ones follows from the seed."""
    kept = random.Random(seed).sample(range(len(MENU)), round(_KEPT * len(MENU)))
    return [MENU[index] for index in sorted(kept)]
