"""Rows and elements by run-time indices: gathers and scatters that add or skip."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from tools.fuzz.kernel_programs import Step
from tools.fuzz.rare_site import Array, Draw, Rare, Seen, Site, flat_of, typed

__all__ = ["INDEXED"]

Result = tuple[Array, Any]


def _draw_indexed(draw: Draw) -> Step:
    count = int(draw.rng.integers(1, draw.program["shape"][0] + 1))
    return {
        "form": draw.pick("gather", "scatter", "skip", "skip scatter", "add", "gather add", "skip add", "skip gather add"),
        "count": count,
        "mode": draw.pick(None, "unknown", "swdge"),
        "other": draw.reading(),
    }


_READ = ("gather", "skip", "gather add", "skip gather add")
"""Forms that read by indices; the others write."""


def _rows_of(site: Site) -> Any:
    """A permutation of the first rows, some of them beyond the last where it skips: `(row * 7 + noise) % ...` has no twins."""
    p, count = site.p, site.step["count"]
    index = site.fresh(count, 1, dtype=nl.int32)
    if site.step["form"] in _READ:
        below = p + 3 if site.step["form"].startswith("skip") else p
        nisa.tensor_scalar(dst=index, data=site.tiles["noise"][0:count, 0:1], op0=nl.mod, operand0=float(below))
        return index
    last = p - 1 + (2 if site.step["form"].startswith("skip") else 0)
    nisa.iota(dst=index, pattern=[[0, 1]], offset=last, channel_multiplier=-1)
    return index


def _chosen(seen: Seen) -> Array:
    p, count = seen.p, min(seen.step["count"], seen.p)
    if seen.step["form"] in _READ:
        return seen.ints(count, 1, p + 3 if seen.step["form"].startswith("skip") else p)[:, 0]
    return p - 1 + (2 if seen.step["form"].startswith("skip") else 0) - np.arange(count)


def _issue_indexed(site: Site) -> Any:
    """Rows of a copy in HBM, read, written or added to, by indices; some forms leave out what lies beyond the last row."""
    site.step = step = {**site.step, "count": min(site.step["count"], site.p)}
    form, count = step["form"], step["count"]
    index, hbm = _rows_of(site), site.hbm(site.flat())
    chosen = hbm.vector_select(0, index)
    skip = {"oob_mode": nisa.oob_mode.skip} if form.startswith("skip") else {}
    mode = {} if step["mode"] is None else {"dge_mode": getattr(nisa.dge_mode, step["mode"])}
    if form in ("gather", "skip"):
        found = site.fresh(count, site.n)
        nisa.memset(dst=found, value=-5.0)
        nisa.dma_copy(dst=found, src=chosen, **(skip or {"oob_mode": nisa.oob_mode.error}), **mode)
        return found
    if form.endswith("gather add"):
        found = site.fresh(count, site.n)
        nisa.memset(dst=found, value=-5.0)
        nisa.dma_compute(dst=found, srcs=[chosen, site.flat("other")[0:count]], reduce_op=nl.add, **skip)
        return found
    if form in ("scatter", "skip scatter"):
        nisa.dma_copy(dst=chosen, src=site.flat("other")[0:count], **skip, **mode)
    else:
        nisa.dma_compute(
            dst=chosen,
            srcs=[site.flat("other")[0:count], hbm.vector_select(0, index)],
            reduce_op=nl.add,
            unique_indices=True,
            scales=[1.0, 1.0],
            **skip,
        )
    found = site.fresh(site.p, site.n)
    nisa.dma_copy(dst=found, src=hbm)
    return found


def _model_indexed(seen: Seen) -> Result:
    form, rows, data = seen.step["form"], _chosen(seen), seen.wide()
    inside = rows < seen.p
    if form in ("gather", "skip"):
        found = np.full((len(rows), seen.n), -5.0)
        found[inside] = data[rows[inside]]
        return found, 0
    other = seen.wide("other")[: len(rows)].astype(np.float32)
    if form.endswith("gather add"):
        sums = np.full((len(rows), seen.n), -5.0, np.float32)
        sums[inside] = data.astype(np.float32)[rows[inside]] + other[inside]
        return sums, 0
    found = data.astype(np.float32)
    if form in ("scatter", "skip scatter"):
        found[rows[inside]] = other[inside]
    else:
        found[rows[inside]] += other[inside]
    return found, 0


def _draw_columns(draw: Draw) -> Step | None:
    if draw.program["chip"] != "trn3":
        return None
    return {"count": draw.pick(32, 16, int(draw.rng.integers(1, 33))), "scatter": draw.flag()}


def _issue_columns(site: Site) -> Any:
    """Columns by one list for each 16 partitions (NeuronCore-v4)."""
    data = site.flat()
    index = site.ints(site.p, 2, site.n, nl.uint16)
    count = site.step["count"] if site.p % 16 == 0 else min(site.step["count"], site.p % 16)
    if site.step["scatter"]:  # places without twins
        return _scattered(site, data, min(count, site.n, 16))
    chosen = data.indirect(index) if count == 32 and site.p == 16 else data.indirect(index, num_elem=count)
    found = site.fresh(site.p, count)
    nisa.tensor_copy(dst=found, src=chosen)
    return found


def _scattered(site: Site, data: Any, count: int) -> Any:
    index, target = site.fresh(site.p, 1, dtype=nl.uint16), site.fresh(site.p, site.n)
    place = site.fresh(site.p, 1)
    nisa.iota(dst=place, pattern=[[0, 1]], offset=0, channel_multiplier=1)
    nisa.tensor_scalar(dst=index, data=place, op0=nl.mod, operand0=16.0)
    nisa.memset(dst=target, value=-5.0)
    nisa.tensor_scalar(dst=target.indirect(index, num_elem=count), data=data[:, 0:count], op0=nl.multiply, operand0=2.0)
    return target


def _model_columns(seen: Seen) -> Result:
    data, index = seen.wide(), seen.ints(seen.p, 2, seen.n)
    count = seen.step["count"] if seen.p % 16 == 0 else min(seen.step["count"], seen.p % 16)
    if seen.step["scatter"]:
        found, count = np.full((seen.p, seen.n), -5.0), min(count, seen.n, 16)
        found[:, :count] = 2 * data[:, :count].astype(np.float32)
        return found, 0
    found = np.zeros((seen.p, count))
    for row in range(seen.p):
        for place in range(count):
            found[row, place] = data[row, index[row // 16 * 16 + place % 16, place // 16]]
    return found, 0


def _draw_listed(draw: Draw) -> Step | None:
    if draw.program["shape"][0] % 16:
        return None
    return {
        "count": int(draw.rng.integers(1, 3)),
        "valid": int(draw.rng.integers(1, 17)),
        "axis": draw.pick(0, -2, None),
        "kind": draw.pick(None, "bfloat16", "int16"),
        "form": draw.pick("local", "flattened"),
    }


def _issue_listed(site: Site) -> Any:
    step, rows, width = site.step, site.program["shape"][0], 32
    data = flat_of(site.tiles["noise"][0:rows, 0:width])
    if step["form"] == "flattened":
        more = {} if step["axis"] is None else {"axis": step["axis"]}
        more |= {} if step["kind"] is None else {"dtype": getattr(nl, step["kind"])}
        return nl.gather_flattened(data, site.ints(rows, 8, width, nl.uint32 if step["count"] == 1 else nl.int32), **more)
    valid = 16 * step["count"] - step["valid"] + 1
    found = site.fresh(rows, valid)
    nisa.local_gather(
        dst=found, src_buffer=data, index=site.ints(rows, step["count"], width, nl.uint16), num_valid_indices=valid
    )
    return found


def _model_listed(seen: Seen) -> Result:
    step, data = seen.step, seen.state["noise"][:, :32].astype(np.float32)
    if step["form"] == "flattened":
        found = np.take_along_axis(data, seen.ints(len(data), 8, 32), 1)
        return (found if step["kind"] is None else typed(found, step["kind"])), 0
    valid, index = 16 * step["count"] - step["valid"] + 1, seen.ints(len(data), step["count"], 32)
    found = np.zeros((len(data), valid))
    for row in range(len(data)):
        for place in range(valid):
            found[row, place] = data[row, index[row // 16 * 16 + place % 16, place // 16]]
    return found, 0


INDEXED = {
    "indexed": Rare(_draw_indexed, _issue_indexed, _model_indexed),
    "columns": Rare(_draw_columns, _issue_columns, _model_columns),
    "listed": Rare(_draw_listed, _issue_listed, _model_listed),
}
