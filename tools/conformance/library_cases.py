"""The parametrised tests of nki-library's own test modules as cases, smallest first and spread over their options."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import itertools
import math
import random
import sys
from collections.abc import Callable, Iterable
from enum import Enum
from types import ModuleType
from typing import Any

import numpy as np

from tools.conformance.case import Case, Skipped
from tools.conformance.library_extra import EXTRA
from tools.conformance.library_harness import MAX_ELEMENTS, SimulatingOrchestrator

__all__ = ["MODULES", "cases_of", "choose", "load"]

_PREFIX = "test.integration.nkilib"
MODULES = {
    "attention_cte": ("core.attention.test_attention_cte", 1024),
    "attention_tkg": ("core.attention.test_attention_tkg", 1024),
    "attention_bwd": ("core.attention.test_attention_bwd", 1024),
    "gen_mask_tkg": ("core.attention.test_gen_mask_tkg", 1024),
    "rmsnorm_quant": ("core.rmsnorm.test_rmsnorm_quant", 8192),
    "rmsnorm_tkg": ("core.subkernels.test_rmsnorm_tkg", 8192),
    "find_nonzero_indices": ("core.subkernels.test_find_nonzero_indices", 8192),
    "rope": ("core.embeddings.test_rope", 8192),
    "rope_hf": ("core.embeddings.test_rope_hf", 8192),
    "cumsum": ("core.cumsum.test_cumsum", 8192),
    "qkv_cte": ("core.qkv.test_qkv_cte", 8192),
    "qkv_tkg": ("core.qkv.test_qkv_tkg", 8192),
    "router_topk": ("core.router_topk.test_router_topk", 8192),
    "cross_entropy forward": ("experimental.loss.test_cross_entropy_forward", 1 << 18),
    "cross_entropy backward": ("experimental.loss.test_cross_entropy_backward", 1 << 18),
    "conv1d": ("experimental.conv.test_conv1d", 8192),
    "depthwise_conv1d": ("experimental.conv.test_depthwise_conv1d", 8192),
}
"""Kernel name in the tables: the library's test module for it, and the largest number among the parameters of a case.

Larger cases are left out: the simulator is not the place for 36,864 tokens.
"""

_DRAWS = 300
_CORES = 2
"""Of a launch of a sweep: fewer positions than `PB` for each would leave batches in part empty, which no case of it does."""
_FIXTURES = ("self", "test_manager", "collector", "platform_target", "request")


def cases_of(kernel: str, limit: int) -> list[Case]:
    """At most `limit` cases of each test method of the kernel's test module; call inside `library(...)`."""
    module = load(f"{_PREFIX}.{MODULES[kernel][0]}")
    found: list[Case] = []
    for name, group in vars(module).items():
        if not (inspect.isclass(group) and name.startswith("Test") and group.__module__ == module.__name__):
            continue
        for method, function in inspect.getmembers(group, inspect.isfunction):
            if method.startswith("test"):
                found += _cases_of_method(kernel, group, method, function, limit)
    return found + (EXTRA[kernel]() if kernel in EXTRA else [])


def choose(candidates: Iterable[dict[str, Any]], limit: int, largest: int) -> list[dict[str, Any]]:
    """At most `limit` of the parameter sets: small ones first, those that bring an option value not seen before leading.

    Sets with a number above `largest` are left out. Sizes are ints above 2; everything else is an option value.
    """
    ordered = sorted((item for item in candidates if _largest(item) <= largest), key=_size)
    seen: set[tuple[str, str]] = set()
    chosen, rest = [], []
    for item in ordered:
        values = {(key, str(value)) for key, value in item.items() if not _is_size(value)}
        (chosen if values - seen else rest).append(item)
        seen |= values
    return (chosen + rest)[:limit]


