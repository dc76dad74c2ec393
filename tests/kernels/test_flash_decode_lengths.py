"""flash_decode: the live length is data, whatever bucket the cache lies in."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from decode_cases import bounds_of, kernel_arguments, outputs, problem

from nki_hf.chips import CHIPS, get_chip
from nki_hf.kernels.flash_decode.kernel import flash_decode
from nki_hf.kernels.flash_decode.plan import bucket_of, plan_decode
from nki_hf.problem import Mask
from nki_hf.sim import SimOptions, launch
from nki_hf.testing import assert_matches_reference, attention_inputs

BF16 = ml_dtypes.bfloat16


@pytest.mark.parametrize("chip", list(CHIPS))
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("head_dim", [1, 64, 128, 129, 192, 256])
def test_six_programs_reach_to_32k_keys_whatever_the_dtype_and_head_size(head_dim, dtype, chip):
    plans = {}
    for keys in (1, *range(1024, 32_769, 1024), *range(1025, 32_769, 1024)):
        case = problem(seqlen_kv=keys, dtype=dtype, head_dim=head_dim, head_dim_v=head_dim)
        plans[keys] = plan_decode(case, get_chip(chip))
    assert len(set(plans.values())) <= 6
    assert all(keys <= plan.chunks * plan.per_partition * 128 for keys, plan in plans.items())


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("heads_kv", [1, 2])
@pytest.mark.parametrize("chip", list(CHIPS))
def test_results_are_the_same_bits_in_every_bucket(chip, heads_kv, lnc):
    case = problem(seqlen_kv=1500, seqlen_q=3, num_heads_kv=heads_kv, dtype="bfloat16", mask=Mask(q_offset=1497, ahead=1))
    inputs = attention_inputs(case)
    plan = plan_decode(case, get_chip(chip))
    first = outputs(inputs, chip, plan=dataclasses.replace(plan, chunks=2, seqlen_kv=4096), lnc=lnc)
    for chunks in (3, 5):
        again = outputs(inputs, chip, plan=dataclasses.replace(plan, chunks=chunks, seqlen_kv=chunks * 2048), lnc=lnc)
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert_matches_reference(inputs, *first)


@pytest.mark.parametrize(("chip", "lnc"), [("trn1", 1), ("trn2", 1), ("trn2", 2), ("trn3", 2)])
@pytest.mark.parametrize(
    ("heads_kv", "lengths"), [(1, (6500, 1, 2500, 40)), (4, (2048, 20, 600, 1)), (2, (4100, 300, 20, 6000))]
)
def test_what_is_not_finite_in_one_sequence_reaches_no_other_of_the_launch(heads_kv, lengths, chip, lnc):
    """The launch as a chip gets it: all sequences follow each other through the same buffers."""
    case = problem(
        batch=4,
        num_heads_q=heads_kv,
        num_heads_kv=heads_kv,
        seqlen_kv=max(lengths),
        head_dim=16,
        head_dim_v=16,
        dtype="bfloat16",
        mask=Mask(runtime_bounds=True),
    )
    hi = np.array(lengths, np.int32)[:, None]
    inputs = dataclasses.replace(attention_inputs(case), lo=np.zeros_like(hi), hi=hi)
    clean = outputs(inputs, chip, lnc)
    assert_matches_reference(inputs, *clean)
    others = slice(1, None)
    for bad in (np.nan, np.inf):
        k, v = inputs.k.copy(), inputs.v.copy()
        k[0, :, : lengths[0]], v[0, :, : lengths[0]] = bad, bad
        found = outputs(dataclasses.replace(inputs, k=k, v=v), chip, lnc)
        assert not np.isfinite(found[0][0].astype(np.float32)).any()
        assert all(np.array_equal(one[others], other[others]) for one, other in zip(found, clean, strict=True))


@pytest.mark.parametrize("seqlen_q", [1, 4])
@pytest.mark.parametrize("window", [None, 700])
def test_only_live_keys_are_read(window, seqlen_q):
    """NaN in all keys that are a quarter or more behind those that a row of the sequence sees, and before them: reading one
    would show.
    """
    mask = Mask(q_offset=9600 - seqlen_q, ahead=1, window=window, runtime_bounds=True)
    case = problem(batch=3, seqlen_q=seqlen_q, seqlen_kv=9600, dtype="bfloat16", mask=mask)
    inputs = attention_inputs(case)
    hi = np.repeat(np.array([[17], [2500], [9080]], np.int32), seqlen_q, axis=1)
    inputs = dataclasses.replace(inputs, lo=np.zeros_like(hi) + np.array([[3], [0], [4000]], np.int32), hi=hi)
    lo, hi = bounds_of(inputs)
    k, v = inputs.k.copy(), inputs.v.copy()
    for b in range(3):
        live = lo[b] < hi[b]
        first, last = (lo[b][live].min(), hi[b][live].max()) if live.any() else (0, 0)
        for array in (k, v):
            array[b, :, :first] = np.nan
            array[b, :, last + (511 if live.any() else 0) :] = np.nan
    plan = plan_decode(case, get_chip("trn2"))
    arguments = kernel_arguments(dataclasses.replace(inputs, k=k, v=v), plan, filler=np.nan)
    out, lse = launch(flash_decode, (), arguments, options=SimOptions(chip=get_chip("trn2"))).outputs
    assert_matches_reference(inputs, out.swapaxes(1, 2), lse)


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("live", [1, 511, 513, 1025, 2048, 2049, 4097, 5000, 17_000])
def test_keys_read_follow_the_live_length_whatever_the_bucket(live, lnc):
    """NaN from 511 keys behind the live ones on: reading one would show. So 1.05 x live keys and 512 are never exceeded."""
    case = problem(num_heads_q=1, num_heads_kv=1, head_dim=128, head_dim_v=128, seqlen_kv=live, dtype="bfloat16")
    inputs = attention_inputs(case)
    plan = plan_decode(case, get_chip("trn2"))
    for chunks in sorted({plan.chunks, bucket_of(plan.chunks * 2048 + 1, 2048)}):
        taken = dataclasses.replace(plan, chunks=chunks, seqlen_kv=chunks * 2048)
        arguments = kernel_arguments(inputs, taken)
        for name in ("k", "v"):
            arguments[name][:, :, live + 511 :] = np.nan
        out, lse = launch(flash_decode, (), arguments, options=SimOptions(chip=get_chip("trn2")), lnc=lnc).outputs
        assert_matches_reference(inputs, out.swapaxes(1, 2), lse)


def test_a_cache_that_ends_anywhere_is_read_to_its_end():
    """Without a bucket behind it: the last quarter would leave the cache."""
    for seqlen_kv in (512, 513, 700, 1500, 2047, 2049):
        case = problem(seqlen_kv=seqlen_kv, dtype="bfloat16", batch=2)
        inputs = attention_inputs(case)
        plan = dataclasses.replace(plan_decode(case, get_chip("trn2")), seqlen_kv=seqlen_kv)
        assert_matches_reference(inputs, *outputs(inputs, plan=plan))
