"""Problems that a search once found something wrong with, made small: nothing is wrong with them now."""

import pytest

from tools.fuzz import attention_check

FOUND = {
    "a softcap that float32 cannot multiply a gradient by": {
        "seed": 1352, "front": "transformers", "batch_q": 3, "batch_kv": 3, "heads_kv": 3, "seqlen_q": 2, "seqlen_kv": 2,
        "head_dim": 25, "head_dim_v": 42, "gradients": True, "softcap": 3e38,
    },
    "the same under strict settings that refuse first": {
        "seed": 1161, "batch_q": 2, "batch_kv": 2, "heads_kv": 3, "group": 2, "seqlen_q": 1, "seqlen_kv": 64, "head_dim": 128,
        "head_dim_v": 128, "scale_as": "learned", "gradients": True, "softcap": 3e38, "strict": True,
    },
    "rows without keys in flash_decode, beside a sink of -inf": {
        "seed": 1000749, "ahead": 5, "q_offset": -36, "sink": "minus_inf", "kernel": "flash_decode", "strict": True,
    },
    "gradients under a scale that torch's fused backward cannot take": {
        "seed": 463368741199, "dtype": "bfloat16", "heads_kv": 2, "seqlen_q": 1, "seqlen_kv": 12, "head_dim": 5,
        "head_dim_v": 5, "scale": 1e20, "gradients": True, "kernel": "flash_decode",
    },
    "a bias of NaN on one key, which a comparison hid in the repair loop": {
        "seed": 463368752302, "dtype": "bfloat16", "seqlen_q": 33, "mask": "nan",
    },
    "lse of five probabilities that are rounded before they are summed": {
        "seed": 394828530945, "dtype": "bfloat16", "seqlen_q": 33, "scale": 0.0560968613043441, "lse": True,
    },
    "gradients below the least number of float16": {
        "seed": 394828533652, "dtype": "float16", "head_dim_v": 19, "mask": "float", "scale": -1e-29, "softcap": 3e38,
        "gradients": True,
    },
    "gradients of float16 that are sums of its least numbers": {
        "seed": 394828539293, "dtype": "float16", "seqlen_q": 2, "seqlen_kv": 1, "head_dim": 14, "values": "negative",
        "scale": 1.9389221397037626, "softcap": 43.16286519704836, "sink": "normal", "gradients": True,
    },
    "a shared bias whose gradient was summed in the order in which threads ended": {
        "seed": 10220, "batch_kv": 3, "group": 2, "seqlen_q": 128, "seqlen_kv": 33, "head_dim": 87, "head_dim_v": 87,
        "values": "wide", "mask": "float64", "mask_axes": (0, 0, 1), "mask_form": "short", "mask_learns": True, "lse": True,
        "gradients": True,
    },
    "a replay without the masks that the recorded run had overwritten": {
        "seed": 10264, "group": 4, "seqlen_q": 16, "seqlen_kv": 513, "head_dim_v": 128, "layout": "transposed",
        "values": "wide", "mask": "minus_inf", "mask_axes": (1, 1, 0), "mask_form": "one_key", "mask_learns": True,
        "gradients": True, "strict": True, "kernel": "flash_prefill", "chip": "trn1",
    },
    "a bias of float32's lowest value, which torch's sdpa was given in 16 bits": {
        "seed": 10625, "dtype": "float16", "seqlen_kv": 9, "mask": "lowest", "mask_form": "one_key", "mask_learns": True,
        "gradients": True, "kernel": "flash_const_max",
    },
    "lse of a score that is a sum of 64 products, term by term": {
        "seed": 253230108103, "dtype": "float16", "seqlen_q": 35, "head_dim": 64, "scale": 1.0, "lse": True,
    },
    "the same of 16 products and a bias": {
        "seed": 253230108023, "front": "merge", "dtype": "float16", "batch_q": 3, "batch_kv": 3, "group": 2, "seqlen_q": 187,
        "seqlen_kv": 187, "head_dim": 16, "head_dim_v": 41, "values": "wide", "mask": "float", "mask_axes": (1, 1, 1),
        "scale": -0.5, "parts": (),
    },
    "lse of lowest scores alone, whose gradient is left open": {
        "seed": 11125, "seqlen_kv": 1, "mask": "lowest", "mask_learns": True, "lse": True, "gradients": True, "frozen": "q",
    },
}  # fmt: skip
"""Problems that a search found something wrong with, made small."""


@pytest.mark.parametrize("case", FOUND.values(), ids=FOUND)
def test_what_a_search_once_found(case):
    assert not attention_check.check_problem(case)
