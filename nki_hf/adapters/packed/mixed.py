"""A warning for sequences of one row that see each other: their positions start again, and the mask does not know it.

Transformers' mask function learns of positions only without a mask, without a cache, and from models that pass them on. Eager
attention mixes the sequences then, and "nki" means what eager means; FlashAttention keeps them apart.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable

import torch

from nki_hf.adapters.keys import Keys
from nki_hf.adapters.tracing import traced

__all__ = ["MixedSequencesWarning", "warn_if_mixed"]


class MixedSequencesWarning(UserWarning):
    """A row's positions start again, and its later sequence saw the keys of the one before; once per process."""


_warned = False
_latest: tuple[Callable[[], torch.Tensor | None], int | None, list[tuple[int, int]]] = (lambda: None, None, [])
"""The positions that were read last, which the layers of a model share: their version, and their restarts."""


def warn_if_mixed(positions: object, keys: Keys, seqlen: int, layer: Callable[[], str]) -> None:
    """Warn, the first time in this process, if a row whose position starts again sees the key before its own.

    Positions and masks are read on the CPU only, and not while a graph is traced: elsewhere that would be a wait for each call.

    Args:
      positions: the argument `position_ids`; anything but integers `[batch or 1, seqlen]` is left alone.
      keys: what the rows see, of as many keys as rows.
      seqlen: rows, and keys.
      layer: gives the name of who calls.
    """
    global _warned
    if _warned or not isinstance(positions, torch.Tensor) or positions.dim() != 2 or positions.shape[1] != seqlen:
        return
    if positions.device.type != "cpu" or traced(positions):
        return
    for batch, row in _restarts(positions):
        if _mixed(keys, batch, row, seqlen):
            told = (
                f"position_ids start again at row {row:,}, as those of packed sequences do, and the mask lets that row see the "
                f"rows before it, as in eager attention: sequences are mixed (first in {layer()}). Pass cu_seq_lens_q and "
                "cu_seq_lens_k (DataCollatorWithFlattening(return_flash_attn_kwargs=True)), or leave out the attention_mask "
                "and set use_cache=False; docs/serving.md says which models heed positions."
            )
            try:
                warnings.warn(told, MixedSequencesWarning, stacklevel=4)
            except MixedSequencesWarning:  # where warnings are errors
                _warned = True
                raise
            _warned = True  # and not before: an interrupt in between would lose it
            return


def _restarts(positions: torch.Tensor) -> list[tuple[int, int]]:
    """Batch entry and row of the first restart of each entry: the first position once more, after a greater one."""
    global _latest
    version = None if positions.is_inference() else positions._version  # those of inference mode have none
    known, then, found = _latest
    if known() is not positions or then != version:
        again = (positions[:, 1:] == positions[:, :1]) & (positions[:, :-1] > positions[:, 1:])
        found = []
        if again.any():
            first = again.to(torch.uint8).argmax(1) + 1
            found = [(n, int(first[n])) for n in range(len(first)) if again[n].any()]
        _latest = (weakref.ref(positions), version, found)
    return found


def _mixed(keys: Keys, batch: int, row: int, seqlen: int) -> bool:
    """True if a row sees itself and the key before it, and none behind it: padding sees not itself, encoders see all."""
    if keys.lo is not None and int(keys.lo[min(batch, keys.lo.shape[0] - 1), row]) >= row:
        return False  # the usual case, in each layer, without the costs of the others
    seen = [_sees(keys, batch, row, key) for key in (row - 1, row)]
    return all(seen) and not (row + 1 < seqlen and _sees(keys, batch, row, row + 1))


def _sees(keys: Keys, batch: int, row: int, key: int) -> bool:
    cells = [keys.visible((row, row + 1), (key, key + 1), torch.device("cpu"))]
    if keys.bias is not None:
        at = keys.bias[:, :, min(row, keys.bias.shape[2] - 1), key]
        cells.append(at.bool() if keys.hides else at > torch.finfo(at.dtype).min / 2)
    return all(bool(cell[min(batch, cell.shape[0] - 1)].any()) for cell in cells if cell is not None)
