"""Running flash_backward on the simulator from NumPy inputs: what the tests of the kernel share."""

from dataclasses import replace

import const_max_cases
import decode_cases
import ml_dtypes
import numpy as np
import prefill_cases
from backward_bar import assert_right
from kernel_cases import mask_arguments

from nki_hf.chips import get_chip
from nki_hf.kernels import reference
from nki_hf.kernels.flash_backward.kernel import flash_backward
from nki_hf.kernels.flash_backward.plan import backward_reasons, plan_backward
from nki_hf.kernels.flash_const_max.kernel import flash_const_max_loop
from nki_hf.kernels.flash_prefill.kernel import flash_prefill
from nki_hf.sim import SimOptions, launch
from nki_hf.testing import attention_inputs


def problem(**changes):
    """A problem whose forward pass hands on what gradients start from."""
    return prefill_cases.problem(**{"row_statistics": True, "out_rest": True, **changes})


def kernel_arguments(inputs, plan, dout, dlse, forward_results=None):
    """The kernel's tensors and constants, laid out by hand in NumPy; what the forward left is the oracle's if it is not given:
    out `[batch, num_heads_q, seqlen_q, head_dim_v]`, lse, row_shift, row_sum and out_rest, which is as out.
    """
    left = {"out": None, "lse": None}
    if not plan.recompute:
        left = dict(zip(("out", "lse", "row_shift", "row_sum", "out_rest"), forward_results or _left(inputs), strict=False))
        left |= {name: left[name].swapaxes(1, 2) for name in ("out", "out_rest") if name in left}
        wanted = {"out", *(["row_shift", "row_sum"] if plan.row_statistics else ["lse"]), *(["out_rest"] * plan.out_rest)}
        left = {name: left[name] for name in left if name in wanted}
    arguments = {"q": inputs.q, "k": inputs.k, "v": inputs.v, "dout": dout.swapaxes(1, 2), **left}
    if dlse is not None:
        arguments["dlse"] = dlse
    arguments |= mask_arguments(inputs, bounds=plan.bounds)
    arrays = {name: None if array is None else np.ascontiguousarray(array) for name, array in arguments.items()}
    return arrays | plan.constants()


def _left(inputs):
    """What a forward pass of float64 leaves: its output in two parts and its rows' statistics, each rounded to its dtype."""
    whole, lse = inputs.expected
    out = whole.astype(inputs.q.dtype)
    return out, lse.astype(np.float32), *_statistics(inputs), (whole - out.astype(np.float64)).astype(np.float32)


def _statistics(inputs):
    """The largest score of each row, or its sink, as float32, and the row's sum relative to that."""
    probs, lse, _, sink_probs = reference._probabilities(
        inputs.problem, inputs.q, inputs.k, inputs.lo, inputs.hi, inputs.bias, inputs.sink
    )
    highest = probs.max(-1) if sink_probs is None else np.maximum(probs.max(-1), sink_probs)
    empty = highest == 0
    row_shift = (lse + np.log(np.where(empty, 1.0, highest))).astype(np.float32)
    return row_shift, np.exp(np.where(empty, 0.0, lse) - np.where(empty, 0.0, row_shift)).astype(np.float32)


def forward(inputs, kernel="flash_prefill", chip="trn2", lnc=1):
    """out `[batch, num_heads_q, seqlen_q, head_dim_v]`, lse, row_shift, row_sum and out_rest, like out, of a forward kernel:
    those that the problem asks for.
    """
    out, *rest = forward_run(inputs, kernel, chip, lnc).outputs
    rest[3:] = [each.swapaxes(1, 2) for each in rest[3:]]
    return out.swapaxes(1, 2), *rest


