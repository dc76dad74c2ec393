"""The ladder: every rung computes attention, with the originals' instruction counts."""

import importlib
from collections import Counter

import ml_dtypes
import numpy as np
import pytest

from nki_hf.chips import get_chip
from nki_hf.ladder.matmul_blocked import matmul_blocked
from nki_hf.ladder.matmul_tiled import matmul_tiled
from nki_hf.ladder.v3_hbm_round_trips import hbm_round_trips
from nki_hf.ladder.v4_sbuf_resident import sbuf_resident
from nki_hf.ladder.v5_delayed_division import delayed_division
from nki_hf.ladder.v6_fused_exp_sum import fused_exp_sum
from nki_hf.ladder.v7_bf16_probs import bf16_probs
from nki_hf.ladder.v8_fused_max_eviction import fused_max_eviction
from nki_hf.ladder.v11_software_pipeline import software_pipeline
from nki_hf.observers.races import Trust, races
from nki_hf.sim import SimOptions, launch
from nki_hf.tools.subjects import events_of

RUNGS = {
    "v3": hbm_round_trips,
    "v4": sbuf_resident,
    "v5": delayed_division,
    "v6": fused_exp_sum,
    "v7": bf16_probs,
    "v8": fused_max_eviction,
    "v11": software_pipeline,
}


def attention(q, k, v):
    """softmax(q k^T) v in float64; q, k, v [rows, head_dim]."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    scores = q @ k.T
    probs = np.exp(scores - scores.max(axis=1, keepdims=True))
    return probs / probs.sum(axis=1, keepdims=True) @ v


@pytest.mark.parametrize("chip", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("rung", RUNGS)
def test_every_rung_computes_attention(rung, chip, rng):
    q, k, v = ((rng.standard_normal((128, 512)) * scale).astype(ml_dtypes.bfloat16) for scale in (128**-0.5, 1, 1))
    # v3's scores overflow PSUM by design beyond 512 keys; 512 fit, so the memory rule holds for all rungs here.
    out = launch(RUNGS[rung], (q, k, v), options=SimOptions(chip=get_chip(chip))).outputs[0]
    assert np.abs(out.astype(np.float64) - attention(q.T, k.T, v.T)).max() < 2e-3


@pytest.mark.parametrize("rung", RUNGS)
def test_no_rung_rests_on_an_order_that_is_only_inferred(rung):
    tensors = [np.zeros((128, 512), ml_dtypes.bfloat16)] * 3
    events = launch(RUNGS[rung], tensors, options=SimOptions(chip=get_chip("trn2"), values=False)).events
    assert races(events, trust=Trust(addresses=False, hbm=False, indices=False)) == []


def _counts(rung, seqlen):
    tensors = [np.zeros((128, seqlen), ml_dtypes.bfloat16)] * 3
    options = SimOptions(chip=get_chip("trn1"), values=False, checks=False)
    counts: Counter = Counter()
    for event in launch(RUNGS[rung], tensors, options=options).events:
        width = (event.reads or event.writes)[-1 if event.opcode == "nc_matmul" else 0].free_elements
        counts[event.engine, event.opcode, width] += 1
    return counts


@pytest.mark.parametrize("rung", RUNGS)
def test_instruction_counts_equal_the_originals(rung):
    """hardware facts, section 5: at 4096 keys 256 QK of 512, 1024 transposes and PV of 128, 32 V transposes, 1024 evictions."""
    counts = _counts(rung, 4096)
    assert counts["tensor", "nc_matmul", 512] == 256
    assert counts["tensor", "nc_matmul", 128] == 1024
    assert counts["tensor", "nc_transpose", 128] == 1024 + 32
    assert counts["scalar", "activation", 128] == 1024 + 32
    reduces, scalars = counts["vector", "tensor_reduce", 512], counts["vector", "tensor_scalar", 512]
    exps = counts["scalar", "activation", 512], counts["scalar", "activation_reduce", 512]
    fused_max = counts["vector", "tensor_scalar_reduce", 512]
    if rung == "v4":  # max, sub, exp, sum, multiply
        assert (reduces, scalars, exps, fused_max) == (512, 512, (256, 0), 0)
    elif rung == "v5":  # max, sub, exp, sum
        assert (reduces, scalars, exps, fused_max) == (512, 256, (256, 0), 0)
    elif rung in ("v6", "v7"):  # max, exp with sum
        assert (reduces, scalars, exps, fused_max) == (256, 0, (0, 256), 0)
    elif rung in ("v8", "v11"):  # max with eviction, exp with sum
        assert (reduces, scalars, exps, fused_max) == (0, 0, (0, 256), 256)
    else:  # v3: max and sub per block; exp, sum and multiply over whole rows
        assert (reduces, scalars, exps, fused_max) == (256, 256, (0, 0), 0)
        assert counts["scalar", "activation", 4096] == 32
        assert counts["vector", "tensor_reduce", 4096] == counts["vector", "tensor_scalar", 4096] == 32


SD = ["sd_baseline", "sd_fused_exp", "sd_joint_loads", "sd_vector_transpose", "sd_bf16_scores", "sd_swapped_operands"]


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("rung", SD)
def test_every_stable_diffusion_step_computes_attention(rung, chip, rng):
    kernel = getattr(importlib.import_module(f"nki_hf.ladder.{rung}"), rung)
    q, k, v = (rng.standard_normal((512, 64)).astype(np.float32) for _ in range(3))
    out = launch(kernel, (q, k, v), options=SimOptions(chip=get_chip(chip))).outputs[0]
    assert np.abs(out - attention(q / 8, k, v)).max() < 1e-2  # bfloat16 scores and probabilities


@pytest.mark.parametrize(
    ("kernel", "constants"), [(matmul_tiled, {}), (matmul_blocked, {"block_m": 2, "block_n": 1, "block_k": 2})]
)
def test_matrix_multiplications_multiply(kernel, constants, rng):
    left, right = rng.standard_normal((512, 256)).astype(np.float32), rng.standard_normal((512, 1024)).astype(np.float32)
    out = launch(kernel, (left, right), constants).outputs[0]
    np.testing.assert_allclose(out, left.astype(np.float64).T @ right, rtol=0, atol=1e-3)


def _kinds(name, size=512):
    return Counter((event.engine, event.opcode) for event in events_of(name, size, get_chip("trn1")))


def test_each_stable_diffusion_step_changes_what_it_says():
    before = _kinds("sd_baseline")
    fused = _kinds("sd_fused_exp")
    tiles = 512 // 128
    assert before["scalar", "activation"] - fused["scalar", "activation"] == 2 * tiles  # exp and cast
    assert before["vector", "tensor_reduce"] - fused["vector", "tensor_reduce"] == tiles  # row sum
    assert fused["scalar", "activation_reduce"] == tiles
    assert _kinds("sd_joint_loads") == fused
    by_vector = _kinds("sd_vector_transpose")
    assert fused["tensor", "nc_transpose"] - by_vector["tensor", "nc_transpose"] == tiles
    assert by_vector["vector", "nc_transpose"] == 8 * tiles
    assert _kinds("sd_bf16_scores") == by_vector
    final = _kinds("sd_swapped_operands")
    assert final["vector", "nc_transpose"] == 0
    assert final["vector", "tensor_tensor"] == 0
    assert final["vector", "tensor_scalar"] == tiles
