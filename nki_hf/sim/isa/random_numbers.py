"""Random numbers: rng, rand2, dropout and the state of the generators. Right distribution, seeded, not the chip's bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.sim.isa.enums import engine as Engine
from nki_hf.sim.isa.instruction import NkiInstruction, begin, resolve_engine, tensors
from nki_hf.sim.isa.random_state import random_state
from nki_hf.sim.tensors.casts import cast
from nki_hf.sim.tensors.tensor import NkiTensor
from nki_hf.sim.tensors.values import column, native_reader, storer, writer

__all__ = ["dropout", "rand2", "rand_get_state", "rand_set_state", "rng", "set_rng_seed"]

_SCALE = 2.0**-32


def rng(dst: NkiTensor, engine: Engine = Engine.vector, name: str | None = None) -> NkiInstruction:
    """`dst` (an integer type) = the low bits of 32 random bits per element."""
    this = begin("rng", dst=dst, engine=engine)
    where = resolve_engine(engine, "vector")
    action = None
    if this.values:
        state, store, element = random_state(this.machine, where), storer(dst), dst.dtype.dtype
        lane, rows, count = dst.region().partition_start, dst.partitions, dst.free_size
        bits = np.dtype(f"u{dst.dtype.itemsize}")
        action = lambda: store(state.draw(lane, rows, count).astype(bits).view(element))  # noqa: E731
    return this.issue(engine=where, reads=(), writes=(dst,), action=action)


def rand2(dst: NkiTensor, min: Any, max: Any, name: str | None = None) -> NkiInstruction:
    """`dst` = uniform float32 numbers between `min` and `max` (immediates or `[partitions, 1]`), cast to its dtype."""
    this = begin("rand2", dst=dst, min=min, max=max)
    action = None
    if this.values:
        state, write, low, high = random_state(this.machine, "vector"), writer(dst), column(min), column(max)
        lane, rows, count = dst.region().partition_start, dst.partitions, dst.free_size

        def action() -> None:
            unit = state.draw(lane, rows, count) * _SCALE
            write((low() + unit * (np.subtract(high(), low(), dtype=np.float64))).astype(np.float32))

    return this.issue(engine="vector", reads=tensors(min, max), writes=(dst,), action=action)


def dropout(dst: NkiTensor, data: NkiTensor, prob: Any, name: str | None = None) -> NkiInstruction:
    """`dst = data` with each element replaced by 0 with probability `prob` (an immediate or `[partitions, 1]`); no scaling."""
    this = begin("dropout", dst=dst, data=data, prob=prob)
    action = None
    if this.values:
        state, read, store, chance, dtype = (
            random_state(this.machine, "vector"),
            native_reader(data),
            storer(dst),
            column(prob),
            dst.dtype,
        )
        lane, rows, count = data.region().partition_start, data.partitions, data.free_size

        def action() -> None:
            drop = state.draw(lane, rows, count) * _SCALE < chance()
            values = cast(read(), dtype)
            store(np.where(drop, np.zeros((), values.dtype), values))

    return this.issue(engine="vector", reads=tensors(data, prob), writes=(dst,), action=action)


def set_rng_seed(src_seeds: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Seed the Vector engine's generators from a 32-bit value `[1, 1]`; the same seed repeats the same numbers."""
    this = begin("set_rng_seed", src_seeds=src_seeds)
    action = None
    if this.values:
        state, read = random_state(this.machine, "vector"), native_reader(src_seeds)
        action = lambda: state.seed(int(read().reshape(-1)[:1].view(np.uint32)[0]))  # noqa: E731
    return this.issue(engine="vector", reads=(src_seeds,), writes=(), action=action)


def rand_set_state(src_seeds: NkiTensor, engine: Engine = Engine.gpsimd, name: str | None = None) -> NkiInstruction:
    """The generators of the lanes of `src_seeds` = its uint32 words, 6 a lane on GpSimd and 24 on Vector."""
    this = begin("rand_set_state", src_seeds=src_seeds, engine=engine)
    where = resolve_engine(engine, "gpsimd")
    action = None
    if this.values:
        words, read = _lanes(this, where, src_seeds), native_reader(src_seeds)

        def action() -> None:
            words[...] = read().reshape(words.shape)

    return this.issue(engine=where, reads=(src_seeds,), writes=(), action=action)


def rand_get_state(dst: NkiTensor, engine: Engine = Engine.gpsimd, name: str | None = None) -> NkiInstruction:
    """`dst` = the uint32 words of the generators of its lanes, as `rand_set_state` takes them."""
    this = begin("rand_get_state", dst=dst, engine=engine)
    where = resolve_engine(engine, "gpsimd")
    action = None
    if this.values:
        words, store, rows = _lanes(this, where, dst), storer(dst), dst.partitions
        action = lambda: store(words.reshape(rows, -1))  # noqa: E731
    return this.issue(engine=where, reads=(), writes=(dst,), action=action)


def _lanes(this: begin, engine: str, tensor: NkiTensor) -> Any:
    start = tensor.region().partition_start
    return random_state(this.machine, engine).words[start : start + tensor.partitions]
