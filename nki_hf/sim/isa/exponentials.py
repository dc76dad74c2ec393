"""exponential: exp(src - max) with a running sum, on the Vector engine of NeuronCore-v4."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.sim.isa.enums import reduce_cmd as ReduceCmd
from nki_hf.sim.isa.instruction import NkiInstruction, begin, tensors
from nki_hf.sim.isa.operators import OPERATORS
from nki_hf.sim.isa.registers import reduction
from nki_hf.sim.tensors.tensor import NkiTensor
from nki_hf.sim.tensors.values import column, float_target, reader, writer

__all__ = ["exponential"]


def exponential(
    dst: NkiTensor,
    src: NkiTensor,
    max_value: Any = 0.0,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: ReduceCmd = ReduceCmd.idle,
    reduce_init: Any = 0.0,
    name: str | None = None,
) -> NkiInstruction:
    """`dst = exp(src - max_value)` in float32; `max_value` is an immediate or `[partitions, 1]`.

    The Vector engine's registers sum the float32 result as `reduce_cmd` says (`load_reduce` starts from `reduce_init`), and
    `reduce_res [partitions, 1]` receives them.
    """
    this = begin(
        "exponential",
        dst=dst,
        src=src,
        max_value=max_value,
        reduce_res=reduce_res,
        reduce_cmd=reduce_cmd,
        reduce_init=reduce_init,
    )
    action = None
    if this.values:
        read, shift, target, write = reader(src), column(max_value), float_target(dst), writer(dst)
        fold = reduction(this.machine, "vector", "exponential", src, reduce_cmd, OPERATORS["add"], reduce_res, reduce_init)

        def action() -> None:
            values = np.subtract(read(), shift())
            if target is not None:
                values = np.exp(values, out=target)
            else:
                write(np.exp(values, out=values))
            if fold is not None:
                fold(values)

    return this.issue(
        engine="vector",
        reads=tensors(src, max_value, reduce_init),
        writes=(dst, *tensors(reduce_res)),
        action=action,
        op="exp",
        reduce_cmd=reduce_cmd.name,
    )
