"""Arguments of the instructions of Vector and GpSimd that other searches leave at their defaults."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from tools.fuzz.kernel_programs import Step
from tools.fuzz.rare_alu import ALU, Result, combined, folded
from tools.fuzz.rare_site import UNIT, Draw, Rare, Seen, Site

__all__ = ["ENGINES"]


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
        return combined(step["alu"], x, seen.raw("other").astype(np.float32)), 0
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
    both = [folded(seen.step["alu"], rows[:, n]) for n in range(rows.shape[1])]
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
        return folded(step["alu1"], values.astype(np.float64))
    other, running, columns = seen.raw("other").astype(np.float32), np.full(seen.p, step["operand"], np.float32), []
    for place in range(seen.n):
        running = combined(step["alu1"], running - x[:, place], other[:, place])
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
    last, apart = folded("maximum", found) if step["command"] != "reset" else (np.full((seen.p, 1), -2.0), 0.0)
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
    total, apart = folded("maximum", values)
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
    values = combined(step["alu"], seen.data.astype(np.float32), np.float32(step["operand"])).astype(np.float64)
    running, size = np.full((seen.p, 1), step["operand1"]), np.full((seen.p, 1), abs(step["operand1"]))
    for _ in range(1 + step["again"]):
        whole = np.concatenate([running[:, -1:], values], 1)
        running = ALU[step["alu1"]].accumulate(whole, axis=1)[:, 1:]
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
    return folded("add", found, 8 * UNIT * np.abs(found) + 2.0**-126)


ENGINES = {
    "placed": Rare(_draw_placed, _issue_placed, _model_placed),
    "reduced": Rare(_draw_reduced, _issue_reduced, _model_reduced),
    "reversed": Rare(_draw_reversed, _issue_reversed, _model_reversed),
    "ranged": Rare(_draw_ranged, _issue_ranged, _model_ranged),
    "selected": Rare(_draw_selected, _issue_selected, _model_selected),
    "running": Rare(_draw_running, _issue_running, _model_running),
    "powers": Rare(_draw_powers, _issue_powers, _model_powers),
}
