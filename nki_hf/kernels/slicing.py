"""Which parts of a kernel call are independent of each other, so that a back end may run them one by one or at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Part", "parts"]

Index = tuple[slice, ...]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One independent part of a call.

    Attributes:
      inputs: which part of each tensor argument it reads, by parameter name.
      outputs: which part of each output it writes, in the kernel's order.
    """

    inputs: Mapping[str, Index]
    outputs: tuple[Index, ...]


def parts(kernel: str, shapes: Mapping[str, tuple[int, ...] | None]) -> tuple[tuple[Part, ...], tuple[tuple[int, ...], ...]]:
    """The parts of a call and the shapes of its whole outputs; kernels without a rule are not taken apart: `((), ())`.

    All parts of a call have equal shapes, so that they share one recorded program.

    Args:
      kernel: the kernel's name.
      shapes: shape of each tensor argument by parameter name; None for absent ones.
    """
    return _attention(shapes) if kernel == "flash_prefill" else ((), ())


def _attention(shapes: Mapping[str, tuple[int, ...] | None]) -> tuple[tuple[Part, ...], tuple[tuple[int, ...], ...]]:
    """One part per (batch, kv head): the outer loop of the kernel, whose iterations share nothing."""
    q, k, v = (_shape(shapes, name) for name in ("q", "k", "v"))
    batch, heads_q, _, seqlen_q = q
    group = heads_q // k[1]
    every = slice(None)
    found = []
    for b in range(batch):
        for head in range(k[1]):
            heads = slice(head * group, (head + 1) * group)
            kv = (slice(b, b + 1), slice(head, head + 1))
            inputs: dict[str, Index] = {"q": (slice(b, b + 1), heads), "k": kv, "v": kv}
            for name, axes in {"lo": 1, "hi": 1, "bias": 2, "sink": 0}.items():
                shape: Any = shapes.get(name)
                if shape is None:
                    continue
                if name == "sink":
                    inputs[name] = (every, heads)
                    continue
                own = [slice(b, b + 1) if shape[0] > 1 else every]
                if axes > 1:
                    own.append(heads if shape[1] > 1 else every)
                inputs[name] = tuple(own)
            found.append(Part(inputs=inputs, outputs=((slice(b, b + 1), every, heads), (slice(b, b + 1), heads))))
    return tuple(found), ((batch, seqlen_q, heads_q, v[3]), (batch, heads_q, seqlen_q))


def _shape(shapes: Mapping[str, tuple[int, ...] | None], name: str) -> tuple[int, ...]:
    shape = shapes[name]
    if shape is None:
        raise ValueError(f"{name}=None is not a tensor of the call: pass q, k and v.")
    return shape
