"""Random numbers: the documented generator from a state that is set, and where it is not, what holds of any numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from tools.fuzz.kernel_programs import Step
from tools.fuzz.rare_site import UNIT, Array, Draw, Rare, Seen, Site

__all__ = ["RANDOM"]

Result = tuple[Array, Any]
_MASK = np.uint64(0xFFFFFFFF)
_COLUMNS = 24
"""Columns of numbers that are drawn."""


def _xorwow(words: Array, count: int) -> tuple[Array, Array]:
    """The next `[lanes, count]` of generators that take turns, and their words after it (Marsaglia 2003, xorwow).

    words: `[lanes, 6 * generators]`, each generator's x, y, z, w, v and counter.
    """
    lanes, generators = len(words), words.shape[1] // 6
    state = words.reshape(lanes, generators, 6).astype(np.uint64)
    found = np.zeros((lanes, -(-count // generators) * generators), np.uint64)
    for first in range(0, count, generators):
        x, y, z, w, v, d = (state[:, :, n] for n in range(6))
        t = x ^ x >> np.uint64(2)
        new = (v ^ v << np.uint64(4) ^ t ^ t << np.uint64(1)) & _MASK
        d = d + np.uint64(362437) & _MASK
        found[:, first : first + generators] = new + d & _MASK
        state = np.stack([y, z, w, v, new, d], -1)
    return found[:, :count].astype(np.uint32), state.reshape(lanes, -1).astype(np.uint32)


def _set(site: Site, engine: str) -> int:
    """Sets the state of all lanes from the input; the rows."""
    rows, count = site.program["shape"][0], 24 if engine == "vector" else 6
    words = site.fresh(rows, count, dtype=nl.uint32)
    nisa.tensor_copy(dst=words, src=site.tiles["noise"][0:rows, 0:count])
    nisa.rand_set_state(words, engine=getattr(nisa.engine, engine))
    return rows


def _words(seen: Seen, engine: str) -> Array:
    return seen.state["noise"][:, : 24 if engine == "vector" else 6].astype(np.uint32)


# ---- from a state that is set ---------------------------------------------------------------------------------------


def _draw_drawn(draw: Draw) -> Step | None:
    if draw.program["chip"] == "trn1":
        return None
    engine = draw.pick("gpsimd", "vector") if draw.program["chip"] == "trn3" else "gpsimd"
    return {
        "engine": engine,
        "kind": draw.pick("uint32", "int32", "uint16", "int16", "uint8", "int8"),
        "shown": draw.pick("numbers", "state"),
        "turns": draw.pick(1, 2),
    }


def _issue_drawn(site: Site) -> Any:
    step, rows = site.step, _set(site, site.step["engine"])
    engine = getattr(nisa.engine, step["engine"])
    found = site.fresh(rows, _COLUMNS, dtype=getattr(nl, step["kind"]))
    for _ in range(step["turns"]):
        nisa.rng(dst=found, engine=engine)
    if step["shown"] == "numbers":
        return found
    state = site.fresh(rows, 24 if step["engine"] == "vector" else 6, dtype=nl.uint32)
    nisa.rand_get_state(dst=state, engine=engine)
    return state


def _model_drawn(seen: Seen) -> Result:
    words, found = _words(seen, seen.step["engine"]), np.zeros(0)
    for _ in range(seen.step["turns"]):
        found, words = _xorwow(words, _COLUMNS)
    if seen.step["shown"] == "state":
        return words, 0
    kind = np.dtype(seen.step["kind"])
    return (found & (2 ** (8 * kind.itemsize) - 1)).astype(f"u{kind.itemsize}").view(kind), 0


def _draw_between(draw: Draw) -> Step | None:
    if draw.program["chip"] != "trn3":
        return None
    ends = draw.pick((0.0, 1.0), (-3.5, 2.0), (1.0, 1.5), "columns")
    return {
        "ends": ends,
        "kind": draw.pick("float32", "bfloat16", "int16"),
        "form": draw.pick("between", "dropout", "language"),
        "chance": draw.pick(0.0, 0.25, 0.5, 1.0),
    }


def _issue_between(site: Site) -> Any:
    step, rows = site.step, _set(site, "vector")
    kind = getattr(nl, step["kind"])
    if step["form"] != "between":
        data = site.ints(rows, _COLUMNS, 9, kind, least=1)
        if step["form"] == "language":
            return nl.dropout(data, step["chance"], dtype=kind)
        found = site.fresh(rows, _COLUMNS, dtype=kind)
        nisa.dropout(dst=found, data=data, prob=step["chance"])
        return found
    low, high = step["ends"] if step["ends"] != "columns" else (0.0, 0.0)
    if step["ends"] == "columns":
        low, high = site.fresh(rows, 1), site.fresh(rows, 1)
        nisa.tensor_copy(dst=low, src=site.ints(rows, 1, 5))
        nisa.tensor_scalar(dst=high, data=low, op0=nl.add, operand0=3.0)
    found = site.fresh(rows, _COLUMNS, dtype=kind)
    nisa.rand2(found, low, high)
    return found


def _model_between(seen: Seen) -> Result:
    step, unit = seen.step, _xorwow(_words(seen, "vector"), _COLUMNS)[0] * 2.0**-32
    rows = len(unit)
    if step["form"] != "between":
        return np.where(unit < step["chance"], 0, seen.ints(rows, _COLUMNS, 9, least=1)), 0
    if step["ends"] == "columns":
        low: Any = seen.ints(rows, 1, 5).astype(np.float64)
        high: Any = low + 3
    else:
        low, high = step["ends"]
    return low + unit * (high - low), 4 * UNIT


# ---- whatever the numbers are ---------------------------------------------------------------------------------------


def _draw_seeded(draw: Draw) -> Step:
    seeds = [int(draw.rng.integers(2**31)) for _ in range(2)]
    return {"seeds": draw.pick(seeds, [seeds[0]] * 2), "language": draw.flag()}


def _issue_seeded(site: Site) -> Any:
    """How many of as many numbers from two seeds differ, and how many of numbers that follow each other from one seed."""
    rows, drawn = site.program["shape"][0], []
    for seed in site.step["seeds"]:
        tile = site.fresh(1, 1, dtype=nl.int32)
        nisa.memset(dst=tile, value=seed)
        if site.step["language"]:
            nl.random_seed(tile)
        else:
            nisa.set_rng_seed(tile)
        for _ in range(2):
            drawn.append(site.fresh(rows, _COLUMNS, dtype=nl.uint16))
            nisa.rng(dst=drawn[-1])
    found, apart = site.fresh(rows, 3), site.fresh(rows, _COLUMNS)
    for number, (one, two) in enumerate(((0, 2), (1, 3), (0, 1))):
        nisa.tensor_tensor(dst=apart, data1=drawn[one], data2=drawn[two], op=nl.not_equal)
        nisa.tensor_reduce(dst=found[:, number : number + 1], op=nl.add, data=apart, axis=1)
    return found


def _model_seeded(seen: Seen) -> Result:
    rows = len(seen.state["noise"])
    apart = 0.0 if seen.step["seeds"][0] == seen.step["seeds"][1] else _COLUMNS - 1.5
    found = np.broadcast_to([apart, apart, _COLUMNS - 1.5], (rows, 3)).copy()
    # At most 3 of 24 equal numbers of 16 bits: 2024 / 2**48 of all rows have more.
    return found, np.where(found == 0, 0.0, 1.5)


def _draw_spread(draw: Draw) -> Step:
    return {
        "memory": draw.pick("sbuf", "private_hbm"),
        "form": draw.pick("mean", "square", "dropped"),
        "chance": draw.pick(0.0, 0.1, 0.5, 1.0),
    }


_DRAWN = 400
"""Numbers of each partition whose mean is looked at."""


def _issue_spread(site: Site) -> Any:
    """Of numbers between 0 and 1: mean and mean square; of a dropout of ones: how many are left; and their ends."""
    rows = site.program["shape"][0]
    found, inside = site.fresh(rows, 3), site.fresh(rows, _DRAWN)
    if site.step["form"] == "dropped":
        ones = nl.ones((rows, _DRAWN), nl.float32)
        nisa.dropout(dst=inside, data=ones, prob=site.step["chance"])
    else:
        made = nl.rand((rows, _DRAWN), nl.float32, buffer=getattr(nl, site.step["memory"]))
        nisa.dma_copy(dst=inside, src=made)
    nisa.tensor_reduce(dst=found[:, 0:1], op=nl.minimum, data=inside, axis=1)
    nisa.tensor_reduce(dst=found[:, 1:2], op=nl.maximum, data=inside, axis=1)
    if site.step["form"] == "square":
        nisa.activation(dst=inside, op=nl.square, data=inside)
    nisa.tensor_reduce(dst=found[:, 2:3], op=nl.add, data=inside, axis=1)
    return found


def _model_spread(seen: Seen) -> Result:
    """Sums of 400 lie within 7 standard deviations of what is expected, for all but 1 of 4e11."""
    step, rows = seen.step, len(seen.state["noise"])
    if step["form"] == "dropped":
        kept = 1 - step["chance"]
        spread = 7 * (_DRAWN * kept * step["chance"]) ** 0.5
        least, most = (0.0 if step["chance"] else 1.0), (1.0 if kept else 0.0)
        values, slack = [least, most, kept * _DRAWN], [0.0, 0.0, spread + 1e-3]
    else:
        mean, variance = (1 / 2, 1 / 12) if step["form"] == "mean" else (1 / 3, 4 / 45)
        values, slack = [0.25, 0.75, mean * _DRAWN], [0.25, 0.25, 7 * (_DRAWN * variance) ** 0.5]
    return np.broadcast_to(values, (rows, 3)).copy(), np.broadcast_to(slack, (rows, 3)).copy()


RANDOM = {
    "drawn": Rare(_draw_drawn, _issue_drawn, _model_drawn),
    "between": Rare(_draw_between, _issue_between, _model_between),
    "seeded": Rare(_draw_seeded, _issue_seeded, _model_seeded),
    "spread": Rare(_draw_spread, _issue_spread, _model_spread),
}
