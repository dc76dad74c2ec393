"""DeviceMask: what the mask function gives the layers of a model on a Neuron device in the place of a mask tensor.

It says in `Keys`' words what a mask of seqlen_q x seqlen_kv would say: a band of keys, and one key mask per batch row for the
padding. It is made once and shared by the layers, its bias in the dtype that kernels take. No value is read, so that it can be
made while a model is traced. Whatever else is done with it (indexing, arithmetic, torch functions) is done with the mask that
it stands for: sdpa's bool mask, or eager's float mask, which models that decline sdpa may add to their scores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from nki_hf.adapters.keys import Keys
from nki_hf.problem import Band

__all__ = ["DeviceMask", "band_mask", "packed_mask", "without_copies"]


class DeviceMask:
    """A mask `[batch, 1, seqlen_q, seqlen_kv]` that nobody has to build.

    Attributes:
      device: of the layers that it is for.
      batch, seqlen_q, seqlen_kv: its sizes.
      q_offset, window, ahead: the band, as in `Keys`.
      lo, hi: int32 `[batch or 1, seqlen_q]`, what of the band only the device knows; both or neither.
      bias: uint8 `[batch or 1, 1, seqlen_q or 1, seqlen_kv]`, 0 hides; None = nothing hidden besides.
      stands_as: dtype of the mask that it stands for: bool, True = may see; or a float, 0 = may see, its lowest number hides.
    """

    def __init__(
        self,
        device: torch.device,
        batch: int,
        seqlen_q: int,
        seqlen_kv: int,
        *,
        q_offset: int = 0,
        window: int | None = None,
        ahead: int | None = None,
        lo: torch.Tensor | None = None,
        hi: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        stands_as: torch.dtype = torch.bool,
    ) -> None:
        self.stands_as = stands_as
        self.device, self.batch, self.seqlen_q, self.seqlen_kv = device, batch, seqlen_q, seqlen_kv
        self.q_offset, self.window, self.ahead = q_offset, window, ahead
        self.lo, self.hi, self.bias = lo, hi, bias

    def keys(self, seqlen_q: int, seqlen_kv: int, *, cut: bool = False) -> Keys | None:
        """The same in `Keys`, for a layer with these lengths; None if the mask was made for others.

        `cut`: keys of the mask beyond `seqlen_kv` are left out.
        """
        if seqlen_q != self.seqlen_q or (seqlen_kv > self.seqlen_kv if cut else seqlen_kv != self.seqlen_kv):
            return None
        bias = self.bias if self.bias is None or seqlen_kv == self.seqlen_kv else self.bias[..., :seqlen_kv]
        return Keys(q_offset=self.q_offset, window=self.window, ahead=self.ahead, lo=self.lo, hi=self.hi, bias=bias)

    def dense(self) -> torch.Tensor:
        """Bool `[batch, 1, seqlen_q, seqlen_kv]`, True = may see."""
        keys = Keys(q_offset=self.q_offset, window=self.window, ahead=self.ahead, lo=self.lo, hi=self.hi)
        visible = keys.visible((0, self.seqlen_q), (0, self.seqlen_kv), self.device)
        if self.bias is not None:
            visible = self.bias.to(torch.bool) if visible is None else visible & self.bias.to(torch.bool)
        if visible is None:
            visible = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=self.device)
        return visible.expand(self.batch, 1, self.seqlen_q, self.seqlen_kv)

    def tensor(self) -> torch.Tensor:
        """The mask that this one stands for, `[batch, 1, seqlen_q, seqlen_kv]` in the dtype `stands_as`."""
        visible = self.dense()
        if self.stands_as is torch.bool:
            return visible
        zero = torch.zeros((), device=self.device, dtype=self.stands_as)
        return torch.where(visible, zero, torch.finfo(self.stands_as).min)

    # ---- in the place of a tensor ---------------------------------------------------------------------------------------

    @property
    def shape(self) -> torch.Size:
        """Sizes of the mask."""
        return torch.Size((self.batch, 1, self.seqlen_q, self.seqlen_kv))

    @property
    def ndim(self) -> int:
        """4."""
        return 4

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """As a tensor's: the same mask on another device, or the mask that it stands for in another dtype."""
        device, dtype, _, _ = torch._C._nn._parse_to(*args, **kwargs)
        if dtype not in (None, self.stands_as):
            return self.tensor().to(*args, **kwargs)
        target = self.device if device is None else device
        lo, hi, bias = (None if each is None else each.to(target) for each in (self.lo, self.hi, self.bias))
        return DeviceMask(
            target,
            self.batch,
            self.seqlen_q,
            self.seqlen_kv,
            q_offset=self.q_offset,
            window=self.window,
            ahead=self.ahead,
            lo=lo,
            hi=hi,
            bias=bias,
            stands_as=self.stands_as,
        )

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(DeviceMask, DeviceMask.tensor, (args, kwargs or {}))
        return func(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what copy and pickle look for
            raise AttributeError(name)
        return getattr(self.tensor(), name)


def _operator(name: str) -> Any:
    def operator(self: DeviceMask, *others: Any) -> Any:
        return getattr(self.tensor(), name)(*(each.tensor() if isinstance(each, DeviceMask) else each for each in others))

    return operator


for _name in "and rand or ror xor rxor invert add radd sub rsub mul rmul eq ne lt le gt ge getitem len bool".split():
    setattr(DeviceMask, f"__{_name}__", _operator(f"__{_name}__"))
DeviceMask.__hash__ = object.__hash__  # type: ignore[method-assign]


def band_mask(
    device: torch.device,
    batch: int,
    seqlen_q: int,
    seqlen_kv: int,
    *,
    q_offset: int | torch.Tensor,
    window: int | None,
    ahead: int | None,
    padding: torch.Tensor | None,
    kv_offset: int = 0,
) -> DeviceMask:
    """The mask of a band with padding.

    Args:
      device, batch, seqlen_q, seqlen_kv: see `DeviceMask`.
      q_offset: position of query row 0 in the sequence; a tensor where the cache keeps it as one: the band then becomes
        run-time bounds, because a constant would be a kernel of its own for each value.
      window, ahead: as in `problem.Mask`.
      padding: bool `[batch, any length]` over the whole sequence, True = no padding; what lies behind its end is hidden.
        None = no padding.
      kv_offset: position of key 0 in the sequence.
    """
    bias, lo, hi, offset = None, None, None, 0
    if padding is not None:
        bias = _key_mask(padding, kv_offset, seqlen_kv)
    if isinstance(q_offset, torch.Tensor):
        position = torch.arange(seqlen_q, device=device, dtype=torch.int32)[None] + (q_offset - kv_offset).to(torch.int32)
        lo, hi = (edge.clamp(0, seqlen_kv) for edge in Band(window=window, ahead=ahead).edges(position, seqlen_kv))
        window = ahead = None
    elif window is not None or ahead is not None:
        offset = q_offset - kv_offset
    return DeviceMask(device, batch, seqlen_q, seqlen_kv, q_offset=offset, window=window, ahead=ahead, lo=lo, hi=hi, bias=bias)


def _key_mask(padding: torch.Tensor, kv_offset: int, seqlen_kv: int) -> torch.Tensor:
    missing = kv_offset + seqlen_kv - padding.shape[1]
    whole = torch.nn.functional.pad(padding, (0, missing)) if missing > 0 else padding
    return whole[:, None, None, kv_offset : kv_offset + seqlen_kv].to(torch.uint8)


def packed_mask(
    device: torch.device,
    batch: int,
    seqlen: int,
    sees: Callable[..., torch.Tensor],
    *,
    window: int | None,
    padding: torch.Tensor | None = None,
) -> DeviceMask:
    """The causal mask of packed sequences or of chunks: a static band, and where each row's own one begins as run-time bounds.

    Args:
      device, batch: see `DeviceMask`.
      seqlen: number of rows and of keys.
      sees: Transformers' mask function of the batch, head, query and key indices, which broadcast; its rows see a run of keys
        that ends with their own. Asked of each row and the key before it only.
      window: as in `problem.Mask`.
      padding: as in `band_mask`.
    """
    zero = torch.zeros((1, 1), dtype=torch.int64, device=device)
    rows = torch.arange(seqlen, device=device)[None]
    previous = sees(torch.arange(batch, device=device)[:, None], zero, rows[:, 1:], rows[:, :-1])
    starts = torch.where(previous, 0, rows[:, 1:].to(torch.int32)).expand(batch, seqlen - 1)
    lo = torch.nn.functional.pad(starts, (1, 0))
    # The largest start so far, by doubling: slices, pads and maxima are taken by every lowering, a cumulative maximum is not.
    step = 1
    while step < seqlen:
        lo = torch.maximum(lo, torch.nn.functional.pad(lo[:, :-step], (step, 0)))
        step *= 2
    bias = None if padding is None else _key_mask(padding, 0, seqlen)
    return DeviceMask(device, batch, seqlen, seqlen, window=window, ahead=1, lo=lo, hi=torch.full_like(lo, seqlen), bias=bias)


def without_copies(mask: torch.Tensor, device: torch.device) -> DeviceMask:
    """A bool mask `[batch, 1, seqlen_q, seqlen_kv]`, which stays one, in the dtype of kernels and without repeated axes."""
    shape, bias = mask.shape, mask
    for axis in (0, 2):
        if shape[axis] > 1 and bias.stride(axis) == 0:
            bias = bias.narrow(axis, 0, 1)
    return DeviceMask(device, shape[0], shape[2], shape[3], bias=bias.to(torch.uint8))
