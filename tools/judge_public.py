"""`nki_hf judge` on kernels that nobody here wrote and that are right: each must pass.

    python tools/judge_public.py --autocomp ../autocomp --library ../nki-library

* `--autocomp`: a checkout of ucb-bar/autocomp (commit dd26a56 of 2026): the reference solutions of its Trainium tasks in the
  current language (sols/trn-tutorial-nki2, sols/trn-advanced-nki2), each with the task of its harness at smaller sizes.

* `--library`: a checkout of aws-neuron/nki-library (release 2.29 of April 2026): attention_cte, cumsum, RoPE, rope_hf,
  output_projection_cte and cascaded_max; `tools/conformance/nki_library.py --judge` judges every kernel by the
  library's own tests.

The gemm (nl.par_dim), conv2d and the attention over 16,384 keys are left out: they need what NKI does not have, or a harness
around them. Exit code 1 if a kernel fails.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import nki_hf
from nki_hf.tools.program import finished

_HEAD = "import math\nimport numpy as np\nimport nki\nimport nki.isa as nisa\nimport nki.language as nl\n\n"
_TASK = "import numpy as np\nfrom nki_hf.tasks import FLOAT, Task\n\n"

_SOFTMAX = """
def softmax(s):
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)

"""
_UNDIVIDED = """
def reference(q, k, v, causal_mask):
    s = np.where(causal_mask > 0, q @ k, -9984.0)
    top = s.max(-1, keepdims=True)
    p = np.exp(s - top)  # the rows are not divided: another kernel joins them
    return p @ v, np.log(p.sum(-1, keepdims=True)) + top, top
"""
_MASKED = """
def inputs(n, distribution, rng):
    found = {name: rng.standard_normal(shape) for name, (shape, _) in arrays(n).items()}
    if distribution == "wide":
        found["q"] *= 3
    return {**found, "causal_mask": np.tri(n)}

"""

CASES = {
    # file: (task, how the kernel is called by the task's arrays; empty = as it is)
    "trn-tutorial-nki2/0_rmsnorm_ref.py": (
        """TASK = Task(name="rmsnorm", about="",
        arrays=lambda n: {"a_tensor": ((n, 1024), FLOAT), "g_tensor": ((1024,), FLOAT)},
        reference=lambda a_tensor, g_tensor: a_tensor / np.sqrt((a_tensor**2).mean(-1, keepdims=True)) * g_tensor,
        flops=lambda n: 4 * n * 1024, check=(128, 384), at=(512,), dtype="float32")""",
        "",
    ),
    "trn-tutorial-nki2/1_layernorm_ref.py": (
        """TASK = Task(name="layernorm", about="",
        arrays=lambda n: {"x": ((n, 1024), FLOAT), "gamma": ((1024,), FLOAT), "beta": ((1024,), FLOAT)},
        reference=lambda x, gamma, beta: (
            (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * gamma + beta),
        flops=lambda n: 7 * n * 1024, check=(128, 384), at=(512,), dtype="float32")""",
        "x, gamma, beta: solution(x, 1e-5, gamma, beta)",
    ),
    "trn-tutorial-nki2/3_mamba_ref.py": (
        """def inputs(n, distribution, rng):
    found = {name: rng.uniform(0, 1, shape) for name, (shape, _) in arrays(n).items()}
    found["A"] *= -1
    for name in ("B", "C"):
        found[name] = np.repeat(found[name][:, ::128], 128, 1)
    return found

def arrays(n):
    wide = ((1, 128, n), FLOAT)
    return {"delta": wide, "u": wide, "A": ((128, 4), FLOAT), "B": ((1, 512, n), FLOAT), "C": ((1, 512, n), FLOAT)}

def reference(delta, u, A, B, C):
    out = np.zeros_like(u)
    for s in range(4):
        state = np.zeros(u.shape[:2])
        for t in range(u.shape[2]):
            state = np.exp(delta[:, :, t] * A[:, s]) * state + delta[:, :, t] * u[:, :, t] * B[:, 128 * s, t]
            out[:, :, t] += state * C[:, 128 * s, t]
    return out

TASK = Task(name="mamba", about="", arrays=arrays, reference=reference, inputs=inputs, flops=lambda n: n,
            check=(512, 1024), at=(1024,), dtype="float32")""",
        "",
    ),
    "trn-tutorial-nki2/4_attention_ref.py": (
        _SOFTMAX
        + """TASK = Task(name="attention", about="", arrays=lambda n: dict.fromkeys("qkv", ((128, n), FLOAT)),
        reference=lambda q, k, v: softmax(q.T @ k) @ v.T, flops=lambda n: 512 * n * n, check=(512, 1024), at=(2048,))""",
        "",
    ),
    "trn-tutorial-nki2/5_sdattention_ref.py": (
        _SOFTMAX
        + """TASK = Task(name="sd", about="", arrays=lambda n: dict.fromkeys("qkv", ((n, 64), FLOAT)), dtype="float32",
        reference=lambda q, k, v: softmax(q @ k.T / 8) @ v, flops=lambda n: 256 * n * n, check=(256, 512), at=(1024,))""",
        "",
    ),
    "trn-advanced-nki2/0_cumsum_ref.py": ("", ""),
    "trn-advanced-nki2/1_transpose_ref.py": (
        """TASK = Task(name="transpose", about="", arrays=lambda n: {"x": ((2, n, 256), FLOAT)}, dtype="float32",
        reference=lambda x: x.transpose(0, 2, 1), flops=lambda n: 0, check=(128, 256), at=(512,))""",
        "x: solution(x, 1)",
    ),
    "trn-advanced-nki2/2_maxpool_ref.py": (
        """def reference(x):
    return np.lib.stride_tricks.sliding_window_view(x, (3, 3)).max((-2, -1))

TASK = Task(name="maxpool", about="", arrays=lambda n: {"x": ((n, 448), FLOAT)}, dtype="float32", reference=reference,
            flops=lambda n: 9 * n * 448, check=(128, 448), at=(448,))""",
        "x: solution(x, 3)",
    ),
    "trn-advanced-nki2/3_rope_ref.py": (
        """def reference(x, cos, sin):
    a, b = x[:64], x[64:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin])

