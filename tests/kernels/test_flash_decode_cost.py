"""What dispatch takes a decode step to cost, against the simulated kernel."""

import pytest

from nki_hf.chips import CHIPS, get_chip
from nki_hf.kernels.flash_decode import call
from nki_hf.problem import Problem
from nki_hf.tools.decode_latency import decode_step
from nki_hf.tools.subjects import attention_candidate
from tools.decode_constants import constants
from tools.decode_floor import keys_on_partitions, load_us, needed, table
from tools.page_block import TIMING, block_of

CALLS = ((2, 4096, "bfloat16", 1), (8, 5000, "bfloat16", 1), (4, 2048, "float32", 1), (4, 4096, "bfloat16", 8))


@pytest.mark.parametrize("chip", list(CHIPS))
def test_the_constants_are_those_of_the_kernel_of_today(chip):
    found = constants(get_chip(chip))
    for name, (step, row) in (("", call.STEP_US[chip]), ("wide_", call.WIDE_US[chip])):
        assert step == pytest.approx(found[f"{name}step_us"], rel=0.02)
        assert row == pytest.approx(found[f"{name}row_us"], rel=0.03)
    assert call.EDGES_US[chip] == pytest.approx(found["edges_us"], rel=0.05)


@pytest.mark.parametrize(("chip", "cores"), [("trn1", 1), ("trn2", 1), ("trn2", 2), ("trn3", 1), ("trn3", 2)])
def test_a_step_costs_what_the_simulated_kernel_takes(chip, cores):
    for group, keys, dtype, seqlen_q in (
        (2, 4096, "bfloat16", 1),
        (8, 5000, "bfloat16", 1),
        (4, 2048, "float32", 1),
        (4, 4096, "bfloat16", 8),
    ):
        problem = Problem(
            batch=1, num_heads_q=8 * group, num_heads_kv=8, seqlen_q=seqlen_q, seqlen_kv=keys, head_dim=128, head_dim_v=128,
            dtype=dtype,
        )  # fmt: skip
        candidate = attention_candidate(problem, get_chip(chip), cores, kernel="flash_decode")
        told = candidate.cost.us
        simulated = decode_step(problem, get_chip(chip), cores, window=None, kernel="flash_decode").us
        assert told == pytest.approx(simulated, rel=0.25), (group, keys, dtype, seqlen_q)


def test_the_pages_floor_of_8_tokens_is_the_commands_and_follows_from_columns():
    assert block_of(TIMING, "decode-floor") == "\n".join(table())
    # 64 rows on trn2 at 2.4 GHz: 16 turns of 128 columns, 16 products of 64 twice, 1,024 columns of mask, four passes of 1,024.
    assert keys_on_partitions(get_chip("trn2"), 64) == pytest.approx((16 * 128 + 2 * 16 * 64 + 1024 + 4 * 1024) / 2.4 / 1e3)
    # 2 x 2,048 keys of 128 in 2 bytes, 16 engines of 23 bytes per ns.
    assert load_us(get_chip("trn2")) == pytest.approx(2 * 2048 * 128 * 2 / (16 * 23) / 1e3)
    assert needed(get_chip("trn3"), 8) > 1.1  # out of reach
    assert needed(get_chip("trn1"), 2) < 0.9
