"""Attention problems whose masks, sinks, sizes and arguments take the forms that `draw_problem` leaves out, and problems that
are run in other ways: compiled, under autocast, in a transform.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tools.fuzz.attention_problems import PLAIN, Case, decided, draw_problem

__all__ = ["RUNS", "UNREAD", "WAYS", "draw_decode", "draw_form", "draw_way"]

RUNS = ("band", "runs", "blocks", "left_padding")
"""Masks of which each row is one run of keys: on one band, anywhere, causal in blocks on the diagonal, causal behind padding.
They hide keys, so they are passed as bool or as zeros and a lowest number.
"""
WAYS = (
    "compiled",
    "compiled dynamic",
    "exported",
    "vmap",
    "autocast",
    "no_grad",
    "checkpoint",
    "compiled in inference",
    "inference of compiled",
)
"""See attention_ways.py."""
UNREAD = ("compiled", "compiled dynamic", "exported", "vmap", "compiled in inference", "inference of compiled")
"""Ways in which the values of a mask cannot be read (docs/support.md)."""
_TYPES = (None, None, "float32", "bfloat16", "float16", "float64")


def draw_form(seed: int) -> Case:
    """A problem of that seed in some form that `draw_problem` does not draw."""
    case, rng = draw_problem(seed), np.random.default_rng([seed, 3])

    def one_of(*items: Any) -> Any:
        return items[int(rng.integers(len(items)))]

    def rarely(share: float = 0.1) -> bool:
        return bool(rng.random() < share)

    transformers = case["front"] == "transformers"
    if rarely(0.7):
        case["mask"] = one_of(*RUNS, *RUNS, "two_values", "low", "float", "bool")
        case["mask_learns"] = case["gradients"] and rarely(0.2) and case["mask"] in ("two_values", "low", "float")
        case["mask_form"] = one_of("plain", "plain", "plain", "expanded", "strided", "turned", "short")
        case["mask_dtype"] = one_of(*_TYPES) if case["mask"] in RUNS else None
        case["causal"] = case["causal"] and not transformers
        if case["mask"] in RUNS:
            case["mask_axes"] = (int(rng.integers(2)), int(rarely()), 1)
        if case["mask"] == "blocks" or rarely(0.3):
            case["seqlen_kv"] = case["seqlen_q"]
        if rarely(0.3):
            case["recorded"], case["mask_written"] = "mask", one_of("copy_", "data", "numpy")
    if case["sink"] is not None and rarely(0.5):
        case["sink_rows"], case["sink_axes"] = True, one_of((1, 1, 0), (0, 1, 0), (0, 1, 1), (0, 0, 1), (1, 0, 0), (1, 1, 1))
    if transformers:
        case["sink_name"], case["causal_by"] = one_of("s_aux", "sinks"), one_of("layer", "argument")
        case["hint"] = one_of(None, None, 1, int(rng.integers(1, 300)), 2**70)
        case["chosen_keys"] = one_of(None, None, None, int(rng.integers(1, 20)))
        case["bias_spare"] = one_of(0, 3)
        if case["mask"] not in (None, "bool", "padding", *RUNS):  # beside a bias they are hidden by a lowest number only
            case["chosen_keys"] = None
    if case["gradients"]:
        case["lse"] = not transformers and rarely(0.6)
        case["loss"] = one_of("both", "out", "lse", "lse") if case["lse"] else "both"
        if case["loss"] == "lse" and (case["scale_as"] == "learned" or case["position_bias"] or case["mask_learns"]):
            case["loss"] = "out"
    if rarely(0.15):
        case["dtype"], case["kv_dtype"] = one_of(
            ("float64", None), ("float32", "bfloat16"), ("bfloat16", "float32"), ("float16", "float64")
        )
        case["default_dtype"] = None
        case["scale_as"] = "tensor" if case["scale_as"] == "learned" else case["scale_as"]
    if rarely(0.12):
        empty = one_of("batch", "seqlen_q", "seqlen_kv", "seqlen_kv")
        for name in ("batch_q", "batch_kv") if empty == "batch" else (empty,):
            case[name] = 0
        case.update(recorded="own", chosen_keys=None, lse=not transformers, sink=one_of(None, "normal", "minus_inf"))
    decided(case)
    return case


def draw_decode(seed: int) -> Case:
    """A problem of that seed with few rows and many keys: more than one chunk of a cache, more than one section."""
    rng = np.random.default_rng([seed, 4])

    def one_of(*items: Any) -> Any:
        return items[int(rng.integers(len(items)))]

    case = {**PLAIN, "seed": seed, "dtype": one_of("float32", "bfloat16", "bfloat16", "float16")}
    case["batch_q"] = case["batch_kv"] = one_of(1, 1, 2, 3)
    case["heads_kv"], case["group"] = one_of((1, 1), (2, 1), (1, 2), (2, 4), (1, 8), (3, 5))
    case["seqlen_q"] = one_of(1, 1, 1, 2, 5, 16, 17)
    case["seqlen_kv"] = one_of(1024, 2048, 2048, 4096, int(rng.integers(500, 7000)), 6144) + int(rng.integers(-3, 4))
    case["head_dim"] = one_of(8, 64, 64, 128, 128, 256, int(rng.integers(1, 130)))
    case["head_dim_v"] = one_of(case["head_dim"], case["head_dim"], int(rng.integers(1, 130)))
    case["values"] = one_of("normal", "normal", "wide", "outlier_key", "equal", "negative")
    case["causal"] = bool(rng.random() < 0.5)
    case["window"] = one_of(None, None, int(rng.integers(1, 5000)), one_of(128, 1024, 2048))
    case["q_offset"] = one_of(None, None, None, int(rng.integers(0, 7000)))
    case["bounds"] = one_of(None, None, "int32", "int64")
    case["mask"] = one_of(None, None, None, "padding", "padding", "runs", "bool", "float")
    case["mask_axes"] = (int(rng.integers(2)), 0, int(rng.integers(2)))
    case["sink"] = one_of(None, None, "normal", "minus_inf")
    case["softcap"] = one_of(None, None, None, float(rng.uniform(0.5, 50)))
    case["scale"] = one_of(None, None, None, float(rng.uniform(0.02, 1)), -0.5)
    case["lse"] = bool(rng.random() < 0.4)
    case["layout"] = one_of("plain", "plain", "transposed", "sliced")
    case["chip"], case["lnc"] = one_of(("trn2", None), ("trn2", 1), ("trn3", 2), ("trn1", None))
    case["kernel"] = one_of(None, None, "flash_decode", "flash_prefill")
    case["recorded"] = one_of("own", "other", "other")
    return case


def draw_way(seed: int) -> Case:
    """A problem of that seed, of few elements, that is run in one of `WAYS`."""
    case, rng = draw_form(seed), np.random.default_rng([seed, 5])
    case["way"] = WAYS[int(rng.integers(len(WAYS)))]
    case.update(seqlen_q=min(case["seqlen_q"], 40), seqlen_kv=min(case["seqlen_kv"], 130), strict=False, inference=False)
    case.update(kernel=None, default_dtype=None, recorded="own", whole="int", kv_dtype=None, chosen_keys=None)
    case["dtype"] = "float32" if case["dtype"] == "float64" else case["dtype"]
    case["scale_as"] = "float" if case["scale_as"] != "learned" else "learned"
    if case["mask"] == "int64":  # it warns, which a graph cannot
        case["mask"] = "float"
    if case["way"] in ("exported", "no_grad", "vmap", "compiled in inference", "inference of compiled"):
        case.update(gradients=False, mask_learns=False)
    if case["way"] == "checkpoint":
        case.update(gradients=True)
    if case["way"] == "autocast":
        case["dtype"] = "bfloat16"
    if case["way"] == "vmap":
        case["lse"] = False
    if not (case["gradients"] and case["dtype"] == "float32") and case["scale_as"] == "learned":
        case["scale_as"] = "float"
    case["loss"] = "both"
    return case
