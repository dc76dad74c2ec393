"""flash_decode against the float64 oracle, over its envelope, on all chips and on one and two cores; its memory and races."""

import dataclasses
import random

import numpy as np
import pytest
from allpairspy import AllPairs
from decode_cases import check, problem, run
from kernel_cases import problem_of_case

from nki_hf.chips import CHIPS, get_chip
from nki_hf.kernels.flash_decode.plan import decode_reasons, plan_decode
from nki_hf.observers.races import races
from nki_hf.problem import Mask
from nki_hf.testing import DISTRIBUTIONS, attention_inputs
from nki_hf.timing.schedule import schedule
from nki_hf.tools.subjects import attention_events

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
