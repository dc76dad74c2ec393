"""The eight largest values of a row, where they are, and how to strike them out (Vector engine)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from nki_hf.sim.isa.instruction import NkiInstruction, begin, tensors
from nki_hf.sim.tensors.tensor import NkiTensor
from nki_hf.sim.tensors.values import Array, reader, storer, writer

__all__ = ["max8", "nc_find_index8", "nc_match_replace8"]

_NOT_FOUND = np.uint32(0xFFFFFFFF)


def max8(dst: NkiTensor, src: NkiTensor, name: str | None = None) -> NkiInstruction:
    """`dst [partitions, 8]`: the eight largest float32 values of each row, in descending order, duplicates included."""
    this = begin("max8", dst=dst, src=src)
    action = None
    if this.values:
        read, write = reader(src), writer(dst)
        action = lambda: write(np.sort(np.partition(read(), -8, axis=1)[:, -8:], axis=1)[:, ::-1])  # noqa: E731
    return this.issue(engine="vector", reads=(src,), writes=(dst,), action=action)


def nc_find_index8(dst: NkiTensor, data: NkiTensor, vals: NkiTensor, name: str | None = None) -> NkiInstruction:
    """`dst [partitions, 8]` (uint16 or uint32): position in `data` of each of the eight `vals` of the row.

    Equal values take successive positions, in the order of `vals`; a value that is not there gives all ones.
    """
    this = begin("nc_find_index8", dst=dst, data=data, vals=vals)
    action = None
    if this.values:
        search, wanted, store, element = reader(data), reader(vals), storer(dst), dst.dtype.dtype

        def action() -> None:
            store(_positions(search(), wanted(), range(8))[0].astype(element))

    return this.issue(engine="vector", reads=(data, vals), writes=(dst,), action=action)


def nc_match_replace8(
    dst: NkiTensor, data: NkiTensor, vals: NkiTensor, imm: float, dst_idx: NkiTensor | None = None, name: str | None = None
) -> NkiInstruction:
    """`dst = data` with the first occurrence of each of the eight `vals` of the row replaced by `imm`.

    `vals` are taken from the last to the first, so that of equal values the last takes the first position; `dst_idx`
    receives the positions, all ones for a value that is not there.
    """
    this = begin("nc_match_replace8", dst=dst, data=data, vals=vals, imm=imm, dst_idx=dst_idx)
    action = None
    if this.values:
        search, wanted, write, number = reader(data), reader(vals), writer(dst), np.float32(imm)
        indices = None if dst_idx is None else storer(dst_idx)
        element = None if dst_idx is None else dst_idx.dtype.dtype

        def action() -> None:
            values = search()
            positions, taken = _positions(values, wanted(), range(7, -1, -1))
            write(np.where(taken, number, values))
            if indices is not None:
                indices(positions.astype(element))

    return this.issue(engine="vector", reads=(data, vals), writes=(dst, *tensors(dst_idx)), action=action)


def _positions(data: Array, vals: Array, order: Iterable[int]) -> tuple[Array, Array]:
    """Positions `[partitions, 8]` as uint32, and which elements of `data` were matched."""
    taken = np.zeros(data.shape, np.bool_)
    positions = np.full((data.shape[0], 8), _NOT_FOUND)
    rows = np.arange(data.shape[0])
    for slot in order:
        match = (data == vals[:, slot : slot + 1]) & ~taken
        first = match.argmax(axis=1)
        found = match[rows, first]
        positions[found, slot] = first[found]
        taken[rows[found], first[found]] = True
    return positions, taken
