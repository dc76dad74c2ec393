"""flash_decode against the float64 oracle, over its envelope, on all chips and on one and two cores."""

import dataclasses
import random

import ml_dtypes
import numpy as np
import pytest
import torch
from allpairspy import AllPairs
from decode_cases import check, outputs, problem, run
from kernel_cases import problem_of_case

import nki_hf
from nki_hf import dispatch
from nki_hf.adapters import decision as made
from nki_hf.backends.simulator import simulator_backend
from nki_hf.chips import CHIPS, get_chip
from nki_hf.kernels import reference, registry
from nki_hf.kernels.flash_decode.plan import decode_reasons, plan_decode
from nki_hf.observers.races import races
from nki_hf.problem import Mask
from nki_hf.testing import DISTRIBUTIONS, assert_matches_reference, attention_inputs
from nki_hf.timing.schedule import schedule
from nki_hf.tools.subjects import attention_events

BF16 = ml_dtypes.bfloat16
MASKS = {
    "none": lambda sq, skv: Mask(),
    "causal": lambda sq, skv: Mask(q_offset=skv - sq, ahead=1),
    "causal_top": lambda sq, skv: Mask(ahead=1),
    "window": lambda sq, skv: Mask(q_offset=skv - sq, ahead=1, window=100),
    "two_sided": lambda sq, skv: Mask(q_offset=skv - sq, ahead=40, window=70),
    "bounds": lambda sq, skv: Mask(q_offset=skv - sq, ahead=1, runtime_bounds=True),
    "window_bounds": lambda sq, skv: Mask(q_offset=skv - sq, ahead=1, window=33, runtime_bounds=True),
}
AXES = {
    "dtype": ("bfloat16", "float16", "float32"),
    "heads": ((2, 2), (4, 2), (8, 1), (21, 3)),
    "batch": (1, 2, 3),
    "mask": tuple(MASKS),
    "softcap": (None, 5.0),
    "sink": (False, True),
    "scale": (None, 0.3, 1.7, -0.4, 0.0),
    "head_dim": ((64, 64), (80, 80), (128, 128), (192, 128), (256, 256), (8, 72)),
    "seqlen_q": (1, 2, 5, 8, 16),
    "seqlen_kv": (16, 129, 700, 2300),
    "chip": tuple(CHIPS),
    "lnc": (1, 2),
    "distribution": DISTRIBUTIONS,
}


def grid_case(*, dtype, softcap, head_dim, seqlen_q, seqlen_kv, chip, lnc, distribution, **case):
    if dtype == "float32" and distribution == "negative":
        # The allowance of `testing` knows no head_dim: it is exceeded by a sum of 128 products of one sign in sequence.
        distribution = "normal"
    if dtype == "float32" and softcap is not None and distribution == "outlier_key":
        # Nor does it know the scores before the cap, whose rounding grows with them: a hundred times those behind it.
        distribution = "normal"
    if dtype == "float32" and head_dim[0] == 256 and chip == "trn1":
        # 16 rows of several sequences with a softcap need up to 3 KB more SBUF than trn1 has: flash_prefill takes them.
        seqlen_q = min(seqlen_q, 8)
    lengths = (seqlen_q, seqlen_kv)
    case = problem_of_case(MASKS, dtype=dtype, softcap=softcap, head_dim=head_dim, lengths=lengths, **case)
    check(case, chip, lnc, distribution)


PAIRWISE = [tuple(case) for case in AllPairs(list(AXES.values()))]
DRAW = random.Random(17)
SMALL = {**AXES, "heads": ((2, 2), (4, 2), (5, 1)), "batch": (1, 2), "seqlen_kv": (16, 129, 300, 2100)}
ANY = [{name: DRAW.choice(values) for name, values in SMALL.items()} for _ in range(10_000)]


@pytest.mark.parametrize("case", PAIRWISE, ids=lambda case: "-".join(str(value).replace(" ", "") for value in case))
def test_every_pair_of_options_matches_the_reference(case):
    grid_case(**dict(zip(AXES, case, strict=True)))


@pytest.mark.parametrize("start", range(0, 300, 50))
def test_a_sample_of_combinations_matches_the_reference(start):
    for case in ANY[start : start + 50]:
        grid_case(**case)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, len(ANY), 50))
def test_any_combination_of_options_matches_the_reference(start):
    for case in ANY[start : start + 50]:
        grid_case(**case)


