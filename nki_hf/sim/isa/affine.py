"""Affine patterns of GpSimd: iota, and affine_select, which selects by the sign of one."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from nki_hf.sim.dtypes import as_dtype
from nki_hf.sim.execution.actions import Action
from nki_hf.sim.isa.instruction import NkiInstruction, begin
from nki_hf.sim.isa.operators import OPERATORS, as_operator
from nki_hf.sim.tensors.casts import cast, copy_cast
from nki_hf.sim.tensors.tensor import NkiTensor
from nki_hf.sim.tensors.values import Array, native_reader, storer
from nki_hf.sim.whole import whole, whole_pairs

__all__ = ["affine_select", "iota"]

KEPT = 1 << 16
"""Most elements of a pattern whose values are kept for the next instruction that asks for them."""


def iota(dst: NkiTensor, pattern: Any, offset: int = 0, channel_multiplier: int = 0, name: str | None = None) -> NkiInstruction:
    """`dst[p, w, z, y, x] = offset + p * channel_multiplier + w * step_w + ...`, in int32, then cast to `dst`.

    `pattern` is up to four pairs `[step, num]`, outermost first; the product of the nums is the free size of `dst`.
    """
    pairs, offset = whole_pairs("iota", pattern), whole("iota", "offset", offset)
    channel_multiplier = whole("iota", "channel_multiplier", channel_multiplier)
    this = begin("iota", dst=dst, pattern=pairs, offset=offset, channel_multiplier=channel_multiplier)
    action = None
    if this.values:
        store = storer(dst)
        values = _cast_pattern(pairs, offset, channel_multiplier, dst.partitions, dst.dtype.name)
        action = lambda: store(values)  # noqa: E731

    return this.issue(engine="gpsimd", reads=(), writes=(dst,), action=action)


def affine_select(
    dst: NkiTensor,
    pattern: Any,
    channel_multiplier: int,
    on_true_tile: NkiTensor,
    on_false_value: Any,
    cmp_op: Any = OPERATORS["equal"],
    offset: int = 0,
    name: str | None = None,
) -> NkiInstruction:
    """`dst = on_true_tile` where `cmp_op(offset + p * channel_multiplier + sum(i * step), 0)`, else `on_false_value`.

    Selected elements keep their bits if the dtypes are the same, else they are cast through float32; what is not selected
    cannot leak, NaN included.
    """
    pairs, cmp_op = whole_pairs("affine_select", pattern), as_operator(cmp_op)
    offset = whole("affine_select", "offset", offset)
    channel_multiplier = whole("affine_select", "channel_multiplier", channel_multiplier)
    this = begin(
        "affine_select",
        dst=dst,
        pattern=pairs,
        channel_multiplier=channel_multiplier,
        on_true_tile=on_true_tile,
        on_false_value=on_false_value,
        cmp_op=cmp_op,
        offset=offset,
    )
    action = None
    if this.values:
        mask = _rejected(pairs, offset, channel_multiplier, dst.partitions, cmp_op.name)
        action = _select_action(dst, on_true_tile, mask, on_false_value)
    return this.issue(engine="gpsimd", reads=(on_true_tile,), writes=(dst,), action=action, op=cmp_op.name)


def _kept_if_small(maxsize: int) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """Keep the results of up to `maxsize` patterns of at most `KEPT` elements: large ones would fill the host's memory."""

    def decorate(function: Callable[..., Array]) -> Callable[..., Array]:
        kept = functools.lru_cache(maxsize)(function)

        @functools.wraps(function)
        def call(pairs: tuple[tuple[int, int], ...], offset: int, multiplier: int, partitions: int, *more: str) -> Array:
            elements = partitions * math.prod(num for _, num in pairs)
            return (kept if elements <= KEPT else function)(pairs, offset, multiplier, partitions, *more)

        return call

    return decorate


@_kept_if_small(256)
def _affine(pairs: tuple[tuple[int, int], ...], offset: int, multiplier: int, partitions: int) -> Array:
    """The pattern's values `[partitions, elements]`, int32 with the engine's wrap-around."""
    values = np.zeros(1, np.int64)
    for stride, num in pairs:
        values = (values[:, None] + stride * np.arange(num, dtype=np.int64)).reshape(-1)
    rows = offset + multiplier * np.arange(partitions, dtype=np.int64)
    return (rows[:, None] + values).astype(np.int32)


@_kept_if_small(128)
def _cast_pattern(pairs: tuple[tuple[int, int], ...], offset: int, multiplier: int, partitions: int, dtype: str) -> Array:
    return cast(_affine(pairs, offset, multiplier, partitions), as_dtype(dtype))


@_kept_if_small(512)
def _rejected(pairs: tuple[tuple[int, int], ...], offset: int, multiplier: int, partitions: int, compare: str) -> Array:
    return OPERATORS[compare].compute(_affine(pairs, offset, multiplier, partitions), 0) == 0


def _select_action(dst: NkiTensor, source: NkiTensor, rejected: Array, value: Any) -> Action:
    fill = cast(np.asarray(value, np.float32), dst.dtype)
    store = storer(dst)
    same = source.storage is dst.storage and source.offset == dst.offset and source.get_pattern() == dst.get_pattern()
    if same and source.dtype == dst.dtype and dst.indirection is None:  # in place: only what is not selected changes
        return lambda: store(fill, rejected)
    read, convert = native_reader(source), copy_cast(source.dtype.dtype, dst.dtype)

    def action() -> None:
        store(np.where(rejected, fill, convert(read())))

    return action