TASK = Task(name="rope", about="", dtype="float32", reference=reference, flops=lambda n: 3 * 128 * n, check=(512, 1024),
            arrays=lambda n: {"x": ((128, n), FLOAT), "cos": ((64, n), FLOAT), "sin": ((64, n), FLOAT)}, at=(4096,))""",
        "x, cos, sin: solution(x, cos, sin)",
    ),
    "trn-advanced-nki2/4_conv1d_ref.py": (
        """def reference(img, filt):
    n, c, _, w = img.shape
    padded = np.pad(img[:, :, 0], ((0, 0), (0, 0), (1, 1)))
    return sum(filt[None, :, 0, 0, j : j + 1] * padded[:, :, j : j + w] for j in range(3))[:, :, None]

TASK = Task(name="conv1d", about="", dtype="float32", reference=reference, flops=lambda n: 6 * 128 * n, check=(32, 64),
            arrays=lambda n: {"img": ((1, 128, 1, n), FLOAT), "filt": ((128, 1, 1, 3), FLOAT)}, at=(128,))""",
        "img, filt: solution(img, filt, ((0, 0), (1, 1)))",
    ),
    "trn-advanced-nki2/6_csa_2048_ref.py": (
        """def arrays(n):
    return {"q": ((n, 128), FLOAT), "k": ((128, n), FLOAT), "v": ((n, 128), FLOAT), "causal_mask": ((n, n), "float32")}
"""
        + _UNDIVIDED
        + _MASKED
        + """TASK = Task(name="csa", about="", dtype="float32", arrays=arrays, reference=reference, inputs=inputs,
            flops=lambda n: 256 * n * n, check=(2048, 2048), at=(2048,), outputs=("o", "l", "m"))""",
        "q, k, v, causal_mask: solution(q, k, v, causal_mask, nl.float32, nl.float32, seq_len=q.shape[0])",
    ),
    "trn-advanced-nki2/8_mha_ref.py": (
        """def arrays(n):
    rows = ((2, n, 128), FLOAT)
    return {"q": rows, "k": ((2, 128, n), FLOAT), "v": rows, "causal_mask": ((n, n), "float32")}
"""
        + _UNDIVIDED
        + _MASKED
        + """TASK = Task(name="mha", about="", dtype="float32", arrays=arrays, reference=reference, inputs=inputs,
            flops=lambda n: 512 * n * n, check=(512, 1024), at=(1024,), outputs=("o", "l", "m"))""",
        "q, k, v, causal_mask: solution(q, k, v, causal_mask, nl.float32, nl.float32, num_heads=2, seq_len=q.shape[1])",
    ),
}


_ROPE = """
def reference(x, cos, sin):
    a, b = x[:64], x[64:]
    c, s = cos[:, :, None], sin[:, :, None]
    return np.concatenate([a * c - b * s, b * c + a * s])

TASK = Task(name="rope", about="", dtype="float32", reference=reference, flops=lambda n: 6 * 128 * n, check=(512, 1024),
            arrays=lambda n: {"x": ((128, 1, 2, n), FLOAT), "cos": ((64, 1, n), FLOAT), "sin": ((64, 1, n), FLOAT)},
            at=(1024,))"""

LIBRARY = {
    # module: (name, task, how it is called)
    "attention.attention_cte": (
        "attention_cte",
        _SOFTMAX
        + """def reference(q, k, v):
    k, v = np.repeat(k, 2, 0), np.repeat(v, 2, 0)
    s = q @ k * 128**-0.5
    return softmax(np.where(np.tri(q.shape[1]) > 0, s, -np.inf)) @ v

