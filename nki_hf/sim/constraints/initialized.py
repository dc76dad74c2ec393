"""Reads of memory that nothing has written, on request (`SimOptions.uninitialized="error"`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from nki_hf.sim.faults import fault
from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["check_written"]


def check_written(opcode: str, reads: Iterable[tuple[NkiTensor, Any]], position: tuple[str, int] | None = None) -> None:
    """Fault on the first operand with an element that no instruction has written, with the element's index.

    An operand whose elements are chosen at run time, or are seen at another width than they are stored with, is only
    faulted if nothing at all of its tile was written.

    Args:
      opcode: the instruction.
      reads: its operands, each with which of its elements the instruction looks at, a mask that broadcasts to it; None: all.
      position: file and line of the kernel, if they are not those of the code that runs now.
    """
    for tensor, part in reads:
        flags = tensor.storage.written
        if flags is None:
            continue
        exact = tensor.written() if tensor.indirection is None else None
        if exact is not None and part is not None:
            exact = exact | ~part
        if exact is not None and exact.all():
            continue
        missing = np.argwhere(~exact) if exact is not None else np.zeros((0 if flags.any() else 1, tensor.ndim), np.int64)
        if len(missing):
            index = tuple(int(i) for i in missing[0])
            fault(
                "uninitialized",
                opcode,
                f"{len(missing):,} of {tensor.size:,} elements of {tensor!r} were never written, "
                f"the first at {list(index)} of the operand",
                limit="every element that is read must have been written",
                advice="Write or memset the tile first, or read only what was written",
                position=position,
                index=list(index),
            )
