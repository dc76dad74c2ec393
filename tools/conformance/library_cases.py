"""The parametrised tests of nki-library's own test modules as cases, smallest first and spread over their options."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import itertools
import random
import sys
from collections.abc import Callable
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from nki_hf.errors import KernelFault
from tools.conformance.case import Case, Skipped
from tools.conformance.library_extra import EXTRA
from tools.conformance.library_harness import SimulatingOrchestrator
from tools.conformance.library_parameters import choose, largest_of, parameters_of, required, swept

__all__ = ["MODULES", "cases_of", "load"]

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
    "mlp_tkg": ("core.mlp.test_mlp_tkg", 8192),
    "mlp_cte": ("core.mlp.test_mlp_cte", 8192),
    "mlp_proj_mxfp4": ("core.mlp.test_mlp_proj_mxfp4", 8192),
    "moe_tkg": ("core.moe.moe_tkg.test_moe_tkg", 8192),
    "moe_cte": ("core.moe.moe_cte.test_moe_cte", 8192),
    "moe_cte unified": ("core.moe.moe_cte.test_moe_cte_unified", 8192),
    "moe_bwmm_mx_cte": ("core.moe.moe_cte.test_moe_bwmm_mx_cte", 8192),
    "moe_block_tkg": ("core.moe_block.test_moe_block_tkg", 8192),
    "output_proj_cte": ("core.output_projection.test_output_proj_cte", 8192),
    "output_proj_tkg": ("core.output_projection.test_output_proj_tkg", 8192),
    "cascaded_max": ("core.max.test_cascaded_max", 16384),
    "cascaded_max_utils": ("core.max.test_cascaded_max_utils", 16384),
    "indexed_flatten": ("core.subkernels.test_indexed_flatten", 65536),
    "layernorm_tkg": ("core.subkernels.test_layernorm_tkg", 8192),
    "rmsnorm_mx_quantize_tkg": ("core.subkernels.test_rmsnorm_mx_quantize_tkg", 8192),
    "topk": ("core.topk.test_topk", 1 << 18),
    "cross_partition_copy": ("core.utils.test_cross_partition_copy", 8192),
    "quantize_to_mx": ("core.utils.test_quantize_to_mx", 8192),
    "tensor_view": ("core.utils.test_tensor_view", 8192),
    "tp_broadcast": ("core.utils.test_tp_broadcast", 8192),
    "find_nonzero_indices_with_count": ("experimental.benchmark.test_find_nonzero_indices_with_count", 65536),
    "collectives": ("experimental.collectives.test_collectives", 8192),
    "fg_allgather": ("experimental.collectives.test_fg_allgather", 8192),
    "fgcc": ("experimental.collectives.test_fgcc", 8192),
    "sb2sb_allgather": ("experimental.collectives.test_sb2sb_allgather", 8192),
    "topk_reduce": ("experimental.subkernels.test_topk_reduce", 8192),
    "dynamic_elementwise_add": ("experimental.dynamic_shapes.test_dynamic_elementwise_add", 8192),
    "bwmm_bwd": ("experimental.moe.test_bwmm_bwd", 8192),
    "bwmm_shard_on_H": ("experimental.moe.test_bwmm_shard_on_H", 8192),
    "mxfp_load": ("experimental.mxfp_subkernels.test_mxfp_load", 8192),
    "attention_block_tkg": ("experimental.transformer.test_attention_block_tkg", 8192),
    "transformer_tkg": ("experimental.transformer.test_transformer_tkg", 32768),
}
"""Kernel name in the tables: the library's test module for it, and the largest number among the parameters of a case.

Larger cases are left out, unless a method has no other: the simulator is not the place for 36,864 tokens.
"""

_LARGE = 2
"""Cases of a method whose smallest case is larger than what `MODULES` has: of its smallest ones that many."""
_FIXTURES = ("self", "test_manager", "collector", "platform_target", "request")


def cases_of(kernel: str, limit: int) -> list[Case]:
    """At most `limit` cases of each test method of the kernel's test module; call inside `library(...)`."""
    module = load(f"{_PREFIX}.{MODULES[kernel][0]}")
    found: list[Case] = []
    for name, group in vars(module).items():
        if name.startswith("test") and inspect.isfunction(group) and group.__module__ == module.__name__:
            found += _cases_of_method(kernel, _alone(name, group), name, group, limit)
        if not (inspect.isclass(group) and name.startswith("Test") and group.__module__ == module.__name__):
            continue
        for method, function in inspect.getmembers(group, inspect.isfunction):
            if method.startswith("test"):
                found += _cases_of_method(kernel, group, method, function, limit)
    return found + (EXTRA[kernel]() if kernel in EXTRA else [])


