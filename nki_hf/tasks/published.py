"""Tasks at published shapes: the 14 of AccelOpt's NKIBench, and those of Autocomp's current-language tasks that the other files
do not have. Functions and shapes are theirs, element types and kernels ours: products take bfloat16, the rest float32.

Sizes below the published one have the other axes shortened, so that values are judged quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nki_hf.tasks.attention import attention_task
from nki_hf.tasks.matmuls import rounded, scaled
from nki_hf.tasks.norms import LAYER_WRONG, RMS_WRONG, rmsnorm
from nki_hf.tasks.task import FLOAT, Task, rows_of

__all__ = ["TASKS"]

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
_EPS = 1e-5


def _silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


def _rope(x: Array, cos: Array, sin: Array) -> Array:
    low, high = np.split(x, 2)
    return np.concatenate([low * cos - high * sin, low * sin + high * cos])


def _mamba(delta: Array, u: Array, a: Array, b: Array, c: Array) -> Array:
    state, out = np.zeros((*a.shape,), u.dtype), np.empty_like(u)
    for t in range(u.shape[1]):
        state = np.exp(delta[:, t, None] * a) * state + delta[:, t, None] * u[:, t, None] * b[None, :, t]
        out[:, t] = (state * c[None, :, t]).sum(1)
    return out


def _adamw(theta: Array, g: Array, m: Array, v: Array) -> Array:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return np.asarray(theta - 1e-5 * theta - 0.01 * m / (np.sqrt(v * 1000) + 1e-8))


def _layernorm(x: Array, weight: Array, bias: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + np.asarray(_EPS, x.dtype)) * weight + bias)


def _pooled(x: Array) -> Array:
    rows = np.maximum(np.maximum(x[:-2], x[1:-1]), x[2:])
    return np.maximum(np.maximum(rows[:, :-2], rows[:, 1:-1]), rows[:, 2:])


def _softmax(x: Array) -> Array:
    power = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(power / power.sum(-1, keepdims=True))


def _entry(arrays: Mapping[str, Array], index: tuple[slice, ...]) -> dict[str, Array]:
    """Rows of one entry of a batch; see `Task.part`."""
    return {"lhs": arrays["lhs"][index], "rhs": arrays["rhs"][index[:1]]}


def _columns(arrays: Mapping[str, Array], index: tuple[slice, ...]) -> dict[str, Array]:
    """Rows of a product whose left operand is transposed; see `Task.part`."""
    return {"lhs": arrays["lhs"][:, index[0]], "rhs": arrays["rhs"]}


def _matmul_norm(x: Array, weight: Array, z: Array, g: Array) -> Array:
    return rmsnorm(x @ weight + z, g, _EPS)


def _swiglu(x: Array, gate: Array, up: Array, down: Array) -> Array:
    return np.asarray((_silu(x @ gate) * (x @ up)) @ down)


def _draw(
    shapes: Mapping[str, Shape], distribution: str, rng: np.random.Generator, weights: tuple[str, ...]
) -> dict[str, Array]:
    """As in matmuls.py: what is multiplied has the variance of a layer's weights; variances are positive."""
    found = scaled(shapes, distribution, rng, first=tuple(name for name in shapes if name not in weights))
    if "theta" in found:
        found["v"] = np.abs(found["v"]) + 1e-3
        if distribution == "small":  # where the root of v is as small as a wrong eps
            found["g"], found["m"], found["v"] = 1e-4 * found["g"], 1e-4 * found["m"], 1e-9 * found["v"]
        if distribution == "new":  # a parameter that begins at 0: the step alone is seen, with roots from near eps to 1
            sizes = 10.0 ** rng.uniform(-17, -3, (found["v"].shape[0], 1))
            found["theta"], found["v"] = np.zeros_like(found["theta"]), sizes * found["v"]
            found["g"], found["m"] = np.sqrt(sizes) * found["g"], np.sqrt(sizes) * found["m"]
    for name in ("delta", "a"):
        if name in found and "delta" in found:
            found[name] = -np.abs(found[name]) * 0.5 if name == "a" else np.abs(found[name]) * 0.5
    return found


def _task(
    name: str,
    about: str,
    published: int,
    shapes: Callable[[int, bool], dict[str, Shape]],
    reference: Callable[..., Any],
    flops: Callable[[dict[str, Shape]], int],
    *,
    check: tuple[int, int] = (128, 256),
    weights: tuple[str, ...] = (),
    **words: Any,
) -> Task:
    def arrays(size: int) -> dict[str, tuple[Shape, str]]:
        return {key: (shape, FLOAT) for key, shape in shapes(size, size >= published).items()}

    return Task(
        name=name,
        about=about,
        arrays=arrays,
        reference=reference,
        flops=lambda n: flops(shapes(n, n >= published)),
        check=check,
        at=(published,),
        dtype="bfloat16" if weights else "float32",
        family=words.pop("family", "matmul" if weights else ""),
        inputs=lambda n, distribution, rng: _draw(shapes(n, n >= published), distribution, rng, weights),
        **words,
    )


