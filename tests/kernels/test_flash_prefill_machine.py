"""What flash_prefill asks of the machine: bytes from HBM, SBUF and PSUM, engines, cores; and where bad values may go."""

import dataclasses

import numpy as np
import pytest
from prefill_cases import check, outputs, problem, run

import nki_hf.kernels.flash_prefill.kernel as flash_prefill
from nki_hf.chips import CHIPS, get_chip
from nki_hf.kernels.flash_prefill.plan import CHUNK, plan_prefill
from nki_hf.problem import Mask, Problem
from nki_hf.sim.stream.memory import occupancies
from nki_hf.testing import assert_matches_reference, attention_inputs

LARGE = Problem(
    batch=1, num_heads_q=16, num_heads_kv=8, seqlen_q=4096, seqlen_kv=4096, head_dim=128, head_dim_v=128, mask=Mask(ahead=1)
)
HBM = ("hbm", "private_hbm", "shared_hbm")


@pytest.fixture(scope="module")
def large_events():
    return run(_blank(LARGE), values=False, checks=False)[0].events


def _blank(case):
    """Inputs of a large problem without values."""
    small = dataclasses.replace(case, seqlen_q=1, seqlen_kv=1)
    inputs = attention_inputs(small)
    grow = {"q": case.seqlen_q, "k": case.seqlen_kv, "v": case.seqlen_kv}
    arrays = {
        name: np.zeros((*getattr(inputs, name).shape[:2], n, getattr(inputs, name).shape[3]), inputs.q.dtype)
        for name, n in grow.items()
    }
    return dataclasses.replace(inputs, problem=case, **arrays)


def _hbm_bytes(events):
    moved = {}
    for event in events:
        for region in (*event.reads, *event.writes):
            if region.buffer.space in HBM:
                moved[region.buffer.name] = moved.get(region.buffer.name, 0) + region.bytes
    return moved


@pytest.mark.parametrize("lnc", [1, 2])
def test_hbm_traffic_is_every_tensor_once(large_events, lnc):
    events = large_events if lnc == 1 else run(_blank(LARGE), lnc=2, values=False, checks=False)[0].events
    once = 2 * 4096 * 128 * (16 + 8 + 8 + 16) + 4 * 16 * 4096
    assert sum(_hbm_bytes(events).values()) <= 1.3 * once
    assert _hbm_bytes(events)["k"] == _hbm_bytes(events)["v"] == 2 * 8 * 4096 * 128


def test_nothing_of_the_size_of_the_scores_is_in_hbm(large_events):
    buffers = {region.buffer for event in large_events for region in (*event.reads, *event.writes)}
    assert max(buffer.elements for buffer in buffers if not buffer.on_chip) == 16 * 4096 * 128


def test_loads_of_queries_and_keys_read_long_rows(large_events):
    loads = [e for e in large_events if e.opcode == "dma_copy" and e.reads[0].buffer.name in ("q", "k")]
    assert min(e.reads[0].contiguous_bytes for e in loads) >= 2048


def _stage(event):
    """Which stage of a step an event belongs to: k tiles have two axes, v tiles three."""
    if event.opcode == "nc_matmul":
        return "scores" if len(event.reads[1].buffer.shape) == 2 else "output"
    if event.opcode == "activation" and event.attrs["reduce"] == "add":
        return "exp"
    if event.opcode == "tensor_reduce" or event.opcode == "range_select":
        return "top"
    return "turn" if event.opcode == "nc_transpose" and event.reads[0].dtype == "bfloat16" else ""


def test_tiles_outside_the_mask_do_not_exist(large_events):
    columns = sum(e.writes[0].free_elements for e in large_events if _stage(e) == "scores")
    assert columns == 16 * sum(128 * (tile + 1) for tile in range(32))


def test_edges_are_masked_in_the_instruction_that_takes_the_maximum(large_events):
    assert sum(e.opcode == "range_select" for e in large_events) == 16 * 32
    assert not any(e.opcode in ("affine_select", "select_reduce") for e in large_events)


