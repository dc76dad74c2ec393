"""One random kernel: traced, replayed on other inputs, and judged instruction by instruction by the model in NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tools.fuzz.kernel_issue import Refused, launched
from tools.fuzz.kernel_model import Array, State, after, kind_of, rounded
from tools.fuzz.kernel_programs import COLUMNS, EXCHANGES, INTEGERS, NEW_TILES, TILES, Step, changed, ranges_of, run_time_values
from tools.fuzz.wide_programs import NOISE

__all__ = ["check_program", "inputs_of", "without_refused"]

_OPTIONS: tuple[dict[str, Any], ...] = ({}, {"events": False}, {"checks": False}, {"uninitialized": "error"})
"""Of a launch; none of them may change a value."""


def without_refused(program: Step) -> tuple[Step | None, list[str]]:
    """The program without the steps that the simulator's rules refuse (None if nothing is left), and their names."""
    refused = []
    while program["steps"]:
        try:
            launched(program, inputs_of(program, 0))
            return program, refused
        except Refused as stop:
            steps = [{**step, "body": list(step["body"])} if step["op"] == "loop" else step for step in program["steps"]]
            owner = steps if len(stop.path) == 1 else steps[stop.path[0]]["body"]
            refused.append(owner.pop(stop.path[-1])["op"])
            program = {**program, "steps": [step for step in steps if step["op"] != "loop" or step["body"]]}
    return None, refused


def check_program(program: Step) -> str:
    """What is wrong with the simulator's answers to a program; empty = nothing.

    Raises:
      Refused: a step breaks a rule.
    """
    first, second = inputs_of(program, 0), inputs_of(program, 1)
    traced = launched(program, first, record=True)
    wrong = _judged(program, first, traced.outputs, 0)
    if wrong:
        return wrong
    fresh = launched(program, second, **_OPTIONS[program["seed"] % len(_OPTIONS)]).outputs
    wrong = _judged(program, second, fresh, 1)
    if wrong:
        return f"on other inputs: {wrong}"
    replayed = traced.program(dict(second))
    for index, (one, other) in enumerate(zip(replayed, fresh, strict=True)):
        if one.tobytes() != other.tobytes():
            return f"output {index} of the replay is not that of a fresh run"
    return ""


def inputs_of(program: Step, which: int) -> dict[str, Array]:
    """The arguments of a program's kernel, of the recorded run (0) or the other one (1)."""
    rng = np.random.default_rng((program["seed"], which))
    cores, (partitions, rows, columns) = program["cores"], program["shape"]
    found: dict[str, Array] = {}
    for tile, kind in zip(TILES, program["types"], strict=True):
        shape = (cores, partitions, rows, columns)
        if kind in INTEGERS:
            values = rng.integers(0 if kind[0] == "u" else -100, 101, shape)
            found[tile] = np.where(rng.random(shape) < 0.3, 0, values).astype(kind)
        else:
            values = np.where(rng.random(shape) < 0.5, rng.integers(-4, 5, shape), rng.standard_normal(shape) * 2)
            found[tile] = values.astype(kind_of(kind))
    for column in COLUMNS:
        found[column] = rng.integers(-2, 12, (cores, partitions, 1)).astype(np.float32)
    found["counts"] = np.array([[*run_time_values(program, which), 0]], np.int32)
    if program.get("noise"):
        found["noise"] = rng.integers(0, 1 << 16, (cores, partitions, NOISE)).astype(np.int32)
    return found


# ---- the judgement ------------------------------------------------------------------------------------------------------


def _judged(program: Step, inputs: dict[str, Array], outputs: tuple[Array, ...], which: int) -> str:
    """The first instruction whose result is not the model's. Each is judged on what was really in its operands."""
    cores, names = range(program["cores"]), (*TILES, *COLUMNS, *(["noise"] if "noise" in inputs else []))
    states: list[State] = [{name: inputs[name][core].copy() for name in names} for core in cores]
    left = list(outputs)
    with np.errstate(all="ignore"):
        for index, step in enumerate(program["steps"]):
            if step["op"] != "loop":
                results = [left.pop(0) for _ in changed(step)]
                wrong = _step(step, states, results, which)
                if wrong:
                    return f"step {index}, {wrong}"
                continue
            logs = [[left.pop(0) for _ in changed(one)] for one in step["body"]]
            for turn in _indices(step, which):
                for inner, one in enumerate(step["body"]):
                    wrong = _step(one, states, [log[:, turn] for log in logs[inner]], which)
                    if wrong:
                        return f"step {index}, turn {turn}, {inner}, {wrong}"
    return ""


def _indices(step: Step, which: int) -> list[int]:
    """Where the turns of a loop are stored, in their order."""
    at = which if step["register"] and step["kind"] != "static" else 0
    ranges = [range(*both[at]) for both in ranges_of(step)]
    if step["kind"] == "while":  # the register counts down
        return [turn + 1 for turn in reversed(ranges[0])]
    if len(ranges) > 1:
        return list(range(1, 1 + math.prod(map(len, ranges))))
    return list(ranges[0])


def _step(step: Step, states: list[State], results: list[Array], which: int) -> str:
    before = [{name: array.copy() for name, array in state.items()} for state in states]
    for core, state in enumerate(states):
        names = changed(step)
        if step["op"] in NEW_TILES:
            before[core]["result"] = results[0][core].copy()
        judged = {name: results[position][core] for position, name in enumerate(names)}
        model = {name: array.copy() for name, array in before[core].items()}
        exchange = before[1 - core] if step["op"] in EXCHANGES else None
        written = after(step, model, exchange, which)
        actual = {**model, **{name: array.copy() for name, array in judged.items()}}
        for view, values, slack in written:
            name = next(name for name in actual if np.shares_memory(model[name], view))
            place = _same_place(model[name], view, actual[name])
            wrong = _different(place, np.asarray(values).reshape(-1, *np.shape(values)[1:]), slack)
            if wrong:
                return f"{step['op']} on core {core}: {name}: {wrong}"
            place[...] = view  # what is left must be as it was
        for name in names:
            if step["op"] not in NEW_TILES and actual[name].tobytes() != before[core][name].tobytes():
                return f"{step['op']} on core {core} changed elements of {name} outside of its view"
            state[name] = results[names.index(name)][core].copy()
        state.pop("result", None)
    return ""


def _same_place(owner: Array, view: Array, other: Array) -> Array:
    """The view of `other` that lies where `view` does in `owner`."""
    offset = view.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
    return np.ndarray(view.shape, other.dtype, buffer=other, offset=offset, strides=view.strides)


def _different(actual: Array, values: Array, slack: Any) -> str:
    found = np.ascontiguousarray(actual).reshape(len(actual), -1)
    values = np.broadcast_to(values.reshape(len(values), -1), found.shape)
    if isinstance(slack, int):
        low = high = rounded(values, found.dtype)
    else:
        slack = np.broadcast_to(slack, found.shape) + 2.0**-24 * np.abs(values)
        low, high = (rounded(each, found.dtype) for each in (values - slack, values + slack))
        vague = ~(np.abs(values) + slack < 1e37)  # beyond, sums in another order overflow elsewhere
        low, high = (np.where(vague, found, each) for each in (low, high))
    good = ((found >= low) & (found <= high)) | ((found != found) & (low != low))
    if bool(np.all(good)):
        return ""
    place = tuple(int(i) for i in np.argwhere(~good)[0])
    wrong = f"{int((~good).sum())} of {good.size} wrong"
    return f"{list(place)} is {found[place]}, and the model has {low[place]} to {high[place]} ({wrong})"
