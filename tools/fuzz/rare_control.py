"""What a kernel is told of itself, its own loops, registers and scalars."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from tools.fuzz.kernel_programs import Step
from tools.fuzz.rare_site import Array, Draw, Rare, Seen, Site, flat_of

__all__ = ["CONTROL"]

Result = tuple[Array, Any]
_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _draw_told(draw: Draw) -> Step:
    return {
        "ranges": [[int(draw.rng.integers(0, 4)), int(draw.rng.integers(4, 9)), int(draw.rng.integers(1, 4))] for _ in range(4)]
    }


_RANGES = ("affine_range", "sequential_range", "static_range", "range")


def _issue_told(site: Site) -> Any:
    """Which of how many programs it is, where its tensors lie, and how often loops of constants turn."""
    hbm = site.hbm(site.flat())
    bank = site.fresh(4, 4, buffer=nl.psum)
    facts = [nl.program_id(axis=0), nl.num_programs(axes=0), nl.program_ndim(), nl.tile_size.pmax]
    for tensor in (site.data, bank, hbm):
        facts += [int(test(tensor.buffer)) for test in (nl.is_sbuf, nl.is_psum, nl.is_hbm, nl.is_on_chip)]
    facts += [hbm.ndim, hbm.size, *hbm.shape, *hbm.strides, int(hbm.is_contiguous()), int(hbm.is_indirect())]
    facts += [pair[1] for pair in hbm.get_pattern()]
    facts += [nisa.get_nc_version().value, nisa.get_nc_sub_version()]
    for name, (start, stop, by) in zip(_RANGES, site.step["ranges"], strict=True):
        facts.append(sum(getattr(nl, name)(start, stop, by)))
    facts.append(sum(nl.affine_range(5)))
    found = site.fresh(1, len(facts))
    for place, fact in enumerate(facts):
        nisa.memset(dst=found[:, place : place + 1], value=float(fact))
    return found


def _model_told(seen: Seen) -> Result:
    """Without the program's own number, which the model of both cores does not know: it is left open."""
    p, n = seen.p, seen.n
    facts = [0, seen.step["cores"], 1, 128]
    facts += [1, 0, 0, 1, 0, 1, 0, 1, 0, 0, 1, 0]
    facts += [2, p * n, p, n, n, 1, 1, 0, p, n]
    facts += [{"trn1": 2, "trn2": 3, "trn3": 4}[seen.step["chip"]], 0]
    facts += [sum(range(*each)) for each in seen.step["ranges"]] + [10]
    slack = np.zeros((1, len(facts)))
    slack[0, 0] = seen.step["cores"] - 1
    return np.array([facts], np.float64), slack


def _draw_registers(draw: Draw) -> Step:
    whole = [int(draw.rng.integers(-50, 50)) for _ in range(3)]
    return {
        "form": draw.pick("registers", "scalars", "scalars", "place"),
        "whole": whole,
        "divisor": draw.pick(1, 2, 3, 7),
        "symbol": draw.pick("+", "-", "*", "//", "%", "n", "r-", "wide"),
        "at": int(draw.rng.integers(0, 8)),
    }


def _issue_registers(site: Site) -> Any:
    step, found = site.step, site.fresh(1, 2, dtype=nl.int32)
    a, b, c = step["whole"]
    number = site.ints(1, 1, 1000)
    if step["form"] == "registers":
        first, second = nisa.register_alloc(a), nisa.register_alloc(b)
        nisa.register_move(second, c)
        nisa.register_move(first, second)
        nisa.register_store(found[:, 0:1], first)
        nisa.register_load(second, number)
        nisa.register_move(first, second)
        nisa.register_store(found[:, 1:2], first)
        return found
    scalar = nisa.scalar_load(number)
    if step["form"] == "place":
        hbm = site.hbm(flat_of(site.tiles["noise"][:, 0:8]))
        place = nisa.scalar_load(site.ints(1, 1, len(hbm.shape) and int(hbm.shape[0])))
        row = site.fresh(1, 8)
        nisa.dma_copy(dst=row, src=hbm.select(0, place))
        return row
    if step["symbol"] == "wide":
        wide, wider = site.fresh(1, 1, dtype=nl.int64), site.fresh(1, 2, dtype=nl.int64)
        nisa.memset(dst=wide, value=a)
        value = nisa.scalar_load(wide)
        nisa.scalar_store(wider[:, 0:1], value * b + c)
        nisa.scalar_store(wider[:, 1:2], -value - b)
        return flat_of(wider, nl.float32)
    value = _combined(step["symbol"], scalar, a, step["divisor"])
    nisa.scalar_store(found[:, 0:1], value)
    nisa.scalar_store(found[:, 1:2], value + scalar)
    return found


def _combined(symbol: str, scalar: Any, whole: int, divisor: int) -> Any:
    if symbol == "+":
        return scalar + whole
    if symbol == "-":
        return scalar - whole
    if symbol == "r-":
        return whole - scalar
    if symbol == "*":
        return scalar * whole
    if symbol == "//":
        return scalar // divisor
    if symbol == "%":
        return scalar % divisor
    return -scalar


def _model_registers(seen: Seen) -> Result:
    step, noise = seen.step, seen.state["noise"]
    a, b, c = step["whole"]
    number = int(noise[0, 0]) % 1000
    if step["form"] == "registers":
        return np.array([[c, number]]), 0
    if step["form"] == "place":
        return noise[int(noise[0, 0]) % len(noise), :8][None], 0
    if step["symbol"] == "wide":
        return np.array([[a * b + c, -a - b]]), 0
    value = _combined(step["symbol"], number, a, step["divisor"])
    return np.array([[value, value + number]]), 0


CONTROL = {
    "told": Rare(_draw_told, _issue_told, _model_told),
    "registers": Rare(_draw_registers, _issue_registers, _model_registers),
}
