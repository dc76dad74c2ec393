"""What FlashAttention's functions check before anything is written: types, shapes, and values that can be read without a wait.

Shapes are exact, since an index tensor of one entry would be broadcast and serve every sequence. Values are read where they lie
on the CPU and no graph is traced (`cu_seqlens` on `neuron` too, see packed/segments.py); elsewhere they are the caller's
affair, and types and shapes alone are checked.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NoReturn

import torch

from nki_hf.adapters.decision import no_kernel
from nki_hf.adapters.scalars import as_int
from nki_hf.adapters.tracing import traced
from nki_hf.errors import UnsupportedProblem

__all__ = [
    "check_index",
    "check_pages",
    "check_starts",
    "check_tensor",
    "check_values",
    "read_longest",
    "readable",
    "refuse",
]

_INTEGERS = frozenset(
    getattr(torch, name) for name in "int8 int16 int32 int64 uint8 uint16 uint32 uint64".split() if hasattr(torch, name)
)


def refuse(field: str, value: object, limit: str, advice: str = "") -> NoReturn:
    """Raise `UnsupportedProblem` with one reason."""
    raise UnsupportedProblem([no_kernel(field, value, limit, advice)])


def readable(tensor: torch.Tensor) -> bool:
    """True if a tensor's values can be read without waiting for a device or fixing them in a graph."""
    return tensor.device.type == "cpu" and not traced(tensor)


def check_tensor(name: str, tensor: Any, layout: str) -> None:
    """Refuse what is no tensor of these axes.

    Args:
      name: the argument's name.
      tensor: what was given.
      layout: the axes in words, `[batch, seqlen]`.

    Raises:
      TypeError: no tensor.
      UnsupportedProblem: another number of axes.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name}={type(tensor).__name__} is not a torch tensor: pass one, {layout}.")
    axes = layout.count(",") + 1
    if tensor.dim() != axes:
        refuse(f"{name}.shape", list(tensor.shape), f"must have {axes} ax{'i' if axes == 1 else 'e'}s, {layout}")


def check_index(name: str, tensor: Any, layout: str, shape: tuple[int | None, ...]) -> None:
    """Refuse an index tensor of another type or shape; nothing is broadcast.

    Args:
      name, tensor, layout: as `check_tensor`.
      shape: sizes of the axes; None = any.

    Raises:
      TypeError, UnsupportedProblem: see above.
    """
    check_tensor(name, tensor, layout)
    if tensor.dtype not in _INTEGERS:
        dtype = str(tensor.dtype).removeprefix("torch.")
        refuse(f"{name}.dtype", dtype, "must be an integer type", f"Pass {name}.to(torch.int32).")
    if any(want is not None and have != want for have, want in zip(tensor.shape, shape, strict=True)):
        sizes = "[" + ", ".join("any" if want is None else str(want) for want in shape) + "]"
        refuse(f"{name}.shape", list(tensor.shape), f"must be {layout} = {sizes}: nothing is broadcast")


def check_values(name: str, tensor: torch.Tensor, least: int, most: int, meaning: str, advice: str) -> None:
    """Refuse values outside of `[least, most]`, if they can be read.

    Args:
      name: the argument's name.
      tensor: int `[entries]`.
      least, most: the bounds, both allowed.
      meaning: what a value is, for the message.
      advice: what to do.

    Raises:
      UnsupportedProblem: see above.
    """
    if readable(tensor):
        for n, value in enumerate(tensor.tolist()):
            if not least <= value <= most:
                refuse(f"{name}[{n}]", f"{value:,}", f"must be {least:,} to {most:,}, {meaning}", advice)


def check_pages(table: torch.Tensor, needed: list[tuple[int, int]], page: int, num_blocks: int) -> None:
    """Refuse page numbers that do not exist, of pages that hold a key that is read or written.

    Args:
      table: int `[num_sequences, max_blocks]`, long enough for all keys.
      needed: first and past the last key of each sequence.
      page: keys of a page.
      num_blocks: pages that there are.

    Raises:
      UnsupportedProblem: see above.
    """
    if not readable(table):
        return
    rows = table.tolist()
    for n, (first, last) in enumerate(needed):
        for place in range(first // page, -(-last // page) if first < last else 0):
            number = rows[n][place]
            if not 0 <= number < num_blocks:
                limit = f"must be 0 to {num_blocks - 1}, a page of the cache: keys {first:,} to {last - 1:,} are needed"
                refuse(f"block_table[{n}, {place}]", number, limit, "Give the sequence a page there.")


def check_starts(name: str, starts: tuple[int, ...], tokens: int | None) -> None:
    """Refuse `cu_seqlens` that are no first rows: from 0 on, never falling, up to the tokens that there are at most.

    Args:
      name: the argument's name.
      starts: its values.
      tokens: how many tokens there are; None = any number.

    Raises:
      UnsupportedProblem: see above.
    """
    if starts[0] != 0:
        refuse(f"{name}[0]", starts[0], "must be 0, the first row of the first sequence", "Prepend 0 to the running sum.")
    for n in range(1, len(starts)):
        if starts[n] < starts[n - 1]:
            limit = f"must be {name}[{n - 1}]={starts[n - 1]:,} or more: it is a running sum of lengths"
            refuse(f"{name}[{n}]", f"{starts[n]:,}", limit, "Pass 0 and the running sum of the lengths.")
    if tokens is not None and starts[-1] > tokens:
        refuse(f"{name}[-1]", f"{starts[-1]:,}", f"must be at most {tokens:,}, the tokens that there are")


def read_longest(name: str, longest: Any, starts: tuple[int, ...] | None) -> None:
    """Refuse a `max_seqlen` that is no length, or is shorter than a sequence: FlashAttention would leave out its end.

    Args:
      name: the argument's name.
      longest: what was given; None = not told.
      starts: first rows of the sequences; None = unknown.

    Raises:
      ValueError: no integer.
      UnsupportedProblem: negative, or too small.
    """
    if longest is None or (isinstance(longest, torch.Tensor) and not readable(longest)):
        return
    number = as_int(name, longest)
    least = 0 if starts is None else max(b - a for a, b in pairwise(starts))
    if number < least:
        refuse(name, f"{number:,}", f"must be {least:,} or more, the longest sequence", "Pass that, or None.")