def test_five_steps_are_in_flight(large_events):
    """Scores of step i, maximum of i-1, exp of i-2, transposes of i-3, output of i-4: what keeps in-order queues busy."""
    stages = [stage for stage in map(_stage, large_events) if stage]
    order = [stage for i, stage in enumerate(stages) if i == 0 or stages[i - 1] != stage]
    filling = ["scores", "top", "scores", "top", "exp", "scores", "top", "exp", "turn"]
    steady = ["scores", "top", "exp", "turn", "output"]
    assert order[:19] == ["scores", *filling, *steady * 2][1:]


# ---- budget ---------------------------------------------------------------------------------------------------------

HEAVY = {
    "plain": {},
    "fp32 d256, all options": {
        "dtype": "float32",
        "head_dim": 256,
        "head_dim_v": 256,
        "softcap": 5.0,
        "sink": True,
        "mask": Mask(q_offset=0, ahead=1, bias="additive", bias_rows=True, bias_heads=True),
    },
    "one kv head for many": {"num_heads_q": 8, "num_heads_kv": 1, "mask": Mask(ahead=1)},
    "fp32 d256, eight heads": {"dtype": "float32", "head_dim": 256, "head_dim_v": 256, "num_heads_q": 8},
    "boolean bias, bounds": {"mask": Mask(bias="boolean", bias_rows=True, runtime_bounds=True)},
}


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", HEAVY)
def test_sbuf_and_psum_stay_within_the_plan_and_the_chip(name, chip):
    sizes = {"batch": 2, "seqlen_q": 600, "seqlen_kv": 1200, "head_dim": 128, "head_dim_v": 128, "dtype": "bfloat16"}
    case = problem(**{**sizes, **HEAVY[name]})
    target = get_chip(chip)
    result, plan = run(attention_inputs(case), chip, values=False)
    used = {item.space: item.high_water for item in occupancies(result.events, target)}
    assert used["sbuf"] <= plan.sbuf_bytes <= target.sbuf_partition_bytes - 16 * 1024
    assert used["psum"] <= plan.psum_banks * target.psum_bank_bytes <= target.psum_partition_bytes
    tiles = {region.buffer for e in result.events for region in e.writes if region.buffer.space == "psum"}
    assert max(tile.bytes_per_partition for tile in tiles) <= target.psum_bank_bytes


def test_the_stated_budget_is_that_of_the_plan():
    budget = plan_prefill(dataclasses.replace(LARGE, num_heads_q=2, num_heads_kv=1), get_chip("trn2")).budget
    assert (budget["k"], budget["v"]) == (2 * 4096 * 2, 2 * 32 * 128 * 2)
    assert f"{sum(budget.values()):,} B per partition" in flash_prefill.__doc__


# ---- streaming ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes", [{}, {"mask": Mask(q_offset=-1500, ahead=1)}, {"mask": Mask(ahead=1, window=300), "sink": True}]
)
def test_streamed_keys_give_the_values_of_resident_ones(changes):
    case = problem(**{"num_heads_q": 3, "seqlen_q": 500, "seqlen_kv": 4500, "dtype": "bfloat16", **changes})
    case = dataclasses.replace(case, mask=dataclasses.replace(case.mask, q_offset=case.mask.q_offset + 4000))
    inputs = attention_inputs(case)
    resident = plan_prefill(case, get_chip("trn2"))
    assert resident.resident
    streamed = dataclasses.replace(resident, section=CHUNK, q_rows=256, q_heads=2)
    want, want_lse = outputs(inputs, plan=resident)
    got, got_lse = outputs(inputs, plan=streamed)
    assert_matches_reference(inputs, got, got_lse)
    np.testing.assert_array_equal(np.asarray(got, np.float32), np.asarray(want, np.float32))
    np.testing.assert_array_equal(got_lse, want_lse)


