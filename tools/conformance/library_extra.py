"""Cases of our own choice for nki-library's kernels: odd lengths, small options, two cores.

Inputs, references and tolerances are the library's own (its test modules build them); only the parameters are chosen here.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from nki_hf import sim
from tools.conformance.case import Case
from tools.conformance.compare import compare
from tools.conformance.library_extra_moe import MOE
from tools.conformance.library_harness import SimulatingOrchestrator

__all__ = ["EXTRA"]


def _attention_cte() -> list[Case]:
    base = {
        "bs": 1, "bs_kv": 1, "d": 64, "seqlen_q": 128, "seqlen_kv": 128, "causal": True, "window": 0, "sink": False,
        "tp_q": True, "tp_k": False, "tp_out": False, "cache": False, "scale": 1.0, "dtype": "bfloat16", "lnc": 1,
        "prior": None, "used": None, "packed": None, "cp": None, "rank": None, "strided": False,
    }  # fmt: skip
    grid: list[dict[str, Any]] = []
    for length in (1, 100, 129, 257, 513):
        grid.append({"seqlen_q": length, "seqlen_kv": length})
    for queries, keys in ((1, 129), (113, 203), (257, 1023), (300, 64)):
        grid.append({"seqlen_q": queries, "seqlen_kv": keys, "causal": False})
    for size in (8, 80, 128):
        grid.append({"d": size, "seqlen_q": 200, "seqlen_kv": 200})
    for dtype in ("float16", "float32"):
        grid.append({"dtype": dtype, "seqlen_q": 200, "seqlen_kv": 200})
    grid += [
        {"bs": 4, "bs_kv": 2, "seqlen_q": 150, "seqlen_kv": 150},
        {"bs": 4, "bs_kv": 1, "seqlen_q": 150, "seqlen_kv": 150, "lnc": 2},
        {"bs": 2, "seqlen_q": 257, "seqlen_kv": 257, "bs_kv": 2, "lnc": 2},
        {"bs": 3, "bs_kv": 3, "seqlen_q": 140, "seqlen_kv": 140, "lnc": 2},
        {"seqlen_q": 1100, "seqlen_kv": 1100, "lnc": 2},
        {"scale": 0.125, "causal": False},
        {"sink": True, "seqlen_q": 200, "seqlen_kv": 200},
        {"sink": True, "bs": 2, "bs_kv": 2, "causal": False, "lnc": 2},
        {"cache": True, "seqlen_q": 256, "seqlen_kv": 256},
        {"cache": True, "seqlen_q": 256, "seqlen_kv": 256, "sink": True},
        {"tp_q": False},
        {"tp_k": True, "seqlen_q": 200, "seqlen_kv": 200},
        {"tp_out": True, "seqlen_q": 130, "seqlen_kv": 130},
        {"tp_q": False, "tp_out": True, "seqlen_q": 200, "seqlen_kv": 200},
        {"packed": 3, "seqlen_q": 384, "seqlen_kv": 384},
        {"packed": 4, "seqlen_q": 512, "seqlen_kv": 512, "causal": False},
    ]
    for window in (1, 50, 512, 600):
        grid.append({"window": window, "seqlen_q": 700, "seqlen_kv": 700})
    for prior, used in ((256, 0), (256, 100), (256, 256), (300, 17)):
        grid.append({"prior": prior, "used": used, "seqlen_q": 130, "seqlen_kv": 130})
    grid.append({"prior": 256, "used": 100, "window": 64, "seqlen_q": 130, "seqlen_kv": 130})
    for rank, strided in ((0, False), (1, False), (1, True), (3, True)):
        grid.append({"cp": 4, "rank": rank, "strided": strided, "seqlen_q": 128, "seqlen_kv": 512})
    return [Case("attention_cte", f"own: {_words(item)}", _cte_runner({**base, **item})) for item in grid]


def _cte_runner(o: dict[str, Any]) -> Callable[[], float | None]:
    def run() -> float | None:
        module = importlib.import_module("test.integration.nkilib.core.attention.test_attention_cte")
        language = importlib.import_module("nki.language")
        manager = SimulatingOrchestrator()
        dtypes = {"bfloat16": language.bfloat16, "float16": np.float16, "float32": np.float32}
        flags = {
            module.CAUSAL_MASK_DIM_NAME: o["causal"],
            module.TP_Q_DIM_NAME: o["tp_q"],
            module.TP_K_DIM_NAME: o["tp_k"],
            module.TP_OUT_DIM_NAME: o["tp_out"],
            module.SINK_DIM_NAME: o["sink"],
        }
        np.random.seed(0)  # noqa: NPY002  (the library's generators draw from the global state)
        module.TestRangedAttentionCTEKernels().run_attention_cte_test(
            test_manager=manager, compiler_args=module.CompilerArgs(logical_nc_config=o["lnc"]), collector=None,
            bool_dims=flags, bs=o["bs"], bs_kv=o["bs_kv"], cache_softmax=o["cache"], cp_degree=o["cp"], d=o["d"],
            dtype=dtypes[o["dtype"]], seqlen_kv=o["seqlen_kv"], seqlen_kv_prior=o["prior"], seqlen_q=o["seqlen_q"],
            sliding_window=o["window"], softmax_scale=o["scale"], cp_rank_id=o["rank"], use_cp=o["cp"] is not None,
            cp_strided_q_slicing=o["strided"], prior_used_len=o["used"], n_packed_sequences=o["packed"],
        )  # fmt: skip
        return manager.share

    return run


def _attention_tkg() -> list[Case]:
    base = {
        "bs": 2, "q_head": 4, "s_active": 1, "curr_sprior": 256, "full_sprior": 256, "d_head": 64, "block_len": 0,
        "tp_k_prior": False, "qk_in_sb": True, "lnc": 1, "dtype": "bfloat16", "sink": False, "fp8": False, "window": 0,
    }  # fmt: skip
    blocks = {"tp_k_prior": True, "strided_mm1": False}
    grid: list[dict[str, Any]] = [
        {}, {"lnc": 2}, {"s_active": 5}, {"s_active": 5, "lnc": 2}, {"bs": 3, "q_head": 5, "s_active": 7},
        {"d_head": 128}, {"d_head": 96, "lnc": 2}, {"full_sprior": 384}, {"curr_sprior": 512, "full_sprior": 512, "lnc": 2},
        {"dtype": "float32"}, {"dtype": "float16"}, {"sink": True}, {"sink": True, "lnc": 2}, {"tp_k_prior": True},
        {"tp_k_prior": True, "lnc": 2}, {"strided_mm1": False}, {"out_in_sb": True},
        {"out_in_sb": True, "lnc": 2}, {"use_pos_id": True}, {"use_pos_id": True, "lnc": 2},
        {"qk_in_sb": False, "fuse_rope": True}, {"qk_in_sb": False, "fuse_rope": True, "k_out_in_sb": True, "use_pos_id": True},
        {"fuse_rope": True, "use_pos_id": True, "lnc": 2}, {"fp8": True}, {"fp8": True, "lnc": 2},
        {"block_len": 16, **blocks}, {"block_len": 32, **blocks, "lnc": 2}, {"block_len": 16, **blocks, "fp8": True, "bs": 4},
        {"window": 64, "use_pos_id": True, "fuse_rope": True}, {"window": 64, "use_pos_id": True, "lnc": 2},
        {"window": 64, "use_pos_id": True, "block_len": 16, **blocks},
        {"bs": 16, "q_head": 8, "s_active": 2, "lnc": 2}, {"bs": 1, "q_head": 1, "curr_sprior": 128, "full_sprior": 128},
    ]  # fmt: skip
    return [Case("attention_tkg", f"own: {_words(item) or 'plain'}", _tkg_runner({**base, **item})) for item in grid]


def _tkg_runner(o: dict[str, Any]) -> Callable[[], float | None]:
    def run() -> float | None:
        module = importlib.import_module("test.integration.nkilib.core.attention.test_attention_tkg")
        language = importlib.import_module("nki.language")
        o_config = {key: value for key, value in o.items() if key not in ("lnc", "dtype", "sink", "fp8", "window")}
        manager = SimulatingOrchestrator()
        dtypes = {"bfloat16": language.bfloat16, "float16": np.float16, "float32": np.float32}
        module.run_attention_tkg_test(
            manager,
            module.CompilerArgs(logical_nc_config=o["lnc"]),
            module.AttnTKGConfig(**o_config),
            dtypes[o["dtype"]],
            o["sink"],
            o["fp8"],
            o["window"],
        )
        return manager.share

    return run


def _attention_bwd() -> list[Case]:
    base = {
        "batch_size": 1,
        "num_q_heads": 2,
        "num_kv_heads": 2,
        "seq_len": 512,
        "head_dim": 64,
        "dtype": "bfloat16",
        "causal": True,
        "sliding_window": None,
        "num_sinks": 0,
        "softmax_scale": None,
    }
    grid: list[dict[str, Any]] = [
        {}, {"causal": False}, {"num_q_heads": 4, "num_kv_heads": 1}, {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 128},
        {"head_dim": 256}, {"seq_len": 128}, {"seq_len": 1024}, {"dtype": "float32"}, {"sliding_window": 128},
        {"sliding_window": 64}, {"num_sinks": 1}, {"num_sinks": 4}, {"softmax_scale": 1.0}, {"batch_size": 2, "causal": False},
    ]  # fmt: skip
    return [Case("attention_bwd", f"own: {_words(item) or 'plain'}", _bwd_runner({**base, **item})) for item in grid]


def _bwd_runner(o: dict[str, Any]) -> Callable[[], float | None]:
    def run() -> float | None:
        module = importlib.import_module("test.integration.nkilib.core.attention.test_attention_bwd")
        language = importlib.import_module("nki.language")
        manager = SimulatingOrchestrator()
        dtypes = {"bfloat16": language.bfloat16, "float32": np.float32}
        cores = 2 if o["batch_size"] * o["num_kv_heads"] % 2 == 0 else 1
        module.TestAttentionBwdKernel()._run_test(
            test_manager=manager,
            compiler_args=module.CompilerArgs(logical_nc_config=cores),
            **{**o, "dtype": dtypes[o["dtype"]]},
        )
        return manager.share

    return run


def _cross_entropy(*, backward: bool) -> list[Case]:
    """The library's sweeps have vocabularies of 32,128 and more; these are small ones against its torch reference."""
    cases = []
    for positions, vocabulary, batch, chunk, dtype in (
        (64, 512, 32, 256, "bfloat16"),
        (128, 1000, 16, 300, "float32"),
        (64, 2048, 8, 2048, "bfloat16"),
    ):
        option = f"own: positions={positions}, vocabulary={vocabulary}, per batch={batch}, chunk={chunk}, {dtype}"
        given = (positions, vocabulary, batch, chunk, dtype)
        kernel = "cross_entropy backward" if backward else "cross_entropy forward"
        cases.append(Case(kernel, option, _cross_entropy_runner(*given, backward=backward)))
    return cases