def _cases_of_method(kernel: str, group: type, method: str, function: Callable[..., Any], limit: int) -> list[Case]:
    marks = getattr(function, "pytestmark", [])
    platforms = _platforms(marks)
    if any(mark.name in ("skip", "neuron") for mark in marks) or not platforms:
        return [Case(kernel, method, _skip("the library skips it on trn2 and trn3"))]
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (the library's generators draw from the global state)
    names = [name for name in inspect.signature(function).parameters if name not in _FIXTURES]
    largest = MODULES[kernel][1]
    pairs = itertools.product(swept(function) or [{}], parameters_of(marks, largest))
    candidates = [{**sweep, **given} for sweep, given in pairs]
    chosen = choose(candidates, limit, largest)
    result = []
    if candidates and not chosen:
        chosen = choose(candidates, limit, sorted(map(largest_of, candidates))[:_LARGE][-1])[:_LARGE]
    for values in chosen:
        missing = [name for name in names if name not in values and required(function, name)]
        told = {key: value for key, value in values.items() if f"{key}_name" not in values}
        option = f"{method}: " + ", ".join(f"{key}={_text(value)}" for key, value in told.items())
        if missing:
            result.append(Case(kernel, option, _skip(f"needs the fixtures {', '.join(missing)}")))
        else:
            asserts = any(mark.name == "trace_only" for mark in marks)
            result.append(Case(kernel, option, _runner(group, method, values, platforms, asserts=asserts)))
    return result


def _alone(name: str, function: Callable[..., Any]) -> type:
    """A group of tests for a test that stands alone in its module."""
    return type("Alone", (), {name: staticmethod(function)})


def _runner(
    group: type, method: str, values: dict[str, Any], platforms: list[str], *, asserts: bool = False
) -> Callable[[], float | str | None]:
    """Runs one case; with `asserts` the test's kernel asserts what the test is about, and its output is nothing to compare."""

    def run() -> float | str | None:
        try:
            return run_on(platforms[0])
        except Skipped as reason:
            if "TRN3" not in str(reason):
                raise
        except KernelFault as fault:
            if fault.record.kind != "generation" or "TRN3" not in platforms:
                raise
        return run_on("TRN3")

    def run_on(platform: str) -> float | str | None:
        common = importlib.import_module("test.utils.common_dataclasses")
        manager = SimulatingOrchestrator("trn3" if platform == "TRN3" else None)
        function = getattr(group(), method)
        accepted = inspect.signature(function).parameters
        fixtures = {
            "test_manager": manager,
            "collector": _Collector(),
            "platform_target": common.Platforms[platform],
            "request": SimpleNamespace(node=SimpleNamespace(callspec=SimpleNamespace(id=method))),
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
        if not manager.launched:
            raise Skipped("the test expects a refusal and meets it while it makes the inputs, before there is a launch")
        if asserts:
            return "by assertions in the test's kernel"
        if not manager.compared:
            raise Skipped("the launch runs to its end, and the test compares nothing")
        return "by the test's own validator" if manager.share is None else manager.share

    return run


class _Collector:
    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


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
    """The test module, once: its enums are compared; names that a module uses without importing them are supplied.

    Raises:
      SystemExit: it imports a package that is not installed; the message names it.
    """
    known = sys.modules.get(name)
    if known is not None and hasattr(known, "_supplied"):
        return known
    common = importlib.import_module("test.utils.common_dataclasses")
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"{name} is not in this checkout.")
    module = importlib.util.module_from_spec(spec)
    module.Platforms = common.Platforms  # type: ignore[attr-defined]  # test_qkv_tkg of April 2026 uses it undefined
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        del sys.modules[name]
        sys.exit(f"{name} imports {error.name}, which is not installed here: pip install {error.name}, if it is a package.")
    module._supplied = True  # type: ignore[attr-defined]
    return module


def _skip(reason: str) -> Callable[[], float | None]:
    def run() -> float | None:
        raise Skipped(reason)

    return run


def _text(value: Any) -> str:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, type):
        return value.__name__
    if hasattr(value, "tensors"):
        sizes = ", ".join(f"{name}={number}" for tensor in value.tensors.values() for name, number in tensor.items())
        return f"({sizes}{'; fewer positions than the sweep has' if value.test_type == 'cut' else ''})"
    return " ".join(str(value).split())
