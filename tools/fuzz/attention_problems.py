"""Random attention problems as plain data: sizes, masks, hostile scalars, how the call is made. Equal seeds, equal problems."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import numpy as np

__all__ = [
    "LEARNT",
    "PLAIN",
    "VANISHING",
    "Case",
    "decided",
    "draw_band",
    "draw_learnt_bias",
    "draw_problem",
    "refused",
    "simpler_problems",
]

Case = dict[str, Any]

PLAIN: Case = {
    "front": "attention", "dtype": "float32", "batch_q": 1, "batch_kv": 1, "heads_kv": 1, "group": 1, "seqlen_q": 3,
    "seqlen_kv": 5, "head_dim": 8, "head_dim_v": 8, "layout": "plain", "values": "normal", "causal": False, "window": None,
    "ahead": None, "q_offset": None, "whole": "int", "bounds": None, "mask": None, "mask_axes": (0, 0, 0),
    "mask_form": "plain", "mask_learns": False, "position_bias": None, "scale": None,
    "scale_as": "float", "softcap": None, "sink": None, "sink_rows": False, "lse": False, "gradients": False, "frozen": "",
    "strict": False, "kernel": None, "chip": "trn2", "lnc": None, "default_dtype": None, "inference": False,
    "recorded": "own", "constants": None,
    "kv_dtype": None, "mask_dtype": None, "mask_written": "copy_", "sink_axes": (1, 1, 1), "sink_name": "s_aux",
    "causal_by": "layer", "hint": None, "chosen_keys": None, "bias_spare": 0, "loss": "both", "way": None,
    "lengths": None, "spare": 0, "pages": None, "cache": None, "parts": None,
    "dropout": None, "second": False, "chosen_blocks": None,
}  # fmt: skip
"""Every field of a problem with its simplest value. A problem file names only what differs.

