"""Running flash_backward on the simulator from NumPy inputs: what the tests of the kernel share."""

from dataclasses import replace

import ml_dtypes
import numpy as np

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
    """The kernel's tensors and constants, laid out by hand in NumPy; out and lse are the oracle's if they are not given."""
    case, mask = inputs.problem, inputs.problem.mask
    out, lse = (None, None)
    if not plan.recompute:
        out, lse = forward_results or inputs.expected
        out, lse = out.swapaxes(1, 2).astype(inputs.q.dtype), lse.astype(np.float32)
    arguments = {"q": inputs.q, "k": inputs.k, "v": inputs.v, "dout": dout.swapaxes(1, 2), "out": out, "lse": lse}
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


def plain_gradients(inputs, dout, dlse=None):
    """What an eager implementation does in the problem's dtype: products summed in float32, every intermediate rounded."""
    case = inputs.problem
    dtype = inputs.q.dtype

    def rounded(values):
        return values.astype(dtype).astype(np.float32)

    q, k, v = (np.asarray(item, np.float32) for item in (inputs.q, inputs.k, inputs.v))
    k_heads, v_heads = (np.repeat(item, case.group_size, axis=1) for item in (k, v))
    with np.errstate(over="ignore", invalid="ignore"):
        scores = rounded(rounded(q @ k_heads.swapaxes(-1, -2)) * np.float32(case.scale))
        tanh = None
        if case.softcap is not None:
            cap = np.float32(case.softcap)
            tanh = rounded(np.tanh(rounded(scores / cap)))
            scores = rounded(tanh * cap)
        if inputs.bias is not None and case.mask.bias == "additive":
            scores = scores + inputs.bias.astype(np.float32)
    visible = reference.visible_keys(case, lo=inputs.lo, hi=inputs.hi, bias=inputs.bias)
    scores = np.where(visible, scores, np.float32(-np.inf))
    shift = scores.max(-1, initial=np.finfo(np.float32).min, keepdims=True)
    sink = None if inputs.sink is None else inputs.sink.astype(np.float32)[None, :, None, None]
    if sink is not None:
        shift = np.maximum(shift, sink)
    weights = np.exp(scores - shift)
    total = weights.sum(-1, keepdims=True) + (0 if sink is None else np.exp(sink - shift))
    total = np.where(total == 0, np.float32(1), total)
    exact = weights / total
    probs = rounded(exact)
    grads = np.asarray(dout, np.float32)
    dprobs = rounded(grads @ v_heads.swapaxes(-1, -2))
    delta = (exact * dprobs).sum(-1, keepdims=True) - (0 if dlse is None else dlse[..., None])
    dmasked = exact * (dprobs - delta)
    dscores = rounded(dmasked)
    if tanh is not None:
        dscores = rounded(dscores * (1 - tanh**2))
    dscores = rounded(dscores * np.float32(case.scale))
    found = {
        "dq": rounded(dscores @ k_heads),
        "dk": rounded(_fold(case, rounded(dscores.swapaxes(-1, -2) @ q))),
        "dv": rounded(_fold(case, rounded(probs.swapaxes(-1, -2) @ grads))),
    }
    if sink is not None:
        found["d_sink"] = rounded(-rounded(np.exp(sink - shift) / total * delta).sum((0, 2, 3)))
    if inputs.bias is not None and case.mask.bias == "additive":
        axes = tuple(axis for axis in range(4) if inputs.bias.shape[axis] == 1 and dmasked.shape[axis] != 1)
        found["d_bias"] = rounded(rounded(dmasked).sum(axes, keepdims=True))
    return found


def _fold(case, array):
    batch, _, length, width = array.shape
    return array.reshape(batch, case.num_heads_kv, case.group_size, length, width).sum(2)


def upstream(inputs, seed=0, with_lse=True):
    """Random gradients of output `[batch, num_heads_q, seqlen_q, head_dim_v]` and lse (finite rows only)."""
    case, rng = inputs.problem, np.random.default_rng(seed + 1)
    dout = rng.standard_normal((case.batch, case.num_heads_q, case.seqlen_q, case.head_dim_v)).astype(inputs.q.dtype)
    dlse = rng.standard_normal((case.batch, case.num_heads_q, case.seqlen_q)).astype(np.float32) if with_lse else None
    return dout, dlse


def errors(inputs, got, dout, dlse):
    """Per gradient: RMS error, that of the plain run, and the RMS of the gradient itself."""
    want = reference.attention_gradients(inputs.problem, inputs.q, inputs.k, inputs.v, dout, dlse=dlse, **inputs.masks)
    plain = plain_gradients(inputs, dout, dlse)
    found = {}
    for name, value in got.items():
        expected = getattr(want, name)
        assert value.shape == expected.shape, (name, value.shape, expected.shape)
        found[name] = tuple(
            float(np.sqrt(np.mean(np.square(np.asarray(item, np.float64)))))
            for item in (np.asarray(value, np.float64) - expected, np.asarray(plain[name], np.float64) - expected, expected)
        )
    return found