def forward_run(inputs, kernel="flash_prefill", chip="trn2", lnc=1):
    """The launch of a forward kernel."""
    if kernel == "flash_prefill":
        plan = prefill_cases.plan_prefill(inputs.problem, get_chip(chip), lnc)
        source, arguments = flash_prefill, prefill_cases.kernel_arguments(inputs, plan)
    elif kernel == "flash_decode":
        plan = decode_cases.plan_decode(inputs.problem, get_chip(chip))
        source, arguments = decode_cases.flash_decode, decode_cases.kernel_arguments(inputs, plan)
    else:
        plan = const_max_cases.plan_const_max(inputs.problem, get_chip(chip), lnc)
        source, arguments = flash_const_max_loop, const_max_cases.kernel_arguments(inputs, plan) | {"count_failed": False}
    return launch(source, (), arguments, options=SimOptions(chip=get_chip(chip)), lnc=lnc)


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
        "q": np.empty((b, hq, sq, case.head_dim), dtype),
        "k": np.empty((b, hkv, skv, case.head_dim), dtype),
        "v": np.empty((b, hkv, skv, case.head_dim_v), dtype),
        "dout": np.empty((b, sq, hq, case.head_dim_v), dtype),
        "out": None if plan.recompute else np.empty((b, sq, hq, case.head_dim_v), dtype),
        "out_rest": np.empty((b, sq, hq, case.head_dim_v), np.float32) if plan.out_rest else None,
    }
    if not plan.recompute:
        arguments |= dict.fromkeys(
            ["row_shift", "row_sum"] if plan.row_statistics else ["lse"], np.empty((b, hq, sq), np.float32)
        )
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


def check(case, chip="trn2", lnc=1, distribution="normal", seed=0, with_lse=True, weight=None):
    """Compare a problem's random gradients with the oracle; returns what `assert_right` does. The kernel gets what a forward
    pass of float64 leaves. With `weight` one key has that share of each row (see `dominated`).
    """
    case = replace(case, row_statistics=True, out_rest=True)
    assert backward_reasons(case, get_chip(chip)) == ()
    inputs = attention_inputs(case, seed=seed, distribution=distribution)
    if weight is not None:
        inputs = dominated(inputs, weight, alike=False)
    dout, dlse = upstream(inputs, seed, with_lse)
    return assert_right(inputs, gradients(inputs, dout, dlse, chip, lnc), dout, dlse)


def dominated(inputs, weight, alike=True):
    """The inputs with queries that give one key of each row that share of it, or as near as a cap and a sink let them: the
    longest that the row sees, as it is, its query being a multiple of it. Without `alike` others have half to twice what that
    leaves them: where all rows have one share, its rounding in float32 is one number for all.
    """
    case = inputs.problem
    spread = 0.0 if alike else np.random.default_rng(0).uniform(-1, 1, (case.batch, case.num_heads_q, case.seqlen_q, 1))
    weight = 1 - np.minimum((1 - weight) * 2.0**spread, 0.9)
    seen = reference.visible_keys(case, lo=inputs.lo, hi=inputs.hi, bias=inputs.bias)
    seen = np.broadcast_to(seen, (case.batch, case.num_heads_q, case.seqlen_q, case.seqlen_kv))
    k = np.repeat(np.asarray(inputs.k, np.float64), case.group_size, axis=1)
    longest = np.where(seen, np.square(k).sum(-1)[:, :, None], -1.0).argmax(-1)
    chosen = np.take_along_axis(k, longest[..., None], axis=2)
    chosen *= np.sign(case.scale) * (np.square(chosen).sum(-1, keepdims=True) * abs(case.scale) + 1e-30) ** -1.0
    ones = np.where(seen, chosen @ k.swapaxes(-1, -2) * case.scale, -np.inf)  # scores where that of the key is 1
    others = 0.0 if inputs.bias is None or case.mask.bias == "boolean" else inputs.bias
    sink = -np.inf if inputs.sink is None else inputs.sink[None, :, None, None]
    low, high = np.zeros((*longest.shape, 1)), np.full((*longest.shape, 1), 40.0)  # of the key's score
    for _ in range(12):
        scores = ones * (low + high) / 2
        scores = (scores if case.softcap is None else case.softcap * np.tanh(scores / case.softcap)) + others
        key = np.take_along_axis(scores, longest[..., None], axis=3)
        with np.errstate(invalid="ignore"):  # rows that see no key
            above = weight * (np.exp(scores - key).sum(-1, keepdims=True) + np.exp(sink - key)) < 1
        low, high = np.where(above, low, (low + high) / 2), np.where(above, (low + high) / 2, high)
    return replace(inputs, q=(chosen * high).astype(inputs.q.dtype))