`front`: whose function is called, ours (`attention`) or Transformers', or one of attention_packs.py. `batch_q` and `batch_kv`
are equal, or one of them is 1.
`whole`: what wraps whole numbers. `bounds`: dtype of lo and hi. `mask_axes`: whether it has batches, heads and rows of its own.
`mask_form`: `short` = without leading axes of size 1, `expanded` = over its axes of size 1, `one_key` = one entry for all keys.
`mask_learns`: a float mask has a gradient. `position_bias`: `fixed` or `learned`, an additive bias besides the mask, which
Transformers' function takes. `frozen`: those of q, k and v that have no gradient. `recorded`: `other` = the call with
other values goes first, so that what is judged may be a replay of theirs.
`kernel`: the only forward kernel that may be asked; None = all.
`constants`: whose plan constants `flash_const_max` takes, of `tuning.KINDS`; None = those of the problem's kind.
`kv_dtype`: of k and v; None = q's. `mask_dtype`: a mask that only hides is passed as zeros and the lowest of that dtype.
`mask_written`: with `recorded` = `mask`, how the mask's tensor got its values after a call with others. `sink_axes`: whether
a sink per row has batches, heads and rows of its own. `sink_name`, `causal_by`, `hint` (sliding_window), `chosen_keys` (how
many keys `indices` names for each row), `bias_spare` (keys of position_bias behind the last): arguments of Transformers'
function. `loss`: of which results gradients are taken. `way`: how the call is run, see attention_ways.py. The last lines: see
attention_packs.py and attention_extras.py.
"""

LEARNT = ("minus_inf", "float", "nan", "inf", "float64", "lowest")
"""Masks that may have a gradient."""
VANISHING = 1e37
"""Scores vanish beside an added value of this size. The lse of a row of such values alone is left open."""
_EDGES = (1, 2, 3, 5, 16, 17, 31, 33, 127, 128, 129, 130, 255, 257)
_FAR = (2**31 - 1, 2**31, 2**40, 2**63 - 1, 2**63, 2**70)
_KERNELS = (None, None, "flash_prefill", "flash_const_max", "flash_decode")
_LEAST, _MOST = 1e-45, 3.4028234663852886e38
"""Of float32."""


def draw_problem(seed: int) -> Case:
    """A problem of that seed, every field filled in."""
    rng = np.random.default_rng(seed)

    def one_of(*items: Any) -> Any:
        return items[int(rng.integers(len(items)))]

    def rarely(share: float = 0.1) -> bool:
        return bool(rng.random() < share)

    case = {**PLAIN, "seed": seed, "front": one_of("attention", "transformers"), "chip": one_of("trn2", "trn2", "trn1", "trn3")}
    case["dtype"] = one_of("float32", "float32", "bfloat16", "float16")
    batch = one_of(1, 1, 2, 3)
    case["batch_q"], case["batch_kv"] = one_of((batch, batch), (batch, batch), (1, batch), (batch, 1))
    case["heads_kv"], case["group"] = one_of(1, 1, 2, 3), one_of(1, 1, 2, 4)
    case["seqlen_q"] = one_of(1, 1, int(rng.integers(1, 40)), one_of(*_EDGES))
    case["seqlen_kv"] = one_of(case["seqlen_q"], int(rng.integers(1, 300)), one_of(*_EDGES), 513 if rarely() else 64)
    case["head_dim"] = one_of(8, 16, 64, int(rng.integers(1, 130)), 128, 192 if rarely() else 32, 256 if rarely(0.05) else 8)
    case["head_dim_v"] = case["head_dim"] if not rarely(0.3) else int(rng.integers(1, 130))
    case["layout"] = one_of("plain", "plain", "transposed", "sliced", "expanded")
    case["values"] = one_of("normal", "normal", "wide", "outlier_key", "equal", "negative")
    if case["front"] == "attention":
        far = one_of(*_FAR)
        case["whole"] = one_of("int", "int", "numpy", "tensor")
        case["causal"] = rarely(0.3)
        case["window"] = one_of(
            None, None, None, int(rng.integers(1, 50)), far if rarely(0.3) else None, far - 10 if rarely() else 1
        )
        if not case["causal"]:
            case["ahead"] = one_of(None, None, None, 1, int(rng.integers(1, 50)), far if rarely(0.3) else None)
        case["q_offset"] = one_of(None, None, 0, int(rng.integers(-60, 300)), one_of(far, -far) if rarely(0.3) else None)
        if rarely(0.2):
            case["bounds"] = one_of("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64")
    else:
        case["causal"] = rarely(0.5)
    if case["front"] == "attention" or not case["causal"]:  # Transformers' function takes a mask or is causal
        kinds = ("bool", "bool", "lowest", "minus_inf", "float", "float", "padding", "nan", "inf", "int64", "float64")
        case["mask"] = one_of(None, None, one_of(*kinds))
    case["mask_axes"] = tuple(int(rng.integers(2)) for _ in range(3))
    case["scale"] = one_of(None, None, None, float(rng.uniform(0.05, 2)), -0.5, one_of(0.0, 1e-40, 1e-20, 1e20, -1e-29, 30.0))
    case["scale_as"] = one_of("float", "numpy", "tensor", "learned")
    case["softcap"] = one_of(None, None, None, float(rng.uniform(0.5, 50)), one_of(1e-45, 1e-30, 1e15, 3e38))
    case["sink"] = one_of(None, None, None, "normal", one_of("minus_inf", "inf", "nan", "lowest"))
    case["sink_rows"] = rarely(0.2)
    case["lse"] = case["front"] == "attention" and rarely(0.4)
    case["inference"] = rarely(0.15)
    case["gradients"] = not case["inference"] and rarely(0.3)
    case["strict"], case["kernel"], case["lnc"] = rarely(0.3), one_of(*_KERNELS), one_of(None, None, 1, 2)
    if case["lnc"] == 2 and case["chip"] == "trn1":
        case["lnc"] = None
    case["default_dtype"] = one_of("float64", "bfloat16", "float16") if rarely(0.2) else None
    if case["mask"] is not None:
        case["mask_form"] = one_of("plain", "plain", "short", "expanded", "one_key")
    if case["front"] == "transformers":
        case["position_bias"] = one_of(None, None, "fixed", "learned")
    if case["gradients"]:
        case["mask_learns"] = case["mask"] in LEARNT and rarely(0.7)
        case["frozen"] = one_of("", "", "", "q", "kv", "qkv")
    case["recorded"] = one_of("own", "own", "other")
    decided(case)
    if rarely(0.06):  # what has no meaning
        junk = [("scale", inf), ("scale", nan), ("scale", 1e300), ("softcap", 0.0), ("softcap", -1.0), ("softcap", nan)]
        case.update([one_of(*junk, ("softcap", inf), ("softcap", 1e-320))])
        if case["front"] == "attention" and rarely(0.4):
            case.update(one_of({"window": 0}, {"window": -(2**63)}, {"ahead": 0}, {"ahead": 2.5}, {"q_offset": True}))
    # Below float32's normal numbers the gradient of a scale has only some of its digits, as those of q have.
    learns = case["gradients"] and case["dtype"] == "float32" and not 0 < abs(case["scale"] or 0.0) < 1e-30
    if case["scale_as"] == "learned" and not learns:
        case["scale_as"] = "tensor"
    return case


def draw_learnt_bias(seed: int) -> Case:
    """A problem of that seed of which the mask, the position bias or both are added to the scores and have gradients."""
    case = draw_problem(seed)
    rng = np.random.default_rng([seed, 1])
    case.update({"gradients": True, "inference": False, "frozen": ("", "", "", "q", "kv", "qkv")[int(rng.integers(6))]})
    learns = case["front"] == "attention" or bool(rng.random() < 0.6)
    if learns:
        if case["mask"] not in LEARNT:
            case["mask"] = ("float", "float", "float", "float64", "minus_inf", "lowest")[int(rng.integers(6))]
            case["mask_form"] = ("plain", "plain", "short", "expanded", "one_key")[int(rng.integers(5))]
        case["mask_learns"] = True
        if case["front"] == "transformers":
            case["causal"] = False
    if case["front"] == "transformers" and (not learns or case["position_bias"] == "fixed"):
        case["position_bias"] = "learned"
    decided(case)
    return case


def draw_band(seed: int) -> Case:
    """A problem of that seed that `flash_const_max` takes: bfloat16 rows at any length, which see a band of the keys."""
    case = {**PLAIN, "seed": seed, "dtype": "bfloat16", "kernel": "flash_const_max"}
    rng = np.random.default_rng([seed, 2])

    def one_of(*items: Any) -> Any:
        return items[int(rng.integers(len(items)))]

    def near(*lengths: int) -> int:
        return one_of(*lengths) + int(rng.integers(-3, 4))

    case["heads_kv"], case["group"] = one_of((1, 1), (1, 1), (2, 1), (1, 2))
    case["seqlen_q"] = one_of(near(128, 256, 512), int(rng.integers(33, 700)), int(rng.integers(33, 700)), near(1024))
    keys = case["seqlen_q"] + int(rng.integers(0, 700))
    case["seqlen_kv"] = one_of(case["seqlen_q"], case["seqlen_q"], keys, int(rng.integers(1, 1300)), near(512, 1024, 2048))
    case["head_dim"] = case["head_dim_v"] = one_of(8, 16, 64, int(rng.integers(1, 130)), 128, 256)
    case["head_dim_v"] = one_of(case["head_dim"], case["head_dim"], int(rng.integers(1, 130)))
    case["values"] = one_of("normal", "normal", "normal", "wide", "outlier_key", "equal", "negative")
    case["causal"] = bool(rng.random() < 0.7)
    case["window"] = one_of(None, None, int(rng.integers(1, 50)), int(rng.integers(1, 700)), near(128, 512))
    if not case["causal"]:
        case["ahead"] = one_of(None, int(rng.integers(1, 300)))
    case["q_offset"] = one_of(None, None, None, int(rng.integers(-200, 700)))
    case["bounds"] = one_of(None, None, None, None, "int32")
    case["mask"] = one_of(None, None, None, "float", "padding", "bool")
    case["mask_axes"] = (int(rng.integers(2)), 0, int(rng.integers(2)) if case["mask"] == "padding" else 0)
    case["scale"] = one_of(None, None, None, float(rng.uniform(0.02, 1)), -0.5)
    case["sink"] = one_of(None, None, "normal", "minus_inf")
    case["gradients"] = bool(rng.random() < 0.5)
    case["frozen"] = one_of("", "", "", "q", "kv") if case["gradients"] else ""
    case["lse"] = bool(rng.random() < 0.3)
    case["chip"] = one_of("trn2", "trn2", "trn3", "trn3")  # loops at run time
    case["lnc"] = one_of(None, 1, 2)
    case["recorded"] = one_of("own", "own", "other")
    if case["head_dim_v"] < 256:  # what only long rows take, at lengths that are quick
        case["constants"] = one_of(None, "shortest", "shorter", "short", "long", "longest", "longest")
    return case


def decided(case: Case) -> None:
    """Which of two float32 lowest values counts, that of a sink or that of a mask with a gradient, is left open."""
    if case["mask_learns"] and case["mask"] == case["sink"] == "lowest":
        case["sink"] = "normal"


def refused(case: Case) -> bool:
    """True if the call has no meaning, by what `nki_hf.attention` documents: it must raise a ValueError."""
    for name in ("window", "ahead", "q_offset"):
        value = case[name]
        if value is not None and (type(value) is not int or (name != "q_offset" and value < 1)):
            return True
    if case["causal"] and case["ahead"] not in (None, 1):
        return True
    scale, softcap = case["scale"], case["softcap"]
    if scale is not None and (not -_MOST <= scale <= _MOST or (scale == 0 and case["scale_as"] == "learned")):
        return True
    return softcap is not None and not _LEAST <= softcap <= _MOST


def simpler_problems(case: Case) -> list[Case]:
    """Problems with one field nearer to `PLAIN`, the boldest steps first."""
    found = []
    kept = set[str]() if case["front"] in ("attention", "transformers") else {"front", "parts", "cache", "pages"}
    if case["lengths"] is not None:
        kept |= {"front", "lengths", "pages", "spare", "seqlen_q", "seqlen_kv"}
    for name, plain in PLAIN.items():
        value = case[name]
        if value == plain or name in kept:
            continue
        found.append({**case, name: plain})
        if name == "front":  # ours has no such arguments
            found[-1].update(position_bias=None, chosen_keys=None)
        if type(value) is int and type(plain) is int and abs(value - plain) > 1 and name not in ("window", "ahead", "q_offset"):
            found.append({**case, name: (value + plain) // 2})
            if value > plain:
                found.append({**case, name: value - 1})
    if 0 in (case["batch_q"], case["batch_kv"]):
        return [each for each in found if (each["batch_q"], each["batch_kv"]) in ((0, 0), (1, 1))]
    batches = (1, case["batch_q"], case["batch_kv"])
    found.append({**case, "batch_q": min(batches[1:]), "batch_kv": min(batches[1:])})
    return [
        each
        for each in found
        if each != case and 1 in (each["batch_q"], each["batch_kv"], 1 + each["batch_q"] - each["batch_kv"])
    ]