def assert_right(inputs, got, dout, dlse=None, factor=1.5):
    """Every gradient errs at most `factor` times as much as the plain run (RMS), plus what few numbers do not average out:
    its own rounding; that of float32 scores, which moves a probability by as many units as the score is large (up to 1,000:
    beyond, only the plain run counts); that of out, from which delta comes; that of tanh near 1; that of probabilities
    below the dtype's smallest normal number, which the kernel multiplies in that dtype and the plain run in float32.
    """
    lse = np.abs(inputs.expected[1][np.isfinite(inputs.expected[1])])
    score = min(1000.0, float(lse.max(initial=0.0)))
    unit, single = float(ml_dtypes.finfo(inputs.q.dtype).eps) / 2, float(np.finfo(np.float32).eps) / 2
    by_delta, uncapped = _delta_rounding(inputs, dout, dlse)
    by_probs = _probs_rounding(inputs, dout, dlse)
    for name, (error, plain, size) in errors(inputs, got, dout, dlse).items():
        limit = factor * plain + (unit + single * (4 + score)) * size + unit * by_delta[name] + 4 * single * uncapped[name]
        limit += by_probs.get(name, 0.0)
        assert error <= limit, f"{name}: RMS error {error:.3g}, at most {limit:.3g} (plain {plain:.3g}, size {size:.3g})"


def _delta_rounding(inputs, dout, dlse):
    """RMS of each gradient's change if delta of each row were off by the root of sum((dout * out)^2), which is what one unit
    in every element of out does (below the smallest normal number a unit of that, at most the element itself); and RMS of each
    gradient without the cap's derivative.
    """
    case, kept = inputs.problem, ml_dtypes.finfo(inputs.q.dtype)
    probs, _, tanh, sink_probs = reference._probabilities(
        case, inputs.q, inputs.k, inputs.lo, inputs.hi, inputs.bias, inputs.sink
    )
    q64, k64, v64 = (np.asarray(item, np.float64) for item in (inputs.q, inputs.k, inputs.v))
    k_heads, v_heads = (np.repeat(item, case.group_size, axis=1) for item in (k64, v64))
    grads = np.asarray(dout, np.float64)
    out = np.abs(inputs.expected[0])
    out = np.minimum(np.maximum(out, float(kept.smallest_normal)), out / (float(kept.eps) / 2))
    change = np.sqrt(np.square(grads * out).sum(-1))
    slope = 1.0 if tanh is None else 1 - tanh**2
    moved = probs * slope * case.scale
    dprobs = grads @ v_heads.swapaxes(-1, -2)
    full = probs * (dprobs - (probs * dprobs).sum(-1, keepdims=True)) * case.scale * (0.0 if tanh is None else 1.0)
    by_delta = {
        "dq": _rms((moved @ k_heads) * change[..., None]),
        "dk": _rms(np.sqrt(_fold(case, np.square(moved * change[..., None]).swapaxes(-1, -2) @ np.square(q64)))),
        "dv": 0.0, "d_bias": _rms(moved * change[..., None]),
        "d_sink": 0.0 if sink_probs is None else _rms(np.sqrt(np.square(sink_probs * change).sum((0, 2)))),
    }  # fmt: skip
    uncapped = {
        "dq": _rms(full @ k_heads), "dk": _rms(_fold(case, full.swapaxes(-1, -2) @ q64)), "dv": 0.0, "d_bias": 0.0,
        "d_sink": 0.0,
    }  # fmt: skip
    return by_delta, uncapped


def _probs_rounding(inputs, dout, dlse):
    """RMS of each gradient's change if every probability below the dtype's smallest normal number were off by half of its
    smallest subnormal one, or by itself if it is less: the kernel's dS = P * (dprobs - delta) takes P as so rounded.
    """
    case, kept = inputs.problem, ml_dtypes.finfo(inputs.q.dtype)
    probs, _, tanh, _ = reference._probabilities(case, inputs.q, inputs.k, inputs.lo, inputs.hi, inputs.bias, inputs.sink)
    q64, k64, v64 = (np.asarray(item, np.float64) for item in (inputs.q, inputs.k, inputs.v))
    k_heads, v_heads = (np.repeat(item, case.group_size, axis=1) for item in (k64, v64))
    dprobs = np.asarray(dout, np.float64) @ v_heads.swapaxes(-1, -2)
    delta = (probs * dprobs).sum(-1, keepdims=True) - (0 if dlse is None else dlse[..., None])
    off = np.where(probs < float(kept.smallest_normal), np.minimum(probs, float(kept.smallest_subnormal) / 2), 0.0)
    unscaled = off * (dprobs - delta)
    moved = np.square(unscaled * (1.0 if tanh is None else 1 - tanh**2) * case.scale)
    return {
        "dq": _rms(np.sqrt(moved @ np.square(k_heads))),
        "dk": _rms(np.sqrt(_fold(case, moved.swapaxes(-1, -2) @ np.square(q64)))),
        "d_bias": _rms(unscaled),
    }


def _rms(values):
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0


def check(case, chip="trn2", lnc=1, distribution="normal", seed=0, with_lse=True):
    """Compare a problem's random gradients with the oracle."""
    assert backward_reasons(case, get_chip(chip)) == ()
    inputs = attention_inputs(case, seed=seed, distribution=distribution)
    dout, dlse = upstream(inputs, seed, with_lse)
    got = gradients(inputs, dout, dlse, chip, lnc)
    assert_right(inputs, got, dout, dlse)
    return got
