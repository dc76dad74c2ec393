"""The plan of flash_const_max: its envelope, what it says of memory and instructions, its times in the model, its division."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from const_max_cases import kernel_arguments, outputs

from nki_hf.chips import CHIPS, get_chip
from nki_hf.dispatch import decide
from nki_hf.kernels.flash_const_max.call import BINDING
from nki_hf.kernels.flash_const_max.kernel import flash_const_max, flash_const_max_loop
from nki_hf.kernels.flash_const_max.plan import estimated_us, plan_const_max
from nki_hf.kernels.flash_const_max.tuning import KINDS, LAWS, TABLE
from nki_hf.kernels.plan import Plan, Target
from nki_hf.lang import features
from nki_hf.observers.races import races
from nki_hf.observers.working_set import working_sets
from nki_hf.problem import Mask, Problem
from nki_hf.sim import SimOptions, launch
from nki_hf.testing import attention_inputs
from nki_hf.timing.schedule import schedule
from nki_hf.tools.tuning.plan_table import laws


def case(
    seqlen_q, seqlen_kv=None, *, heads=(1, 1), batch=1, head_dim=128, head_dim_v=None, dtype="bfloat16", softcap=None, **mask
):
    return Problem(
        batch=batch,
        num_heads_q=heads[0],
        num_heads_kv=heads[1],
        seqlen_q=seqlen_q,
        seqlen_kv=seqlen_kv or seqlen_q,
        head_dim=head_dim,
        head_dim_v=head_dim_v or head_dim,
        dtype=dtype,
        softcap=softcap,
        mask=Mask(**mask),
    )


SHAPES = {
    "causal": case(2048, heads=(2, 1), ahead=1),
    "one long head": case(1024, 8192),
    "streamed": case(512, 65536),
    "window": case(4096, ahead=1, window=1024),
    "many short heads": case(256, heads=(32, 32), ahead=1),
    "uneven": case(100, heads=(16, 2), batch=2, ahead=1),
    "bounds": case(2048, heads=(2, 1), ahead=1, runtime_bounds=True),
    "bounds of a batch": case(512, heads=(4, 2), batch=2, ahead=1, runtime_bounds=True),
    "bounds, long": case(512, 16384, runtime_bounds=True),
    "key bias": case(1024, batch=2, ahead=1, bias="boolean", bias_batch=True),
    "192/128": case(1024, head_dim=192, head_dim_v=128, ahead=1),
    "256": case(1024, head_dim=256, ahead=1),
    "512": case(1024, head_dim=512, ahead=1),
}


def events(problem, chip, lnc=1, checks=False):
    plan = plan_const_max(problem, chip, lnc)
    passed = {"lo", "hi"} if plan.bounds else set()
    passed |= {"bias"} if problem.mask.bias else set()
    passed |= {"sink"} if problem.sink else set()
    shapes = BINDING.shapes(problem, Plan(constants={}, passed=frozenset(passed)), problem.batch)
    dtypes = {"bfloat16": ml_dtypes.bfloat16}
    tensors = {
        name: None if item is None else np.broadcast_to(np.zeros((), dtypes.get(item[1], item[1])), item[0])
        for name, item in shapes.items()
    }
    options = SimOptions(chip=chip, values=False, checks=checks)
    return launch(flash_const_max, (), {**tensors, **plan.constants()}, options=options, lnc=lnc).events, plan


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", SHAPES)
def test_what_lives_at_once_is_within_the_plan_and_instructions_are_about_as_many(name, chip):
    chip = get_chip(chip)
    found, plan = events(SHAPES[name], chip, checks=True)
    for item in working_sets(found, chip):
        taken = sum(tile.nbytes * tile.live for tile in item.tiles)
        assert taken <= (plan.sbuf_bytes if item.space == "sbuf" else 8 * 2048)
    assert plan.sbuf_bytes <= chip.sbuf_partition_bytes - chip.sbuf_reserved_bytes
    assert 0.6 <= plan.instructions / len(found) <= 2


LOOPS = {
    "causal": case(600, heads=(3, 3), ahead=1),
    "many keys": case(200, 8192),
    "uneven keys": case(200, 4500, heads=(2, 1), head_dim=64, ahead=1, window=300),
    "bounds of a batch": case(600, heads=(2, 2), batch=2, runtime_bounds=True),
    "key bias": case(200, 1500, heads=(4, 2), head_dim=192, head_dim_v=128, batch=2, bias="boolean", bias_batch=True),
    "512": case(512, 2100, head_dim=512),
}


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("chip", ["trn2", "trn3"])
@pytest.mark.parametrize("name", LOOPS)
def test_the_loop_over_failed_tiles_fits_the_chip_and_races_with_nothing(name, chip, lnc):
    """What the body of a loop at run time allocates stays allocated for all of its turns, however many keys it visits.

    Rows that a register names count as the whole tensor: that cores name their own is held by the values on two cores.
    """
    chip, problem = get_chip(chip), LOOPS[name]
    found = BINDING.plan(problem, Target(chip=chip, lnc=lnc, features=features("simulator")))
    shapes = BINDING.shapes(problem, found)
    dtypes = {"bfloat16": ml_dtypes.bfloat16}
    tensors = {
        key: None if item is None else np.broadcast_to(np.zeros((), dtypes.get(item[1], item[1])), item[0])
        for key, item in shapes.items()
    }
    options = SimOptions(chip=chip, values=False, trip_counts=2)
    events = launch(flash_const_max_loop, (), {**tensors, **found.constants}, options=options, lnc=lnc).events
    limits = {"sbuf": chip.sbuf_partition_bytes - chip.sbuf_reserved_bytes, "psum": 8 * 2048}
    for item in working_sets(events, chip):
        assert sum(tile.nbytes * tile.live for tile in item.tiles) <= limits[item.space]
    known = [race for race in races(events) if not (race.first_region.indirect or race.second_region.indirect)]
    assert known == []


@pytest.mark.parametrize("chip", ["trn2", "trn3"])
@pytest.mark.parametrize("name", SHAPES)
def test_the_estimate_of_dispatch_is_within_half_of_the_model(name, chip):
    chip = get_chip(chip)
    us = schedule(events(SHAPES[name], chip)[0], chip, window=None).total_ns / 1e3
    assert 0.5 <= estimated_us(SHAPES[name], chip) / us <= 1.5


@pytest.mark.parametrize(
    ("problem", "chip", "least"),
    [
        (case(8192, ahead=1), "trn2", 0.74),
        (case(2048, heads=(4, 4), ahead=1), "trn2", 0.64),
        (case(512, heads=(16, 16), ahead=1), "trn2", 0.32),
        (case(4096), "trn1", 0.76),
        (case(2048, 8192), "trn2", 0.74),
        (case(2048, 8192), "trn3", 0.74),
    ],
    ids=["causal 8K", "causal 2K x 4", "causal 512 x 16", "trn1 4K", "2K of 8K", "2K of 8K trn3"],
)
def test_simulated_times_in_program_order(problem, chip, least):
    """The algorithm's floor, one exponential a lane and cycle of Scalar for each score, is at least this share of the time."""
    chip = get_chip(chip)
    rows, keys = problem.seqlen_q, problem.seqlen_kv
    scores = problem.num_heads_q * (rows * (rows + 1) // 2 if problem.mask.causal else rows * keys)
    floor_ns = scores / (128 * chip.scalar_ghz)
    scheduled = schedule(events(problem, chip)[0], chip, window=None)
    assert least <= floor_ns / (scheduled.total_ns - chip.kernel_fixed_ns) <= 1
    assert not scheduled.spills


def test_the_table_is_as_old_as_the_laws_of_the_times():
    assert laws() == LAWS, "Timing laws changed: run `python tools/tune_const_max.py --write`."
    assert {name: tuple(kinds) for name, kinds in TABLE.items()} == {name: KINDS for name in CHIPS}


@pytest.mark.parametrize(
    ("problem", "chip", "field"),
    [
        (case(512, dtype="float16"), "trn2", "dtype"),
        (case(512, softcap=30.0), "trn2", "softcap"),
        (case(512, bias="additive", bias_rows=True), "trn2", "mask.bias"),
        (case(16, 512), "trn2", "seqlen_q"),
        (case(512, head_dim=600), "trn2", "head_dim"),
        (case(512), "trn1", "chip"),
    ],
)
def test_what_it_does_not_take_has_a_reason_and_another_kernel(problem, chip, field):
    decision = decide(problem, backend="simulator", chip=chip)
    assert decision.kernel != "flash_const_max"
    assert field in {reason.field for reason in decision.rejected if reason.kernel == "flash_const_max"}


def test_dispatch_prefers_it_and_says_why():
    decision = decide(case(512, heads=(4, 2), ahead=1), backend="simulator", chip="trn2")
    assert (decision.kernel, decision.plan.entry) == ("flash_const_max", "flash_const_max_loop")
    assert "constant shift" in decision.why


def test_a_front_end_without_loops_gets_another_kernel():
    found = BINDING.plan(case(512), Target(chip=get_chip("trn2")))
    assert [reason.field for reason in found] == ["chip"]


@pytest.mark.parametrize("mask", [Mask(), Mask(ahead=1), Mask(ahead=1, window=300, q_offset=100)])
def test_launches_of_some_rows_each_give_the_rows_of_the_whole(mask):
    problem = replace(case(1300, 1400, heads=(2, 1), head_dim=64), mask=mask)
    inputs = attention_inputs(problem)
    plan = plan_const_max(problem, get_chip("trn2"))
    whole, lse, _ = outputs(inputs, plan=plan)
    rows = BINDING.division.rows
    runs = rows.runs(plan.constants(), problem.seqlen_q, 60)
    assert len(runs) > 1
    for begin, end in runs:
        part = replace(problem, seqlen_q=end - begin)
        own = replace(inputs, problem=part, q=inputs.q[:, :, begin:end])
        constants = rows.constants(plan.constants(), begin, end, 1)
        found = outputs(own, plan=_Constants(constants))
        np.testing.assert_array_equal(found[0], whole[:, :, begin:end])
        np.testing.assert_array_equal(found[1], lse[:, :, begin:end])


class _Constants:
    """A plan that is nothing but constants."""

    bounds = False

    def __init__(self, constants):
        self._constants = dict(constants)

    def constants(self):
        return self._constants


@pytest.mark.parametrize("chip", ["trn2", "trn3"])
@pytest.mark.parametrize("head_dim", [128, 512])
@pytest.mark.parametrize("mask", [Mask(), Mask(ahead=1, window=300), Mask(bias="additive")], ids=["none", "window", "bias"])
def test_what_the_loop_allocates_does_not_grow_with_the_keys(chip, head_dim, mask):
    """Memory is judged on two turns of the body, whose tiles stay for the whole loop (nki/deep-dives/nki-dynamic-loops.rst)."""
    case = Problem(
        batch=1, num_heads_q=1, num_heads_kv=1, seqlen_q=128, seqlen_kv=8192, head_dim=head_dim, head_dim_v=head_dim, mask=mask
    )
    plan = plan_const_max(case, get_chip(chip), 1)
    options = SimOptions(chip=get_chip(chip), values=False, trip_counts=1)
    result = launch(flash_const_max_loop, (), kernel_arguments(attention_inputs(case), plan), options=options)
    assert result.run.loops[0].name == "recomputed_tile"
