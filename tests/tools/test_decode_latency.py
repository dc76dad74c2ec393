"""The simulated time of a decode step: what is read of a cache, and its share of the bandwidth."""

import pytest

from nki_hf.chips import CHIPS, get_chip
from nki_hf.problem import Problem
from nki_hf.timing.schedule import schedule
from nki_hf.tools.decode_latency import bandwidth_us, decode_step
from nki_hf.tools.subjects import attention_candidate, attention_events


def problem(keys, heads_kv=2, group=1, batch=1, seqlen_q=1):
    return Problem(
        batch=batch,
        num_heads_q=heads_kv * group,
        num_heads_kv=heads_kv,
        seqlen_q=seqlen_q,
        seqlen_kv=keys,
        head_dim=128,
        head_dim_v=128,
    )


def test_the_bound_is_keys_and_values_once():
    """4,096 keys of 8 heads of 128 in 16 bits are 16.8 MB; 16 engines of 23 GB/s on trn2, two cores 640 GB/s together."""
    assert bandwidth_us(problem(4096, 8), get_chip("trn2")) == pytest.approx(2 * 8 * 4096 * 256 / 368e3)
    assert bandwidth_us(problem(4096, 8), get_chip("trn2"), 2) == pytest.approx(2 * 8 * 4096 * 256 / 640e3)


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("heads_kv", [1, 2, 3])
@pytest.mark.parametrize("keys", [1, 512, 513, 2048, 2049, 4097, 5000, 9000, 17_000])
def test_bytes_read_follow_the_live_length(keys, heads_kv, lnc):
    case = problem(keys, heads_kv)
    moved = {"k": 0, "v": 0}
    candidate = attention_candidate(case, get_chip("trn2"), lnc, kernel="flash_decode")
    events = attention_events(case, get_chip("trn2"), lnc, kernel="flash_decode")
    for event in candidate.binding.live(events, case, candidate.plan):
        name = event.reads[0].buffer.name if event.opcode == "dma_copy" else ""
        if name in moved:
            moved[name] += event.reads[0].bytes if event.reads[0].shape[1] > 1 else 0
    for nbytes in moved.values():
        assert keys <= nbytes / heads_kv / 256 <= 1.05 * keys + 512


@pytest.mark.parametrize("chip", list(CHIPS))
def test_what_is_left_out_never_makes_a_step_longer(chip):
    for keys in (100, 2049, 5000):
        whole = schedule(attention_events(problem(keys), get_chip(chip), 1, kernel="flash_decode"), get_chip(chip), window=None)
        step = decode_step(problem(keys), get_chip(chip), window=None, kernel="flash_decode")
        assert step.us <= whole.total_ns / 1e3 * 1.001


@pytest.mark.parametrize("chip", list(CHIPS))
def test_dispatch_takes_the_kernel_that_is_simulated_to_be_faster(chip):
    """Where the two differ by less than a quarter either may run: a formula is no schedule."""
    target = get_chip(chip)
    for case in (
        problem(100),
        problem(1000, 8),
        problem(1000, 8, 8),
        problem(4096, 1),
        problem(4096, 8, 2),
        problem(5000, 4, 4, 2),
        problem(600, 2, 1, 1, 8),
        problem(3000, 2, 8, 1, 16),
    ):
        us = {name: decode_step(case, target, window=None, kernel=name).us for name in ("flash_decode", "flash_prefill")}
        best = min(us, key=us.get)
        picked = attention_candidate(case, target).binding.name
        assert picked == best or us[picked] < 1.25 * us[best], (case, us)


@pytest.mark.parametrize(
    ("chip", "keys", "batch", "least"),
    [
        ("trn1", 4096, 1, 0.76),
        ("trn2", 4096, 1, 0.69),
        ("trn3", 4096, 1, 0.53),
        ("trn2", 4096, 2, 0.80),
        ("trn3", 4096, 2, 0.62),
    ],
)
def test_a_step_keeps_its_share_of_the_bandwidth(chip, keys, batch, least):
    """8 kv heads in groups of 1 and 4, one core, program order; what was reached when the loads became plain transfers."""
    for group in (1, 4):
        assert decode_step(problem(keys, 8, group, batch), get_chip(chip), window=None).share >= least


@pytest.mark.parametrize("chip", list(CHIPS))
def test_eight_tokens_cost_little_more_than_one(chip):
    one, eight = (decode_step(problem(4096, 8, seqlen_q=rows), get_chip(chip), window=None).us for rows in (1, 8))
    assert eight <= 1.1 * one
