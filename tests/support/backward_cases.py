"""Running flash_backward on the simulator from NumPy inputs: what the tests of the kernel share."""

from dataclasses import replace

import ml_dtypes
import numpy as np
from backward_bar import assert_right

from nki_hf.chips import get_chip
from nki_hf.kernels import reference
from nki_hf.kernels.flash_backward.kernel import flash_backward
from nki_hf.kernels.flash_backward.plan import backward_reasons, plan_backward
from nki_hf.problem import Problem
from nki_hf.sim import SimOptions, launch
from nki_hf.testing import attention_inputs

HIDDEN, LOWEST = np.float32(np.finfo(np.float32).min), np.float32(-1e38)


def problem(**changes):
    sizes = {
        "batch": 1, "num_heads_q": 2, "num_heads_kv": 1, "seqlen_q": 200, "seqlen_kv": 200, "head_dim": 64, "head_dim_v": 64,
        "dtype": "float32",
    }  # fmt: skip
    return Problem(**{**sizes, **changes})


def kernel_arguments(inputs, plan, dout, dlse, forward_results=None):
    """The kernel's tensors and constants, laid out by hand in NumPy; what the forward left is the oracle's if it is not given:
    out `[batch, num_heads_q, seqlen_q, head_dim_v]`, lse, and row_shift and row_sum.
    """
    case, mask = inputs.problem, inputs.problem.mask
    out, lse = (None, None)
    if not plan.recompute:
        out, lse = (forward_results or inputs.expected)[:2]
        out, lse = out.swapaxes(1, 2).astype(inputs.q.dtype), lse.astype(np.float32)
    arguments = {"q": inputs.q, "k": inputs.k, "v": inputs.v, "dout": dout.swapaxes(1, 2), "out": out, "lse": lse}
    if plan.row_statistics:
        arguments["row_shift"], arguments["row_sum"] = (forward_results or (None, None, *_statistics(inputs)))[2:]
    if dlse is not None:
        arguments["dlse"] = dlse
    if plan.bounds:
        edges = np.array([mask.interval(row, case.seqlen_kv) for row in range(case.seqlen_q)]).reshape(-1, 2)
        lo, hi = edges[None, :, 0], edges[None, :, 1]
        if mask.runtime_bounds:
            lo, hi = np.maximum(lo, inputs.lo), np.minimum(hi, inputs.hi)
        arguments |= {"lo": lo.astype(np.int32), "hi": hi.astype(np.int32)}
    if inputs.bias is not None:
        if mask.bias == "boolean":
            arguments["bias"] = inputs.bias.astype(np.uint8)
        else:
            arguments["bias"] = np.where(np.isneginf(inputs.bias), HIDDEN, np.maximum(inputs.bias, LOWEST)).astype(np.float32)
    if inputs.sink is not None:
        arguments["sink"] = inputs.sink.reshape(1, -1)
    arrays = {name: None if array is None else np.ascontiguousarray(array) for name, array in arguments.items()}
    return arrays | plan.constants()


def _statistics(inputs):
    """The largest score of each row, or its sink, as float32, and the row's sum relative to that."""
    probs, lse, _, sink_probs = reference._probabilities(
        inputs.problem, inputs.q, inputs.k, inputs.lo, inputs.hi, inputs.bias, inputs.sink
    )
    highest = probs.max(-1) if sink_probs is None else np.maximum(probs.max(-1), sink_probs)
    empty = highest == 0
    row_shift = (lse + np.log(np.where(empty, 1.0, highest))).astype(np.float32)
    return row_shift, np.exp(np.where(empty, 0.0, lse) - np.where(empty, 0.0, row_shift)).astype(np.float32)


def run(inputs, dout, dlse=None, chip="trn2", lnc=1, plan=None, kernel=flash_backward, forward_results=None, **options):
    """The launch of a call, and its plan."""
    wanted = replace(inputs.problem, bias_gradient=inputs.problem.mask.bias == "additive")
    plan = plan or plan_backward(wanted, get_chip(chip))
    options = SimOptions(chip=get_chip(chip), **options)
    arguments = kernel_arguments(inputs, plan, dout, dlse, forward_results)
    return launch(kernel, (), arguments, options=options, lnc=lnc), plan


def run_shapes(case, options):
    """The launch of a problem without run-time bounds, bias and sink, on shapes alone."""
    plan = plan_backward(case, options.chip)
    dtype = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}[case.dtype]
    b, hq, hkv, sq, skv = case.batch, case.num_heads_q, case.num_heads_kv, case.seqlen_q, case.seqlen_kv
    arguments = {
        "q": np.empty((b, hq, sq, case.head_dim), dtype), "k": np.empty((b, hkv, skv, case.head_dim), dtype),
        "v": np.empty((b, hkv, skv, case.head_dim_v), dtype), "dout": np.empty((b, sq, hq, case.head_dim_v), dtype),
        "out": None if plan.recompute else np.empty((b, sq, hq, case.head_dim_v), dtype),
        "lse": None if plan.recompute else np.empty((b, hq, sq), np.float32),
    }  # fmt: skip
    return launch(flash_backward, (), arguments | plan.constants(), options=options)


def events(case, chip):
    """The event stream of a problem, as `run_shapes` takes it."""
    return run_shapes(case, SimOptions(chip=chip, values=False, checks=False)).events


def gradients(inputs, dout, dlse=None, chip="trn2", lnc=1, plan=None, **options):
    """Gradients by name, in the shapes of the oracle; `options` as in `run`."""
    outputs = list(run(inputs, dout, dlse, chip, lnc, plan, **options)[0].outputs)
    found = dict(zip(("dq", "dk", "dv"), outputs, strict=False))
    rest = outputs[3:]
    if inputs.problem.sink:
        found["d_sink"] = rest.pop(0).sum(0)
    if inputs.problem.mask.bias == "additive":
        found["d_bias"] = rest.pop(0)
    return found


def upstream(inputs, seed=0, with_lse=True):
    """Random gradients of output `[batch, num_heads_q, seqlen_q, head_dim_v]` and lse (finite rows only)."""
    case, rng = inputs.problem, np.random.default_rng(seed + 1)
    dout = rng.standard_normal((case.batch, case.num_heads_q, case.seqlen_q, case.head_dim_v)).astype(inputs.q.dtype)
    dlse = rng.standard_normal((case.batch, case.num_heads_q, case.seqlen_q)).astype(np.float32) if with_lse else None
    return dout, dlse


def check(case, chip="trn2", lnc=1, distribution="normal", seed=0, with_lse=True):
    """Compare a problem's random gradients with the oracle; returns what `assert_right` does. Of odd seeds the kernel gets lse
    alone, of every other two it takes the rows' statistics as given even where it could find them.
    """
    case = replace(case, row_statistics=seed % 2 == 0, row_part=seed % 4 > 1)
    assert backward_reasons(case, get_chip(chip)) == ()
    inputs = attention_inputs(case, seed=seed, distribution=distribution)
    dout, dlse = upstream(inputs, seed, with_lse)
    return assert_right(inputs, gradients(inputs, dout, dlse, chip, lnc), dout, dlse)
