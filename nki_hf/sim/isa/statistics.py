"""Mean and variance of rows: bn_stats and bn_aggr (Vector engine)."""

from __future__ import annotations

import numpy as np

from nki_hf.sim.isa.instruction import NkiInstruction, begin
from nki_hf.sim.tensors.tensor import NkiTensor
from nki_hf.sim.tensors.values import Array, reader, writer

__all__ = ["bn_aggr", "bn_stats"]


def bn_stats(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """`dst [partitions, 6]`: count, mean and variance * count of the even elements of each row, then of the odd ones."""
    this = begin("bn_stats", dst=dst, data=data)
    action = None
    if this.values:
        read, write = reader(data), writer(dst)

        def action() -> None:
            values = read()
            write(np.concatenate([_moments(values[:, 0::2]), _moments(values[:, 1::2])], axis=1))

    return this.issue(engine="vector", reads=(data,), writes=(dst,), action=action)


def bn_aggr(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """`dst [partitions, 2]`: mean and variance of all elements behind the (count, mean, variance * count) triples of `data`."""
    this = begin("bn_aggr", dst=dst, data=data)
    action = None
    if this.values:
        read, write = reader(data), writer(dst)

        def action() -> None:
            values = read()
            count, mean, spread = values[:, 0::3], values[:, 1::3], values[:, 2::3]
            total = count.sum(axis=1, keepdims=True)
            center = (count * mean).sum(axis=1, keepdims=True) / total
            variance = (spread + count * np.square(mean - center)).sum(axis=1, keepdims=True) / total
            write(np.concatenate([center, variance], axis=1))

    return this.issue(engine="vector", reads=(data,), writes=(dst,), action=action)


def _moments(values: Array) -> Array:
    rows, count = values.shape
    if count == 0:
        return np.zeros((rows, 3), np.float32)
    mean = values.mean(axis=1, keepdims=True, dtype=np.float32)
    spread = np.square(values - mean).sum(axis=1, keepdims=True)
    return np.concatenate([np.full((rows, 1), count, np.float32), mean, spread], axis=1)
