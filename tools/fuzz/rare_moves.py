"""Moves that other searches leave out: gathers and scatters that add or skip, transposes of more axes, views of other types
and of names, topk, and the grids of NKI 0.7.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from tools.fuzz.kernel_programs import Step
from tools.fuzz.rare_site import Array, Draw, Rare, Seen, Site, flat_of, typed

__all__ = ["MOVES"]

Result = tuple[Array, Any]


# ---- by run-time indices --------------------------------------------------------------------------------------------


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


# ---- the largest of a list ------------------------------------------------------------------------------------------


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


# ---- transposes and arguments of copies -----------------------------------------------------------------------------


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


# ---- views ----------------------------------------------------------------------------------------------------------


def _draw_named(draw: Draw) -> Step:
    return {
        "form": draw.pick("rearrange", "merge", "bytes", "words", "pattern", "moved"),
        "tile": draw.pick("t0", "t1", "t2", "t3"),
        "cast": draw.flag(),
        "at": int(draw.rng.integers(0, 8)),
    }


def _issue_named(site: Site) -> Any:
    """Axes by their names, and the bytes of numbers."""
    step, tile = site.step, site.tiles[site.step["tile"]]
    p = tile.shape[0]
    if step["form"] == "rearrange":
        view = tile.rearrange(("p", "a", "b"), ("p", "b", "a"))
    elif step["form"] == "merge":
        data = flat_of(site.tiles["noise"][:, 0:24])
        view = data.rearrange(("p", ("a", "b", "c")), ("p", "c", ("a", "b")), {"a": 2, "b": 3})
        if not step["cast"]:
            view = data.rearrange(("p", ("a", "b")), ("p", "b", "a"), fixed_sizes={"b": 4})
    elif step["form"] == "bytes":
        data = flat_of(site.tiles["noise"][:, 0:8])
        view = data.reinterpret_cast(nl.uint16) if step["cast"] else data.view(nl.uint8)
    elif step["form"] == "words":
        data = flat_of(site.tiles["noise"][:, 0:8], nl.uint16)
        view = data.view(nl.int32) if step["cast"] else data.view(nl.bfloat16)
        if not step["cast"]:
            view = view.view(nl.int16)
    elif step["form"] == "pattern":
        data = flat_of(site.tiles["noise"][:, 0:8])
        view = data.ap(pattern=[[16, p], [2, 8]], offset=int(step["cast"]), dtype=nl.uint16)
    else:
        hbm, register = site.hbm(flat_of(site.tiles["noise"][:, 0:8])), nisa.register_alloc()
        nisa.register_load(register, site.ints(1, 1, 8))
        view = hbm.ap(pattern=[[8, p], [1, 1]], offset=0, scalar_offset=register, indirect_dim=1)
        found = site.fresh(p, 1)
        nisa.dma_copy(dst=found, src=view)
        return found
    found = site.fresh(*view.shape, dtype=view.dtype)
    nisa.tensor_copy(dst=found, src=view)
    return found.reshape((p, int(np.prod(found.shape[1:]))))


def _model_named(seen: Seen) -> Result:
    step, noise = seen.step, seen.state["noise"]
    p = len(noise)
    if step["form"] == "rearrange":
        return seen.state[step["tile"]].transpose(0, 2, 1), 0
    if step["form"] == "merge":
        if step["cast"]:
            return noise[:, :24].reshape(p, 2, 3, 4).transpose(0, 3, 1, 2), 0
        return noise[:, :24].reshape(p, 6, 4).transpose(0, 2, 1), 0
    if step["form"] == "bytes":
        return np.ascontiguousarray(noise[:, :8].astype(np.float32)).view(np.uint16 if step["cast"] else np.uint8), 0
    if step["form"] == "words":
        return np.ascontiguousarray(noise[:, :8].astype(np.uint16)).view(np.int32 if step["cast"] else np.int16), 0
    if step["form"] == "pattern":
        halves = np.ascontiguousarray(noise[:, :8].astype(np.float32)).view(np.uint16)
        return halves[:, int(step["cast"]) :: 2], 0
    return noise[:, seen.ints(1, 1, 8)[0, 0], None], 0


# ---- grids ----------------------------------------------------------------------------------------------------------


def _draw_grid(draw: Draw) -> Step:
    return {
        "form": draw.pick("tiles", "blocks", "slices", "made", "like", "block tiles", "made blocks", "facts"),
        "hbm": draw.flag(),
        "tile": (draw.pick(1, 2, 5, 32), draw.pick(3, 4, 16)),
        "at": (int(draw.rng.integers(0, 4)), int(draw.rng.integers(0, 4))),
        "more": draw.pick(1, 2),
    }


_WIDTH = 30


def _place(step: Step, p: int) -> tuple[int, int, int, int]:
    """First row and column of a tile of a `[p, 30]` grid, and its sizes; whole columns of tiles on chip."""
    rows, columns = (p, step["tile"][1]) if not step["hbm"] else (min(step["tile"][0], p), step["tile"][1])
    i, j = step["at"][0] % -(-p // rows), step["at"][1] % -(-_WIDTH // columns)
    return i, j, rows, columns


def _issue_grid(site: Site) -> Any:
    """Tiles and blocks of tiles of 30 columns of whole numbers; the last of a row or column may be smaller."""
    step, p = site.step, len_of(site)
    i, j, rows, columns = _place(step, p)
    data = flat_of(site.tiles["noise"][:, 0:_WIDTH])
    if step["form"] == "facts":
        return _facts(site, nl.blocks(site.hbm(data), tile_shape=(rows, columns), block_shape=(1, step["more"])))
    source, form, more = (site.hbm(data) if step["hbm"] else data), step["form"], step["more"]
    if form == "tiles":
        part = nl.tiles(source, tile_shape=(rows, columns))[i, j].data
    elif form == "slices":
        part = nl.tiles(source, tile_shape=(rows, columns))[i, j:].data
    elif form in ("blocks", "block tiles"):
        grid = nl.blocks(source, tile_shape=(rows, columns), block_shape=(1, more))
        part = grid[i, j // more] if form == "blocks" else nl.tiles(grid[i, j // more])[0, 0]
        part = part.data
    else:
        memory = nl.private_hbm if step["hbm"] else nl.sbuf
        given = {"tile_shape": (rows, columns), "element_shape": (p, _WIDTH), "buffer": memory, "dtype": nl.float32}
        if not step["hbm"]:
            given["address"] = (0, 16384)
        if form == "made":
            grid = nl.alloc_tiles(**given)
        elif form == "made blocks":
            grid = nl.tiles(nl.alloc_blocks(**given, block_shape=(1, more)))
        else:
            like = {"buffer": nl.private_hbm} if step["hbm"] else {"buffer": nl.sbuf, "address": (0, 16384)}
            grid = nl.empty_like(nl.tiles(source, tile_shape=(rows, columns)), dtype=nl.float32, **like)
        other = nl.tiles(source, tile_shape=(rows, columns))
        for row in range(grid.shape[0]):
            for column in range(grid.shape[1]):
                nisa.dma_copy(dst=grid[row, column].data, src=other[row, column].data)
        part = grid[i, j].data
    found = site.fresh(*part.shape)
    nisa.dma_copy(dst=found, src=part)
    return found


def _facts(site: Site, grid: Any) -> Any:
    """What a grid says of itself."""
    tiled = nl.tiles(grid)
    facts = [*grid.shape, *grid.tile_shape, *grid.block_shape, *grid.element_shape, *grid.index_step_elements]
    facts += [int(grid.is_remainder), int(tiled.is_remainder), int(grid.is_data_representable), *tiled.shape]
    facts += [int(grid.dtype == nl.float32), int(grid.buffer == nl.private_hbm)]
    found = site.fresh(1, len(facts))
    for place, fact in enumerate(facts):
        nisa.memset(dst=found[:, place : place + 1], value=float(fact))
    return found


def _facts_meant(step: Step, p: int, rows: int, columns: int) -> Array:
    more = step["more"]
    across, down = -(-_WIDTH // columns), -(-p // rows)
    facts = [down, -(-across // more), rows, columns, 1, more, p, _WIDTH, rows, columns * more]
    # A block is smaller where its tiles are, or where it has fewer of them.
    facts += [int(p % rows > 0 or _WIDTH % (columns * more) > 0), int(p % rows > 0 or _WIDTH % columns > 0), 1, down, across]
    return np.array([[*facts, 1, 1]], np.float64)


def _model_grid(seen: Seen) -> Result:
    step, noise = seen.step, seen.state["noise"][:, :_WIDTH]
    i, j, rows, columns = _place(step, len(noise))
    if step["form"] == "facts":
        return _facts_meant(step, len(noise), rows, columns), 0
    width = columns
    if step["form"] == "blocks":
        j, width = j // step["more"], columns * step["more"]
    elif step["form"] == "block tiles":
        j = j // step["more"] * step["more"]
    end = _WIDTH if step["form"] == "slices" else (j + 1) * width
    return noise[i * rows : (i + 1) * rows, j * width : end], 0


MOVES = {
    "indexed": Rare(_draw_indexed, _issue_indexed, _model_indexed),
    "columns": Rare(_draw_columns, _issue_columns, _model_columns),
    "listed": Rare(_draw_listed, _issue_listed, _model_listed),
    "topk": Rare(_draw_topk, _issue_topk, _model_topk),
    "turned": Rare(_draw_turned, _issue_turned, _model_turned),
    "named": Rare(_draw_named, _issue_named, _model_named),
    "grid": Rare(_draw_grid, _issue_grid, _model_grid),
}
