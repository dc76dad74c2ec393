"""Random small kernels as plain data: tiles, views, instructions, loops, two cores. Equal seeds, equal programs.

A program has four tiles `[partitions, rows, columns]` and two columns `[partitions, 1]`, all loaded from its inputs. Each step
is one instruction on views of them, or a loop of such steps. After each step the kernel stores the tile that it wrote, so that
every instruction is judged by itself, on what really was in its operands.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = [
    "COLUMNS",
    "EXCHANGES",
    "FLOATS",
    "INTEGERS",
    "MOST_TURNS",
    "NEW_TILES",
    "RESULTS",
    "TILES",
    "Step",
    "changed",
    "draw_exchange",
    "draw_instruction",
    "draw_program",
    "draw_spot",
    "draw_view",
    "ranges_of",
    "run_time_values",
    "simpler_programs",
]

Step = dict[str, Any]

TILES = ("t0", "t1", "t2", "t3")
COLUMNS = ("c0", "c1")
MOST_TURNS = 3
FLOATS = ("float32", "bfloat16", "float16")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32")
_BINARY = ("add", "subtract", "multiply", "maximum", "minimum", "equal", "not_equal", "less", "less_equal", "greater",
           "greater_equal", "logical_and", "logical_or", "logical_xor")  # fmt: skip
RESULTS = ("matmul", "transpose", "max8", "bn_stats")
"""Instructions whose result has a shape of its own; it goes to a new tile. They stand outside of loops."""
EXCHANGES = ("sendrecv", "meet")
"""Instructions in which the cores of a launch meet."""
NEW_TILES = (*RESULTS, "wide", "rare")
"""The same, with the steps of wide_programs.py and rare_programs.py."""
_ANY_TYPE = (
    "copy", "memset", "tensor_tensor", "tensor_tensor", "tensor_scalar", "tensor_scalar", "scalar_tensor_tensor", "iota",
    "reduce", "predicated", "affine_select", "dma", "partition_reduce",
)  # fmt: skip
_FLOAT = (
    "activation", "activation", "reciprocal", "select", "range_select", "scan", "matmul", "matmul", "transpose",
    "scalar_reduce", "cumulative", "max8", "bn_stats",
)  # fmt: skip
"""Instructions by the types of their operands; the frequent ones twice."""
_REDUCING = ("add", "multiply", "maximum", "minimum")
_UNARY = ("exp", "relu", "square", "tanh", "sigmoid", "abs", "copy", "sqrt", "sign")
_FORMS = ("subscript", "slice", "ap")


def draw_program(seed: int) -> Step:
    """A program of that seed."""
    rng = np.random.default_rng(seed)
    shape = (int(rng.choice([1, 5, 32, 40, 64, 100, 128])), int(rng.integers(1, 5)), int(rng.integers(1, 9)))
    types = [str(rng.choice(FLOATS if rng.random() < 0.7 else INTEGERS)) for _ in TILES]
    if rng.random() < 0.25:
        types[1] = types[0]
    program: Step = {"seed": seed, "shape": shape, "types": types, "cores": int(rng.choice([1, 1, 2]))}
    steps = []
    for _ in range(int(rng.integers(2, 7))):
        if rng.random() < 0.2:
            body = [draw_instruction(rng, program, left_out=RESULTS) for _ in range(int(rng.integers(1, 3)))]
            kind = str(rng.choice(["fori", "dynamic", "static"]))
            turns = [int(rng.integers(0, MOST_TURNS + 1)) for _ in range(2)]
            steps.append({"op": "loop", "kind": kind, "turns": turns, "register": bool(rng.random() < 0.6), "body": body})
        elif program["cores"] == 2 and rng.random() < 0.3:
            steps.append(draw_exchange(rng, program))
        else:
            steps.append(draw_instruction(rng, program))
    program["steps"] = steps
    return program


def changed(step: Step) -> list[str]:
    """The tiles that a step changes; `result` is one of its own."""
    if step["op"] in NEW_TILES:
        return ["result"]
    if step["op"] in EXCHANGES:
        return [step["dst"]]
    found = [] if step["op"] == "reduce" else [step["dst"]["tile"]]
    return found + ([step["column"]] if step.get("column") else [])


def ranges_of(step: Step) -> list[list[tuple[int, int, int]]]:
    """Of each range of a loop step, outermost first: `(lower, upper, step)` in the recorded run and in the other one."""
    return step["ranges"] if "ranges" in step else [[(0, turns, 1) for turns in step["turns"]]]


def run_time_values(program: Step, which: int) -> list[int]:
    """What registers are loaded with, in the order of the steps, in the recorded run (0) or the other one."""
    found = []
    for step in program["steps"]:
        if step["op"] == "loop":
            for both in ranges_of(step):
                found += both[which][:2]
        elif step.get("what") == "dynamic":
            found.append(step["at"][which])
    return found


def simpler_programs(program: Step) -> list[Step]:
    """The program without one of its steps, on one core, or with a loop as its body."""
    found = []
    steps = program["steps"]
    if program.get("chip", "trn2") != "trn2":
        found.append({**program, "chip": "trn2"})
    every = [inner for step in steps for inner in (step, *step.get("body", []))]
    if program["cores"] == 2 and not any(step["op"] in EXCHANGES for step in every):
        found.append({**program, "cores": 1})
    for index, step in enumerate(steps):
        found.append({**program, "steps": steps[:index] + steps[index + 1 :]})
        if step["op"] == "loop":
            found.append({**program, "steps": steps[:index] + step["body"] + steps[index + 1 :]})
            if len(step["body"]) > 1:
                found += [
                    {**program, "steps": [*steps[:index], {**step, "body": [one]}, *steps[index + 1 :]]} for one in step["body"]
                ]
    return [each for each in found if each["steps"]]


def draw_exchange(rng: np.random.Generator, program: Step) -> Step:
    """A step in which both cores take part: each gets a tile of the other one."""
    op, dst = str(rng.choice(EXCHANGES)), int(rng.integers(len(TILES)))
    same = [index for index in range(len(TILES)) if program["types"][index] == program["types"][dst]]
    return {"op": op, "dst": TILES[dst], "data": TILES[int(rng.choice(same))]}


def draw_instruction(rng: np.random.Generator, program: Step, left_out: tuple[str, ...] = ()) -> Step:
    """One instruction on random views; the simulator may refuse it, then it is left out of the program."""

    def pick(items: Any) -> Any:
        return items[int(rng.integers(len(items)))]

    def some(types: Any) -> list[str]:
        return [tile for tile, kind in zip(TILES, program["types"], strict=True) if kind in types]

    everything, floats = list(TILES), some(FLOATS)
    spot = draw_spot(rng, program)
    names = [*_ANY_TYPE, *(_FLOAT if floats else ())]
    op = pick([name for name in names if name not in left_out])
    step: Step = {"op": op, "dst": draw_view(rng, program, pick(everything), spot)}

    def read(tiles: list[str] = everything) -> Step:
        return draw_view(rng, program, pick(tiles), spot, reads=True)

    def scalar() -> Any:
        return pick(COLUMNS) if rng.random() < 0.4 else float(pick([0.0, 1.0, -1.5, 2.0, 0.5, 3.0]))

    if op in ("copy", "dma"):
        step["data"] = read()
    elif op == "memset":
        step["value"] = pick([0, 1, 3, 100])
    elif op == "tensor_tensor":
        ints = some(INTEGERS)
        if ints and rng.random() < 0.2:
            tile = pick(ints)
            same = some((program["types"][TILES.index(tile)],))
            step["dst"] = draw_view(rng, program, tile, spot)
            step.update(data=read(same), other=read(same), alu=pick(["bitwise_and", "bitwise_or", "bitwise_xor"]))
        else:
            step.update(data=read(), other=read(), alu=pick(_BINARY))
    elif op == "tensor_scalar":
        step.update(data=read(), alu=pick(_BINARY), operand=scalar(), reverse=bool(rng.integers(2)), alu1=None, operand1=None)
        if rng.random() < 0.5:
            step.update(alu1=pick(_BINARY), operand1=scalar())
        step["reverse1"] = bool(rng.integers(2)) and step["alu1"] is not None
    elif op == "scalar_tensor_tensor":
        step.update(data=read(), alu=pick(_BINARY), operand=scalar(), other=read(), alu1=pick(_BINARY))
        step.update(reverse=bool(rng.integers(2)), reverse1=bool(rng.integers(2)))
    elif op == "iota":
        step.update(
            offset=int(rng.integers(-20, 20)),
            multiplier=int(rng.integers(-3, 4)),
            strides=[int(rng.integers(-3, 4)) for _ in range(2)],
        )
    elif op == "affine_select":
        step.update(
            data=read(),
            offset=int(rng.integers(-20, 20)),
            multiplier=int(rng.integers(-3, 4)),
            value=float(pick([0.0, -7.0, 5.0])),
        )
        step.update(strides=[int(rng.integers(-3, 4)) for _ in range(2)], alu=pick(_BINARY[5:11]))
    elif op == "reduce":
        step.update(data=read(), alu=pick(_REDUCING), negate=bool(rng.integers(2)), column=pick(COLUMNS))
    elif op == "partition_reduce":
        step.update(data=read(), alu=pick(("add", "maximum")))
    elif op == "predicated":
        step.update(
            data=read() if rng.random() < 0.7 else float(pick([0.0, 2.5])),
            mask=read(some(INTEGERS) or everything),
            reverse=bool(rng.integers(2)),
        )
    elif op == "activation":
        step.update(
            data=read(),
            function=pick(_UNARY),
            scale=pick([1.0, 1.0, 0.5, -1.0, pick(COLUMNS)]),
            bias=pick([None, pick(COLUMNS)]),
        )
        step["column"] = pick([None, "c0", "c1"])
    elif op == "reciprocal":
        step["data"] = read(floats)
    elif op == "select":
        step.update(
            mask=read(), data=read(floats), operand=scalar(), reverse=bool(rng.integers(2)), column=pick([None, "c0", "c1"])
        )
    elif op == "range_select":
        step.update(
            data=read(floats),
            first=int(rng.integers(-3, 10)),
            alu="greater_equal",
            alu1="less",
            column=pick([None, "c0", "c1"]),
        )
    elif op == "scan":
        step.update(
            data=read(floats),
            other=read(floats),
            operand=scalar(),
            alu=pick(["multiply", "add"]),
            alu1=pick(["add", "maximum"]),
        )
        step.update(reverse=False, reverse1=bool(rng.integers(2)))
    elif op == "scalar_reduce":
        step.update(
            data=read(floats),
            alu=pick(_BINARY[:5]),
            operand=scalar(),
            alu1=pick(_REDUCING),
            column=pick(COLUMNS),
            negate=bool(rng.integers(2)),
        )
    elif op == "cumulative":
        step.update(data=read(floats), alu=pick(_BINARY[:5]), operand=scalar(), alu1=pick(["add", "maximum", "minimum"]))
    elif op == "matmul":
        kinds = [kind for kind in FLOATS if some((kind,))]
        tiles = some((pick(kinds),))
        step.update(data=read(tiles), other=read(tiles), twice=bool(rng.integers(2)), accumulate=pick([None, True, False]))
    elif op in ("max8", "bn_stats", "transpose"):
        step["data"] = read(floats)
    return step


def draw_spot(rng: np.random.Generator, program: Step) -> dict[str, tuple[int, int]]:
    """Partitions and counts that all operands of an instruction share."""
    partitions, rows, columns = program["shape"]
    start = int(rng.choice([first for first in (0, 0, 32, 64, 96) if first < partitions]))
    most = min(partitions - start, {0: 128, 32: 32, 64: 64, 96: 32}[start])
    return {
        "partitions": (start, start + (most if rng.random() < 0.5 else int(rng.integers(1, most + 1)))),
        "counts": (int(rng.integers(1, rows + 1)), int(rng.integers(1, columns + 1))),
    }


def draw_view(rng: np.random.Generator, program: Step, tile: str, spot: Any, *, reads: bool = False) -> Step:
    """A view `[partitions, count, count]` of a tile: strided, permuted or flattened, and broadcast where it is only read."""
    axes = []
    for size, count in zip(program["shape"][1:], spot["counts"], strict=True):
        step = int(rng.integers(1, max(1, (size - 1) // max(1, count - 1)) + 1)) if count > 1 else 1
        axes.append((int(rng.integers(0, size - (count - 1) * step)), count, step))
    view: Step = {"tile": tile, "partitions": spot["partitions"], "axes": axes, "form": str(rng.choice(_FORMS)), "order": None}
    if reads and rng.random() < 0.15:
        view["broadcast"] = int(rng.integers(2))
    if rng.random() < 0.3:
        view["order"] = str(rng.choice(["permute", "flatten", "expand"]))
    return view
