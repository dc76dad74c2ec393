"""The calling contract of `flash_backward` (see `binding`), and what its plan tells of a launch."""

from __future__ import annotations

from nki_hf.errors import Reason
from nki_hf.kernels.binding import Argument, Binding, Division, Output
from nki_hf.kernels.call_tensors import HIDDEN, LOWEST
from nki_hf.kernels.flash_backward.plan import backward_reasons, plan_backward
from nki_hf.kernels.plan import Plan, Target
from nki_hf.problem import Problem

__all__ = ["BINDING", "PER_BLOCK"]

_Q = ("batch", "num_heads_q", "seqlen_q")
_KV = ("batch", "num_heads_kv", "seqlen_kv")
_OUT = ("batch", "seqlen_q", "num_heads_q", "head_dim_v")
PER_BLOCK = 24
"""Instructions of a block of 128 rows x 512 keys with head_dim 128: fourteen products, four transposes, statistics, sums."""


def plan(problem: Problem, target: Target) -> Plan | tuple[Reason, ...]:
    """The plan of a call, or why the kernel cannot take it."""
    reasons = backward_reasons(problem, target.chip)
    if reasons:
        return reasons
    found = plan_backward(problem, target.chip)
    passed = set() if found.recompute else {"out"}
    if found.row_statistics:
        passed |= {"row_shift", "row_sum"}
    elif not found.recompute:
        passed.add("lse")
    if found.out_rest:
        passed.add("out_rest")
    if found.bounds:
        passed |= {"lo", "hi"}
    if problem.mask.bias is not None:
        passed.add("bias")
    if problem.sink:
        passed |= {"sink", "dsink"}
    if found.bias_gradient:
        passed.add("dbias")
    rounds = 1 + found.first_pass + 2 * found.bias_gradient
    return Plan(
        constants=found.constants(),
        passed=frozenset(passed),
        tiles=found.tiles(),
        instructions=PER_BLOCK * rounds * problem.batch * problem.num_heads_q * max(1, found.blocks),
        detail=found,
    )


def _lowest_sink(problem: Problem) -> float:
    """A sink above the scores of hidden keys, which lie at HIDDEN times the slope of the kernel's scores: the sum of a row
    that sees no key would else hold those keys.
    """
    slope = problem.scale if problem.softcap is None else problem.softcap
    if slope <= 0 or problem.mask.bias == "additive":
        slope = 1.0
    return 0.95 * HIDDEN * min(slope, 1.0)


BINDING = Binding(
    name="flash_backward",
    package="nki_hf.kernels.flash_backward",
    kind="backward",
    arguments=(
        Argument(name="q", axes=(*_Q, "head_dim")),
        Argument(name="k", axes=(*_KV, "head_dim")),
        Argument(name="v", axes=(*_KV, "head_dim_v")),
        Argument(name="dout", axes=_OUT),
        Argument(name="out", axes=_OUT, optional=True),
        Argument(name="lse", axes=_Q, dtype="float32", optional=True),
        Argument(name="dlse", axes=_Q, dtype="float32"),
        Argument(name="lo", axes=("batch", "seqlen_q"), dtype="int32", broadcast=("batch",), optional=True),
        Argument(name="hi", axes=("batch", "seqlen_q"), dtype="int32", broadcast=("batch",), optional=True),
        Argument(name="bias", axes=(*_Q, "seqlen_kv"), dtype="mask", broadcast=_Q, hidden=HIDDEN, lowest=LOWEST, optional=True),
        Argument(name="sink", axes=("1", "num_heads_q"), dtype="float32", lowest=_lowest_sink, optional=True),
        Argument(name="row_shift", axes=_Q, dtype="float32", optional=True),
        Argument(name="row_sum", axes=_Q, dtype="float32", optional=True),
        Argument(name="out_rest", axes=_OUT, dtype="float32", optional=True),
    ),
    outputs=(
        Output(name="dq", axes=(*_Q, "head_dim")),
        Output(name="dk", axes=(*_KV, "head_dim")),
        Output(name="dv", axes=(*_KV, "head_dim_v")),
        # One row per batch, so that no two cores write one element; whoever calls adds them.
        Output(name="dsink", axes=("batch", "num_heads_q"), dtype="float32", optional=True),
        Output(name="dbias", axes=(*_Q, "seqlen_kv"), dtype="float32", broadcast=_Q, optional=True),
    ),
    constants=(
        *(
            "spans",
            "section",
            "block",
            "recompute",
            "bias_gradient",
            "softmax_scale",
            "softcap",
            "q_offset",
            "window",
            "ahead",
        ),
    ),
    plan=plan,
    # The outer loop of the kernel is over (batch, kv head), whose iterations share nothing but the bias's gradient.
    division=Division(axes=("batch", "num_heads_kv"), worth={"seqlen_q": 128}),
)
