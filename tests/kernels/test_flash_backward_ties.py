"""flash_backward where keys tie and scores are huge: lse, one float32, then says nothing of how a row is divided.

Every case runs a forward kernel and hands all that it returns to the backward kernel. The bar is an eager implementation in the
same dtype; float16 ends at 65,504, so that its bar comes from the largest scores that it has: where other keys are far below
those that tie, probabilities are the same at any larger size, and the gradients of q and k grow with k and q.
"""

from dataclasses import replace

import numpy as np
import pytest
from backward_bar import errors
from backward_cases import forward, gradients, problem, upstream

from nki_hf.problem import Mask
from nki_hf.testing import attention_inputs

SIZES = [2.0**13, 2.0**17, 2.0**20, 2.0**27]
"""1e4, 1e5, 1e6 and 1e8, as powers of two: scores of whole numbers times that are exact in every dtype that reaches there."""
LARGEST = 2.0**10
"""Of `tied` inputs in float16, whose scores are up to 64 times that."""
MASKS = {
    "full": Mask(),
    "causal": Mask(ahead=1),
    "window": Mask(ahead=1, window=33),
    "bounds": Mask(runtime_bounds=True),
    "boolean": Mask(bias="boolean", bias_batch=True, bias_rows=True),
    "additive": Mask(bias="additive", bias_heads=True, bias_rows=True),
}

OTHERS = [("trn1", 2), ("trn2", 1), ("trn3", 2)]
"""Chips and numbers of cores that take longer to meet than they tell."""


def tied(case, size, groups, seed=0):
    """Inputs whose keys are `groups` different ones, many times each: whole numbers times powers of two, so that every score is
    exact. The largest score of a row is some times `size`.
    """
    case = replace(case, softmax_scale=1.0)
    inputs, rng = attention_inputs(case, seed=seed), np.random.default_rng(seed)
    q = rng.integers(-2, 3, inputs.q.shape)
    kinds = rng.integers(-1, 2, (case.batch, case.num_heads_kv, groups, case.head_dim))
    k = kinds[:, :, rng.integers(0, groups, case.seqlen_kv)]
    of_q, of_k = split(size)
    bias = inputs.bias
    if case.mask.bias == "additive":
        bias = np.where(np.isneginf(bias), bias, 0.0).astype(bias.dtype)
    return replace(inputs, q=(q * of_q).astype(inputs.q.dtype), k=(k * of_k).astype(inputs.k.dtype), bias=bias)


