"""Which parts of a kernel call are independent of each other, so that a back end may run them one by one or at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Part", "parts"]

Index = tuple[slice, ...]

WORTH_DIVIDING = 128
"""Query rows from which on dividing the heads of a group over threads pays for converting its keys and values twice."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One independent part of a call.

    Attributes:
      inputs: which part of each tensor argument it reads, by parameter name.
      outputs: which part of each output it writes, in the kernel's order.
    """

    inputs: Mapping[str, Index]
    outputs: tuple[Index, ...]


def parts(
    kernel: str, shapes: Mapping[str, tuple[int, ...] | None], wanted: int = 1
) -> tuple[tuple[Part, ...], tuple[tuple[int, ...], ...]]:
    """The parts of a call and the shapes of its whole outputs; kernels without a rule are not taken apart: `((), ())`.

    All parts of a call have equal shapes, so that they share one recorded program.

    Args:
      kernel: the kernel's name.
      shapes: shape of each tensor argument by parameter name; None for absent ones.
      wanted: make this many parts, where that is possible at some expense.
    """
    return _attention(shapes, wanted) if kernel == "flash_prefill" else ((), ())


def _attention(
    shapes: Mapping[str, tuple[int, ...] | None], wanted: int
) -> tuple[tuple[Part, ...], tuple[tuple[int, ...], ...]]:
    """One part per (batch, kv head), the outer loop of the kernel, whose iterations share nothing; if those are fewer than
    `wanted`, the query heads of a group are divided as well, and each part reads the keys and values for itself.
    """
    q, k, v = (_shape(shapes, name) for name in ("q", "k", "v"))
    batch, heads_q, _, seqlen_q = q
    group = heads_q // k[1]
    shares = 1
    if seqlen_q >= WORTH_DIVIDING:
        shares = next((n for n in range(1, group + 1) if group % n == 0 and n * batch * k[1] >= wanted), group)
    size = group // shares
    every = slice(None)
    found = []
    for b in range(batch):
        for first in range(0, heads_q, size):
            heads, own = slice(first, first + size), slice(b, b + 1)
            kv = (own, slice(first // group, first // group + 1))
            inputs: dict[str, Index] = {"q": (own, heads), "k": kv, "v": kv}
            for name in ("lo", "hi", "bias", "sink"):
                shape = shapes.get(name)
                if shape is None:
                    continue
                axes: Index = (own if shape[0] > 1 else every,)
                if name in ("bias", "sink"):
                    axes = (*axes, heads if shape[1] > 1 else every)
                inputs[name] = axes
            found.append(Part(inputs=inputs, outputs=((own, every, heads), (own, heads))))
    return tuple(found), ((batch, seqlen_q, heads_q, v[3]), (batch, heads_q, seqlen_q))


def _shape(shapes: Mapping[str, tuple[int, ...] | None], name: str) -> tuple[int, ...]:
    shape = shapes[name]
    if shape is None:
        raise ValueError(f"{name}=None is not a tensor of the call: pass q, k and v.")
    return shape
