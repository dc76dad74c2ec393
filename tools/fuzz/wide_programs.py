"""Random kernels of what `kernel_programs` does not draw: more instructions, operators, functions, element types, memories,
views and loops. Each new instruction has a tile of its own as its result, `[partitions, elements]`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tools.fuzz.kernel_programs import (
    INTEGERS,
    MOST_TURNS,
    RESULTS,
    TILES,
    Step,
    draw_instruction,
    draw_program,
    draw_spot,
    draw_view,
)

__all__ = ["BINARY", "CASTS", "FUNCTIONS", "NOISE", "WIDE", "draw_wide"]

NOISE = 64
"""Columns of the input of random whole numbers below 2^16, of which indices are made."""
BINARY = ("divide", "power", "mod", "fmod", "abs_max", "abs_min", "average")
FUNCTIONS = (
    "gelu", "gelu_dx", "gelu_apprx_tanh", "gelu_apprx_sigmoid", "gelu_apprx_sigmoid_dx", "silu", "silu_dx", "softplus", "mish",
    "erf", "erf_dx", "rsqrt", "log", "sin", "arctan", "reciprocal", "sign", "square",
)  # fmt: skip
CASTS = ("float8_e4m3", "float8_e5m2", "float8_e4m3fn", "uint32", "uint8", "int32", "bfloat16", "float16", "int16")
WIDE = (
    "binary", "binary", "function", "function", "shift", "cast", "exponential", "reduce_chain", "shuffle", "n_gather",
    "local_gather", "find8", "replace8", "bn_aggr", "bounds", "nonzero", "hbm", "hbm", "hbm", "sbuf", "sbuf", "rows", "scatter",
    "dynamic", "turned", "summed", "psum", "language", "language", "turned32",
)  # fmt: skip
_LANGUAGE = ("sum", "mean", "var", "max", "min", "softmax", "where", "add", "transpose", "matmul", "rms_norm")
_WHOLE = ("shuffle", "local_gather", "find8", "replace8", "nonzero")
"""Those that want 8 elements of a row at least, or partitions of a whole group."""
_VIEWS = ("permute", "slice", "select", "reshape_dim", "expand_dim", "squeeze_dim", "broadcast", "flatten", "reshape")
_REDUCING = ("add", "maximum", "minimum")
_COMMANDS = ("reset_reduce", "reduce", "load_reduce")


def draw_wide(seed: int) -> Step:
    """A program of that seed."""
    program, rng = draw_program(seed), np.random.default_rng([seed, 7])
    program["noise"], program["chip"] = True, str(rng.choice(["trn2", "trn2", "trn3"]))
    program["shape"] = (*program["shape"][:2], int(rng.integers(2, 17)))
    program["types"] = [*program["types"][:3], str(rng.choice(["uint8", "uint16", "int16", "int32"]))]
    steps = []
    for _ in range(int(rng.integers(2, 6))):
        kind = rng.random()
        if kind < 0.2:
            body = [draw_instruction(rng, program, left_out=RESULTS) for _ in range(int(rng.integers(1, 3)))]
            steps.append(_loop(rng, body))
        elif kind < 0.35:
            steps.append(draw_instruction(rng, program))
        else:
            steps.append(_wide(rng, program))
    program["steps"] = steps
    return program


def _loop(rng: np.random.Generator, body: list[Step]) -> Step:
    """Loops with first and last indices and a step, inside of each other, or for as long as a register is not 0.

    `ranges`: of each loop, outermost first, `(lower, upper, step)` in the recorded run and in the other one.
    """
    kind = str(rng.choice(["fori", "fori", "dynamic", "static", "while"]))
    ranges = []
    for _ in range(1 if kind == "while" or rng.random() < 0.6 else 2):
        both = []
        for _ in range(2):
            lower = 0 if kind == "while" else int(rng.integers(0, 3))
            both.append((lower, int(rng.integers(0, 6)) if kind != "while" else int(rng.integers(0, MOST_TURNS + 1)), 1))
        step = 1 if kind == "while" else int(rng.integers(1, 4))
        ranges.append([(*ends[:2], step) for ends in both])
    return {"op": "loop", "kind": kind, "ranges": ranges, "register": bool(rng.random() < 0.6) or kind == "while", "body": body}


def _wide(rng: np.random.Generator, program: Step) -> Step:
    def pick(items: Any) -> Any:
        return items[int(rng.integers(len(items)))]

    def read(kinds: Any = None) -> Step:
        tiles = [tile for tile, kind in zip(TILES, program["types"], strict=True) if kinds is None or kind in kinds]
        return draw_view(rng, program, pick(tiles or TILES), spot, reads=True)

    def number() -> float:
        return float(pick([1.0, -1.5, 2.0, 0.5, 3.0, -4.0]))

    spot, what = draw_spot(rng, program), pick([name for name in WIDE if name != "exponential" or program["chip"] == "trn3"])
    partitions, rows, columns = program["shape"]
    if what in _WHOLE:
        spot = {"partitions": (0, partitions), "counts": (rows, columns)}
    step: Step = {"op": "wide", "what": what, "data": read(), "type": pick(("float32", "float32", "bfloat16"))}
    if what == "binary":
        step.update(alu=pick(BINARY), other=pick([None, read()]), operand=number(), reverse=bool(rng.integers(2)))
    elif what == "function":
        step["function"] = pick(FUNCTIONS)
    elif what == "shift":
        step.update(data=read([kind for kind in INTEGERS if kind[0] == "u"]), alu=pick(("left_shift", "right_shift")))
        step.update(operand=int(rng.integers(0, 8)))
    elif what == "cast":
        step.update(type=pick(CASTS), engine=pick(("unknown", "vector", "scalar", "gpsimd")))
    elif what == "exponential":
        step.update(operand=pick([number(), "c0", "c1"]), reduced=bool(rng.integers(2)))
    elif what == "reduce_chain":
        links = [(pick(_COMMANDS[:1] if n == 0 else _COMMANDS), number()) for n in range(int(rng.integers(1, 4)))]
        step.update(alu=pick(("add", "multiply", "maximum")), alu1=pick(_REDUCING), links=links, negate=bool(rng.integers(2)))
    elif what == "shuffle":
        step["mask"] = [int(rng.integers(0, 32)) if rng.random() < 0.8 else 255 for _ in range(32)]
    elif what in ("n_gather", "local_gather"):
        step.update(count=int(rng.integers(1, 9)), element=int(rng.integers(1, 3)))
    elif what == "replace8":
        step.update(value=number(), indices=bool(rng.integers(2)))
    elif what == "nonzero":
        step.update(offset=int(rng.integers(0, 9)), padding=int(rng.integers(-3, 0)))
    elif what in ("hbm", "sbuf"):
        step.update(tile=pick(TILES), views=_views(rng, (partitions, rows, columns), on_chip=what == "sbuf"))
    elif what in ("rows", "scatter"):
        step.update(tile=pick(TILES), count=int(rng.integers(1, partitions + 1)), by=pick(("ap", "select")))
    elif what == "dynamic":
        step.update(tile=pick(TILES), by=pick(("select", "ap", "slice")), at=[int(rng.integers(partitions)) for _ in range(2)])
    elif what in ("turned", "turned32"):
        step["tile"] = pick(TILES)
    elif what == "summed":
        step.update(other=read(), scales=pick([None, [number(), number()]]))
    elif what == "psum":
        step.update(other=read(), alu=pick(("add", "multiply", "subtract")), operand=number())
    elif what == "language":
        step.update(function=pick(_LANGUAGE), other=read())
    return step


def _views(rng: np.random.Generator, shape: tuple[int, ...], *, on_chip: bool) -> list[tuple[Any, ...]]:
    """A chain of views of a tensor of that shape, each a name and arguments; on chip axis 0 stays."""
    found: list[tuple[Any, ...]] = []
    for _ in range(int(rng.integers(1, 5))):
        first = 1 if on_chip else 0
        name = str(rng.choice(_VIEWS))
        rank = len(shape)
        dim = int(rng.integers(first, rank)) if rank > first else None
        if name == "permute":
            order = [*range(first), *(first + int(n) for n in rng.permutation(rank - first))]
            found.append((name, tuple(order)))
            shape = tuple(shape[n] for n in order)
        elif name == "expand_dim":
            place = int(rng.integers(1, rank + 1))
            found.append((name, place))
            shape = (*shape[:place], 1, *shape[place:])
        elif dim is None:
            continue
        elif name == "slice":
            start = int(rng.integers(0, shape[dim]))
            end, by = int(rng.integers(start + 1, shape[dim] + 1)), int(rng.integers(1, 4))
            found.append((name, dim, start, end, by))
            shape = (*shape[:dim], -(-(end - start) // by), *shape[dim + 1 :])
        elif name == "select" and rank > 2 and dim > 0:
            found.append((name, dim, int(rng.integers(0, shape[dim]))))
            shape = (*shape[:dim], *shape[dim + 1 :])
        elif name == "reshape_dim" and dim > 0:
            divisors = [n for n in range(1, shape[dim] + 1) if shape[dim] % n == 0]
            size = int(rng.choice(divisors))
            sizes = (size, shape[dim] // size)
            found.append((name, dim, sizes))
            shape = (*shape[:dim], *sizes, *shape[dim + 1 :])
        elif name == "squeeze_dim" and dim > 0 and shape[dim] == 1 and rank > 2:
            found.append((name, dim))
            shape = (*shape[:dim], *shape[dim + 1 :])
        elif name == "broadcast" and dim > 0 and shape[dim] == 1:
            found.append((name, dim, 3))
            shape = (*shape[:dim], 3, *shape[dim + 1 :])
        elif name == "flatten" and rank > 2:
            found.append((name, 1, rank - 1))
            shape = (shape[0], int(np.prod(shape[1:])))
        elif name == "reshape" and rank > 2:
            found.append((name, (shape[0], int(np.prod(shape[1:])))))
            shape = found[-1][1]
    return found