TASK = Task(name="attention", about="", reference=reference, flops=lambda n: 4 * 256 * n * n, check=(512, 1024), at=(2048,),
            family="attention",
            arrays=lambda n: {"q": ((4, n, 128), FLOAT), "k": ((2, 128, n), FLOAT), "v": ((2, n, 128), FLOAT)})""",
        "q, k, v: attention_cte(q, k, v, scale=128**-0.5)",
    ),
    "cumsum.cumsum": ("cumsum", "", "x: cumsum(x)"),
    "embeddings.rope": ("RoPE", _ROPE, "x, cos, sin: RoPE(x, cos, sin)"),
    "embeddings.rope_hf": (
        "rope_hf",
        """def turned(x, cos, sin):
    return x * cos + np.concatenate([-x[..., 64:], x[..., :64]], -1) * sin

TASK = Task(name="rope_hf", about="", dtype="float32", flops=lambda n: 3 * 128 * 3 * n, check=(256, 512), at=(1024,),
            reference=lambda q, k, q_out, k_out, cos, sin: (turned(q, cos, sin), turned(k, cos, sin)), outputs=("q", "k"),
            arrays=lambda n: {"q": ((1, 2, n, 128), FLOAT), "k": ((1, 1, n, 128), FLOAT), "q_out": ((1, 2, n, 128), FLOAT),
                              "k_out": ((1, 1, n, 128), FLOAT), "cos": ((n, 128), FLOAT), "sin": ((n, 128), FLOAT)})""",
        "q, k, q_out, k_out, cos, sin: rope_hf(q, k, q_out, k_out, cos, sin)",
    ),
    "output_projection.output_projection_cte.output_projection_cte": (
        "output_projection_cte",
        """TASK = Task(name="projection", about="", check=(512, 1024), at=(1024,), flops=lambda n: 2 * n * 512 * 512,
            arrays=lambda n: {"a": ((1, 4, 128, n), FLOAT), "w": ((512, 512), FLOAT)},
            reference=lambda a, w: a.reshape(1, 512, -1).transpose(0, 2, 1) @ w)""",
        "a, w: output_projection_cte(a, w)",
    ),
    "max.cascaded_max": (
        "cascaded_max",
        """TASK = Task(name="max", about="", check=(1024, 2048), at=(4096,), dtype="float32", flops=lambda n: n,
            arrays=lambda n: {"x": ((1, 1, n), FLOAT)}, outputs=("largest",), reference=lambda x: x.max(-1, keepdims=True))""",
        "x: cascaded_max(x)[0]",
    ),
}


def library(checkout: Path) -> int:
    """Print a line per kernel of the library; how many failed."""
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        for module, (function, task, call) in LIBRARY.items():
            parameters, _, body = call.partition(": ")
            text = f"{_HEAD}import sys\nsys.path.insert(0, {str(checkout / 'src')!r})\n"
            text += f"from nkilib_src.nkilib.core.{module} import {function}\n\n\n@nki.jit\ndef judged({parameters}):\n"
            failed += not _judged(Path(name), module, text + f"    return {body}\n", task, 0.0)
    return failed


def _judged(folder: Path, title: str, text: str, task: str, rtol: float) -> bool:
    kernel, tasks = folder / "kernel.py", folder / "task.py"
    kernel.write_text(text)
    tasks.write_text(_TASK + task)
    began = time.perf_counter()
    record = nki_hf.judge(kernel, str(tasks) if task else "cumsum", chip=("trn2",), rtol=rtol)
    print(f"{title:40s} {time.perf_counter() - began:5.1f} s  {record['sentence'][:150]}", flush=True)
    return bool(record["passed"])


def run(checkout: Path) -> int:
    """Print a line per kernel; how many failed."""
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        for source, (task, call) in CASES.items():
            text = _HEAD + (checkout / "sols" / source).read_text()
            if call:
                parameters, _, body = call.partition(": ")
                text = text.replace("@nki.jit\ndef solution", "def solution")
                text += f"\n\n@nki.jit\ndef judged({parameters}):\n    return {body}\n"
            failed += not _judged(Path(name), source, text, task, 1e-2 if "csa" in source or "mha" in source else 0.0)
    return failed


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--autocomp", type=Path, help="a checkout of ucb-bar/autocomp")
    parser.add_argument("--library", type=Path, help="a checkout of aws-neuron/nki-library")
    given = parser.parse_args()
    failed = run(given.autocomp) if given.autocomp else 0
    failed += library(given.library) if given.library else 0
    print(f"{failed} fail")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(finished(main))
