"""Runs the tutorial kernels of the public documentation on the simulator, against NumPy.

python tools/conformance/tutorials.py CHECKOUT_OF_AWS_NEURON_SDK [--no-report]
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from nki_hf import sim
from nki_hf.chips import get_chip
from nki_hf.errors import KernelFault
from tools.conformance.case import Case, run_case
from tools.conformance.compare import compare
from tools.conformance.report import summary, update

Load = Callable[[str], Any]
"""Gives the module of a file below `nki/`, loaded under `as_nki`."""


def cases(load: Load) -> list[Case]:
    """Every current-API kernel of the documentation's examples."""
    rng = np.random.default_rng(0)
    found: list[Case] = []

    def add(kernel: str, option: str, run: Callable[[], float | str]) -> None:
        found.append(Case(kernel, option, run))

    def matmul(name: str, k: int, m: int, n: int, **settings: int) -> Callable[[], float]:
        def run() -> float:
            module = load("examples/matrix_multiplication/matrix_multiplication_nki_kernels.py")
            left, right = (rng.random((k, size)).astype(ml_dtypes.bfloat16) for size in (m, n))
            want = left.astype(np.float64).T @ right.astype(np.float64)
            return compare(_simulate(getattr(module, name), left, right, **settings), want, rtol=1e-2, atol=1e-4)

        return run

    add("nki_matmul_basic_", "64 x 128 x 512", matmul("nki_matmul_basic_", 128, 64, 512))
    for name in ("nki_matmul_tiled_", "nki_matmul_hoist_load_"):
        add(name, "256 x 256 x 1024", matmul(name, 256, 256, 1024))
    add("nki_matmul_block_free_dimension_", "256 x 256 x 1024", matmul("nki_matmul_block_free_dimension_", 256, 256, 1024))
    blocks = {"TILES_IN_BLOCK_M": 2, "TILES_IN_BLOCK_N": 1, "TILES_IN_BLOCK_K": 2}
    add("nki_matmul_fully_optimized_", f"{blocks}", matmul("nki_matmul_fully_optimized_", 512, 512, 1024, **blocks))

    for version in ("mamba_v1", "mamba_v2", "mamba_v3"):
        for batch, length in ((1, 512), (2, 1024)):
            add(version, f"batch={batch}, seq_len={length}", lambda v=version, b=batch, s=length: _mamba(load, rng, v, b, s))
    add("tensor_avgpool_kernel", "6 x 6, pool 2", lambda: _pool(load, rng))
    add("tensor_transpose2D_kernel_", "(3, 4)", lambda: _transpose2d(load, rng, (3, 4)))
    add("tensor_transpose2D_kernel_", "(37, 5)", lambda: _transpose2d(load, rng, (37, 5)))
    add(
        "nki_tensor_add",
        "256 x 1024",
        lambda: _add(load, rng, "examples/tensor_addition/tensor_addition_nki_kernels.py", "nki_tensor_add", (256, 1024)),
    )
    for name in ("baremetal", "torch", "jax"):
        path = f"examples/getting_started_{name}.py"
        add(f"getting_started_{name}", "(4, 3)", lambda p=path: _add(load, rng, p, "nki_tensor_add_kernel", (4, 3)))
    add(
        "simulate add_kernel",
        "128 x 512",
        lambda: _add(load, rng, "examples/simulate/nki_simulate_example.py", "add_kernel", (128, 512)),
    )
    add("tensor_split_kernel_", "4 x 5", lambda: _split(load, rng))
    add("tensor_maxpool_kernel_", "6 x 6, pool 2", lambda: _max_pool(load, rng))
    add("tensor_exp_kernel_ (layout-pass)", "128 x 512", lambda: _exponential(load, rng))
    add("tensor_exp_kernel_ (layout-violation)", "256 partitions must be refused", lambda: _violation(load, rng))
    for name in ("float8_e5m2", "float4_e2m1fn"):
        add("kernel_offline_quantized_mx_matmul", name, lambda n=name: _mx_offline(load, n))
    for stationary in ("float4_e2m1fn", "float8_e5m2"):
        add("kernel_on_device_quantize_matmul_mx", f"{stationary} @ float8_e5m2", lambda n=stationary: _mx_on_device(load, n))
    for packed in (False, True):
        for copies in (True, False):
            name = "kernel_copy_strided_quantize_matmul_mx" + ("_packed_scale" if packed else "")
            add(name, f"use_tensor_copy={copies}", lambda n=name, c=copies: _mx_strided(load, n, c))
    return found


