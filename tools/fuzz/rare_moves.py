"""Moves that other searches leave out: transposes of more axes, arguments of copies, and topk."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from tools.fuzz.kernel_programs import Step
from tools.fuzz.rare_site import Array, Draw, Rare, Seen, Site, flat_of, typed

__all__ = ["MOVES", "len_of"]

Result = tuple[Array, Any]


def _draw_topk(draw: Draw) -> Step | None:
    if draw.program["shape"][0] % 16:
        return None
    count = int(draw.rng.integers(8, 16 * 16))
    return {
        "n": count,
        "k": int(draw.rng.integers(1, min(count, 40) + 1)),
        "shown": draw.pick("values", "indices"),
        "below": draw.pick(9, 251),
    }


def _issue_topk(site: Site) -> Any:
    step, rows = site.step, site.program["shape"][0]
    source = site.ints(rows, 16, step["below"], nl.bfloat16)
    values, places = site.fresh(rows, step["k"], dtype=nl.bfloat16), site.fresh(rows, step["k"], dtype=nl.uint32)
    nisa.topk(values, places, source, step["n"])
    return values if step["shown"] == "values" else places


def _model_topk(seen: Seen) -> Result:
    """Where equal values stand, and which of them are taken at the edge, is the simulator's choice (docs/language.md)."""
    step, rows = seen.step, len(seen.state["noise"])
    source, found = seen.ints(rows, 16, step["below"]), np.zeros((rows, step["k"]))
    for first in range(0, rows, 16):
        listed = [(int(source[first + place % 16, place // 16]), place) for place in range(step["n"])]
        taken = sorted(listed, key=lambda each: (-each[0], each[1]))[: step["k"]]
        ranked = sorted(taken)
        found[first : first + 16] = [each[step["shown"] == "indices"] for each in ranked]
    return found, 0


def _draw_turned(draw: Draw) -> Step:
    return {
        "form": draw.pick("two", "three", "four", "hardware", "gather", "priority", "engine", "columns"),
        "told": draw.flag(),
        "parts": draw.pick(1, 2, 4),
    }


_AXES = {"two": (1, 0), "three": (2, 1, 0), "four": (3, 1, 2, 0)}


def _issue_turned(site: Site) -> Any:
    step, p = site.step, site.p
    form, told = step["form"], {}
    if form in ("priority", "engine"):
        data, found = site.flat(), site.fresh(p, site.n)
        if form == "priority" and site.program["chip"] == "trn3":
            told = {"priority": step["parts"] - 1}
        elif site.program["chip"] != "trn1":
            told = {"dge_mode": nisa.dge_mode.hwdge}
            if form == "engine":
                told["engine"] = nisa.engine.scalar if step["told"] else nisa.engine.sync
        else:
            told = {"dge_mode": nisa.dge_mode.none}
        nisa.dma_copy(dst=found, src=data, **told)
        return found
    if form == "columns":
        hbm = site.hbm(site.flat())
        return nl.load_transpose2d(hbm, dtype=nl.bfloat16) if step["told"] else nl.load_transpose2d(hbm)
    if form in ("hardware", "gather") and site.program["chip"] != "trn1":
        hbm = site.hbm(flat_of(site.tiles["noise"][:, 0:32], nl.bfloat16))
        if form == "hardware":
            hbm, found = hbm[0:16] if hbm.shape[0] >= 16 else hbm, site.fresh(32, 16, dtype=nl.bfloat16)
            if hbm.shape[0] == 16:
                nisa.dma_transpose(dst=found, src=hbm, dge_mode=nisa.dge_mode.hwdge)
                return found
            return flat_of(site.tiles["noise"][:, 0:32], nl.bfloat16)
        rows = hbm.shape[0] // 16 * 16
        if not rows:
            return flat_of(site.tiles["noise"][:, 0:32], nl.bfloat16)
        index = site.ints(rows, 1, hbm.shape[0] + 2, nl.uint32)
        found = site.fresh(32, rows, dtype=nl.bfloat16)
        nisa.memset(dst=found, value=-1.0)
        nisa.dma_transpose(dst=found, src=hbm.vector_select(0, index), oob_mode=nisa.oob_mode.skip)
        return found
    if form in ("hardware", "gather"):
        return flat_of(site.tiles["noise"][:, 0:32], nl.bfloat16)
    parts = {"two": (), "three": (2,), "four": (2, 2)}[form]
    source = site.hbm(flat_of(site.tiles["noise"][:, 0:32])).reshape((len_of(site), *parts, 32 // int(np.prod(parts))))
    order = _AXES[form]
    found = site.fresh(*(source.shape[axis] for axis in order))
    if step["told"]:
        told = {"axes": order}
        if site.program["chip"] == "trn3":
            told["priority"] = 1
    nisa.dma_transpose(dst=found, src=source, **told)
    return found.reshape((found.shape[0], int(np.prod(found.shape[1:]))))


def len_of(site: Site) -> int:
    """Partitions of the program's tiles."""
    return int(site.program["shape"][0])


def _model_turned(seen: Seen) -> Result:
    step, noise = seen.step, seen.state["noise"][:, :32]
    form, chip = step["form"], seen.step["chip"]
    if form in ("priority", "engine"):
        return seen.wide(), 0
    if form == "columns":
        found = seen.data.astype(np.float32).T
        return (typed(found, "bfloat16") if step["told"] else found), 0
    half = typed(noise.astype(np.float32), "bfloat16")
    if form in ("hardware", "gather"):
        if chip == "trn1" or len(noise) < 16:
            return half, 0
        if form == "hardware":
            return half[:16].T, 0
        rows = len(noise) // 16 * 16
        index = seen.ints(rows, 1, len(noise) + 2)[:, 0]
        found = np.full((rows, 32), -1.0)
        found[index < len(noise)] = half[index[index < len(noise)]]
        return found.T, 0
    parts = {"two": (), "three": (2,), "four": (2, 2)}[form]
    source = noise.astype(np.float64).reshape(len(noise), *parts, 32 // int(np.prod(parts)))
    return source.transpose(_AXES[form]), 0


MOVES = {
    "topk": Rare(_draw_topk, _issue_topk, _model_topk),
    "turned": Rare(_draw_turned, _issue_turned, _model_turned),
}
