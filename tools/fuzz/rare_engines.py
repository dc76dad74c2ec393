"""Arguments of the compute instructions that other searches leave at their defaults, and activate2."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from tools.fuzz.kernel_programs import Step
from tools.fuzz.rare_site import UNIT, Array, Draw, Rare, Seen, Site, flat_of

__all__ = ["ENGINES"]

Result = tuple[Array, Any]
_ALU: dict[str, Any] = {
    "bypass": lambda x, y: x,
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
}
_FUNCTIONS: dict[str, Any] = {
    "relu": lambda x: np.maximum(x, 0),
    "exp": np.exp,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "square": np.square,
    "abs": np.abs,
    "copy": lambda x: x,
}


def _combined(alu: str, one: Any, two: Any, reverse: bool = False) -> Array:
    found: Array = _ALU[alu](*((two, one) if reverse else (one, two)))
    return found


def _folded(alu: str, values: Array, slack: Any = 0.0) -> Result:
    """The reduction of float64 rows, each element of which may be off by `slack`."""
    slack = np.broadcast_to(slack, values.shape)
    if alu == "add":
        sums = np.abs(values).sum(1, keepdims=True)
        return values.sum(1, keepdims=True), UNIT * values.shape[1] * sums + slack.sum(1, keepdims=True) + 2.0**-126
    if alu in ("abs_max", "abs_min"):
        size = np.abs(values)
        place = (size.argmax(1) if alu == "abs_max" else size.argmin(1))[:, None]
        chosen = np.take_along_axis(values, place, 1)
        both = (np.abs(values + chosen) <= 2 * slack).any(1, keepdims=True)  # which sign such a tie has no document says
        return chosen, np.where(both, np.inf, slack.max(1, keepdims=True))
    if alu == "multiply":
        found = np.prod(values, 1, keepdims=True)
        far = np.abs(np.log2(np.where(values == 0, 1.0, np.abs(values)))).sum(1, keepdims=True) > 120
        return found, np.where(far, np.inf, UNIT * values.shape[1] * np.abs(found) + 2.0**-126)
    return _ALU[alu].reduce(values, axis=1, keepdims=True), slack.max(1, keepdims=True)


_PAIRS = (
    ("multiply", "add"),
    ("multiply", "subtract"),
    ("multiply", "bypass"),
    ("add", "bypass"),
    ("subtract", "bypass"),
    ("bypass", "bypass"),
)
"""Of activate2."""


# ---- the Scalar engine ----------------------------------------------------------------------------------------------


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
    x = _combined(step["alu"], x, seen.operand(step["operand"]), step["reverse"])
    x = _combined(step["alu1"], x, seen.operand(step["operand1"]), step["reverse1"])
    wide = np.broadcast_to(x, seen.data.shape).astype(np.float64)
    if step["function"] == "prelu":
        found = np.where(wide > 0, wide, np.where(wide == 0, 0.0, wide) * seen.operand(step["slope"]))
    else:
        found = _FUNCTIONS[step["function"]](wide)
    slack = 8 * UNIT * np.abs(found) + 2.0**-126
    return (found, slack) if step["reduced"] is None else _folded(step["reduced"], found, slack)


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
    total, apart = _folded(seen.step["alu"], found, slack)
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


# ---- the Vector engine and GpSimd -----------------------------------------------------------------------------------


def _draw_placed(draw: Draw) -> Step:
    return {
        "form": draw.pick("scalar", "tensor", "memset", "vector", "rsqrt"),
        "engine": draw.pick("vector", "gpsimd"),
        "other": draw.reading(),
        "alu": draw.pick("add", "multiply", "subtract", "maximum"),
        "operand": draw.number(),
        "operand1": draw.number(),
    }


def _issue_placed(site: Site) -> Any:
    """An instruction on an engine that is named."""
    step, found = site.step, site.fresh(site.p, site.n)
    engine = getattr(nisa.engine, step["engine"])
    if step["form"] == "tensor":
        nisa.tensor_tensor(dst=found, data1=site.flat(), data2=site.flat("other"), op=getattr(nl, step["alu"]), engine=engine)
    elif step["form"] == "memset":
        nisa.memset(dst=found, value=step["operand"], engine=engine)
    elif step["form"] == "rsqrt":
        square = site.fresh(site.p, site.n)
        nisa.activation(dst=square, op=nl.square, data=site.data)
        nisa.tensor_scalar(dst=found, data=square, op0=nl.rsqrt, operand0=0.0, engine=nisa.engine.gpsimd)
    else:
        engine = nisa.engine.scalar if step["form"] == "scalar" else nisa.engine.vector
        nisa.tensor_scalar(
            dst=found,
            data=site.data,
            op0=nl.multiply,
            operand0=step["operand"],
            op1=nl.add,
            operand1=step["operand1"],
            engine=engine,
        )
    return found


def _model_placed(seen: Seen) -> Result:
    step, x = seen.step, seen.data.astype(np.float32)
    if step["form"] == "tensor":
        return _combined(step["alu"], x, seen.raw("other").astype(np.float32)), 0
    if step["form"] == "memset":
        return np.full((seen.p, seen.n), step["operand"]), 0
    if step["form"] == "rsqrt":
        size = np.abs(x.astype(np.float64))
        known = (size > 1e-15) & (size < 1e15)
        return 1 / size, np.where(known, 16 * UNIT / size, np.inf)
    return (x * np.float32(step["operand"]) + np.float32(step["operand1"])).astype(np.float32), 0


def _draw_reduced(draw: Draw) -> Step:
    return {
        "alu": draw.pick("add", "multiply", "maximum", "minimum"),
        "axes": draw.pick("last", "both", "negative"),
        "negate": draw.flag(),
        "kept": draw.flag(),
    }


def _issue_reduced(site: Site) -> Any:
    """Reductions of one or both free axes `[p, 2, n]`, the data and its double."""
    pair = site.fresh(site.p, 2, site.n)
    nisa.tensor_copy(dst=pair[:, 0], src=site.flat())
    nisa.tensor_scalar(dst=pair[:, 1], data=site.flat(), op0=nl.multiply, operand0=2.0)
    axis: Any = {"last": 2, "both": (1, 2), "negative": [-1]}[site.step["axes"]]
    found = site.fresh(site.p, 1 if site.step["axes"] == "both" else 2)
    nisa.tensor_reduce(
        dst=found,
        op=getattr(nl, site.step["alu"]),
        data=pair,
        axis=axis,
        negate=site.step["negate"],
        keepdims=site.step["kept"],
    )
    return found


def _model_reduced(seen: Seen) -> Result:
    x = seen.wide()
    x = np.stack([x, 2 * x], 1)
    rows = x.reshape(seen.p, -1)[:, None] if seen.step["axes"] == "both" else x
    both = [_folded(seen.step["alu"], rows[:, n]) for n in range(rows.shape[1])]
    found = np.concatenate([value for value, _ in both], 1)
    slack = np.concatenate([np.broadcast_to(apart, value.shape) for value, apart in both], 1)
    return -found if seen.step["negate"] else found, slack


def _draw_reversed(draw: Draw) -> Step:
    return {
        "form": draw.pick("reduce", "scan"),
        "operand": draw.number(),
        "other": draw.reading(),
        "operand1": draw.number(),
        "alu1": draw.pick("add", "maximum", "minimum"),
    }


def _issue_reversed(site: Site) -> Any:
    step, found = site.step, site.fresh(site.p, site.n)
    if step["form"] == "reduce":
        total = site.fresh(site.p, 1)
        nisa.tensor_scalar_reduce(
            dst=found,
            data=site.data,
            op0=nl.subtract,
            operand0=step["operand"],
            reduce_op=getattr(nl, step["alu1"]),
            reduce_res=total,
            reduce_cmd=nisa.reduce_cmd.load_reduce,
            reduce_init=step["operand1"],
        )
        return total
    nisa.tensor_tensor_scan(
        dst=found,
        data0=site.flat(),
        data1=site.flat("other"),
        initial=step["operand"],
        op0=nl.subtract,
        op1=getattr(nl, step["alu1"]),
        reverse0=True,
    )
    return found


def _model_reversed(seen: Seen) -> Result:
    step, x = seen.step, seen.data.astype(np.float32)
    if step["form"] == "reduce":
        values = np.concatenate([np.full((seen.p, 1), step["operand1"]), x - np.float32(step["operand"])], 1)
        return _folded(step["alu1"], values.astype(np.float64))
    other, running, columns = seen.raw("other").astype(np.float32), np.full(seen.p, step["operand"], np.float32), []
    for place in range(seen.n):
        running = _combined(step["alu1"], running - x[:, place], other[:, place])
        columns.append(running)
    return np.stack(columns, 1), 0


def _draw_ranged(draw: Draw) -> Step | None:
    if draw.program["chip"] == "trn1":
        return None
    compare = ("equal", "less", "less_equal", "greater", "greater_equal")
    return {
        "alu": draw.pick(*compare),
        "alu1": draw.pick(*compare),
        "first": int(draw.rng.integers(-3, 10)),
        "command": draw.pick("reset_reduce", "reset_reduce", "reset"),
    }


def _issue_ranged(site: Site) -> Any:
    step, found = site.step, site.fresh(site.p, site.n + 1)
    nisa.memset(dst=found, value=-2.0)
    nisa.range_select(
        dst=found[:, 0 : site.n],
        on_true_tile=site.flat(),
        comp_op0=getattr(nl, step["alu"]),
        comp_op1=getattr(nl, step["alu1"]),
        bound0=site.operand("c0"),
        bound1=site.operand("c1"),
        reduce_cmd=getattr(nisa.reduce_cmd, step["command"]),
        reduce_res=found[:, site.n : site.n + 1] if step["command"] != "reset" else None,
        range_start=step["first"],
    )
    return found


def _model_ranged(seen: Seen) -> Result:
    step, index = seen.step, np.float32(seen.step["first"]) + np.arange(seen.n, dtype=np.float32)
    compare = {
        "equal": np.equal,
        "less": np.less,
        "less_equal": np.less_equal,
        "greater": np.greater,
        "greater_equal": np.greater_equal,
    }
    inside = compare[step["alu"]](index, seen.operand("c0")) & compare[step["alu1"]](index, seen.operand("c1"))
    found = np.where(inside, seen.wide(), float(np.finfo(np.float32).min))
    last, apart = _folded("maximum", found) if step["command"] != "reset" else (np.full((seen.p, 1), -2.0), 0.0)
    slack = np.concatenate([np.zeros(found.shape), np.broadcast_to(apart, last.shape)], 1)
    return np.concatenate([found, last], 1), slack


def _draw_selected(draw: Draw) -> Step:
    return {"operand": draw.pick(draw.number(), "c0"), "below": draw.pick(2, 3)}


def _issue_selected(site: Site) -> Any:
    step, found = site.step, site.fresh(site.p, site.n + 1)
    width = min(site.n, 64)
    nisa.memset(dst=found, value=0.5)
    nisa.select_reduce(
        dst=found[:, 0:width],
        predicate=site.ints(site.p, width, step["below"], nl.uint8),
        on_true=site.flat()[:, 0:width],
        on_false=site.operand(step["operand"]),
        reduce_res=found[:, site.n : site.n + 1],
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )
    return found


def _model_selected(seen: Seen) -> Result:
    width = min(seen.n, 64)
    chosen = seen.ints(seen.p, width, seen.step["below"]) != 0
    values = np.where(chosen, seen.wide()[:, :width], seen.operand(seen.step["operand"])).astype(np.float64)
    total, apart = _folded("maximum", values)
    found = np.full((seen.p, seen.n + 1), 0.5)
    found[:, :width], found[:, seen.n :] = values, total
    slack = np.zeros(found.shape)
    slack[:, seen.n :] = apart
    return found, slack


def _draw_running(draw: Draw) -> Step:
    return {
        "alu": draw.pick("add", "multiply", "maximum"),
        "operand": draw.number(),
        "operand1": draw.number(),
        "alu1": draw.pick("add", "maximum", "minimum"),
        "again": draw.flag(),
    }


def _issue_running(site: Site) -> Any:
    """A cumulative reduction that starts from a number, and one that goes on from where it ended."""
    step, found, data = site.step, site.fresh(site.p, site.n), site.flat()
    for number in range(1 + step["again"]):
        more = {"reduce_cmd": nisa.reduce_cmd.reduce}
        if number == 0:
            more = {"reduce_cmd": nisa.reduce_cmd.load_reduce, "imm1": step["operand1"]}
        nisa.tensor_scalar_cumulative(
            dst=found, src=data, op0=getattr(nl, step["alu"]), op1=getattr(nl, step["alu1"]), imm0=step["operand"], **more
        )
    return found


def _model_running(seen: Seen) -> Result:
    step = seen.step
    values = _combined(step["alu"], seen.data.astype(np.float32), np.float32(step["operand"])).astype(np.float64)
    running, size = np.full((seen.p, 1), step["operand1"]), np.full((seen.p, 1), abs(step["operand1"]))
    for _ in range(1 + step["again"]):
        whole = np.concatenate([running[:, -1:], values], 1)
        running = _ALU[step["alu1"]].accumulate(whole, axis=1)[:, 1:]
        size = np.abs(np.concatenate([size[:, -1:], values], 1)).cumsum(1)[:, 1:]
    return running, UNIT * 2 * (seen.n + 1) * size if step["alu1"] == "add" else 0.0


def _draw_powers(draw: Draw) -> Step | None:
    return {"operand": draw.number(), "operand1": draw.number()} if draw.program["chip"] == "trn3" else None


def _issue_powers(site: Site) -> Any:
    found, total = site.fresh(site.p, site.n), site.fresh(site.p, 1)
    nisa.exponential(
        dst=found,
        src=site.flat(),
        max_value=site.step["operand"],
        reduce_res=total,
        reduce_cmd=nisa.reduce_cmd.load_reduce,
        reduce_init=site.step["operand1"],
    )
    return total


def _model_powers(seen: Seen) -> Result:
    inner = (seen.data.astype(np.float32) - np.float32(seen.step["operand"])).astype(np.float64)
    found = np.concatenate([np.full((seen.p, 1), seen.step["operand1"]), np.exp(inner)], 1)
    return _folded("add", found, 8 * UNIT * np.abs(found) + 2.0**-126)


ENGINES = {
    "activate2": Rare(_draw_activate2, _issue_activate2, _model_activate2),
    "activation_reduce": Rare(_draw_activation_reduce, _issue_activation_reduce, _model_activation_reduce),
    "activation_chain": Rare(_draw_activation_chain, _issue_activation_chain, _model_activation_chain),
    "placed": Rare(_draw_placed, _issue_placed, _model_placed),
    "reduced": Rare(_draw_reduced, _issue_reduced, _model_reduced),
    "reversed": Rare(_draw_reversed, _issue_reversed, _model_reversed),
    "ranged": Rare(_draw_ranged, _issue_ranged, _model_ranged),
    "selected": Rare(_draw_selected, _issue_selected, _model_selected),
    "running": Rare(_draw_running, _issue_running, _model_running),
    "powers": Rare(_draw_powers, _issue_powers, _model_powers),
}
