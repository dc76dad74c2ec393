"""Inputs and NumPy references for the kernels that docstrings of nki.isa define."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from nki_hf import sim
from tools.conformance.compare import compare

__all__ = ["KERNELS"]


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _gather(kernel: Any, options: sim.SimOptions) -> float:
    data = _rng().standard_normal((100, 32)).astype(np.float32)
    rows = _rng().integers(0, 100, (64, 1)).astype(np.uint32)
    return compare(_launch(kernel, options, data, rows), data[rows[:, 0]], rtol=0, atol=0)


def _scatter(kernel: Any, options: sim.SimOptions) -> float:
    data = _rng().standard_normal((64, 32)).astype(np.float32)
    rows = _rng().permutation(100)[:64].reshape(64, 1).astype(np.uint32)
    output = np.zeros((100, 32), np.float32)
    want = output.copy()
    want[rows[:, 0]] = data
    return compare(_launch(kernel, options, data, rows, output), want, rtol=0, atol=0)


def _matmul(kernel: Any, options: sim.SimOptions) -> float:
    left, right = (_rng().standard_normal((512, n)).astype(np.float32) for n in (64, 96))
    return compare(_launch(kernel, options, left, right), left.astype(np.float64).T @ right, rtol=1e-5, atol=1e-5)


def _gather_transpose(kernel: Any, options: sim.SimOptions) -> float:
    data = _rng().standard_normal((300, 128)).astype(np.float16)
    rows = _rng().integers(0, 300, (128, 1)).astype(np.uint32)
    return compare(_launch(kernel, options, data, rows), data[rows[:, 0]].T, rtol=0, atol=0)


def _gather_transpose_2d(kernel: Any, options: sim.SimOptions) -> float:
    data = _rng().standard_normal((300, 128)).astype(np.float16)
    rows = _rng().integers(0, 300, (128, 2)).astype(np.uint32)
    return compare(_launch(kernel, options, data, rows), data[rows.T.flatten()].T, rtol=0, atol=0)


def _gather_transpose_4d(kernel: Any, options: sim.SimOptions) -> float:
    data = _rng().standard_normal((300, 2, 1, 64)).astype(np.float16)
    rows = _rng().integers(0, 300, (128, 2)).astype(np.uint32)
    return compare(_launch(kernel, options, data, rows), data[rows.T.flatten()].transpose(3, 1, 2, 0), rtol=0, atol=0)


def _activate2(kernel: Any, options: sim.SimOptions) -> float:
    data = _rng().standard_normal((128, 64)).astype(np.float32)
    x = data.astype(np.float64) * 2.0 + 0.5
    want = 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return compare(_launch(kernel, options, data), want, rtol=1e-5, atol=1e-5)


def _nonzero(kernel: Any, options: sim.SimOptions) -> float:
    data = (_rng().random((128, 40)) < 0.3).astype(np.float32)
    have = _launch(kernel, options, data)
    for row in range(0, 128, 16):
        places = np.flatnonzero(data[row])
        want = np.concatenate([places, np.full(40 - len(places), -1), [len(places)]])
        compare(have[row], want, rtol=0, atol=0, name=f"row {row}")
    return 0.0


def _launch(kernel: Any, options: sim.SimOptions, *arrays: Any) -> Any:
    return sim.launch(kernel, arrays, options=options).outputs[0]


KERNELS: dict[str, Callable[[Any, sim.SimOptions], float]] = {
    "indirect_gather_kernel": _gather,
    "indirect_scatter_kernel": _scatter,
    "nc_matmul_accumulate_kernel": _matmul,
    "gather_transpose_kernel": _gather_transpose,
    "gather_transpose_2d_kernel": _gather_transpose_2d,
    "gather_transpose_4d_kernel": _gather_transpose_4d,
    "activate2_scale_bias_kernel": _activate2,
    "nonzero_with_count_kernel": _nonzero,
}
"""A function per kernel: launches it and compares with NumPy."""
