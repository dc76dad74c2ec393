"""flash_const_max where a constant shift cannot be right: whatever it gets wrong must be counted as failed, and the exact
pass must get it right.

Every row of a query tile without failed rows is held to float64, element by element: the limit is the worst that three
roundings to bfloat16 (2^-8 each: of a probability, of those in the sum, of the output) can do, relative to sum(p |v|) of that
element, not to the largest output of the call.
"""

import random
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from const_max_cases import exact_outputs, loop_outputs, outputs

from nki_hf.chips import get_chip
from nki_hf.kernels import reference
from nki_hf.kernels.flash_const_max import certificate
from nki_hf.kernels.flash_const_max.plan import plan_const_max
from nki_hf.kernels.flash_const_max.tuning import tuning_of
from nki_hf.problem import Mask, Problem
from nki_hf.testing import AttentionInputs, attention_inputs

BF16 = ml_dtypes.bfloat16
TINY = 2.0**-126

SCORES = ("spread", "far", "outlier_key", "constant", "ordinary")
VALUES = ("ordinary", "mixed", "mixed_columns", "huge", "tiny", "zeros")
MASKS = ("none", "causal", "causal_early", "window", "one_key", "bounds", "bias")


def mask_of(kind, sq, skv):
    return {
        "none": Mask(),
        "causal": Mask(q_offset=skv - sq, ahead=1),
        "causal_early": Mask(ahead=1),
        "window": Mask(q_offset=skv - sq, ahead=1, window=37),
        "one_key": Mask(q_offset=skv - sq, ahead=1, window=1),
        "bounds": Mask(runtime_bounds=True),
        "bias": Mask(bias="boolean", bias_batch=True),
    }[kind]


def draw(seed):
    """A small problem, its inputs, and the chip."""
    pick, rng = random.Random(seed), np.random.default_rng(seed)
    sq, skv = pick.choice((1, 7, 64, 128, 129, 200)), pick.choice((1, 5, 127, 128, 200, 300))
    d, dv = pick.choice((8, 16, 33)), pick.choice((4, 16))
    heads_kv = pick.choice((1, 2))
    problem = Problem(
        batch=1,
        num_heads_q=heads_kv * pick.choice((1, 2)),
        num_heads_kv=heads_kv,
        seqlen_q=sq,
        seqlen_kv=skv,
        head_dim=d,
        head_dim_v=dv,
        mask=mask_of(pick.choice(MASKS), sq, skv),
        sink=pick.random() < 0.3,
        softmax_scale=pick.choice((None, 1.0, -0.5, 3.0)),
    )
    q, k = rng.standard_normal((1, problem.num_heads_q, sq, d)), rng.standard_normal((1, heads_kv, skv, d))
    v = rng.standard_normal((1, heads_kv, skv, dv))
    shape_scores(pick.choice(SCORES), q, k, rng, problem)
    v = shape_values(pick.choice(VALUES), v, rng)
    extra = {}
    if problem.mask.runtime_bounds:
        lo = rng.integers(0, skv + 1, (1, sq))
        extra = {"lo": lo.astype(np.int32), "hi": np.minimum(skv, lo + rng.integers(0, skv + 1, (1, sq))).astype(np.int32)}
    if problem.mask.bias:
        extra["bias"] = rng.random((1, 1, 1, skv)) < 0.7
    if problem.sink:
        extra["sink"] = rng.choice(np.float32([-100, -3, 0, 30, 60, 100]), problem.num_heads_q)
    inputs = AttentionInputs(problem=problem, q=q.astype(BF16), k=k.astype(BF16), v=v.astype(BF16), **extra)
    return inputs, pick.choice(("trn1", "trn2", "trn3"))


def shape_scores(kind, q, k, rng, problem):
    """Change q and k in place so that row maxima are what the kind says."""
    if kind == "spread":  # -400 to 400 within one tile: a common direction of the keys, as much of it as each row likes
        k[..., 0] = 1.0
        q[..., 0] = rng.uniform(-400, 400, q.shape[:-1]) / problem.scale
    elif kind == "far":
        k[..., 0] = 1.0
        q[..., 0] = rng.uniform(-130, 130) / problem.scale
    elif kind == "outlier_key":
        k[:, :, rng.integers(k.shape[2])] *= 100
    elif kind == "constant":
        k[:] = k[:, :, :1]


def shape_values(kind, v, rng):
    scales = {"ordinary": 1.0, "huge": 1e36, "tiny": 1e-36, "zeros": 0.0}
    if kind == "mixed":
        return v * 10.0 ** rng.uniform(-30, 30, v.shape)
    if kind == "mixed_columns":
        return v * 10.0 ** rng.uniform(-30, 30, (1, 1, 1, v.shape[3]))
    return v * scales[kind]


