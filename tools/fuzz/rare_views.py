"""Views of other types and of names, and the grids of NKI 0.7."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from tools.fuzz.kernel_programs import Step
from tools.fuzz.rare_moves import len_of
from tools.fuzz.rare_site import Array, Draw, Rare, Seen, Site, flat_of

__all__ = ["VIEWS"]

Result = tuple[Array, Any]


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


VIEWS = {
    "named": Rare(_draw_named, _issue_named, _model_named),
    "grid": Rare(_draw_grid, _issue_grid, _model_grid),
}