def _mm(s: dict[str, Shape], *products: tuple[str, str]) -> int:
    return sum(2 * s[a][-2] * s[a][-1] * s[b][-1] for a, b in products)


def _elements(times: int) -> Callable[[dict[str, Shape]], int]:
    return lambda s: times * int(np.prod(next(iter(s.values()))))


_NKIBENCH = (
    _task("nkibench_adamw", "the new theta of an AdamW step, all [size, 2048]", 10_944,
          lambda n, full: dict.fromkeys(("theta", "g", "m", "v"), (n, 2048 if full else 512)), _adamw, _elements(12),
          distributions=("small", "new")),
    _task("nkibench_silu", "x * sigmoid(x), x [size, 7168]", 4096, lambda n, full: {"x": (n, 7168 if full else 512)}, _silu,
          _elements(4)),
    _task("nkibench_rope", "rotary embedding on columns, x [128, size], cos and sin [64, size]; 64 heads x 4,096",
          262_144,
          lambda n, full: {"x": (128, n), "cos": (64, n), "sin": (64, n)}, _rope, _elements(3), check=(512, 1024)),
    _task("nkibench_mamba", "selective state space: sum over 16 states of c * scan(exp(delta * a), delta * u * b), delta and u "
          "[256, size], a [256, 16], b and c [16, size]", 7168,
          lambda n, full: {"delta": (256, n), "u": (256, n), "a": (256, 16), "b": (16, n), "c": (16, n)},
          _mamba, _elements(96), part=rows_of("delta", "u", "a")),
    _task("nkibench_matmul", "a @ b, a [size, 5120], b [5120, 12288]", 4096,
          lambda n, full: {"a": (n, 5120), "b": (5120, 12_288)} if full else {"a": (n, 256), "b": (256, 1024)},
          lambda a, b: a @ b, lambda s: _mm(s, ("a", "b")), weights=("b",), part=rows_of("a")),
    _task("nkibench_transpose_matmul", "lhs.T @ rhs, lhs [2048, size], rhs [2048, 10944]", 4096,
          lambda n, full: {"lhs": (2048, n), "rhs": (2048, 10_944)} if full else {"lhs": (256, n), "rhs": (256, 800)},
          lambda lhs, rhs: lhs.T @ rhs, lambda s: 2 * s["lhs"][0] * s["lhs"][1] * s["rhs"][1], weights=("rhs",), part=_columns),
    _task("nkibench_lora", "x @ w + (x @ a) @ b, x [size, 5120], w [5120, 12288], rank 128", 4096,
          lambda n, full: {"x": (n, 5120), "w": (5120, 12_288), "a": (5120, 128), "b": (128, 12_288)} if full else
          {"x": (n, 256), "w": (256, 1024), "a": (256, 128), "b": (128, 1024)},
          lambda x, w, a, b: x @ w + (x @ a) @ b, lambda s: _mm(s, ("x", "w"), ("x", "a")) + 2 * s["x"][0] * 128 * s["w"][1],
          ideal=lambda x, w, a, b: x @ w + rounded(x @ a) @ b, weights=("w", "a", "b"), part=rows_of("x")),
    _task("nkibench_bmm", "lhs @ rhs per entry of a batch of 16, lhs [size, 64], rhs [64, 4096]", 4096,
          lambda n, full: {"lhs": (16, n, 64), "rhs": (16, 64, 4096)} if full else {"lhs": (2, n, 64), "rhs": (2, 64, 1024)},
          lambda lhs, rhs: lhs @ rhs, lambda s: s["lhs"][0] * _mm(s, ("lhs", "rhs")), weights=("rhs",), part=_entry),
    _task("nkibench_bmm_softmax", "softmax(lhs @ rhs) over the last axis, shapes as nkibench_bmm", 4096,
          lambda n, full: {"lhs": (16, n, 64), "rhs": (16, 64, 4096)} if full else {"lhs": (2, n, 64), "rhs": (2, 64, 1024)},
          lambda lhs, rhs: _softmax(lhs @ rhs), lambda s: s["lhs"][0] * _mm(s, ("lhs", "rhs")), weights=("rhs",), part=_entry),
    _task("nkibench_rmsnorm_matmul", "rmsnorm(x) @ weight, x [size, 1024], weight [1024, 2048], eps 1e-5", 4096,
          lambda n, full: {"x": (n, 1024), "weight": (1024, 2048)} if full else {"x": (n, 256), "weight": (256, 1024)},
          lambda x, weight: rmsnorm(x, np.ones((1, x.shape[1]), x.dtype), _EPS) @ weight, lambda s: _mm(s, ("x", "weight")),
          ideal=lambda x, weight: rounded(rmsnorm(x, np.ones((1, x.shape[1]), x.dtype), _EPS)) @ weight, weights=("weight",),
          part=rows_of("x"), distributions=("small_rows",)),
    _task("nkibench_add_rmsnorm_matmul", "(rmsnorm(x + z) * g) @ weight, x, z [size, 1024], weight [1024, 2048], g [1, 1024]",
          4096,
          lambda n, full: {"x": (n, 1024), "weight": (1024, 2048), "z": (n, 1024), "g": (1, 1024)} if full else
          {"x": (n, 256), "weight": (256, 1024), "z": (n, 256), "g": (1, 256)},
          lambda x, weight, z, g: rmsnorm(x + z, g, _EPS) @ weight, lambda s: _mm(s, ("x", "weight")),
          ideal=lambda x, weight, z, g: rounded(rmsnorm(x + z, g, _EPS)) @ weight, weights=("weight",),
          part=rows_of("x", "z"), distributions=("small_rows",)),
    _task("nkibench_matmul_add_rmsnorm", "rmsnorm(x @ weight + z) * g, x [size, 2048], weight [2048, 2048], z [size, 2048]",
          4096,
          lambda n, full: {"x": (n, 2048), "weight": (2048, 2048), "z": (n, 2048), "g": (1, 2048)} if full else
          {"x": (n, 256), "weight": (256, 512), "z": (n, 512), "g": (1, 512)}, _matmul_norm, lambda s: _mm(s, ("x", "weight")),
          weights=("weight",), part=rows_of("x", "z"), distributions=("small_rows",)),
    _task("nkibench_swiglu", "(silu(x @ gate) * (x @ up)) @ down, x [size, 1024], gate and up [1024, 3072], down [3072, 1024]",
          4096,
          lambda n, full: {"x": (n, 1024), "gate": (1024, 3072), "up": (1024, 3072), "down": (3072, 1024)} if full else
          {"x": (n, 512), "gate": (512, 1024), "up": (512, 1024), "down": (1024, 512)}, _swiglu,
          lambda s: _mm(s, ("x", "gate"), ("x", "up")) + 2 * s["x"][0] * s["down"][0] * s["down"][1],
          ideal=lambda x, gate, up, down: rounded(_silu(x @ gate) * (x @ up)) @ down, weights=("gate", "up", "down"),
          part=rows_of("x")),
    attention_task("nkibench_gqa_full", "attention, 16 query heads, 8 kv heads, head_dim 128", 16, 8, lambda n: n,
                   check=(128, 256), at=(4096,)),
)  # fmt: skip

