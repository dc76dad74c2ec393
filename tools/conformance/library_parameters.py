"""Which of a library test's parameters are run: all of its marks', the smallest of its coverage's and sweep's."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
import random
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

import numpy as np

from tools.conformance.library_harness import MAX_ELEMENTS

__all__ = ["accepted", "choose", "largest_of", "parameters_of", "required", "sizes_of", "swept"]

_DRAWS = 300
_CORES = 2
"""Of a launch of a sweep: fewer positions than `PB` for each would leave batches in part empty, which no case of it does."""


def choose(candidates: Iterable[dict[str, Any]], limit: int, largest: int) -> list[dict[str, Any]]:
    """At most `limit` of the parameter sets: small ones first, those that bring an option value not seen before leading.

    Sets with a number above `largest` are left out. Sizes are ints above 2; everything else is an option value.
    """
    ordered = sorted((item for item in candidates if largest_of(item) <= largest), key=_size)
    seen: set[tuple[str, str]] = set()
    chosen, rest = [], []
    for item in ordered:
        values = {(key, str(value)) for key, value in item.items() if not (_is_size(value) or hasattr(value, "tensors"))}
        (chosen if values - seen else rest).append(item)
        seen |= values
    return (chosen + rest)[:limit]


def parameters_of(marks: list[Any], largest: int) -> list[dict[str, Any]]:
    """Every combination of what a test's marks give; of a coverage mark, cases with sizes up to `largest`."""
    axes: list[list[dict[str, Any]]] = []
    for mark in marks:
        if mark.name == "parametrize":
            names, values = mark.args[0], list(mark.args[1])
            keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
            rows = []
            for value in values:
                plain = value.values if hasattr(value, "marks") else value
                if hasattr(value, "marks") and any(item.name in ("skip", "xfail") for item in value.marks):
                    continue
                row = tuple(plain) if len(keys) > 1 or hasattr(value, "marks") else (plain,)
                rows.append(dict(zip(keys, row, strict=True)))
            axes.append(rows)
        elif mark.name == "coverage_parametrize":
            axes.append(_coverage(dict(mark.kwargs), largest))
    if not axes:
        return [{}]
    return [{key: value for part in combination for key, value in part.items()} for combination in itertools.product(*axes)]


def _coverage(arguments: dict[str, Any], largest: int) -> list[dict[str, Any]]:
    """Random draws from a sweep's value lists, judged by the sweep's own filter: valid ones, and refusals it expects.

    The library's generator (all pairs) takes minutes for one sweep; a seeded draw of small values does for a sample.
    """
    accept = arguments.pop("filter", None) or arguments.pop("filter_func", None)
    wanted = ("VALID", "INVALID") if arguments.pop("enable_invalid_combination_tests", True) else ("VALID",)
    lists: dict[str, list[Any]] = {}
    for name, values in arguments.items():
        plain = getattr(values, "values", values)
        if isinstance(plain, list | np.ndarray):
            listed = plain.tolist() if isinstance(plain, np.ndarray) else plain
            lists[name] = [value for value in listed if not _is_size(value) or value <= largest] or listed[:1]
    draw = random.Random(0)
    rows: dict[str, dict[str, Any]] = {}
    for _ in range(_DRAWS):
        item = {name: draw.choice(values) for name, values in lists.items()}
        verdict = getattr(accept and accept(**accepted(accept, item)), "name", "VALID")  # a filter that says nothing accepts
        if verdict in wanted:
            rows.setdefault(str(item), {**item, "is_negative_test_case": verdict == "INVALID"})
    return list(rows.values())


def swept(function: Callable[..., Any]) -> list[dict[str, Any]]:
    """The cases of a sweep of the library's older framework (`@range_test_config`); empty for other tests."""
    config = getattr(function, "range_test_config", None)
    if config is None:
        return []
    ranges = config.global_tensor_configs
    found: list[Any] = []
    for generator in ranges.custom_generators:
        found += generator.generate_ranges(ranges, config.additional_params)
    fitting = {str(case.tensors): case for case in map(_fitting, found)}  # what was cut may have become equal
    return [{"range_test_options": case} for case in fitting.values()]


def _fitting(case: Any) -> Any:
    """The case itself, or, where its logits `[B * T, V]` are too many to simulate, with `PB` positions a core, or `PB`."""
    changed = {}
    for name, sizes in case.tensors.items():
        if {"B", "T", "V", "PB"} <= set(sizes) and sizes["B"] * sizes["T"] * sizes["V"] > MAX_ELEMENTS:
            cores = _CORES if _CORES * sizes["PB"] * sizes["V"] <= MAX_ELEMENTS else 1
            changed[name] = {**sizes, "B": 1, "T": cores * sizes["PB"]}
    return dataclasses.replace(case, tensors={**case.tensors, **changed}, test_type="cut") if changed else case


def accepted(function: Callable[..., Any], item: dict[str, Any]) -> dict[str, Any]:
    """Those of the parameters that the function has."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return item
    return {parameter.name: item.get(parameter.name) for parameter in parameters}


def required(function: Callable[..., Any], name: str) -> bool:
    """True if the function has no default for it."""
    return inspect.signature(function).parameters[name].default is inspect.Parameter.empty


def _is_size(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and abs(int(value)) > 2


def sizes_of(item: Any) -> list[int]:
    """Every size among the parameters of a case, at whatever depth."""
    if isinstance(item, dict | tuple | list):
        return [number for part in (item.values() if isinstance(item, dict) else item) for number in sizes_of(part)]
    if hasattr(item, "tensors"):
        return sizes_of(item.tensors)
    if hasattr(item, "__dict__") and not isinstance(item, type | Enum):
        return [abs(int(value)) for value in vars(item).values() if _is_size(value)]
    return [abs(int(item))] if _is_size(item) else []


def _size(item: dict[str, Any]) -> float:
    return sum(math.log(number) for number in sizes_of(item))


def largest_of(item: dict[str, Any]) -> int:
    """The largest size among the parameters of a case; 0 if there is none."""
    return max(sizes_of(item), default=0)
