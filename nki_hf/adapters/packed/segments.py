"""Segments of a pack: from tensors of first rows, or from the bounds that a mask became."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch

from nki_hf.adapters.keys import Keys
from nki_hf.adapters.packed.pieces import TILE, Segments, cut
from nki_hf.adapters.tracing import traced
from nki_hf.problem import Band

__all__ = ["first_rows", "segments_of", "segments_of_bounds", "worth"]


def segments_of(
    cu_q: torch.Tensor,
    cu_kv: torch.Tensor,
    *,
    window: int | None = None,
    ahead: int | None = None,
    chunk: int | None = None,
) -> Segments | None:
    """The sequences that two tensors of first rows tell; None if their values must not be read, or are no first rows.

    They are read once per call, on `neuron` as well: an eager step waits for the device anyway. A graph that is traced knows no
    values, and on `xla` they would become constants of it: pass them on the CPU there.

    Args:
      cu_q, cu_kv: first row and first key of each sequence and the total, int `[num_sequences + 1]`.
      window, ahead, chunk: as in `Segments`.
    """
    rows, keys = first_rows(cu_q), first_rows(cu_kv)
    if rows is None or keys is None or len(rows) != len(keys) or not all(_rise(numbers) for numbers in (rows, keys)):
        return None
    return Segments(cu_q=rows, cu_kv=keys, window=window, ahead=ahead, chunk=chunk)


def first_rows(cu: torch.Tensor) -> tuple[int, ...] | None:
    """The values of first rows or keys; None if they must not be read: in a graph, and on `xla`."""
    return None if traced(cu) or cu.device.type == "xla" else tuple(map(int, cu.tolist()))


def _rise(numbers: Sequence[int]) -> bool:
    return bool(numbers) and numbers[0] == 0 and all(a <= b for a, b in pairwise(numbers))


def segments_of_bounds(keys: Keys, seqlen: int) -> Segments | None:
    """The sequences of a pack whose rows are its keys, as a mask's bounds tell them; None if they tell anything else.

    A row that sees only itself begins a sequence, and every row sees all of its own sequence up to itself, or a window of it.

    Args:
      keys: with bounds on the CPU; without, the answer is None.
      seqlen: rows, and keys.
    """
    if keys.lo is None or keys.hi is None or keys.bias is not None or keys.lo.shape[0] != 1:
        return None
    if not keys.lo.is_cpu or traced(keys.lo):
        return None
    if keys.told is None or keys.told[0] != seqlen:
        answer = (seqlen, _sequences(keys, seqlen))
        if not keys.inside:  # bounds of somebody else, who may write to them
            return answer[1]
        object.__setattr__(keys, "told", answer)  # the layers of a model share the keys of their mask
    found: Segments | None = keys.told[1]
    return found


def _sequences(keys: Keys, seqlen: int) -> Segments | None:
    """The sequences that the bounds' values tell, or None."""
    lo, hi = (each[0].numpy() for each in keys.bounds(seqlen, seqlen, torch.device("cpu")))
    rows = np.arange(seqlen)
    if not seqlen or (hi != rows + 1).any():
        return None
    starts = np.flatnonzero(lo == rows)
    if not len(starts) or starts[0] != 0:
        return None
    first = np.repeat(starts, np.diff(np.append(starts, seqlen)))
    band = Band(window=int((rows - lo).max()) + 1, ahead=1)
    if (lo != band.cut(rows, first, seqlen)[0]).any():
        return None
    numbers = (*(int(start) for start in starts), seqlen)
    limited = (first < band.first(rows)).any()
    return Segments(cu_q=numbers, cu_kv=numbers, window=band.window if limited else None, ahead=band.ahead)


def worth(segments: Segments | None, seqlen_q: int, seqlen_kv: int) -> Segments | None:
    """The segments, if they lie in the pack and their pieces visit fewer tiles than one launch would; else None."""
    if segments is None or segments.cu_q[-1] > seqlen_q or segments.cu_kv[-1] > seqlen_kv:
        return None
    pieces = cut(segments)
    whole = -(-seqlen_q // TILE) * -(-seqlen_kv // TILE)
    return segments if pieces.visited + pieces.idle < whole else None