def split(size):
    """What q and k are multiplied by for scores of that size."""
    exponent = round(np.log2(size))
    return 2.0 ** (exponent // 2), 2.0 ** (exponent - exponent // 2)


def assert_as_right_as_eager(inputs, got, dout, size=0.0, factor=1.5):
    """Every gradient errs at most 1.5 times as much as an eager run, plus its rounding; the `size` of tied float16 inputs says
    how far eager's are made smaller.
    """
    dtype = inputs.problem.dtype
    unit = {"bfloat16": 2.0**-9, "float16": 2.0**-12, "float32": 2.0**-24}[dtype]
    bar, grown = inputs, {}
    if dtype == "float16" and size > LARGEST:
        by_q, by_k = (mine / theirs for mine, theirs in zip(split(size), split(LARGEST), strict=True))
        bar = replace(inputs, q=inputs.q / inputs.q.dtype.type(by_q), k=inputs.k / inputs.k.dtype.type(by_k))
        grown = {"dq": by_k, "dk": by_q}
    plain = errors(bar, dict(got), dout)
    for name, (error, _, whole, _) in errors(inputs, got, dout).items():
        limit = factor * plain[name][1] * grown.get(name, 1.0) + unit * whole
        assert np.isfinite(limit), name
        assert error <= limit, f"{name}: RMS error {error:.3g}, at most {limit:.3g} (size {whole:.3g})"


def run(inputs, kernel="flash_prefill", chip="trn2", lnc=1):
    """Gradients of a call, and dout: so small that float16 holds those of q and k."""
    dout, _ = upstream(inputs, with_lse=False)
    dout = (dout.astype(np.float32) / 64).astype(dout.dtype)
    return gradients(inputs, dout, None, chip, lnc, forward_results=forward(inputs, kernel, chip, lnc)), dout


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("groups", [1, 7])
@pytest.mark.parametrize("size", SIZES)
def test_keys_that_tie_share_a_row_as_in_eager(size, groups, dtype):
    case = problem(dtype=dtype, seqlen_q=100, seqlen_kv=50, head_dim=16, head_dim_v=16)
    inputs = tied(case, size, groups)
    assert_as_right_as_eager(inputs, *run(inputs), size)


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("mask", sorted(MASKS))
@pytest.mark.parametrize("size", [pytest.param(2.0**17, marks=pytest.mark.slow), -(2.0**27)])
def test_keys_that_tie_under_masks_and_in_groups_of_query_heads(size, mask, dtype):
    case = problem(
        dtype=dtype,
        batch=2,
        num_heads_q=4,
        num_heads_kv=2,
        seqlen_q=150,
        seqlen_kv=150,
        head_dim=24,
        head_dim_v=40,
        mask=MASKS[mask],
    )
    inputs = tied(case, abs(size), 5)
    inputs = replace(inputs, q=inputs.q * np.sign(size).astype(inputs.q.dtype))
    assert_as_right_as_eager(inputs, *run(inputs), abs(size))


@pytest.mark.parametrize(
    ("chip", "lnc"),
    [("trn1", 1), ("trn2", 2), ("trn3", 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHERS)],
)
def test_keys_that_tie_on_every_chip_and_on_two_cores(chip, lnc):
    case = problem(
        dtype="bfloat16",
        num_heads_q=3,
        num_heads_kv=3,
        seqlen_q=140,
        seqlen_kv=700,
        head_dim=32,
        head_dim_v=32,
        mask=Mask(ahead=600),
    )
    inputs = tied(case, 2.0**20, 40)
    assert_as_right_as_eager(inputs, *run(inputs, chip=chip, lnc=lnc))


@pytest.mark.parametrize("kernel", ["flash_const_max", "flash_decode"])
@pytest.mark.parametrize("lnc", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "size", [pytest.param(2.0**13, marks=pytest.mark.slow), 2.0**20, pytest.param(2.0**27, marks=pytest.mark.slow)]
)
def test_every_forward_kernel_hands_on_what_lse_cannot_hold(size, lnc, kernel):
    rows = 40 if kernel == "flash_const_max" else 5
    case = problem(dtype="bfloat16", num_heads_q=16, num_heads_kv=2, seqlen_q=rows, seqlen_kv=2100, head_dim=32, head_dim_v=32)
    if kernel == "flash_decode":
        case = replace(case, mask=Mask(q_offset=2095, ahead=1))
    inputs = tied(case, size, 300)
    assert_as_right_as_eager(inputs, *run(inputs, kernel, lnc=lnc))


@pytest.mark.parametrize("over", [-1, 0, 1])
@pytest.mark.parametrize(
    ("size", "dtype"), [(2.0**13, "bfloat16"), (2.0**20, "bfloat16"), (2.0**27, "bfloat16"), (2.0**13, "float16")]
)
def test_a_sink_that_ties_with_the_keys_has_a_share_of_its_own(size, over, dtype):
    # Every row has the score `size` for a third of its keys and 0 for the others.
    case = problem(dtype=dtype, seqlen_q=70, seqlen_kv=48, head_dim=8, head_dim_v=8, softmax_scale=1.0, sink=True)
    inputs = attention_inputs(case)
    q, k = np.zeros_like(inputs.q), np.zeros_like(inputs.k)
    q[..., 0], k[:, :, ::3, 0] = split(size)
    step = np.spacing(np.float32(size))
    inputs = replace(inputs, q=q, k=k, sink=np.full(2, size, np.float32) + np.float32(over) * step)
    got, dout = run(inputs)
    assert_as_right_as_eager(inputs, got, dout)


@pytest.mark.parametrize("size", [2.0**13, 2.0**17, 2.0**20])
def test_keys_that_nearly_tie_err_less_than_in_eager(size):
    # Scores of a row differ by 0, 1 or 2 nats at `size`: bfloat16 does not hold that, float32 does.
    case = problem(dtype="bfloat16", seqlen_q=70, seqlen_kv=90, head_dim=8, head_dim_v=8, softmax_scale=1.0)
    inputs, rng = attention_inputs(case), np.random.default_rng(1)
    q, k = np.zeros_like(inputs.q), np.zeros_like(inputs.k)
    q[..., 0], q[..., 1] = size, 1.0
    k[..., 0], k[..., 1] = 1.0, rng.integers(0, 3, k.shape[:3])
    inputs = replace(inputs, q=q, k=k)
    dout, _ = upstream(inputs, with_lse=False)
    got = gradients(inputs, dout, forward_results=forward(inputs))
    assert_as_right_as_eager(inputs, got, dout, factor=0.5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("head_dim_v", [16, 200])
def test_a_row_with_one_key_gives_q_and_k_no_gradient_at_all(head_dim_v, dtype):
    # 1 - P is 0, so dS is, and not a rounding error of dprobs times a key.
    case = problem(dtype=dtype, seqlen_q=130, seqlen_kv=40, head_dim=16, head_dim_v=head_dim_v)
    inputs = attention_inputs(replace(case, softmax_scale=1e6))
    apart = np.sort(inputs.q.astype(np.float64) @ inputs.k.astype(np.float64).swapaxes(-1, -2), axis=-1)
    assert (apart[..., -1] - apart[..., -2]).min() * 1e6 > 200
    dout, _ = upstream(inputs, with_lse=False)
    got = gradients(inputs, dout, forward_results=forward(inputs))
    assert not got["dq"].any()
    assert not got["dk"].any()
