"""What torch's FlopCounterMode counts for the ops: the products that torch counts for its own sdpa, whatever a mask hides."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, register_flop_formula

from nki_hf.adapters import torch_op

__all__ = ["register_flops"]

Shape = Any


def register_flops() -> None:
    """Make the formulas known to counters that are made from now on."""
    forward, training = torch_op.attention_op.overloadpacket, torch.ops.nki_hf.attention_with_statistics
    for op, formula in ((forward, _forward), (training, _forward), (torch.ops.nki_hf.attention_backward, _backward)):
        if op not in flop_registry:
            register_flop_formula(op)(formula)


def _forward(q: Shape, k: Shape, v: Shape, *_: Any, **__: Any) -> int:
    """Q k^T and P v, 2 operations for each multiplication."""
    rows = q[0] * q[1] * q[2] * k[2]
    return int(2 * rows * (q[3] + v[3]))


def _backward(dout: Shape, dlse: Shape, q: Shape, k: Shape, v: Shape, *_: Any, **__: Any) -> int:
    """Q k^T again, dS k and dS^T q over head_dim; dout v^T and P^T dout over head_dim_v."""
    rows = q[0] * q[1] * q[2] * k[2]
    return int(2 * rows * (3 * q[3] + 2 * v[3]))
