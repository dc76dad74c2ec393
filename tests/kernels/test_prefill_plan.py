"""The plan of flash_prefill: spans against brute force, envelope, buckets, and what makes two calls one program."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefill_cases import problem

from nki_hf.chips import CHIPS, get_chip
from nki_hf.kernels.flash_prefill.plan import BLOCK, SHORT, TILE, plan_prefill, prefill_reasons
from nki_hf.kernels.limits import MAX_KEYS
from nki_hf.problem import Mask

TRN2 = get_chip("trn2")
MAYBE = st.none() | st.integers(1, 400)


@st.composite
def masked_problems(draw):
    seqlen_q, seqlen_kv = draw(st.integers(SHORT + 1, 400)), draw(st.integers(1, 700))
    mask = Mask(q_offset=draw(st.integers(-500, 500)), window=draw(MAYBE), ahead=draw(MAYBE))
    return problem(seqlen_q=seqlen_q, seqlen_kv=seqlen_kv, mask=mask)


@given(masked_problems())
def test_spans_cover_what_the_rows_see_and_claim_no_more(case):
    for tile, (first, last, full_first, full_last) in enumerate(plan_prefill(case, TRN2).spans):
        rows = range(tile * TILE, min((tile + 1) * TILE, case.seqlen_q))
        seen = [set(range(*case.mask.interval(row, case.seqlen_kv))) for row in rows]
        union, common = set().union(*seen), set.intersection(*seen)
        assert union <= set(range(first, last))
        assert set(range(full_first, full_last)) <= common
        if union:
            assert first <= min(union) < first + TILE
            assert last == max(union) + 1
            assert first % TILE == 0
        else:
            assert first == last
        if common:
            assert (full_first, full_last) == (min(common), max(common) + 1)


@given(masked_problems())
def test_two_cores_share_the_keys_of_one_kv_head_evenly(case):
    plan = plan_prefill(case, TRN2, 2)
    widths = [last - first + 1 for first, last, _, _ in plan.spans]
    halves = [sum(widths[: plan.row_split]), sum(widths[plan.row_split :])]
    assert abs(halves[0] - halves[1]) <= max(widths)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"dtype": "float64"}, "dtype"),
        ({"dtype": "int8"}, "dtype"),
        ({"head_dim": 257}, "head_dim"),
        ({"head_dim_v": 320}, "head_dim_v"),
        ({"seqlen_kv": MAX_KEYS + 1}, "seqlen_kv"),
    ],
)
def test_what_the_kernel_cannot_take_is_named(changes, field):
    reasons = prefill_reasons(problem(**changes), TRN2)
    assert [reason.field for reason in reasons] == [field]
    assert str(next(iter(changes.values()))).replace(",", "") in str(reasons[0]).replace(",", "")


def test_every_reason_is_given_at_once():
    reasons = prefill_reasons(problem(dtype="float64", head_dim=300), TRN2)
    assert [reason.field for reason in reasons] == ["dtype", "head_dim"]


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("head_dim", [1, 64, 256])
@pytest.mark.parametrize("lengths", [(1, 1), (1, 1 << 20), (4096, 4096), (1 << 15, 1 << 15), (512, MAX_KEYS)])
@pytest.mark.parametrize("heads", [(1, 1), (64, 1), (128, 8)])
def test_the_whole_envelope_fits_the_chip(heads, lengths, head_dim, dtype, chip):
    mask = Mask(ahead=1, bias="additive", runtime_bounds=True)
    case = problem(
        num_heads_q=heads[0],
        num_heads_kv=heads[1],
        seqlen_q=lengths[0],
        seqlen_kv=lengths[1],
        head_dim=head_dim,
        head_dim_v=head_dim,
        dtype=dtype,
        mask=mask,
        softcap=1.0,
        sink=True,
    )
    target = get_chip(chip)
    assert prefill_reasons(case, target) == ()
    assert plan_prefill(case, target).sbuf_bytes <= target.sbuf_partition_bytes - target.sbuf_reserved_bytes


def test_growing_caches_share_a_plan_within_a_bucket():
    def plan(length, **mask):
        return plan_prefill(problem(seqlen_q=1, seqlen_kv=length, mask=Mask(**mask)), TRN2)

    assert plan(BLOCK - 30) == plan(BLOCK) == plan(100, q_offset=99, ahead=1) == plan(70, window=50, q_offset=69)
    assert plan(BLOCK + 1) == plan(2 * BLOCK) != plan(BLOCK)
    assert plan(BLOCK).constants() == plan(3).constants()


def test_positions_are_constants_only_where_the_bounds_do_not_hold_them():
    static = plan_prefill(problem(mask=Mask(q_offset=3, ahead=1, window=5)), TRN2)
    assert (static.bounds, static.q_offset, static.window, static.ahead) == (False, 3, 5, 1)
    run_time = plan_prefill(problem(mask=Mask(q_offset=3, ahead=1, window=5, runtime_bounds=True)), TRN2)
    assert (run_time.bounds, run_time.q_offset, run_time.window, run_time.ahead) == (True, 0, None, None)


def test_run_time_bounds_leave_no_key_that_all_rows_are_known_to_see():
    plan = plan_prefill(problem(mask=Mask(ahead=1, runtime_bounds=True)), TRN2)
    assert plan.spans == ((0, 128, 0, 0), (0, 200, 0, 0))


def test_keys_are_resident_while_they_fit():
    for length, resident in ((4096, True), (1 << 15, True), (1 << 17, False)):
        case = problem(seqlen_q=256, seqlen_kv=length, head_dim=128, head_dim_v=128, dtype="bfloat16")
        assert plan_prefill(case, TRN2).resident is resident


def test_tiles_show_what_a_decision_needs():
    case = problem(seqlen_q=1024, seqlen_kv=1024, mask=Mask(ahead=1))
    plan = plan_prefill(case, TRN2)
    assert plan.blocks == 4 + 4 * 2
    assert plan.tiles()["blocks_per_head"] == plan.blocks
    assert plan.tiles()["sbuf_bytes"] == plan.sbuf_bytes
    assert dataclasses.replace(plan, section=2048) != plan
