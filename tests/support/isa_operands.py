"""Random operands for one instruction, and the kernel that runs it on them: fresh, and replayed on other values.

A check draws operands with `operand(...)` and calls `run(...)`, which compares every output view with the check's own
reference, and every byte outside of the view with what was there before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from nki_hf.sim.dtypes import as_dtype

CHECKS: dict[str, Callable] = {}
FLOATS = ("float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2")
SMALL_INTS = ("int8", "uint8", "int16", "uint16")
INTS = (*SMALL_INTS, "int32", "uint32")
DEFAULT_CASES, MANY_CASES = 20, 200
_EPSILON = {"float32": 2**-24, "bfloat16": 2**-8, "float16": 2**-11, "float8_e4m3": 2**-4, "float8_e5m2": 2**-3}


def check(name: str) -> Callable:
    """Register a function of Hypothesis data as the check of an isa name."""

    def add(function: Callable) -> Callable:
        CHECKS[name] = function
        return function

    return add


def run_cases(name: str, cases: int) -> None:
    """Run a check on `cases` drawn examples, the same ones every time."""
    drawn = settings(
        max_examples=cases,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )(given(st.data())(lambda data: CHECKS[name](data)))
    drawn()


@dataclass
class Operand:
    """One operand: an allocation, its contents, and the view that the instruction gets.

    Attributes:
      shape: of the allocation.
      dtype: element type's name.
      pattern, offset: the view, as `[stride, count]` pairs over the flattened allocation.
      fill: function from a generator and a size to float64 or integer values.
      space: sbuf, psum or hbm.
    """

    shape: tuple[int, ...]
    dtype: str
    pattern: list[list[int]]
    offset: int
    fill: Callable
    space: str = "sbuf"
    base: np.ndarray = field(init=False)

    def draw(self, rng: np.random.Generator) -> None:
        values = np.asarray(self.fill(rng, math.prod(self.shape)))
        self.base = values.astype(as_dtype(self.dtype).dtype).reshape(self.shape)

    def pick(self, base: np.ndarray) -> np.ndarray:
        """The view, of a contiguous array shaped as the allocation."""
        strides = [stride * base.itemsize for stride, _ in self.pattern]
        counts = [count for _, count in self.pattern]
        return np.ndarray(counts, base.dtype, buffer=base, offset=self.offset * base.itemsize, strides=strides)

    def view(self, tensor):
        return tensor.ap(pattern=self.pattern, offset=self.offset)

    @property
    def values(self) -> np.ndarray:
        """The view's contents as float64 `[partitions, free]` (integers stay integers)."""
        picked = np.ascontiguousarray(self.pick(self.base)).reshape(self.pattern[0][1], -1)
        return picked if picked.dtype.kind in "iub" else picked.astype(np.float64)

    @property
    def raw(self) -> np.ndarray:
        """The view's contents in its own type, `[partitions, free]`."""
        return np.ascontiguousarray(self.pick(self.base)).reshape(self.pattern[0][1], -1)


def normal(scale: float = 1.0) -> Callable:
    return lambda rng, size: rng.standard_normal(size) * scale


def uniform(low: float, high: float) -> Callable:
    return lambda rng, size: rng.uniform(low, high, size)


def integers(low: int, high: int) -> Callable:
    return lambda rng, size: rng.integers(low, high, size, endpoint=True)


def fill_for(dtype: str, scale: float = 1.0) -> Callable:
    """Values that the type holds: normal floats, or integers over a range that float32 holds too."""
    if dtype in INTS:
        info = np.iinfo(as_dtype(dtype).dtype)
        return integers(max(info.min, -1000), min(info.max, 1000))
    return normal(scale)


def draw_partitions(data) -> tuple[int, int]:
    """A partition start and a number of partitions that the engines can address."""
    start = data.draw(st.sampled_from([0, 0, 32, 64, 96]))
    return start, data.draw(st.integers(1, {0: 128, 32: 32, 64: 64, 96: 32}[start]))


def draw_free(data, limit: int = 24, ranks: int = 3) -> tuple[int, ...]:
    """Sizes of up to three free axes."""
    rank = data.draw(st.integers(1, ranks))
    top = {1: limit, 2: max(2, math.isqrt(limit)), 3: 4}[rank]
    return tuple(data.draw(st.integers(1, top)) for _ in range(rank))


def operand(data, partitions, free, dtype="float32", *, fill=None, reads=True, space="sbuf", plain=False) -> Operand:
    """An operand `[partitions, *free]`: strided, offset, permuted, and broadcast if it is only read.

    PSUM is written in whole words of 4 bytes: an operand of smaller elements that is written and is not made of words lies in
    SBUF instead.
    """
    in_word = 4 // min(4, as_dtype(dtype).itemsize) if space == "psum" else 1
    if not reads and free[-1] % in_word:
        space, in_word = "sbuf", 1
    start, rows = partitions if isinstance(partitions, tuple) else (0, partitions)
    free = tuple(free)
    steps = [1 if plain else data.draw(st.sampled_from([1, 1, 2, 3])) for _ in free]
    before = [0 if plain else data.draw(st.integers(0, 2)) for _ in free]
    order = list(range(len(free))) if plain else data.draw(st.permutations(range(len(free))))
    if in_word > 1:  # runs of whole words along the last axis, the innermost one
        order.append(order.pop(order.index(len(free) - 1)))
        steps[-1], before[-1] = 1, in_word * before[-1]
    sizes = [first + count * step + (0 if plain else 1) for first, count, step in zip(before, free, steps, strict=True)]
    sizes[-1] += -sizes[-1] % in_word
    strides, unit = [0] * len(free), 1
    for axis in reversed(order):
        strides[axis], unit = unit, unit * sizes[axis]
    offset = start * unit + sum(first * stride for first, stride in zip(before, strides, strict=True))
    pattern = [[unit, rows]] + [[stride * step, count] for stride, step, count in zip(strides, steps, free, strict=True)]
    if reads and not plain and data.draw(st.integers(0, 5)) == 0:
        pattern[data.draw(st.integers(1, len(free)))][0] = 0
    return Operand((start + rows, unit), dtype, pattern, offset, fill or fill_for(dtype), space)