@pytest.mark.parametrize("chip", CHIPS)
def test_very_long_keys_are_streamed_within_the_budget(chip):
    case = dataclasses.replace(
        LARGE, num_heads_q=2, num_heads_kv=1, seqlen_q=512, seqlen_kv=1 << 16, mask=Mask(q_offset=(1 << 16) - 512, ahead=1)
    )
    target = get_chip(chip)
    plan = plan_prefill(case, target)
    assert not plan.resident
    result, _ = run(_blank(case), chip, values=False)
    used = {item.space: item.high_water for item in occupancies(result.events, target)}
    assert used["sbuf"] <= plan.sbuf_bytes <= target.sbuf_partition_bytes - 16 * 1024
    assert _hbm_bytes(result.events)["k"] <= 2 * 128 * (1 << 16) * -(-512 // plan.q_rows)


# ---- cores ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize(("heads", "length"), [((2, 1), 300), ((3, 3), 300), ((2, 1), 20)])
def test_two_cores_give_the_values_of_one(heads, length, batch):
    case = problem(
        batch=batch,
        num_heads_q=heads[0],
        num_heads_kv=heads[1],
        seqlen_q=length,
        seqlen_kv=length + 7,
        mask=Mask(q_offset=7, ahead=1),
    )
    inputs = attention_inputs(case)
    one, two = outputs(inputs), outputs(inputs, lnc=2)
    np.testing.assert_array_equal(two[0], one[0])
    np.testing.assert_array_equal(two[1], one[1])


def test_two_cores_divide_the_work_of_one_kv_head():
    case = dataclasses.replace(LARGE, num_heads_q=2, num_heads_kv=1, seqlen_q=2048, seqlen_kv=2048)
    events = run(_blank(case), lnc=2, values=False)[0].events
    work = [sum(e.writes[0].free_elements for e in events if e.opcode == "nc_matmul" and e.core == core) for core in (0, 1)]
    assert 0.8 < work[0] / work[1] < 1.25


# ---- bad values -----------------------------------------------------------------------------------------------------

CAUSAL = problem(seqlen_q=300, seqlen_kv=300, mask=Mask(ahead=1))


@pytest.mark.parametrize("bias", [None, "boolean", "additive"])
@pytest.mark.parametrize("chip", ["trn2", "trn3"])
def test_a_nan_key_reaches_only_the_rows_that_see_it(chip, bias):
    case = CAUSAL
    if bias is not None:
        case = dataclasses.replace(CAUSAL, mask=Mask(bias=bias, bias_rows=True))
    inputs = attention_inputs(case)
    if bias is not None:
        seen = np.tril(np.ones((300, 300), bool))[None, None]
        inputs = dataclasses.replace(inputs, bias=seen if bias == "boolean" else np.where(seen, 0, -np.inf).astype(np.float32))
    clean, clean_lse = outputs(inputs, chip)
    inputs.k[:, :, 170] = np.nan
    out, lse = outputs(inputs, chip)
    np.testing.assert_array_equal(out[:, :, :170], clean[:, :, :170])
    np.testing.assert_array_equal(lse[:, :, :170], clean_lse[:, :, :170])
    assert np.isnan(out[:, :, 170:]).all()
    assert np.isnan(lse[:, :, 170:]).all()


@pytest.mark.parametrize("chip", ["trn2", "trn3"])
def test_a_nan_query_reaches_only_its_row(chip):
    inputs = attention_inputs(CAUSAL)
    clean, _ = outputs(inputs, chip)
    inputs.q[:, 1, 200] = np.nan
    out, lse = outputs(inputs, chip)
    spoiled = np.isnan(out).any(-1)
    assert spoiled.sum() == 1
    assert spoiled[0, 1, 200]
    assert np.isnan(lse).sum() == 1
    np.testing.assert_array_equal(out[~spoiled], clean[~spoiled])


def test_a_nan_value_stays_in_the_query_tiles_that_visit_it():
    inputs = attention_inputs(CAUSAL)
    clean, _ = outputs(inputs)
    inputs.v[:, :, 280] = np.nan
    out, _ = outputs(inputs)
    np.testing.assert_array_equal(out[:, :, :256], clean[:, :, :256])
    assert np.isnan(out[:, :, 280:]).all()


def test_never_written_memory_is_never_used():
    for changes in ({}, {"mask": Mask(q_offset=-100, ahead=1)}, {"softcap": 3.0, "sink": True}):
        inputs = attention_inputs(problem(seqlen_q=190, seqlen_kv=333, **changes))
        result, _ = run(inputs, uninitialized="error")
        out, lse = result.outputs
        assert_matches_reference(inputs, out.swapaxes(1, 2), lse)


def test_masks_that_hide_everything_but_one_key_are_exact():
    case = problem(seqlen_q=260, seqlen_kv=260, mask=Mask(ahead=1, window=1))
    out, _, inputs = check(case)
    np.testing.assert_allclose(out, np.repeat(inputs.v, 2, axis=1), rtol=1e-6)