def _simulate(kernel: Any, *args: Any, chip: str = "trn2", **kwargs: Any) -> Any:
    options = sim.SimOptions(chip=get_chip(chip), third_party=True, events=False)
    return sim.launch(kernel, args, kwargs, options=options).returned


def _mamba(load: Load, rng: np.random.Generator, version: str, batch: int, length: int) -> float:
    module = load("examples/fused_mamba/mamba_nki_kernels.py")
    channels, states = 128, 4
    delta, u = (rng.random((batch, channels, length)).astype(np.float32) for _ in range(2))
    a = -rng.random((channels, states)).astype(np.float32)
    b, c = (rng.standard_normal((batch, states, length)).astype(np.float32) for _ in range(2))
    decay = np.exp(delta[:, :, None].astype(np.float64) * a[None, :, :, None])
    inflow = delta[:, :, None].astype(np.float64) * b[:, None] * u[:, :, None]
    state, want = np.zeros((batch, channels, states)), np.zeros((batch, channels, length))
    for t in range(length):
        state = decay[..., t] * state + inflow[..., t]
        want[..., t] = (c[:, None, :, t] * state).sum(-1)
    return compare(_simulate(getattr(module, version), delta, u, a, b, c), want, rtol=1e-4, atol=1e-5)


def _pool(load: Load, rng: np.random.Generator) -> float:
    data = rng.standard_normal((2, 6, 6)).astype(np.float32)
    have = _simulate(load("examples/average_pool2d/average_pool2d_nki_kernels.py").tensor_avgpool_kernel, data, 2)
    return compare(have, data.astype(np.float64).reshape(2, 3, 2, 3, 2).mean((2, 4)), rtol=1e-6, atol=1e-6)


def _transpose2d(load: Load, rng: np.random.Generator, shape: tuple[int, int]) -> float:
    data = rng.standard_normal((5, shape[0] * shape[1])).astype(np.float32)
    have = _simulate(load("examples/transpose2d/transpose2d_nki_kernels.py").tensor_transpose2D_kernel_, data, shape)
    return compare(have, data.reshape(5, *shape).transpose(0, 2, 1).reshape(5, -1), rtol=0, atol=0)


def _add(load: Load, rng: np.random.Generator, path: str, name: str, shape: tuple[int, ...]) -> float:
    left, right = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    return compare(_simulate(getattr(load(path), name), left, right), left.astype(np.float64) + right, rtol=1e-6, atol=1e-6)


def _split(load: Load, rng: np.random.Generator) -> float:
    data = rng.standard_normal((4, 5)).astype(np.float32)
    even, odd = _simulate(load("examples/index-case-1.py").tensor_split_kernel_, data)
    return max(compare(even, data[:, ::2], rtol=0, atol=0), compare(odd, data[:, 1::2], rtol=0, atol=0))


def _max_pool(load: Load, rng: np.random.Generator) -> float:
    data = rng.standard_normal((2, 6, 6)).astype(np.float32)
    have = _simulate(load("examples/index-case-3.py").tensor_maxpool_kernel_, data, 2)
    return compare(have, data.reshape(2, 3, 2, 3, 2).max((2, 4)), rtol=0, atol=0)


