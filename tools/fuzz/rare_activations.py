"""Arguments of the Scalar engine's instructions that other searches leave at their defaults, and activate2."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from tools.fuzz.kernel_programs import Step
from tools.fuzz.rare_alu import Result, combined, folded
from tools.fuzz.rare_site import UNIT, Array, Draw, Rare, Seen, Site, flat_of

__all__ = ["ACTIVATIONS"]

_FUNCTIONS: dict[str, Any] = {
    "relu": lambda x: np.maximum(x, 0),
    "exp": np.exp,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "square": np.square,
    "abs": np.abs,
    "copy": lambda x: x,
}
_PAIRS = (
    ("multiply", "add"),
    ("multiply", "subtract"),
    ("multiply", "bypass"),
    ("add", "bypass"),
    ("subtract", "bypass"),
    ("bypass", "bypass"),
)
"""Of activate2."""


def _draw_activate2(draw: Draw) -> Step | None:
    if draw.program["chip"] != "trn3":
        return None
    columns, pair = draw.flag(), draw.pick(*_PAIRS)
    return {
        "alu": pair[0],
        "alu1": pair[1],
        "function": draw.pick("prelu", "prelu", *_FUNCTIONS),
        "operand": "c0" if columns else draw.number(),
        "operand1": "c1" if columns else draw.number(),
        "reverse": draw.flag() and pair[0] != "bypass",
        "reverse1": draw.flag() and pair[1] != "bypass",
        "slope": draw.pick(0.0, 0.25, -2.0, "c0"),
        "reduced": draw.pick(None, "add", "maximum", "minimum", "abs_max", "abs_min"),
    }


def _issue_activate2(site: Site) -> Any:
    step, found = site.step, site.fresh(site.p, site.n, dtype=getattr(nl, site.step["type"]))
    more: dict[str, Any] = {}
    if step["function"] == "prelu":
        more["relu_param"] = site.operand(step["slope"])
    if step["reduced"] is not None:
        more["reduce_res"], more["reduce_op"] = site.fresh(site.p, 1), getattr(nl, step["reduced"])
        more["reduce_cmd"] = nisa.reduce_cmd.reset_reduce
    nisa.activate2(
        dst=found,
        op=getattr(nl, step["function"]),
        data=site.data,
        imm0=site.operand(step["operand"]),
        imm1=site.operand(step["operand1"]),
        op0=getattr(nl, step["alu"]),
        op1=getattr(nl, step["alu1"]),
        reverse0=step["reverse"],
        reverse1=step["reverse1"],
        **more,
    )
    return more.get("reduce_res", found)


def _model_activate2(seen: Seen) -> Result:
    step, x = seen.step, seen.data.astype(np.float32)
    x = combined(step["alu"], x, seen.operand(step["operand"]), step["reverse"])
    x = combined(step["alu1"], x, seen.operand(step["operand1"]), step["reverse1"])
    wide = np.broadcast_to(x, seen.data.shape).astype(np.float64)
    if step["function"] == "prelu":
        found = np.where(wide > 0, wide, np.where(wide == 0, 0.0, wide) * seen.operand(step["slope"]))
    else:
        found = _FUNCTIONS[step["function"]](wide)
    slack = 8 * UNIT * np.abs(found) + 2.0**-126
    return (found, slack) if step["reduced"] is None else folded(step["reduced"], found, slack)


def _draw_activation_reduce(draw: Draw) -> Step:
    return {
        "function": draw.pick(*_FUNCTIONS),
        "alu": draw.pick("add", "add", "maximum", "minimum"),
        "scale": draw.pick(1.0, -0.5, "c0"),
        "bias": draw.pick(None, "c1"),
    }


def _issue_activation_reduce(site: Site) -> Any:
    step, found = site.step, site.fresh(site.p, site.n + 1)
    more = {} if step["bias"] is None else {"bias": site.operand(step["bias"])}
    nisa.activation_reduce(
        dst=found[:, 0 : site.n],
        op=getattr(nl, step["function"]),
        data=flat_of(site.data),
        reduce_op=getattr(nl, step["alu"]),
        reduce_res=found[:, site.n : site.n + 1],
        scale=site.operand(step["scale"]),
        **more,
    )
    return found


def _scaled(seen: Seen) -> Array:
    x = seen.data.astype(np.float32) * seen.operand(seen.step["scale"])
    return x if seen.step["bias"] is None else x + seen.operand(seen.step["bias"])


def _model_activation_reduce(seen: Seen) -> Result:
    found = _FUNCTIONS[seen.step["function"]](_scaled(seen).astype(np.float64))
    slack = 8 * UNIT * np.abs(found) + 2.0**-126
    total, apart = folded(seen.step["alu"], found, slack)
    return np.concatenate([found, total], 1), np.concatenate([slack, np.broadcast_to(apart, total.shape)], 1)


def _draw_activation_chain(draw: Draw) -> Step:
    commands = [draw.pick("reset", "reset_reduce"), *(draw.pick("reduce", "idle", "reset_reduce") for _ in range(2)), "reduce"]
    return {"commands": commands, "scales": [draw.number() for _ in commands]}


def _issue_activation_chain(site: Site) -> Any:
    """The registers of the Scalar engine over several instructions; the last of them stores."""
    found, total = site.fresh(site.p, site.n), site.fresh(site.p, 1)
    for number, (command, scale) in enumerate(zip(site.step["commands"], site.step["scales"], strict=True)):
        more = {"reduce_res": total} if number == len(site.step["commands"]) - 1 else {}
        nisa.activation(
            dst=found,
            op=nl.copy,
            data=site.data,
            scale=scale,
            reduce_op=nl.add,
            reduce_cmd=getattr(nisa.reduce_cmd, command),
            **more,
        )
    return total


def _model_activation_chain(seen: Seen) -> Result:
    total, size = np.zeros((seen.p, 1)), np.zeros((seen.p, 1))
    for command, scale in zip(seen.step["commands"], seen.step["scales"], strict=True):
        values = (seen.data.astype(np.float32) * np.float32(scale)).astype(np.float64)
        if command.startswith("reset"):
            total, size = 0 * total, 0 * size
        if command.endswith("reduce"):
            total = total + values.sum(1, keepdims=True)
            size = size + np.abs(values).sum(1, keepdims=True)
    return total, UNIT * (4 * seen.n + 4) * size + 2.0**-126


ACTIVATIONS = {
    "activate2": Rare(_draw_activate2, _issue_activate2, _model_activate2),
    "activation_reduce": Rare(_draw_activation_reduce, _issue_activation_reduce, _model_activation_reduce),
    "activation_chain": Rare(_draw_activation_chain, _issue_activation_chain, _model_activation_chain),
}
