"""What gradients may err by: what an eager implementation in the same dtype does, but for luck, and roundings it has not."""

import math

import ml_dtypes
import numpy as np
from backward_plain import Terms, exact_terms, fold, rms, runs_of, spread_of

from nki_hf.kernels import reference

SIGMAS = 4.75
"""One of a million normal numbers lies further out."""


def errors(inputs, got, dout, dlse=None):
    """Per gradient: RMS error; the plain runs' own, or what it would be if the errors of the terms did not cancel by luck;
    RMS of the gradient itself; and how many independent numbers the plain error is the mean of.
    """
    want = exact_terms(inputs, dout, dlse)
    own, spread, rows, runs = dict.fromkeys(got, 0.0), dict.fromkeys(got, 0.0), dict.fromkeys(got, 0.0), 0
    for run in runs_of(inputs, dout, dlse):
        runs += 1
        off = Terms(
            gradients=run.gradients,
            probs=run.probs - want.probs,
            dmasked=run.dmasked - want.dmasked,
            dscores=run.dscores - want.dscores,
            sink=None if run.sink is None else run.sink - want.sink,
        )
        by_terms = spread_of(inputs, off, dout)
        for name in got:
            own[name] = own[name] + np.square(np.asarray(run.gradients[name], np.float64) - want.gradients[name])
            spread[name], rows[name] = spread[name] + by_terms[name][0], rows[name] + by_terms[name][1]
    found = {}
    for name, value in got.items():
        expected = want.gradients[name]
        assert value.shape == expected.shape, (name, value.shape, expected.shape)
        plain = max(rms(np.sqrt(own[name] / runs)), rms(np.sqrt(spread[name] / runs)))
        total, fourth = float(rows[name].sum()), float(np.square(rows[name]).sum())
        numbers = total**2 / fourth if fourth > 0 else 1.0
        found[name] = rms(np.asarray(value, np.float64) - expected), plain, rms(expected), numbers
    return found


def luck(numbers):
    """The RMS of that many normal numbers of size 1 that one in a million exceeds (Wilson and Hilferty's approximation of the
    chi-squared distribution, 1931): 5.2 of one number, 1.35 of a hundred.
    """
    spread = 2 / (9 * numbers)
    return (1 - spread + SIGMAS * spread**0.5) ** 1.5


def above_by_luck(ratios, factor):
    """How many of several problems' errors, `(error / plain run's, numbers that the plain error is the mean of)`, may lie above
    `factor`: half of them, or what one in a million cases exceeds if the kernel errs as much as the plain run. An RMS of one
    number is above 1.5 times its size in 13 of 100 cases, of ten in 1.3, of sixty in none.
    """
    shares = [_share_above(factor, numbers) for _, numbers in ratios]
    return max(len(shares) / 2, sum(shares) + SIGMAS * sum(share * (1 - share) for share in shares) ** 0.5)


def _share_above(factor, numbers):
    """Of RMS values of that many normal numbers of size 1, the share above `factor`; the approximation of `luck`."""
    spread = 2 / (9 * numbers)
    return math.erfc((factor ** (2 / 3) - 1 + spread) / (2 * spread) ** 0.5) / 2


def assert_right(inputs, got, dout, dlse=None, factor=1.5):
    """Every gradient errs at most `factor` times as much as the plain runs (RMS), or as luck has it where that is the mean of
    few numbers; plus what no plain run shows: the gradient's own rounding; that of float32 scores, which moves a
    probability by as many units as the score is large (up to 1,000: beyond, only the plain run counts); that of tanh near 1;
    that of probabilities below the dtype's smallest normal number, which the kernel
    multiplies in that dtype and the plain run in float32. Returns, by gradient, the error in multiples of the plain runs' and
    how many numbers that is the mean of.
    """
    score = min(1000.0, _largest_score(inputs))
    unit, single = float(ml_dtypes.finfo(inputs.q.dtype).eps) / 2, float(np.finfo(np.float32).eps) / 2
    uncapped = _uncapped(inputs, dout, dlse)
    by_probs = _probs_rounding(inputs, dout, dlse)
    ratios = {}
    for name, (error, plain, size, numbers) in errors(inputs, got, dout, dlse).items():
        limit = max(factor, luck(numbers)) * plain + (unit + single * (4 + score)) * size
        limit += 4 * single * uncapped.get(name, 0.0) + by_probs.get(name, 0.0)
        assert error <= limit, (
            f"{name}: RMS error {error:.3g}, at most {limit:.3g} (plain {plain:.3g} of {numbers:.1f} numbers, size {size:.3g})"
        )
        if plain > 0:
            ratios[name] = error / plain, numbers
    return ratios


def _largest_score(inputs):
    """Of all rows: the size of lse, or of the row's largest score, which beside a sink may lie far below lse."""
    probs, lse, *_ = reference._probabilities(
        inputs.problem, inputs.q, inputs.k, inputs.lo, inputs.hi, inputs.bias, inputs.sink
    )
    largest = probs.max(-1, initial=0.0)
    seen = largest > 0
    return max(float(np.abs(each[seen]).max(initial=0.0)) for each in (lse, lse + np.log(np.where(seen, largest, 1.0))))


def _uncapped(inputs, dout, dlse):
    """RMS of each gradient without the cap's derivative; nothing where there is no cap."""
    case = inputs.problem
    if case.softcap is None:
        return {}
    probs, *_ = reference._probabilities(case, inputs.q, inputs.k, inputs.lo, inputs.hi, inputs.bias, inputs.sink)
    q64, k64, v64 = (np.asarray(item, np.float64) for item in (inputs.q, inputs.k, inputs.v))
    k_heads, v_heads = (np.repeat(item, case.group_size, axis=1) for item in (k64, v64))
    dprobs = np.asarray(dout, np.float64) @ v_heads.swapaxes(-1, -2)
    delta = (probs * dprobs).sum(-1, keepdims=True) - (0 if dlse is None else dlse[..., None])
    full = probs * (dprobs - delta) * case.scale
    return {"dq": rms(full @ k_heads), "dk": rms(fold(case, full.swapaxes(-1, -2) @ q64))}


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
        "dq": rms(np.sqrt(moved @ np.square(k_heads))),
        "dk": rms(np.sqrt(fold(case, moved.swapaxes(-1, -2) @ np.square(q64)))),
    }