def _exponential(load: Load, rng: np.random.Generator) -> float:
    data = rng.standard_normal((128, 512)).astype(np.float32)
    have = _simulate(load("examples/layout-pass.py").tensor_exp_kernel_, data)
    return compare(have, np.exp(data.astype(np.float64)), rtol=1e-6, atol=1e-6)


def _violation(load: Load, rng: np.random.Generator) -> str:
    data = rng.standard_normal((256, 512)).astype(np.float32)
    try:
        _simulate(load("examples/layout-violation.py").tensor_exp_kernel_, data)
    except KernelFault as fault:
        return f"refused as the page says: {fault}"
    raise AssertionError("a tile of 256 partitions was accepted.")


def _mx_types(name: str) -> tuple[Any, str]:
    return getattr(ml_dtypes, name), f"{name}_x4"


def _mx_offline(load: Load, name: str) -> float:
    host, kernels = _mx(load)
    element, packed = _mx_types(name)
    _, _, left, left_scale = host.generate_stabilized_mx_data(element, (128, 512))
    _, _, right, right_scale = host.generate_stabilized_mx_data(element, (128, 2048))
    want = host.nc_matmul_mx_golden(left, right, left_scale, right_scale, element, element)
    kernel = kernels.kernel_offline_quantized_mx_matmul
    have = _simulate(kernel, left, left_scale, right, right_scale, _packed(packed), chip="trn3")
    return compare(have, want, rtol=5e-2, atol=5e-2)


def _mx_on_device(load: Load, name: str) -> float:
    host, kernels = _mx(load)
    element, packed = _mx_types(name)
    moving, moving_packed = _mx_types("float8_e5m2")
    _, _, left, left_scale = host.generate_stabilized_mx_data(element, (128, 512))
    right, _, _, _ = host.generate_stabilized_mx_data(moving, (128, 2048))
    data, scale = host.quantize_mx_golden(right, moving)
    want = host.nc_matmul_mx_golden(left, data, left_scale, scale, element, moving)
    kernel = kernels.kernel_on_device_quantize_matmul_mx
    given = (left, left_scale, right.astype(ml_dtypes.bfloat16), _packed(packed), _packed(moving_packed))
    return compare(_simulate(kernel, *given, chip="trn3"), want, rtol=5e-2, atol=5e-2)


def _mx_strided(load: Load, name: str, copies: bool) -> float:
    host, kernels = _mx(load)
    element, packed = _mx_types("float8_e5m2")
    left, _, _, _ = host.generate_stabilized_mx_data(element, (512, 128))
    right, _, _, _ = host.generate_stabilized_mx_data(element, (512, 512))
    given = (left.astype(ml_dtypes.bfloat16), right.astype(ml_dtypes.bfloat16), _packed(packed), copies)
    return compare(_simulate(getattr(kernels, name), *given, chip="trn3"), left.T @ right, rtol=5e-2, atol=5e-2)


def _mx(load: Load) -> tuple[Any, Any]:
    host = load("deep-dives/src/mxfp-matmul/mx_cpu_utils.py")
    sys.modules["mx_kernel_utils"] = load("deep-dives/src/mxfp-matmul/mx_kernel_utils.py")
    try:
        return host, load("deep-dives/src/mxfp-matmul/mx_kernels.py")
    finally:
        del sys.modules["mx_kernel_utils"]


def _packed(name: str) -> Any:
    import nki.language as nl

    return getattr(nl, name)


def main() -> int:
    """Run all; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--no-report", action="store_true")
    options = parser.parse_args()

    def load(path: str) -> Any:
        file = options.checkout / "nki" / path
        spec = importlib.util.spec_from_file_location(file.stem.replace("-", "_"), file)
        if spec is None or spec.loader is None:
            raise FileNotFoundError(file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    with sim.as_nki():
        outcomes = [run_case(case, 60.0) for case in cases(load)]
    print(summary(outcomes))
    if not options.no_report:
        update("tutorials", outcomes, "python tools/conformance/tutorials.py CHECKOUT")
    return int(any(outcome.verdict == "failed" for outcome in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