@pytest.mark.parametrize("chip", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("batch", [2, 3, 6, 7])
def test_a_core_of_few_sequences_of_their_own_lengths_loads_them_all(batch, chip):
    """One, a few, and more loads than buffers of a core; a spare buffer is for those that follow another sequence."""
    case = problem(batch=batch, num_heads_kv=1, seqlen_kv=90, head_dim=8, head_dim_v=8, mask=Mask(runtime_bounds=True))
    check(case, chip, 1 if chip == "trn1" else 2)


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("heads_kv", [1, 3, 8])
def test_more_chunks_than_buffers(heads_kv, lnc):
    check(problem(num_heads_q=heads_kv, num_heads_kv=heads_kv, seqlen_kv=10_300, dtype="bfloat16"), lnc=lnc)


def test_each_core_reads_one_chunk_of_a_sequence_with_bounds_of_its_own():
    case = problem(batch=2, num_heads_q=4, num_heads_kv=1, seqlen_kv=300, dtype="bfloat16", mask=Mask(runtime_bounds=True))
    check(case, lnc=2)


def test_rows_of_more_than_one_block():
    for heads_q, seqlen_q in ((48, 16), (160, 1), (40, 13)):
        case = problem(
            num_heads_q=heads_q, num_heads_kv=1, seqlen_q=seqlen_q, dtype="bfloat16", mask=Mask(ahead=1, q_offset=90)
        )
        check(case)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 20.0, 50.0])
def test_scores_of_any_size_and_values_of_any_size(dtype, size):
    """Row maxima of up to hundreds of nats in one tile, |v| from the smallest to the largest: no silent failure."""
    case = problem(seqlen_kv=300, dtype=dtype, num_heads_q=8, seqlen_q=2)
    inputs = attention_inputs(case)
    scale = min(size, 40.0) if dtype == "float16" else size
    k = (inputs.k.astype(np.float32) * np.float32(scale)).astype(inputs.k.dtype)
    with np.errstate(over="ignore"):
        v = (inputs.v.astype(np.float32) * np.float32(1 / scale if dtype == "float16" else 1e25)).astype(inputs.v.dtype)
    v = np.where(np.isfinite(v.astype(np.float32)), v, inputs.v)
    inputs = dataclasses.replace(inputs, k=k, v=v)
    out, lse = outputs(inputs)
    assert_matches_reference(inputs, out, lse)


@pytest.mark.parametrize("size", [300.0, 3000.0, 20_000.0])
def test_a_key_that_outweighs_all_others_gives_its_value_exactly(size):
    """The maximum is not rounded: the probability of a score of thousands of nats is 1, and so is the sum."""
    case = problem(seqlen_kv=300, dtype="bfloat16", num_heads_q=2)
    inputs = attention_inputs(case)
    q, k = inputs.q.astype(np.float32), inputs.k.astype(np.float32) * 0.01
    for head in range(2):
        k[0, head, 77] = q[0, head, 0] * size / (case.scale * (q[0, head, 0] ** 2).sum())
    out, lse = outputs(dataclasses.replace(inputs, k=k.astype(inputs.k.dtype)))
    np.testing.assert_array_equal(out[0, :, 0], inputs.v[0, :, 77])
    np.testing.assert_allclose(lse, size, rtol=0.01)


@pytest.mark.parametrize("chip", list(CHIPS))
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("heads_q", "seqlen_q"), [(4, 1), (8, 5), (40, 9)])
def test_what_is_not_finite_in_a_query_row_stays_in_that_row(heads_q, seqlen_q, dtype, chip):
    case = problem(num_heads_q=heads_q, num_heads_kv=2, seqlen_q=seqlen_q, seqlen_kv=300, dtype=dtype)
    inputs = attention_inputs(case)
    clean = outputs(inputs, chip)
    for bad in (np.nan, np.inf):
        q = inputs.q.copy()
        q[0, 1, 0, 7] = bad
        found = outputs(dataclasses.replace(inputs, q=q), chip)
        assert not np.isfinite(found[0][0, 1, 0].astype(np.float32)).any()
        for one, other in zip(found, clean, strict=True):
            one[0, 1, 0] = other[0, 1, 0]
            np.testing.assert_array_equal(one, other)