def column_operand(data, partitions, dtype="float32", *, fill=None, space="sbuf") -> Operand:
    """A per-partition operand `[partitions, 1]` inside of a wider tile."""
    return operand(data, partitions, (1,), dtype, fill=fill, space=space)


def run(data, body, operands: dict[str, Operand], expect, *, options=None, rtol=2e-6, atol=1e-6, exact=()):
    """Run `body(**views)` fresh and replayed; `expect()` gives each output's `[partitions, free]` values from `operands`.

    Outputs named in `exact` are compared bit by bit, the others within one rounding of their type plus rtol and atol.
    """
    seed = data.draw(st.integers(0, 2**32 - 1))
    names = list(operands)
    rng = np.random.default_rng(seed)
    for item in operands.values():
        item.draw(rng)
    outputs = list(expect())

    def kernel(x0=None, x1=None, x2=None, x3=None, x4=None, x5=None, x6=None, x7=None):
        arrays = (x0, x1, x2, x3, x4, x5, x6, x7)
        tiles = {name: _placed(operands[name], source) for name, source in zip(names, arrays, strict=False)}
        body(**{name: operands[name].view(tile) for name, tile in tiles.items()})
        return tuple(_fetched(tiles[name]) for name in outputs)

    bases = [operands[name].base.copy() for name in names]
    chosen = SimOptions(record=True, **(options or {}))
    result = launch(kernel, [base.copy() for base in bases], options=chosen)
    with np.errstate(all="ignore"):
        _compare(operands, expect(), dict(zip(outputs, result.outputs, strict=True)), rtol, atol, exact, "fresh run")
    if result.program is None:
        return result
    for item in operands.values():
        item.draw(rng)
    arguments = {f"x{index}": operands[name].base.copy() for index, name in enumerate(names)}
    replayed = result.program(arguments)
    with np.errstate(all="ignore"):
        _compare(operands, expect(), dict(zip(outputs, replayed, strict=True)), rtol, atol, exact, "replay")
    return result


def assert_close(got, want, dtype: str, *, rtol=2e-6, atol=1e-6, what=""):
    """Within one rounding of `dtype` (to nearest) of a float64 reference; NaN and infinities must coincide."""
    kind = as_dtype(dtype)
    want = np.broadcast_to(want, got.shape)
    if kind.is_integer:
        info = np.iinfo(kind.dtype)
        clipped = np.clip(np.nan_to_num(want.astype(np.float64)), info.min, info.max)
        error = np.abs(got.astype(np.float64) - clipped)
        bad = error > 0.5 + atol + rtol * np.abs(clipped)
    else:
        got, want = got.astype(np.float64), want.astype(np.float64)
        top = float(ml_dtypes.finfo(kind.dtype).max)
        smallest = float(ml_dtypes.finfo(kind.dtype).smallest_subnormal)
        error = np.abs(got - want)
        bound = atol + smallest + (_EPSILON[dtype] * 1.001 + rtol) * np.abs(want)
        over = np.isinf(got) & (np.abs(want) >= top) & (np.sign(got) == np.sign(want))
        same = (np.isnan(got) & np.isnan(want)) | (got == want) | over
        bad = ~(same | (error <= bound))
    if bad.any():
        where = tuple(int(axis[0]) for axis in np.nonzero(bad))
        raise AssertionError(f"{what}: element {where} is {got[where]!r}, reference {want[where]!r} ({int(bad.sum())} wrong)")


def bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.dtype(f"u{array.dtype.itemsize}"))


def _placed(item: Operand, source):
    if item.space == "hbm":
        tile = nl.ndarray(item.shape, item.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=tile, src=source)
        return tile
    tile = nl.ndarray(item.shape, item.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source)
    if item.space == "psum":
        staged, tile = tile, nl.ndarray(item.shape, item.dtype, buffer=nl.psum)
        nisa.tensor_copy(dst=tile, src=staged)
    return tile


def _fetched(tile):
    if tile.space == "psum":
        staged, tile = tile, nl.ndarray(tile.shape, tile.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=tile, src=staged)
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


def _compare(operands, wants, results, rtol, atol, exact, when):
    for name, want in wants.items():
        item, got = operands[name], results[name]
        view = np.ascontiguousarray(item.pick(got))
        rows = item.pattern[0][1]
        flat = view.reshape(rows, -1)
        want = np.asarray(want)
        want = want.reshape(rows, -1) if want.size == flat.size else want
        if name in exact:
            np.testing.assert_array_equal(bits(flat), bits(want.astype(flat.dtype, copy=False)), err_msg=f"{when}: {name}")
        else:
            assert_close(flat, want, item.dtype, rtol=rtol, atol=atol, what=f"{when}: {name} {item.dtype}")
        touched = np.zeros(item.shape, np.bool_)
        item.pick(touched)[...] = True
        np.testing.assert_array_equal(
            bits(got)[~touched], bits(item.base)[~touched], err_msg=f"{when}: {name} outside of its view"
        )
