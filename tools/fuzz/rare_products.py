"""The Tensor engine's rarer products: 0/1 operands, transposes by a permutation, parts of the array and of a bank."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from tools.fuzz.kernel_programs import Step
from tools.fuzz.rare_site import UNIT, Array, Draw, Rare, Seen, Site, flat_of, typed

__all__ = ["PRODUCTS", "WIDTH", "bank_of", "copied_out", "product"]

Result = tuple[Array, Any]
WIDTH = 8
"""Columns of the operand of random whole numbers."""


def product(one: Array, two: Array) -> Result:
    """`one.T @ two` in float64, and how far a float32 sum may be off."""
    size = np.abs(one).T @ np.abs(two)
    return one.T @ two, np.where(size < 1e36, UNIT * (len(one) + 2) * size + 2.0**-126, np.inf)  # partial sums may overflow


def copied_out(site: Site, bank: Any) -> Any:
    """A copy in SBUF of what a bank holds."""
    found = site.fresh(*bank.shape, dtype=bank.dtype)
    nisa.tensor_copy(dst=found, src=bank)
    return found


def bank_of(site: Site, rows: int, columns: int, dtype: Any = nl.float32) -> Any:
    """A tile in PSUM."""
    return site.fresh(rows, columns, dtype=dtype, buffer=nl.psum)


def _draw_bits(draw: Draw) -> Step:
    return {"stationary": draw.flag(), "kind": draw.pick("bfloat16", "float16"), "half": draw.flag()}


def _issue_bits(site: Site) -> Any:
    kind = getattr(nl, site.step["kind"])
    bits, data = flat_of(site.ints(site.p, WIDTH, 2), kind), site.flat(dtype=kind)
    half = nl.bfloat16 if site.step["half"] and site.program["chip"] == "trn3" else nl.float32
    pair = (bits, data) if site.step["stationary"] else (data, bits)
    bank = bank_of(site, pair[0].shape[1], pair[1].shape[1], half)
    told = {"is_stationary_onezero" if site.step["stationary"] else "is_moving_onezero": True}
    nisa.nc_matmul(dst=bank, stationary=pair[0], moving=pair[1], perf_mode=nisa.matmul_perf_mode.none, **told)
    return copied_out(site, bank)


def _model_bits(seen: Seen) -> Result:
    bits, data = seen.ints(seen.p, WIDTH, 2).astype(np.float64), seen.wide(dtype=seen.step["kind"])
    return product(bits, data) if seen.step["stationary"] else product(data, bits)


def _draw_moved(draw: Draw) -> Step:
    return {"kind": draw.pick("bfloat16", "float16", "float32"), "by": int(draw.rng.integers(0, 32))}


def _issue_moved(site: Site) -> Any:
    """The transpose of the data, its partitions turned by some places."""
    kind, p = getattr(nl, site.step["kind"]), site.p
    place, matrix = site.fresh(p, p), site.fresh(p, p, dtype=kind)
    nisa.iota(dst=place, pattern=[[1, p]], offset=site.step["by"] % p, channel_multiplier=-1)
    nisa.tensor_scalar(dst=place, data=place, op0=nl.add, operand0=float(p), op1=nl.mod, operand1=float(p))
    nisa.tensor_scalar(dst=matrix, data=place, op0=nl.equal, operand0=0.0)
    bank = bank_of(site, site.n, p, kind)
    nisa.nc_matmul(dst=bank, stationary=site.flat(dtype=kind), moving=matrix, is_transpose=True)
    return copied_out(site, bank)


def _model_moved(seen: Seen) -> Result:
    # column m has its one in row k where m + by - k is a multiple of p
    rows = (np.arange(seen.p) + seen.step["by"] % seen.p) % seen.p
    return typed(seen.data, seen.step["kind"])[rows].T, 0


def _draw_tiled(draw: Draw) -> Step:
    size = draw.pick((32, 32), (64, 64), (32, 64), (128, 32), (64, 128))
    return {
        "size": size,
        "place": (int(draw.rng.integers(4)), int(draw.rng.integers(4))),
        "kind": draw.pick("bfloat16", "float32", "tfloat32"),
    }


def _issue_tiled(site: Site) -> Any:
    kind, (rows, columns) = getattr(nl, site.step["kind"]), site.step["size"]
    row, column = (place % (128 // size) * size for place, size in zip(site.step["place"], site.step["size"], strict=True))
    data, count = site.flat(dtype=kind), min(site.p, rows)
    row, count = (0, min(count, 128)) if row + count > 128 else (row, count)
    # Operands lie on the partitions of the part's rows, and results on those of its columns.
    room, other = site.fresh(128, site.n, dtype=kind), site.fresh(128, WIDTH, dtype=kind)
    nisa.dma_copy(dst=room[row : row + count], src=data[0:count])
    numbers = flat_of(site.ints(site.p, WIDTH, 9, least=-4), kind)
    nisa.dma_copy(dst=other[row : row + count], src=numbers[0:count])
    width = min(site.n, columns)
    bank = bank_of(site, 128, WIDTH)
    part = bank[column : column + width]
    nisa.nc_matmul(
        dst=part,
        stationary=room[row : row + count, 0:width],
        moving=other[row : row + count],
        tile_position=(row, column),
        tile_size=(rows, columns),
    )
    return copied_out(site, part)


def _model_tiled(seen: Seen) -> Result:
    rows, columns = seen.step["size"]
    count, width = min(seen.p, rows), min(seen.n, columns)
    numbers = seen.ints(seen.p, WIDTH, 9, least=-4).astype(np.float64)
    return product(seen.wide(dtype=seen.step["kind"])[:count, :width], numbers[:count])


def _draw_partly(draw: Draw) -> Step:
    return {"first": int(draw.rng.integers(1, WIDTH + 1)), "then": draw.pick(None, None, True, False)}


def _issue_partly(site: Site) -> Any:
    """A product into some columns of a bank, and then one into all of them."""
    data, numbers = site.flat(), flat_of(site.ints(site.p, WIDTH, 9, least=-4))
    bank, first = bank_of(site, site.n, WIDTH), site.step["first"]
    if site.step["then"] is True:  # all that is added to must have been written
        first = WIDTH
    nisa.nc_matmul(dst=bank[:, 0:first], stationary=data, moving=numbers[:, 0:first])
    nisa.nc_matmul(dst=bank, stationary=data, moving=numbers, accumulate=site.step["then"])
    return copied_out(site, bank)


def _model_partly(seen: Seen) -> Result:
    found, slack = product(seen.wide(), seen.ints(seen.p, WIDTH, 9, least=-4).astype(np.float64))
    first = WIDTH if seen.step["then"] is True else seen.step["first"]
    times = np.where((np.arange(WIDTH) < first) & (seen.step["then"] is not False), 2.0, 1.0)
    return times * found, 4 * slack


PRODUCTS = {
    "bits": Rare(_draw_bits, _issue_bits, _model_bits),
    "moved": Rare(_draw_moved, _issue_moved, _model_moved),
    "tiled": Rare(_draw_tiled, _issue_tiled, _model_tiled),
    "partly": Rare(_draw_partly, _issue_partly, _model_partly),
}