def wrong_rows(inputs, out, lse):
    """bool [batch, heads, rows]: rows that no honest bfloat16 attention would give."""
    problem = inputs.problem
    want, want_lse = inputs.expected
    weight = reference.attention(problem, inputs.q, inputs.k, np.abs(inputs.v.astype(np.float64)), **inputs.masks)[0]
    q, k = (np.abs(item.astype(np.float64)) for item in (inputs.q, inputs.k))
    score = (q @ np.repeat(k, problem.group_size, 1).swapaxes(2, 3)).max(-1, keepdims=True) * abs(problem.scale)
    relative = 3 * 2.0**-8 + 2 * 2.0**-24 * (64 + score) * 4
    flushed = problem.seqlen_kv * TINY * (1 + np.abs(inputs.v.astype(np.float64)).max())
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(out.astype(np.float64) - want)
        lse_error = np.where(lse == want_lse, 0, np.abs(lse - want_lse))
    bad = ~(error <= relative * weight + flushed).all(-1)
    return bad | ~(lse_error <= 4e-3 + 2.0**-20 * (64 + score[..., 0]))


def tiles_of(rows):
    """Query tiles of which a row is set, [batch, heads, tiles]."""
    pad = -rows.shape[2] % 128
    return np.pad(rows, ((0, 0), (0, 0), (0, pad))).reshape(*rows.shape[:2], -1, 128).any(-1)


def check(seed):
    """Returns whether any tile failed the certificate."""
    inputs, chip = draw(seed)
    tuning = replace(tuning_of(inputs.problem, get_chip(chip)), copied=seed % 4)
    plan = plan_const_max(inputs.problem, get_chip(chip), 1, tuning)
    with np.errstate(all="ignore"):
        out, lse, failed = outputs(inputs, chip, plan=plan, uninitialized="error")
        silent = tiles_of(wrong_rows(inputs, out, lse)) & (failed == 0)
        assert not silent.any(), f"seed {seed}: tiles {np.argwhere(silent).tolist()} are wrong and certified: {inputs.problem}"
        if failed.any():
            out, lse = exact_outputs(inputs, [tuple(map(int, place)) for place in np.argwhere(failed)], chip)
            wrong = tiles_of(wrong_rows(inputs, out, lse))
            assert not wrong.any(), f"seed {seed}: tiles {np.argwhere(wrong).tolist()} are wrong after the exact pass"
    return bool(failed.any())


def check_all(seeds):
    """Of how many problems some tile failed the certificate."""
    return sum(map(check, seeds))


def test_adversarial_problems_have_no_silent_failure():
    failures = check_all(range(300))
    assert 60 <= failures <= 240  # both ways are taken often


@pytest.mark.parametrize(
    ("name", "value"), [("SUM_MIN", -1.0), ("SUM_MAX", float("inf")), ("PROBE_FACTOR", None)], ids=["low", "high", "finite"]
)
def test_a_side_of_the_certificate_that_is_left_out_is_noticed(monkeypatch, name, value):
    if name == "PROBE_FACTOR":  # probes that are always finite
        monkeypatch.setattr(certificate, "_finite", lambda env, ledger, good: None)
    else:
        monkeypatch.setattr(certificate, name, value)
    with pytest.raises(AssertionError, match="wrong and certified"):
        check_all(range(300))


def check_loop(seed):
    """The entry with the loop: every row is right, whatever failed."""
    inputs, chip = draw(seed)
    if chip == "trn1":  # loops at run time come with NeuronCore-v3
        return
    with np.errstate(all="ignore"):
        out, lse, _ = loop_outputs(inputs, chip, 1 + seed % 2, uninitialized="error")
        wrong = tiles_of(wrong_rows(inputs, out, lse))
    assert not wrong.any(), f"seed {seed}: tiles {np.argwhere(wrong).tolist()} are wrong: {inputs.problem}"


def test_the_loop_makes_every_adversarial_problem_right():
    for seed in range(60):
        check_loop(seed)