def _cross_entropy_runner(
    positions: int, vocabulary: int, batch: int, chunk: int, dtype: str, *, backward: bool
) -> Callable[[], float | None]:
    def run() -> float | None:
        torch = importlib.import_module("torch")
        language = importlib.import_module("nki.language")
        kernels = importlib.import_module("nkilib_src.nkilib.experimental.loss.cross_entropy")
        references = importlib.import_module("nkilib_src.nkilib.experimental.loss.cross_entropy_torch")
        rng = np.random.default_rng(0)
        element = getattr(language, dtype)
        logits = (rng.standard_normal((positions, vocabulary)) * 3).astype(element.dtype)
        targets = rng.integers(0, vocabulary, positions).astype(np.int32)
        plain, classes = torch.from_numpy(logits.astype(np.float32)), torch.from_numpy(targets.astype(np.int64))
        settings = {"positions_per_batch": batch, "chunk_size": chunk, "dtype": element}
        loss, state = sim.simulate(kernels.cross_entropy_forward)[2](logits, targets, **settings)
        want_loss, want_state = references.cross_entropy_forward_torch_ref(plain, classes)
        limits = {"rtol": 2e-2, "atol": 1e-5}
        if not backward:
            return max(
                compare(loss, want_loss.numpy(), name="loss", **limits),
                compare(state, want_state.numpy(), name="lse", **limits),
            )
        gradient = sim.simulate(kernels.cross_entropy_backward)[2](logits, targets, state, **settings)
        want = references.cross_entropy_backward_torch_ref(plain, classes).numpy()
        return compare(gradient, want, name="gradient", **limits)

    return run