def _cases_of_method(kernel: str, group: type, method: str, function: Callable[..., Any], limit: int) -> list[Case]:
    marks = getattr(function, "pytestmark", [])
    platforms = _platforms(marks)
    if any(mark.name in ("skip", "neuron") for mark in marks) or not platforms:
        return [Case(kernel, method, _skip("the library skips it on trn2 and trn3"))]
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (the library's generators draw from the global state)
    names = [name for name in inspect.signature(function).parameters if name not in _FIXTURES]
    largest = MODULES[kernel][1]
    chosen = choose(_sweep(function) or _parameters(marks, largest), limit, largest)
    result = []
    for values in chosen:
        missing = [name for name in names if name not in values and _required(function, name)]
        option = f"{method}: " + ", ".join(f"{key}={_text(value)}" for key, value in values.items())
        if missing:
            result.append(Case(kernel, option, _skip(f"needs the fixtures {', '.join(missing)}")))
        else:
            result.append(Case(kernel, option, _runner(group, method, values, platforms)))
    return result


def _runner(group: type, method: str, values: dict[str, Any], platforms: list[str]) -> Callable[[], float | str | None]:
    def run() -> float | str | None:
        try:
            return run_on(platforms[0])
        except Skipped as reason:
            if "TRN3" not in str(reason):
                raise
            return run_on("TRN3")

    def run_on(platform: str) -> float | str | None:
        common = importlib.import_module("test.utils.common_dataclasses")
        manager = SimulatingOrchestrator()
        function = getattr(group(), method)
        accepted = inspect.signature(function).parameters
        fixtures = {
            "test_manager": manager,
            "collector": _Collector(),
            "platform_target": common.Platforms[platform],
            "request": None,
        }
        given = {name: value for name, value in fixtures.items() if name in accepted}
        try:
            function(**given, **{name: value for name, value in values.items() if name in accepted})
        except BaseException as error:  # what pytest.skip raises inside the test is no Exception; all else goes on as it is
            if type(error).__name__ == "Skipped" and not isinstance(error, Skipped):
                raise Skipped(f"the library skips it: {error}") from error
            raise
        if manager.refusal is not None:
            return f"refused as the test expects: {type(manager.refusal).__name__}: {manager.refusal}"
        return manager.share

    return run


class _Collector:
    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


def _parameters(marks: list[Any], largest: int) -> list[dict[str, Any]]:
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
        verdict = "VALID" if accept is None else accept(**_accepted(accept, item)).name
        if verdict in ("VALID", "INVALID"):
            rows.setdefault(str(item), {**item, "is_negative_test_case": verdict == "INVALID"})
    return list(rows.values())


def _sweep(function: Callable[..., Any]) -> list[dict[str, Any]]:
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


def _accepted(function: Callable[..., Any], item: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return item
    return {parameter.name: item.get(parameter.name) for parameter in parameters}


def _platforms(marks: list[Any]) -> list[str]:
    """The generations that a test is for, trn2 before trn3."""
    allowed = ["TRN2", "TRN3"]
    for mark in marks:
        if mark.name == "platforms":
            excluded = [item.name for item in mark.kwargs.get("exclude", ())]
            only = [item.name for item in mark.kwargs.get("include", mark.kwargs.get("only", ()))]
            allowed = [name for name in allowed if name not in excluded and (not only or name in only)]
    return allowed


def load(name: str) -> ModuleType:
    """The test module; names that a module uses without importing them are supplied."""
    common = importlib.import_module("test.utils.common_dataclasses")
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"{name} is not in this checkout.")
    module = importlib.util.module_from_spec(spec)
    module.Platforms = common.Platforms  # type: ignore[attr-defined]  # test_qkv_tkg of April 2026 uses it undefined
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _skip(reason: str) -> Callable[[], float | None]:
    def run() -> float | None:
        raise Skipped(reason)

    return run


def _required(function: Callable[..., Any], name: str) -> bool:
    return inspect.signature(function).parameters[name].default is inspect.Parameter.empty


def _is_size(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and abs(int(value)) > 2


def _sizes(item: Any) -> list[int]:
    """Every size among the parameters of a case, at whatever depth."""
    if isinstance(item, dict | tuple | list):
        return [number for part in (item.values() if isinstance(item, dict) else item) for number in _sizes(part)]
    if hasattr(item, "tensors"):
        return _sizes(item.tensors)
    if hasattr(item, "__dict__") and not isinstance(item, type | Enum):
        return [abs(int(value)) for value in vars(item).values() if _is_size(value)]
    return [abs(int(item))] if _is_size(item) else []


def _size(item: dict[str, Any]) -> float:
    return sum(math.log(number) for number in _sizes(item))


def _largest(item: dict[str, Any]) -> int:
    return max(_sizes(item), default=0)


def _text(value: Any) -> str:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, type):
        return value.__name__
    if hasattr(value, "tensors"):
        sizes = ", ".join(f"{name}={number}" for tensor in value.tensors.values() for name, number in tensor.items())
        return f"({sizes}{'; fewer positions than the sweep has' if value.test_type == 'cut' else ''})"
    return " ".join(str(value).split())
