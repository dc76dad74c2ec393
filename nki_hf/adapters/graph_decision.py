"""The decision inside a traced graph: made once from what cannot change with the lengths, so that one graph serves all.

`torch.compile` and `torch.export` run the adapter on symbolic lengths. Planning with those would specialise the graph to
one length, so the graph decides from dtype, head dims and options alone, which is all that the kernels' rules
look at; the op plans with the real lengths each time it runs.
"""

from __future__ import annotations

import torch

from nki_hf.adapters.call import Call
from nki_hf.adapters.device import backend_name, target
from nki_hf.dispatch import decide
from nki_hf.errors import UnsupportedProblem
from nki_hf.problem import Mask, Problem
from nki_hf.settings import settings

__all__ = ["falls_back_in_graph"]

_SEQLEN = 128  # stands for any length, as one head stands for any number: no rule depends on them


def falls_back_in_graph(call: Call, *, fallback: str) -> bool:
    """True if no kernel takes the calls that the graph being traced will make.

    Raises:
      UnsupportedProblem: that is so, and the settings are strict.
    """
    q, k, v, keys = call.q, call.k, call.v, call.keys
    q_type, k_type, v_type = (str(each.dtype).removeprefix("torch.") for each in (q, k, v))
    bias = None
    if keys.bias is not None:
        bias = "boolean" if keys.bias.dtype == torch.bool else "additive"
    return bool(
        _falls_back(
            q.device.type,
            q_type,
            None if q_type == k_type == v_type else (q_type, k_type, v_type),
            q.shape[3],
            v.shape[3],
            keys.window is not None,
            keys.ahead is not None,
            keys.lo is not None,
            bias,
            call.softcap is not None,
            call.head_sink is not None,
            fallback,
        )
    )


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator,unused-ignore]
def _falls_back(
    device_type: str,
    dtype: str,
    dtypes: tuple[str, str, str] | None,
    head_dim: int,
    head_dim_v: int,
    window: bool,
    ahead: bool,
    bounds: bool,
    bias: str | None,
    softcap: bool,
    sink: bool,
    fallback: str,
) -> bool:
    problem = Problem(
        batch=1,
        num_heads_q=1,
        num_heads_kv=1,
        seqlen_q=_SEQLEN,
        seqlen_kv=_SEQLEN,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        dtype=dtype,
        dtypes=dtypes,
        mask=Mask(window=1 if window else None, ahead=1 if ahead else None, runtime_bounds=bounds, bias=bias),
        softcap=1.0 if softcap else None,
        sink=sink,
    )
    chip, lnc, _ = target(device_type)
    backend = backend_name(device_type) or "simulator"
    decision = decide(problem, backend=backend, chip=chip, lnc=lnc, fallback=fallback)
    if decision.fallback and settings().strict:
        raise UnsupportedProblem(decision.rejected)
    return decision.fallback
