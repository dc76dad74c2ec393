"""Launches of a bounded size: a divided call gives the values of the whole one, and its parts share their compilation."""

import numpy as np
import pytest
import torch
from prefill_cases import kernel_arguments, problem, run

from nki_hf.backends.base import KernelCall
from nki_hf.backends.neuron_launch import signature_key
from nki_hf.backends.neuron_split import MAX_INSTRUCTIONS, join, split
from nki_hf.chips import get_chip
from nki_hf.kernels.flash_prefill import flash_prefill
from nki_hf.kernels.flash_prefill.call import PER_BLOCK
from nki_hf.kernels.flash_prefill.plan import plan_prefill
from nki_hf.kernels.spans import blocks_of
from nki_hf.problem import Mask
from nki_hf.sim import SimOptions, launch
from nki_hf.testing import assert_matches_reference, attention_inputs

MASKS = {
    "causal": {"mask": Mask(ahead=1)},
    "window": {"mask": Mask(ahead=1, window=150, q_offset=200)},
    "bounds": {"mask": Mask(ahead=1, runtime_bounds=True)},
    "bias": {"mask": Mask(bias="additive", bias_batch=True, bias_heads=True, bias_rows=True)},
    "bias, broadcast": {"mask": Mask(bias="boolean")},
    "none, sink": {"sink": True},
}


def call_of(inputs, lnc=1):
    """The kernel call of NumPy inputs, as torch tensors."""
    plan = plan_prefill(inputs.problem, get_chip("trn2"), lnc)
    constants = plan.constants()
    tensors = dict.fromkeys(("q", "k", "v", "lo", "hi", "bias", "sink"))
    tensors |= {
        name: torch.from_numpy(value) for name, value in kernel_arguments(inputs, plan).items() if name not in constants
    }
    count = PER_BLOCK * inputs.problem.batch * inputs.problem.num_heads_q * plan.blocks
    return KernelCall(kernel="flash_prefill", tensors=tensors, constants=constants, lnc=lnc, instructions=count)


def launched(part):
    arguments = {name: value.contiguous().numpy() for name, value in part.tensors.items() if value is not None}
    options = SimOptions(chip=get_chip("trn2"))
    outputs = launch(flash_prefill, (), arguments | part.constants, options=options, lnc=part.lnc).outputs
    return tuple(torch.from_numpy(np.array(output)) for output in outputs)


def blocks(part):
    return part.tensors["q"].shape[0] * part.tensors["q"].shape[1] * blocks_of(part.constants["spans"])


@pytest.mark.parametrize(
    ("mask", "limit", "lnc"),
    [*((mask, 1, 1) for mask in MASKS), *((mask, 12, 1) for mask in ("causal", "bias")), ("causal", 4, 2), ("window", 1, 2)],
)
def test_parts_joined_are_the_whole_call(mask, limit, lnc):
    sizes = {
        "batch": 2,
        "num_heads_q": 4,
        "num_heads_kv": 2,
        "seqlen_q": 259,
        "seqlen_kv": 560,
        "head_dim": 16,
        "head_dim_v": 8,
    }
    inputs = attention_inputs(problem(**{**sizes, **MASKS[mask]}))
    call = call_of(inputs, lnc)
    parts = split(call, limit * PER_BLOCK)
    assert len(parts) > 1
    assert all(blocks(part) <= limit or part.tensors["q"].shape[3] <= 128 for part in parts)
    out, lse = join(call, [launched(part) for part in parts], limit * PER_BLOCK)
    assert_matches_reference(inputs, out.numpy().swapaxes(1, 2), lse.numpy())


@pytest.mark.parametrize(
    ("changes", "launches", "kernels"),
    [
        ({"num_heads_q": 16, "num_heads_kv": 8, "seqlen": 4096, "ahead": 1}, 1, 1),
        ({"num_heads_q": 16, "num_heads_kv": 8, "seqlen": 16_384, "ahead": 1}, 8, 1),
        ({"num_heads_q": 16, "num_heads_kv": 2, "seqlen": 16_384, "ahead": 1}, 8, 1),
        ({"num_heads_q": 64, "num_heads_kv": 8, "seqlen": 16_384, "ahead": None}, 32, 1),
        ({"num_heads_q": 4, "num_heads_kv": 2, "seqlen": 65_536, "ahead": None}, 32, 1),
        ({"num_heads_q": 4, "num_heads_kv": 2, "seqlen": 65_536, "ahead": 1}, 20, 5),
        ({"batch": 64, "num_heads_q": 16, "num_heads_kv": 8, "seqlen": 1024, "ahead": 1}, 2, 1),
    ],
)
def test_every_launch_is_bounded_and_heads_share_one_kernel(changes, launches, kernels):
    """Counts by hand: a causal head of 16K is 4 * (1 + ... + 32) = 2,112 blocks, of which three fit in one launch."""
    seqlen, ahead = changes.pop("seqlen"), changes.pop("ahead")
    case = problem(**changes, seqlen_q=seqlen, seqlen_kv=seqlen, dtype="bfloat16", mask=Mask(ahead=ahead))
    shapes = {"q": (case.num_heads_q, seqlen), "k": (case.num_heads_kv, seqlen)}
    q, k = (
        torch.empty(case.batch, heads, 64, length, dtype=torch.bfloat16, device="meta") for heads, length in shapes.values()
    )
    tensors = {"q": q, "k": k, "v": k.swapaxes(2, 3), "lo": None, "hi": None, "bias": None, "sink": None}
    plan = plan_prefill(case, get_chip("trn2"))
    count = PER_BLOCK * case.batch * case.num_heads_q * plan.blocks
    parts = split(KernelCall(kernel="flash_prefill", tensors=tensors, constants=plan.constants(), instructions=count))
    assert max(blocks(part) for part in parts) <= MAX_INSTRUCTIONS // PER_BLOCK
    assert (len(parts), len({signature_key(part) for part in parts})) == (launches, kernels)


@pytest.mark.parametrize(("chip", "head_dim"), [("trn2", 128), ("trn1", 128), ("trn2", 256)])
def test_a_launch_of_the_largest_size_is_about_140_000_instructions(chip, head_dim):
    """The slope between two lengths, so that what is done once does not count."""
    sizes = {"num_heads_q": 1, "dtype": "bfloat16", "head_dim": head_dim, "head_dim_v": head_dim, "mask": Mask(ahead=1)}
    counts = []
    for seqlen in (512, 1024):
        result, plan = run(attention_inputs(problem(seqlen_q=seqlen, seqlen_kv=seqlen, **sizes)), chip)
        counts.append((len(result.events), plan.blocks))
    slope = (counts[1][0] - counts[0][0]) / (counts[1][1] - counts[0][1])
    assert 10 < slope < 20
    assert slope * MAX_INSTRUCTIONS / PER_BLOCK < 165_000