def _attention_block_tkg() -> list[Case]:
    """Weights and cache of float8 under a scale of the scores that undoes the cache's: the softmax is no staircase then."""
    cases = []
    for batch in (1, 4, 8):
        option = f"own: batch={batch}, float8 weights and cache, softmax_scale=head_dim ** -0.5 / k_scale"
        cases.append(Case("attention_block_tkg", option, _attention_block_runner(batch)))
    return cases


def _attention_block_runner(batch: int) -> Callable[[], float | str | None]:
    def run() -> float | str | None:
        module = importlib.import_module("test.integration.nkilib.experimental.transformer.test_attention_block_tkg")
        common = importlib.import_module("test.utils.common_dataclasses")
        types = importlib.import_module("nkilib_src.nkilib.core.utils.common_types")
        language = importlib.import_module("nki.language")
        config = module.AttnBlkTestConfig(
            batch=batch, q_heads=1, d_head=128, H=4096, H_actual=None, S_ctx=1024, S_max_ctx=1024, S_tkg=1, block_len=0,
            update_cache=True, K_cache_transposed=False, rmsnorm_X=True, skip_rope=False, rope_contiguous_layout=True,
            qk_norm_pre_rope=True, qk_norm_pre_rope_gamma=True, qk_norm_post_rope=False, qk_norm_post_rope_gamma=False,
            dtype=language.bfloat16, quantization_type=types.QuantizationType.STATIC, lnc=2, skip_output_projection=False,
            transposed_out=True, test_bias=False, input_in_sb=False, output_in_sb=False,
            softmax_scale=128**-0.5 / (240.0 / 2.3), kv_quant=True,
        )  # fmt: skip
        manager = SimulatingOrchestrator()
        module._run_attention_block_test(manager, common.Platforms.TRN2, config)
        return manager.share or "its own validator"

    return run


def _words(item: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in item.items())


EXTRA: dict[str, Callable[[], list[Case]]] = {
    "attention_cte": _attention_cte,
    "attention_tkg": _attention_tkg,
    "attention_bwd": _attention_bwd,
    "cross_entropy forward": functools.partial(_cross_entropy, backward=False),
    "cross_entropy backward": functools.partial(_cross_entropy, backward=True),
    "attention_block_tkg": _attention_block_tkg,
    **MOE,
}
"""Our own cases by kernel."""
