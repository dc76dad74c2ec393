"""Cases of our own choice for nki-library's kernels of mixtures of experts and its transformer: models small enough for a CPU.

The tests' own models have thousands of tokens and hidden dimensions: minutes to hours of simulation. Inputs, references and
tolerances are the tests'; only the sizes are chosen here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tools.conformance.case import Case
from tools.conformance.library_harness import SimulatingOrchestrator

__all__ = ["MOE"]

_TESTS = "test.integration.nkilib"


def _bwmm_bwd() -> list[Case]:
    base = {"hidden": 1024, "tokens": 256, "expert": 2, "block_size": 256, "top_k": 1, "intermediate": 128}
    grid: list[dict[str, Any]] = [{}, {"tokens": 512}, {"intermediate": 256, "top_k": 2}]
    return [Case("bwmm_bwd", f"own: {_words({**base, **item})}", _bwd_runner({**base, **item})) for item in grid]


def _bwd_runner(sizes: dict[str, Any]) -> Callable[[], float | None]:
    def run() -> float | None:
        module = importlib.import_module(f"{_TESTS}.experimental.moe.test_bwmm_bwd")
        manager = SimulatingOrchestrator()
        group = module.TestMoeBlockwiseMatMulBwdShardHAffinityHDroplessLnc2()
        none = module.ClampLimits(None, None, None, None)
        group.test_moe_blockwise_mm_bwd_shardH_affinityH_dropless_lnc2(
            manager,
            **sizes,
            dtype=module.bfloat16,
            skip=0,
            clamp_limits=none,
            bias_flag=False,
            activation_type=module.ActFnType.SiLU,
        )
        return manager.share

    return run


def _bwmm_shard_on_h() -> list[Case]:
    base = {"tokens": 256, "hidden": 1024, "intermediate": 128, "expert": 2, "block_size": 256, "top_k": 1, "skip": 0}
    grid: list[dict[str, Any]] = [{}, {"expert": 4}, {"skip": 1}, {"intermediate": 256, "top_k": 2}]
    return [Case("bwmm_shard_on_H", f"own: {_words({**base, **item})}", _shard_runner({**base, **item})) for item in grid]


def _shard_runner(sizes: dict[str, Any]) -> Callable[[], float | None]:
    def run() -> float | None:
        module = importlib.import_module(f"{_TESTS}.experimental.moe.test_bwmm_shard_on_H")
        language = importlib.import_module("nki.language")
        names = {name: getattr(module, f"{name.upper()}_DIM") for name in (*sizes, "dtype", "scaling_mode")}
        config = {names[name]: value for name, value in sizes.items()}
        config |= {names["dtype"]: language.bfloat16, names["scaling_mode"]: module.ExpertAffinityScaleMode.POST_SCALE}
        config[module.CHECKPOINT_ACTIVATION_DIM] = False
        manager = SimulatingOrchestrator()
        module.TestMoeBlockwiseMatMulShardH().run_bwmm_h_test(
            manager, module.CompilerArgs(logical_nc_config=2), SimpleNamespace(tensors={module.BWMM_H_CONFIG: config}), 2, None
        )
        return manager.share

    return run


def _moe_cte() -> list[Case]:
    base = {"hidden": 512, "tokens": 256, "expert": 2, "block_size": 256, "top_k": 1, "intermediate": 256, "skip": 0}
    grid: list[tuple[str, dict[str, Any]]] = [
        ("SHARD_ON_INTERMEDIATE", {}),
        ("SHARD_ON_INTERMEDIATE", {"expert": 4, "top_k": 2, "skip": 1}),
        ("SHARD_ON_INTERMEDIATE_DROPPING", {"tokens": 2048, "block_size": 1024, "top_k": 2, "intermediate": 512}),
        ("SHARD_ON_BLOCK", {"skip": 1}),
        ("SHARD_ON_BLOCK", {"expert": 4, "top_k": 2, "skip": 3, "intermediate": 192}),
    ]
    return [
        Case("moe_cte", f"own: {function}, {_words({**base, **item})}", _cte_runner(function, {**base, **item}))
        for function, item in grid
    ]


def _cte_runner(function: str, sizes: dict[str, Any]) -> Callable[[], float | None]:
    def run() -> float | None:
        module = importlib.import_module(f"{_TESTS}.core.moe.moe_cte.test_moe_cte")
        common = importlib.import_module("test.utils.common_dataclasses")
        language = importlib.import_module("nki.language")
        manager = SimulatingOrchestrator()
        dropping = function.endswith("DROPPING")
        clamp = dict.fromkeys(("gate_cl_upper", "gate_cl_lower", "up_cl_upper", "up_cl_lower"))
        module.TestMoeBlockwiseMatMulLnc2().test_moe_blockwise_mm_kernel_lnc2(
            manager,
            None,
            bwmm_func=getattr(module.BWMMFunc, function),
            **sizes,
            dtype=language.bfloat16,
            bias=function == "SHARD_ON_BLOCK",
            training=dropping,
            quantize=None,
            act_fn=module.ActFnType.SiLU,
            expert_affinities_scaling_mode=module.ExpertAffinityScaleMode.POST_SCALE,
            **clamp,
            expert_affinity_multiply_on_I=False,
            platform_target=common.Platforms.TRN2,
            request=SimpleNamespace(node=SimpleNamespace(callspec=SimpleNamespace(id="own"))),
        )
        return manager.share

    return run


def _transformer_tkg() -> list[Case]:
    base = {"tp": 8, "batch": 1, "S_tkg": 1, "S_ctx": 256, "q_heads": 8, "d_head": 128, "H": 1024, "I": 2048, "lnc": 2}
    return [Case("transformer_tkg", f"own: {_words(base)}", _tkg_runner(base))]


def _tkg_runner(sizes: dict[str, Any]) -> Callable[[], float | None]:
    def run() -> float | None:
        module = importlib.import_module(f"{_TESTS}.experimental.transformer.test_transformer_tkg")
        group = next(item for name, item in vars(module).items() if name.startswith("Test") and hasattr(item, "TEST_GRID"))
        manager = SimulatingOrchestrator()
        names = {"tp": "TP", "batch": "BATCH", "d_head": "D_HEAD", "q_heads": "Q_HEADS"}
        config = {getattr(module, f"{names.get(name, name.upper())}_DIM"): value for name, value in sizes.items()}
        config[module.REL_TOL_DIM] = 2.5
        group().prepare_test_parametrized(manager, SimpleNamespace(tensors={module.DIMS_TENSOR: config}))
        return manager.share

    return run


def _words(item: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in item.items())


MOE: dict[str, Callable[[], list[Case]]] = {
    "bwmm_bwd": _bwmm_bwd,
    "bwmm_shard_on_H": _bwmm_shard_on_h,
    "moe_cte": _moe_cte,
    "transformer_tkg": _transformer_tkg,
}
"""Our own cases by kernel."""