@pytest.mark.parametrize("mask", ["none", "bounds", "sink"])
@pytest.mark.parametrize("value", [1e36, 1e37, 3e38])
def test_an_output_is_finite_where_the_inputs_are(value, mask):
    """The mean of equal values is the value, though the sum of 300 is beyond float32."""
    heads = (2, 1)
    problem = Problem(
        batch=1,
        num_heads_q=heads[0],
        num_heads_kv=heads[1],
        seqlen_q=130,
        seqlen_kv=300,
        head_dim=16,
        head_dim_v=24,
        mask=Mask(runtime_bounds=mask == "bounds"),
        sink=mask == "sink",
    )
    inputs = attention_inputs(problem)
    inputs.v[:] = value
    want = float(inputs.v[0, 0, 0, 0])
    want_rows = np.full((1, heads[0], problem.seqlen_q), want)
    if mask == "bounds":
        want_rows[:] = np.where(inputs.lo < inputs.hi, want, 0)
    if mask == "sink":
        scores = (inputs.q.astype(np.float64) @ inputs.k.astype(np.float64).swapaxes(2, 3)) * problem.scale
        sums = np.exp(scores).sum(-1)
        want_rows[:] = want * sums / (sums + np.exp(inputs.sink.astype(np.float64))[None, :, None])
    with np.errstate(all="ignore"):
        out, _, failed = loop_outputs(inputs, uninitialized="error")
    assert failed.any()
    assert (np.abs(out.astype(np.float64) - want_rows[..., None]) <= 3 * 2.0**-8 * want_rows[..., None]).all()


def test_values_as_small_as_large_ones_are_kept_beside_a_key_that_outweighs_them():
    """One key of value 0 has half of a row, 8,191 keys of value 1e-30 the other half: 5e-31, in the exact pass too."""
    keys, score = 8192, 60.0
    problem = Problem(
        batch=1, num_heads_q=1, num_heads_kv=1, seqlen_q=128, seqlen_kv=keys, head_dim=4, head_dim_v=8, softmax_scale=1.0
    )
    inputs = attention_inputs(problem)
    inputs.q[:], inputs.k[:], inputs.v[:] = 0, 0, 1e-30
    inputs.q[..., 0], inputs.q[..., 1], inputs.k[..., 0] = score, np.log(keys), 1
    inputs.k[:, :, 77, 1], inputs.v[:, :, 77] = 1, 0
    share = (keys - 1) / (keys - 1 + np.exp(float(inputs.q[0, 0, 0, 1])))
    out, _, failed = loop_outputs(inputs, uninitialized="error")
    assert failed.all()
    np.testing.assert_allclose(out.astype(np.float64), share * 1e-30, rtol=3 * 2.0**-8)


@pytest.mark.parametrize("scale", [1.0, 0.125, -0.125, 1e-20, 1e20])
@pytest.mark.parametrize("hidden", ["bounds", "boolean", "additive"])
@pytest.mark.parametrize("size", [float(BF16(1e30)), 3.0e38, 3.3895313892515355e38], ids=["1e30", "3e38", "most"])
def test_a_hidden_key_counts_for_nothing_whatever_its_score(scale, hidden, size):
    """What is added to hide a key must not cancel with its score. The values of all visible keys are 1."""
    rows, keys = 128, 256
    mask = Mask(runtime_bounds=True) if hidden == "bounds" else Mask(bias=hidden)
    problem = Problem(
        batch=1,
        num_heads_q=1,
        num_heads_kv=1,
        seqlen_q=rows,
        seqlen_kv=keys,
        head_dim=8,
        head_dim_v=8,
        softmax_scale=scale,
        mask=mask,
    )
    inputs = attention_inputs(problem)
    inputs.q[:], inputs.k[:], inputs.v[:] = 0, 0, 1
    parts, rest = [], float(np.float32(size))  # one float32 in three numbers of bfloat16
    for _ in range(3):
        parts.append(float(BF16(rest)))
        rest -= parts[-1]
    inputs.q[..., :3], inputs.k[:, :, 128:, :3] = parts, 1
    inputs.k[:, :, 128::2] *= -1
    if abs(scale) <= 1:  # scores of visible keys are near the lower end of what the shift allows
        inputs.q[..., 3], inputs.k[:, :, :128, 3] = -36.0 / scale if abs(scale) > 1e-3 else 0.0, 1
    inputs.v[:, :, 128:] = 1000
    if hidden == "bounds":
        inputs.lo[:], inputs.hi[:] = 0, 128
    elif hidden == "boolean":
        inputs.bias[:] = np.arange(keys) < 128
    else:
        inputs.bias[:] = np.where(np.arange(keys) < 128, 0, -np.inf)
    with np.errstate(all="ignore"):
        out, _, failed = outputs(inputs, uninitialized="error")
    certified = np.repeat(failed == 0, 128, axis=2)
    assert (out[certified] == 1).all()


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 3_000, 250))
def test_the_loop_makes_many_adversarial_problems_right(start):
    for seed in range(start, start + 250):
        check_loop(seed)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 11_000, 250))
def test_many_adversarial_problems_have_no_silent_failure(start):
    check_all(range(start, start + 250))