def test_an_infinite_key_is_no_key_for_rows_that_it_points_away_from():
    """Its score is -inf there, as in a softmax that is written out."""
    case = problem(num_heads_q=8, num_heads_kv=1, seqlen_q=2, seqlen_kv=300)
    inputs = attention_inputs(case)
    k = inputs.k.copy()
    k[0, 0, 150, 3] = np.inf
    out, lse = outputs(dataclasses.replace(inputs, k=k))
    without = np.delete(np.arange(300), 150)
    scores = np.einsum("hqd,kd->hqk", inputs.q[0].astype(np.float64), inputs.k[0, 0, without].astype(np.float64)) * case.scale
    away = inputs.q[0, :, :, 3] < 0
    assert 0 < away.sum() < away.size
    weights = np.exp(scores)
    expected = weights @ inputs.v[0, 0, without] / weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(out[0][away], expected[away], atol=1e-5)
    np.testing.assert_allclose(lse[0][away], np.log(weights.sum(-1))[away], atol=1e-5)


def _split(size):
    """A float32 as the sum of three numbers of bfloat16."""
    parts, rest = [], float(np.float32(size))
    for _ in range(3):
        parts.append(float(BF16(rest)))
        rest -= parts[-1]
    return parts


@pytest.mark.parametrize("chip", list(CHIPS))
@pytest.mark.parametrize("seqlen_q", [1, 8])
@pytest.mark.parametrize(
    ("dtype", "scale", "softcap"),
    [
        ("bfloat16", 1.0, None),
        ("bfloat16", -0.125, None),
        ("float32", 1e-20, None),
        ("float32", 1e6, None),
        ("bfloat16", 1.0, 20.0),
        ("float32", 1e-3, 1e6),
    ],
)
def test_a_hidden_key_counts_for_nothing_whatever_its_score(dtype, scale, softcap, seqlen_q, chip):
    """What is added to hide a key must not cancel with its score. The values of all visible keys are 1."""
    keys, lo, hi = 400, 64, 192
    case = problem(
        num_heads_q=2,
        num_heads_kv=1,
        seqlen_q=seqlen_q,
        seqlen_kv=keys,
        head_dim=8,
        head_dim_v=8,
        dtype=dtype,
        softmax_scale=scale,
        softcap=softcap,
        mask=Mask(runtime_bounds=True),
    )
    inputs = attention_inputs(case)
    hidden = (np.arange(keys) < lo) | (np.arange(keys) >= hi)
    for size in (1e28, float(BF16(1e30)), 3.0e38, float(ml_dtypes.finfo(BF16).max)):
        inputs.q[:], inputs.k[:], inputs.v[:] = 0, 0, 1
        inputs.q[..., :3], inputs.k[:, :, hidden, :3] = _split(size), 1
        inputs.k[:, :, 1::2] *= -1
        inputs.v[:, :, hidden] = 1000
        inputs.lo[:], inputs.hi[:] = lo, hi
        out, lse = outputs(inputs, chip)
        assert (out == 1).all(), size
        np.testing.assert_allclose(lse, np.log(hi - lo), rtol=1e-6)


@pytest.mark.parametrize("chip", list(CHIPS))
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("size", [-1e28, -1e30, -3e38], ids=["1e28", "1e30", "3e38"])
def test_a_visible_key_counts_however_low_its_score(size, sink, lnc, chip):
    """All scores of a row are the same: the output is the mean of the values, beside a sink that is as low."""
    case = problem(
        num_heads_q=2, num_heads_kv=1, seqlen_q=2, seqlen_kv=2100, head_dim=8, head_dim_v=8, softmax_scale=0.5, sink=sink
    )
    inputs = attention_inputs(case)
    inputs.q[:], inputs.k[:] = 0, 0
    inputs.q[..., :3], inputs.k[..., :3] = _split(size), 1
    if sink:
        inputs.sink[:] = 1.8 * size * 0.5
    out, lse = outputs(inputs, chip, lnc)
    np.testing.assert_allclose(out, inputs.v.astype(np.float64).mean(2, keepdims=True).repeat(2, 1).repeat(2, 2), atol=1e-6)
    np.testing.assert_allclose(lse, 0.5 * size, rtol=1e-6)


# ---- sinks of any value, rows without keys ------------------------------------------------------------------------------

