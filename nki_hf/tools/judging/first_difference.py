"""The first instruction whose tile differs from the parent kernel's, on the same inputs: where a change went wrong."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nki_hf.sim import SimOptions, launch
from nki_hf.sim.faults import SimulatorWarning
from nki_hf.sim.run.play import played
from nki_hf.tools.judging.line_words import line_words

__all__ = ["first_difference"]

Array = np.ndarray[Any, Any]

_SEEN = 64
"""Instructions that one kernel may have and the other not, before the two are taken for different programs."""
_ALIKE = 4
"""Instructions in a row that must be alike behind such a gap."""
_PAIRS = 48
"""Pairs of tiles that are compared element by element."""
_LARGE = 0.02
"""Difference, relative to the largest element of the parent's tile, that is more than another rounding."""


@dataclass(frozen=True, kw_only=True)
class _Tile:
    opcode: str
    file: str
    line: int
    shape: tuple[int, ...]
    digest: bytes
    values: Array | None
    own: str

    @property
    def kind(self) -> tuple[str, tuple[int, ...]]:
        return self.opcode, self.shape

    @property
    def at(self) -> str:
        """The line, and its file if that is not the kernel's own."""
        return line_words(self.own, self.file, self.line)


def first_difference(
    mine: Mapping[str, Any],
    my_inputs: Mapping[str, Array],
    parent: Mapping[str, Any],
    parent_inputs: Mapping[str, Array],
    options: SimOptions,
    files: tuple[str, str],
) -> dict[str, Any] | None:
    """Where the kernel parts from its parent: `opcode`, `file`, `line`, `parent_file`, `parent_line` and `text`; None if
    nowhere.

    Args:
      mine, parent: tapes and names of parameters (see `child.answer`).
      my_inputs, parent_inputs: the same arrays, each as its kernel takes them, by the task's names.
      options: of the launches, on one core.
      files: the kernel's and the parent's.
    """
    my_file, parent_file = files
    ours, theirs = _tiles(mine, my_inputs, options, (), my_file), _tiles(parent, parent_inputs, options, (), parent_file)
    pairs, gap = _aligned(ours, theirs)
    differing = [(i, j) for i, j in pairs if ours[i].digest != theirs[j].digest][:_PAIRS]
    if differing:
        kept = [
            _tiles(trace, inputs, options, {pair[side] for pair in differing}, files[side])
            for side, (trace, inputs) in enumerate(((mine, my_inputs), (parent, parent_inputs)))
        ]
        apart = [(i, j, *_apart(kept[0][i].values, kept[1][j].values)) for i, j in differing]
        i, j, size, share = next((item for item in apart if item[2] > _LARGE), apart[0])
        if gap is not None and gap[0] <= i:
            return _said(ours, theirs, *gap, _gap_text(ours, theirs, *gap) + f"; {_tile_text(ours[i], theirs[j], size, share)}")
        return _said(ours, theirs, i, j, _tile_text(ours[i], theirs[j], size, share))
    return None if gap is None else _said(ours, theirs, *gap, _gap_text(ours, theirs, *gap))


def _tiles(
    trace: Mapping[str, Any], inputs: Mapping[str, Array], options: SimOptions, keep: Container[int], own: str
) -> list[_Tile]:
    """What each instruction wrote, in order; values of those whose numbers are in `keep`."""
    found: list[_Tile] = []

    def watch(opcode: str, file: str, line: int, written: Sequence[Array]) -> None:
        for array in written:
            dense = np.ascontiguousarray(array)
            # by value: the same numbers in another element type are no difference
            data = dense.astype(np.float64) if dense.dtype.itemsize < 8 else dense
            digest = hashlib.blake2b(data.tobytes(), digest_size=16).digest()
            values = dense.copy() if len(found) in keep else None
            found.append(_Tile(opcode=opcode, file=file, line=line, shape=array.shape, digest=digest, values=values, own=own))

    names = [parameter for parameter, _ in trace["parameters"]]
    arguments = {parameter: np.array(inputs[name]) for parameter, name in trace["parameters"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SimulatorWarning)
        launch(played(trace["tape"], names, watch), (), arguments, options=options, lnc=1)
    return found


def _aligned(ours: Sequence[_Tile], theirs: Sequence[_Tile]) -> tuple[list[tuple[int, int]], tuple[int, int] | None]:
    """Pairs of the same kind in order, and the first place where one kernel has what the other has not."""
    pairs: list[tuple[int, int]] = []
    gap: tuple[int, int] | None = None
    i = j = 0
    while i < len(ours) and j < len(theirs):
        if ours[i].kind == theirs[j].kind:
            pairs.append((i, j))
            i, j = i + 1, j + 1
            continue
        gap = gap or (i, j)
        step = _resumed(ours, theirs, i, j)
        if step is None:
            return pairs, gap
        i, j = i + step[0], j + step[1]
    return pairs, gap


def _resumed(ours: Sequence[_Tile], theirs: Sequence[_Tile], i: int, j: int) -> tuple[int, int] | None:
    for total in range(1, _SEEN + 1):
        for a in range(total + 1):
            one, other = ours[i + a : i + a + _ALIKE], theirs[j + total - a : j + total - a + _ALIKE]
            if one and len(one) == len(other) and all(x.kind == y.kind for x, y in zip(one, other, strict=True)):
                return a, total - a
    return None


def _apart(mine: Array | None, parent: Array | None) -> tuple[float, float]:
    """Largest difference relative to the parent's largest element, and the share of elements that differ."""
    if mine is None or parent is None:
        return 0.0, 0.0
    one, other = np.asarray(mine, np.float64), np.asarray(parent, np.float64)
    finite = np.isfinite(one) & np.isfinite(other)
    if not finite.all() and not np.array_equal(np.isfinite(one), np.isfinite(other)):
        return float("inf"), float((one != other).mean())
    gap = np.abs(np.where(finite, one - other, 0.0))
    size = float(np.abs(np.where(finite, other, 0.0)).max(initial=0.0))
    largest = float(gap.max(initial=0.0))
    return (largest / size if size else float(largest > 0)), float((gap > 0).mean())


def _tile_text(mine: _Tile, parent: _Tile, size: float, share: float) -> str:
    how = "in being finite" if size == float("inf") else f"by up to {size:.2g} of its largest element"
    return (
        f"the first tile that differs from the parent's is what {mine.opcode} writes at {mine.at} (parent: {parent.at}): "
        f"{share:.0%} of {list(mine.shape)} differ, {how}"
    )


def _gap_text(ours: Sequence[_Tile], theirs: Sequence[_Tile], i: int, j: int) -> str:
    mine, parent = ours[i], theirs[j]
    return f"the kernels part where this one has {mine.opcode} at {mine.at} and the parent {parent.opcode} at {parent.at}"


def _said(ours: Sequence[_Tile], theirs: Sequence[_Tile], i: int, j: int, text: str) -> dict[str, Any]:
    mine, parent = ours[i], theirs[j]
    return {
        "opcode": mine.opcode,
        "file": mine.file,
        "line": mine.line,
        "parent_file": parent.file,
        "parent_line": parent.line,
        "text": text,
    }
