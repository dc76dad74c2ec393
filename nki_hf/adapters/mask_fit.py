"""A mask as a tensor that fits the call: which types are masks, four axes, as many keys as there are, and a bias of it."""

from __future__ import annotations

import warnings
from typing import NoReturn

import torch

from nki_hf.errors import Reason, UnsupportedProblem

__all__ = ["as_bias", "check_mask", "fitted"]

_MASK_DTYPES = (
    torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
)  # fmt: skip


def check_mask(mask: torch.Tensor, name: str) -> None:
    """Refuse what cannot be added to scores or select keys: complex numbers, floats of 8 bits and less, and tensors without
    strides (sparse, mkldnn).
    """
    if mask.layout != torch.strided:
        _refuse(f"{name}.layout", mask.layout, "must be an ordinary (strided) tensor", "Call to_dense().")
    if mask.dtype not in _MASK_DTYPES:
        limit = "must be bool, float16, bfloat16, float32, float64 or an integer type"
        _refuse(f"{name}.dtype", mask.dtype, limit, "Convert it.")


def _refuse(field: str, value: torch.dtype | torch.layout, limit: str, advice: str) -> NoReturn:
    found = str(value).removeprefix("torch.")
    raise UnsupportedProblem([Reason(kernel="attention", field=field, value=found, limit=limit, advice=advice)])


def fitted(
    mask: torch.Tensor, q: torch.Tensor, seqlen_kv: int, name: str = "attention_mask", *, cut: bool = False
) -> torch.Tensor:
    """The mask with four axes, broadcast axes of size 1 and exactly `seqlen_kv` keys; `cut`: keys beyond them are left out."""
    shape = list(mask.shape)
    while mask.dim() < 4:
        mask = mask[None]
    if cut:
        mask = mask[..., :seqlen_kv]
    for axis in range(3):
        # An expanded axis must fit as well, or it belongs to another batch; q of batch 1 meets every batch of keys.
        if mask.shape[axis] > 1 and mask.stride(axis) == 0:
            if mask.shape[axis] == q.shape[axis] or (axis == 0 and q.shape[0] == 1):
                mask = mask.narrow(axis, 0, 1)
    if mask.shape[3] == 1 and seqlen_kv != 1:
        mask = mask.expand(-1, -1, -1, seqlen_kv)
    wanted = (*q.shape[:3], seqlen_kv)
    if mask.dim() != 4 or mask.shape[3] != seqlen_kv:
        _misfit(name, shape, wanted)
    for axis in range(3):  # not any() of a generator, which Dynamo of torch 2.9 does not enter
        if mask.shape[axis] != 1 and mask.shape[axis] != wanted[axis]:
            _misfit(name, shape, wanted)
    return mask


def _misfit(name: str, shape: list[int], wanted: tuple[int, ...]) -> NoReturn:
    raise UnsupportedProblem(
        [
            Reason(
                kernel="attention",
                field=f"{name}.shape",
                value=str(shape),
                limit=f"must broadcast to [batch, num_heads_q, seqlen_q, seqlen_kv] = {list(wanted)}",
            )
        ]
    )


def as_bias(mask: torch.Tensor) -> torch.Tensor:
    """The mask in a dtype that a kernel adds or selects by; integers, which are added, warn."""
    if mask.dtype in (torch.bool, torch.float32, torch.bfloat16, torch.float16):
        return mask
    if not mask.dtype.is_floating_point and not torch.compiler.is_compiling():
        warnings.warn(
            f"attention_mask.dtype={str(mask.dtype).removeprefix('torch.')}: integers are added to the scores, as in eager, "
            "so that 0 and 1 hide no key. Pass a bool mask (True = may see) to hide keys.",
            stacklevel=2,
        )
    return mask.to(torch.float32)