SINKS = ((-np.inf, -3.4e38, -3e38), (-2e38, -1e30, -1e28), (-1e27, -1e8, 3e38), (np.inf, np.nan, 2.0))


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize(("scale", "softcap"), [(None, None), (1e-9, None), (1e5, None), (None, 3.0)])
def test_rows_with_and_without_keys_beside_a_sink_of_any_value(scale, softcap, lnc, chip):
    """One kv head, so that two cores share its chunks; a sequence without keys, and one whose first row alone has none."""
    mask = Mask(q_offset=2297, ahead=1, runtime_bounds=True)
    case = problem(
        batch=3,
        num_heads_q=3,
        num_heads_kv=1,
        seqlen_q=2,
        seqlen_kv=2300,
        sink=True,
        mask=mask,
        softmax_scale=scale,
        softcap=softcap,
        head_dim=16,
        head_dim_v=16,
    )
    lo, hi = np.zeros((3, 2), np.int32), np.array([[0, 2300], [0, 0], [70, 300]], np.int32)
    inputs = dataclasses.replace(attention_inputs(case), lo=lo, hi=hi)
    for sinks in SINKS:
        given = dataclasses.replace(inputs, sink=np.array(sinks, np.float32))
        out, lse = outputs(given, chip, lnc)
        with np.errstate(invalid="ignore"):  # of a sink of inf
            want, want_lse = reference.attention(case, given.q, given.k, given.v, lo=lo, hi=hi, sink=given.sink)
        np.testing.assert_allclose(out, want, atol=2e-3 if scale == 1e5 else 2e-5)
        # Without keys the lse is the sink; the kernel calls what is near float32's lowest -inf.
        want_lse = np.where(want_lse < -2.4e38, -np.inf, want_lse)
        np.testing.assert_allclose(lse, want_lse, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("chip", ["trn1", "trn2"])
def test_a_row_whose_every_score_is_minus_infinite_is_a_row_without_keys(chip):
    """Through the front door, with the lse of every sink: that of float32's lowest values too."""
    q, k, v = torch.rand(1, 5, 3, 32), torch.randn(1, 1, 300, 32), torch.randn(1, 1, 300, 32)
    k[:, :, :4] = -torch.inf
    lo, hi = torch.tensor([[0, 0, 0]]), torch.tensor([[0, 4, 300]])
    sink = torch.tensor([-torch.inf, -3.4e38, -2e38, -1e30, 1.5])
    for given in (None, sink):
        with torch.no_grad(), nki_hf.using(strict=True, backend="simulator", chip=chip):
            out, lse = nki_hf.attention(q, k, v, lo=lo, hi=hi, sink=given, return_lse=True)
        assert torch.equal(out[:, :, :2], torch.zeros(1, 5, 2, 32))
        assert torch.equal(lse[0, :, :2], (torch.full_like(sink, -torch.inf) if given is None else sink)[:, None].expand(5, 2))
        scores = (q.double() @ k.double().mT)[:, :, 2] * 32**-0.5
        joined = scores if given is None else torch.cat([scores, given.double().view(1, 5, 1)], -1)
        torch.testing.assert_close(out[:, :, 2].double(), joined.softmax(-1)[..., :300] @ v[0, 0].double(), atol=2e-6, rtol=0)


# ---- the envelope and the machine ---------------------------------------------------------------------------------------


def test_what_the_kernel_cannot_take_is_refused_by_name():
    chip = get_chip("trn2")
    for changes, field in (
        ({"seqlen_q": 17}, "seqlen_q"),
        ({"head_dim": 257}, "head_dim"),
        ({"head_dim_v": 300}, "head_dim_v"),
        ({"mask": Mask(bias="boolean")}, "mask.bias"),
        ({"softmax_scale": 1e-25}, "softmax_scale"),
        ({"dtype": "int8"}, "dtype"),
    ):
        assert [reason.field for reason in decode_reasons(problem(**changes), chip)] == [field]


@pytest.mark.parametrize("chip", list(CHIPS))
def test_tiles_fit_and_no_value_depends_on_memory_that_was_never_written(chip):
    for lnc in (1, 2):
        for changes in (
            {"head_dim": 256, "head_dim_v": 256, "seqlen_kv": 5000, "seqlen_q": 16, "num_heads_q": 16},
            {"num_heads_kv": 1, "seqlen_kv": 5000, "dtype": "bfloat16"},
        ):
            case = problem(**changes)
            assert decode_reasons(case, get_chip(chip)) == ()
            run(attention_inputs(case), chip, lnc, uninitialized="error")


@pytest.mark.parametrize("chip", list(CHIPS))
@pytest.mark.parametrize("heads_kv", [1, 3])
def test_nothing_races(heads_kv, chip):
    """On one core and on two, which share the chunks of an odd kv head and exchange their halves."""
    case = problem(num_heads_q=2 * heads_kv, num_heads_kv=heads_kv, seqlen_kv=5000, batch=1, seqlen_q=2, dtype="bfloat16")
    for lnc in (1, 2) if get_chip(chip).default_lnc == 2 else (1,):
        assert races(attention_events(case, get_chip(chip), lnc, kernel="flash_decode")) == []


@pytest.mark.parametrize("chip", list(CHIPS))
def test_nothing_races_where_buffers_pass_from_one_sequence_to_the_next(chip):
    case = problem(batch=4, seqlen_kv=2500, dtype="bfloat16", mask=Mask(runtime_bounds=True))
    hi = np.array([[2500], [3], [700], [2100]], np.int32)
    inputs = dataclasses.replace(attention_inputs(case), lo=np.zeros_like(hi), hi=hi)
    for lnc in (1, 2) if get_chip(chip).default_lnc == 2 else (1,):
        assert races(run(inputs, chip, lnc)[0].events) == []


@pytest.mark.parametrize("chip", list(CHIPS))
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_budget_holds_what_the_kernel_keeps_on_chip(dtype, chip):
    """SBUF in use at one time, by the schedule, within what the plan allows for."""
    for changes in (
        {"head_dim": 128, "head_dim_v": 128},
        {"head_dim": 256, "head_dim_v": 256, "num_heads_q": 16, "seqlen_q": 8},
    ):
        case = problem(seqlen_kv=9000, dtype=dtype, **changes)
        plan = plan_decode(case, get_chip(chip))
        used = schedule(attention_events(case, get_chip(chip), 1, kernel="flash_decode"), get_chip(chip), window=None)
        assert used.high_water_bytes[0, "sbuf"] <= plan.sbuf_bytes


@pytest.fixture
def alone(monkeypatch):
    """No other kernel is registered: what a kernel costs decides nothing."""
    monkeypatch.setattr(registry, "PACKAGES", ["nki_hf.kernels.flash_decode"])
    _forget()
    yield
    _forget()


def _forget():
    dispatch.decide.cache_clear()
    made._decided.cache_clear()


@pytest.mark.usefixtures("alone")
def test_a_growing_cache_records_one_program_per_bucket():
    """Through the adapter: lengths on both sides of two buckets' edges, against torch's own attention."""
    target = simulator_backend("trn2")
    target.clear()
    torch.manual_seed(0)
    q, keys, values = torch.randn(1, 4, 1, 32), torch.randn(1, 2, 4100, 32), torch.randn(1, 2, 4100, 32)
    with torch.no_grad(), nki_hf.using(strict=True, backend="simulator", chip="trn2"):
        for length in (1, 2, 15, 16, 17, 200, 201, 2047, 2048, 2049, 4096, 4097):
            k, v = keys[:, :, :length], values[:, :, :length]
            want = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), enable_gqa=True)
            torch.testing.assert_close(nki_hf.attention(q, k, v).double(), want, atol=2e-6, rtol=2e-6)
    assert len(target._pool._idle) == 3  # buckets of 1, 2 and 3 chunks; each thread may have a recording of its own


@pytest.mark.usefixtures("alone")
def test_a_static_cache_of_sequences_of_different_lengths():
    torch.manual_seed(1)
    q, k, v = torch.randn(3, 4, 2, 32), torch.randn(3, 2, 600, 32), torch.randn(3, 2, 600, 32)
    lo, hi = torch.tensor([[0, 0], [37, 37], [590, 590]]), torch.tensor([[4, 5], [299, 300], [599, 600]])
    number = torch.arange(600)
    seen = ((number >= lo[..., None]) & (number < hi[..., None]))[:, None]
    with torch.no_grad(), nki_hf.using(strict=True, backend="simulator", chip="trn2"):
        out = nki_hf.attention(q, k, v, seen)
        assert nki_hf.explain().rows[-1].first.kernel == "flash_decode"
    want = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), seen, enable_gqa=True)
    torch.testing.assert_close(out.double(), want, atol=2e-6, rtol=2e-6)
