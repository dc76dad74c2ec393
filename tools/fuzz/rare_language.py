"""Functions of `nki.language` that take several instructions, and what makes tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from tools.fuzz.kernel_programs import Step
from tools.fuzz.rare_operators import TYPES
from tools.fuzz.rare_site import UNIT, Array, Draw, Rare, Seen, Site, flat_of, typed

__all__ = ["LANGUAGE"]

Result = tuple[Array, Any]
_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _draw_folded(draw: Draw) -> Step:
    return {
        "function": draw.pick("sum", "prod", "max", "min", "mean", "var", "all", "softmax", "rms_norm", "where"),
        "axis": draw.pick(2, -1, (1, 2), (-1, -2)),
        "kept": draw.flag(),
        "kind": draw.pick(*TYPES),
        "number": draw.flag(),
        "epsilon": draw.pick(1e-6, 0.5),
        "between": draw.pick(None, "bfloat16"),
        "operand": draw.number(),
    }


def _issue_folded(site: Site) -> Any:
    """Of `[p, 2, n]`, the data and its half, along the last axis or both."""
    step, pair = site.step, site.fresh(site.p, 2, site.n)
    nisa.tensor_copy(dst=pair[:, 0], src=site.flat())
    nisa.tensor_scalar(dst=pair[:, 1], data=pair[:, 0], op0=nl.multiply, operand0=0.5)
    name, dtype = step["function"], {} if step["kind"] is None else {"dtype": getattr(nl, step["kind"])}
    if name == "softmax":
        found = nl.softmax(pair, **dtype) if step["axis"] == -1 else nl.softmax(pair, axis=step["axis"], **dtype)
    elif name == "where":
        chosen = nl.greater(pair, 0.0)
        found = nl.where(chosen, step["operand"] if step["number"] else pair, nl.negative(pair), **dtype)
    elif name == "rms_norm":
        more = {} if step["between"] is None else {"compute_dtype": nl.bfloat16}
        weight = nl.full((site.p, 1, site.n), 0.5, nl.float32)
        found = nl.rms_norm(pair, weight, step["axis"], site.n, epsilon=step["epsilon"], **dtype, **more)
    elif name == "all":
        found = nl.all(pair, step["axis"], **dtype)
    else:
        found = getattr(nl, name)(pair, step["axis"], keepdims=step["kept"], **dtype)
    return flat_of(found, found.dtype)


def _model_folded(seen: Seen) -> Result:
    step, name = seen.step, seen.step["function"]
    x, seen.kind = seen.wide(), step["kind"] or "float32"
    x = np.stack([x, (x.astype(np.float32) * np.float32(0.5)).astype(np.float64)], 1)
    axes = (2,) if step["axis"] in (2, -1) else (1, 2)
    count, size = float(np.prod([x.shape[axis] for axis in axes])), np.abs(x)
    sums = size.sum(axes, keepdims=True)
    slack: Any = 0.0
    if name == "where":
        found = np.where(x > 0, step["operand"] if step["number"] else x, -x)
    elif name == "softmax":
        powers = np.exp(x - x.max(axes, keepdims=True))
        found = powers / powers.sum(axes, keepdims=True)
        slack = 64 * UNIT * (count + size.max(axes, keepdims=True)) * found + 2.0**-126
    elif name == "rms_norm":
        found = x / np.sqrt((x * x).sum(axes, keepdims=True) / seen.n + step["epsilon"]) * 0.5
        slack = 64 * UNIT * count * np.abs(found) + 2.0**-126 + (2.0**-6 * np.abs(found) if step["between"] else 0.0)
    elif name == "var":
        found = x.var(axes, keepdims=True)
        slack = 64 * UNIT * count * (size.max(axes, keepdims=True) + 1e-20) ** 2
    elif name == "prod":
        found = x.prod(axes, keepdims=True)
        far = np.abs(np.log2(np.where(x == 0, 1.0, size))).sum(axes, keepdims=True) > 110
        slack = np.where(far, np.inf, 4 * UNIT * count * np.abs(found) + 2.0**-126)
    elif name == "all":
        found = (x != 0).all(axes, keepdims=True) * 1.0
    elif name in ("sum", "mean"):
        found = getattr(x, name)(axes, keepdims=True)
        slack = 4 * UNIT * count * sums + 2.0**-126
    else:
        found = getattr(x, name)(axes, keepdims=True)
    if step["kind"] in ("bfloat16", "float16"):
        slack = slack + 2.0 ** (-8 if step["kind"] == "bfloat16" else -11) * np.abs(found) * np.not_equal(slack, 0.0)
    return found.reshape(seen.p, -1), np.broadcast_to(slack, found.shape).reshape(seen.p, -1).copy()


def _draw_made(draw: Draw) -> Step:
    return {"form": draw.pick("zeros", "ones", "full", "zeros_like", "empty_like", "load", "store", "broadcast", "partitions",
                              "identity", "constant", "expanded", "turned", "product", "placed", "rsub", "bools"),
            "kind": draw.pick("float32", "bfloat16", "int32"), "memory": draw.pick("sbuf", "psum", "private_hbm"),
            "told": draw.flag(), "value": draw.pick(0, 3, -2), "size": draw.pick(1, 8, 32, 100)}  # fmt: skip


def _issue_made(site: Site) -> Any:
    step, p = site.step, site.p
    form, kind, memory = step["form"], getattr(nl, step["kind"]), getattr(nl, step["memory"])
    if form in ("zeros", "ones"):
        made = getattr(nl, form)((p, 6), kind, buffer=memory)
    elif form == "full":
        made = nl.full((p, 6), step["value"], kind, buffer=memory)
    elif form == "zeros_like":
        made = nl.zeros_like(site.flat(), dtype=kind, buffer=memory) if step["told"] else nl.zeros_like(site.flat())
    elif form == "empty_like":
        made = nl.empty_like(site.flat(), dtype=kind, transpose_axes=(1, 0), buffer=nl.sbuf)
        if not step["told"]:
            made = nl.empty_like(site.flat(), kind, nl.sbuf)
        nisa.memset(dst=made, value=step["value"])
    elif form == "load":
        made = nl.load(site.hbm(site.flat()), dtype=nl.bfloat16) if step["told"] else nl.load(site.hbm(site.flat()))
    elif form == "store":
        made = site.fresh(p, site.n, buffer=nl.private_hbm)
        nl.store(made, site.flat())
    elif form == "broadcast":
        made = (
            nl.broadcast_to(site.flat()[:, 0:1], (p, 5), dtype=nl.bfloat16)
            if step["told"]
            else nl.broadcast_to(site.flat()[:, 0:1], (p, 5))
        )
    elif form == "partitions":
        made = nl.broadcast_to(
            flat_of(site.tiles["noise"][0:1, 0:12], nl.float32 if step["told"] else nl.int32), (step["size"], 12)
        )
    elif form == "identity":
        given = {"dtype": kind} if step["told"] else {}
        made = nl.shared_identity_matrix(step["size"], **given)
        if not step["told"] and step["memory"] == "sbuf":
            dst = site.fresh(step["size"], step["size"], dtype=nl.bfloat16)
            made = nl.shared_identity_matrix(step["size"], nl.bfloat16, dst=dst)
            made = dst if made is None else made
    elif form == "constant":
        made = nl.load(nl.shared_constant(np.arange(24, dtype=np.float32).reshape(4, 6) - step["value"]))
    elif form == "expanded":
        made = nl.expand_dims(site.flat().data, 1 if step["told"] else -1)
    elif form == "bools":
        made = site.fresh(p, 8, dtype=nl.bool_)
        nisa.tensor_copy(dst=made, src=site.ints(p, 8, 2))
        return nl.copy(made, dtype=nl.float32)
    elif form == "turned":
        made = nl.transpose(site.flat(), dtype=nl.float32) if step["told"] else nl.transpose(site.flat())
    elif form == "product":
        made = nl.matmul(site.flat(), flat_of(site.ints(site.n, 8, 9, least=-4)))
    elif form == "placed":
        made = nl.ndarray((p, 6), nl.float32, buffer=nl.sbuf, address=(0, 4096 if step["told"] else 8192))
        nisa.memset(dst=made, value=float(step["value"]))
    else:
        with nl.no_reorder():
            made = nl.subtract(1.0, site.flat())
    if made.buffer not in (nl.sbuf, nl.psum):
        made = nl.load(made)
    return flat_of(made, made.dtype)


def _model_made(seen: Seen) -> Result:
    step, p, form = seen.step, seen.p, seen.step["form"]
    data = seen.wide()
    if form in ("zeros", "ones", "full", "placed"):
        seen.kind = "float32" if form == "placed" else step["kind"]
        return np.full((p, 6), {"zeros": 0, "ones": 1}.get(form, step["value"])), 0
    if form in ("zeros_like", "empty_like"):
        value = 0 if form == "zeros_like" else step["value"]
        seen.kind = "float32" if form == "zeros_like" and not step["told"] else step["kind"]
        return np.full((seen.n, p) if form == "empty_like" and step["told"] else (p, seen.n), value), 0
    if form == "load":
        seen.kind = "bfloat16" if step["told"] else "float32"
        return (typed(data, "bfloat16") if step["told"] else data), 0
    if form in ("store", "expanded"):
        return data, 0
    if form == "bools":
        return seen.ints(p, 8, 2), 0
    if form == "broadcast":
        found = np.repeat(data[:, :1], 5, 1)
        return (typed(found, "bfloat16") if step["told"] else found), 0
    if form == "partitions":
        return np.repeat(seen.state["noise"][:1, :12], step["size"], 0), 0
    if form == "identity":
        return np.eye(step["size"]), 0
    if form == "constant":
        return np.arange(24.0).reshape(4, 6) - step["value"], 0
    if form == "turned":
        return data.T, 0
    if form == "product":
        two = seen.ints(seen.n, 8, 9, least=-4).astype(np.float64)
        size = np.abs(data) @ np.abs(two)
        return data @ two, np.where(size < 1e36, UNIT * (seen.n + 2) * size + 2.0**-126, np.inf)
    return np.float32(1) - data.astype(np.float32), 0


LANGUAGE = {
    "folded": Rare(_draw_folded, _issue_folded, _model_folded),
    "made": Rare(_draw_made, _issue_made, _model_made),
}