_AUTOCOMP = (
    _task("autocomp_rmsnorm", "x / sqrt(mean(x ** 2) + 1e-6) * weight, x [size, 4096], weight [1, 4096]", 512,
          lambda n, full: {"x": (n, 4096), "weight": (1, 4096)}, lambda x, weight: rmsnorm(x, weight, 1e-6), _elements(4),
          check=(128, 384), family="normalisation", distributions=("small_rows",), wrong=RMS_WRONG, part=rows_of("x")),
    _task("autocomp_layernorm", "(x - mean) / sqrt(variance + 1e-5) * weight + bias, x [size, 8192], weight and bias [1, 8192]",
          4096, lambda n, full: {"x": (n, 8192), "weight": (1, 8192), "bias": (1, 8192)}, _layernorm, _elements(7),
          check=(128, 384), family="normalisation", distributions=("small_rows",), wrong=LAYER_WRONG,
          part=rows_of("x")),
    _task("autocomp_cumsum", "cumulative sum along the last axis of x [size, 2048]", 2048,
          lambda n, full: {"x": (n, 2048)}, lambda x: np.cumsum(x, -1), _elements(1), check=(128, 384),
          step=lambda before, x: before + x[:, 1:]),
    _task("autocomp_gemm", "lhs.T @ rhs, lhs [8192, size], rhs [8192, 8192]", 4096,
          lambda n, full: {"lhs": (8192, n), "rhs": (8192, 8192)} if full else {"lhs": (256, n), "rhs": (256, 1024)},
          lambda lhs, rhs: lhs.T @ rhs, lambda s: 2 * s["lhs"][0] * s["lhs"][1] * s["rhs"][1], weights=("rhs",), part=_columns),
    _task("autocomp_maxpool", "maximum over windows of 3 x 3, x [size, size], out [size - 2, size - 2]", 4096,
          lambda n, full: {"x": (n, n)}, _pooled, _elements(4), check=(256, 384)),
    _task("autocomp_rope", "as nkibench_rope at 4,096 columns", 4096,
          lambda n, full: {"x": (128, n), "cos": (64, n), "sin": (64, n)}, _rope, _elements(3), check=(512, 1024)),
    _task("autocomp_mamba", "as nkibench_mamba at 2,048", 2048,
          lambda n, full: {"delta": (256, n), "u": (256, n), "a": (256, 16), "b": (16, n), "c": (16, n)},
          _mamba, _elements(96), part=rows_of("delta", "u", "a")),
    attention_task("autocomp_csa", "causal attention, one head, head_dim 128", 1, 1, lambda n: n, causal=True,
                   check=(512, 1024), at=(2048, 16_384)),
)  # fmt: skip

TASKS = {task.name: task for task in (*_NKIBENCH, *_AUTOCOMP)}
