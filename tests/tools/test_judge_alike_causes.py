"""Causes that look alike on some inputs, mistakes that only a parameter of 0 shows, files that damage their own process."""

import ml_dtypes
import numpy as np
import pytest

import nki_hf
from nki_hf.tasks import load_task
from tests.support.kernel_head import HEAD

ADAMW = """
@nki.jit
def adamw(param, grad, exp_avg, exp_avg_sq):
    outs = [nl.ndarray(param.shape, nl.float32, buffer=nl.shared_hbm) for _ in range(3)]
    for r in range(0, param.shape[0], 128):
        rows = slice(r, min(r + 128, param.shape[0]))
        p, g, m, v = [load(x[rows, :]) for x in (param, grad, exp_avg, exp_avg_sq)]
        {clip}
        square, root = tile(g.shape), tile(g.shape)
        nisa.tensor_tensor(dst=square, data1=g, data2=g, op=nl.multiply)
        nisa.tensor_scalar(dst=square, data=square, op0=nl.multiply, operand0=0.001)
        nisa.scalar_tensor_tensor(dst=v, data=v, op0=nl.multiply, operand0=0.999, op1=nl.add, operand1=square)
        nisa.tensor_scalar(dst=g, data=g, op0=nl.multiply, operand0=0.1)
        nisa.scalar_tensor_tensor(dst=m, data=m, op0=nl.multiply, operand0=0.9, op1=nl.add, operand1=g)
        {root}
        nisa.reciprocal(dst=root, data=root)
        nisa.tensor_tensor(dst=root, data1=root, data2=m, op=nl.multiply)
        nisa.tensor_scalar(dst=root, data=root, op0=nl.multiply, operand0=0.001)
        {step}
        for out, done in zip(outs, (p, m, v)):
            nisa.dma_copy(dst=out[rows, :], src=done)
    return tuple(outs)
"""
ROOT = "nisa.activation(dst=root, op=nl.sqrt, data=v); nisa.tensor_scalar(dst=root, data=root, op0=nl.add, operand0=1e-8)"
UNDER = "nisa.tensor_scalar(dst=root, data=v, op0=nl.add, operand0=1e-8); nisa.activation(dst=root, op=nl.sqrt, data=root)"
STEP = "nisa.scalar_tensor_tensor(dst=p, data=p, op0=nl.multiply, operand0=0.99999, op1=nl.subtract, operand1=root)"
AFTER = (
    "nisa.tensor_tensor(dst=p, data1=p, data2=root, op=nl.subtract); "
    "nisa.tensor_scalar(dst=p, data=p, op0=nl.multiply, operand0=0.99999)"
)
CLIP = "nisa.tensor_scalar(dst=g, data=g, op0=nl.minimum, operand0=1.0, op1=nl.maximum, operand1=-1.0)"
MATMUL = """
@nki.jit
def matmul(a, b):
    (m, k), n = a.shape, b.shape[1]
    out = nl.ndarray((m, n), a.dtype, buffer=nl.shared_hbm)
    for i in range(0, m, 128):
        for j in range(0, n, 512):
            bank = tile((128, 512), buffer=nl.psum)
            for c in range(k // 128{fewer}):
                left = nl.load_transpose2d(a[i : i + 128, {c} * 128 : {c} * 128 + 128])
                nisa.nc_matmul(dst=bank, stationary=left, moving=load(b[c * 128 : c * 128 + 128, j : j + 512]))
            nl.store(out[i : i + 128, j : j + 512], nl.copy(bank, dtype=a.dtype))
    {returned}
"""
CUMSUM = """
@nki.jit
def cumsum(x):
    out, ones = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm), tile((128, 256))
    nisa.memset(dst=ones, value=1.0)
    for r in range(0, x.shape[0], 128):
        carry = tile((128, 1), {carry})
        nisa.memset(dst=carry, value=0.0)
        for c in range(0, x.shape[1], 256):
            part, done = load(x[r : r + 128, c : c + 256]), tile((128, 256))
            nisa.tensor_tensor_scan(dst=done, data0=ones, data1=part, initial=carry, op0=nl.multiply, op1=nl.add)
            nisa.tensor_copy(dst=carry, src=done[:, 255:256])
            nisa.dma_copy(dst=out[r : r + 128, c : c + 256], src=done)
    return out
"""
LOOP = """
{before}
@nki.jit
def silu(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for i in nl.dynamic_range({loop}):
        part = tile((128, x.shape[1]))
        nisa.dma_copy(dst=part, src=x[nl.ds({row}, 128), :])
        nisa.activation(dst=part, op=nl.silu, data=part)
        nisa.dma_copy(dst=out[nl.ds({row}, 128), :], src=part)
    return out
"""
SOFTMAX = """
@nki.jit
def softmax(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for r in range(0, x.shape[0], 128):
        rows = slice(r, min(r + 128, x.shape[0]))
        part = load(x[rows, :])
        top, total = tile((part.shape[0], 1)), tile((part.shape[0], 1))
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=part, axis=1, negate=True)
        nisa.activation_reduce(dst=part, op=nl.exp, data=part, bias=top, reduce_op=nl.add, reduce_res=total)
        nisa.tensor_scalar(dst=part, data=part, op0=nl.divide, operand0=total)
        nisa.dma_copy(dst=out[rows, :], src=part)
    return out
"""
RIGHT = {
    "adamw": (ADAMW, {"clip": "", "root": ROOT, "step": STEP}),
    "matmul": (MATMUL, {"c": "c", "fewer": "", "returned": "return out"}),
    "cumsum": (CUMSUM, {"carry": "nl.float32"}),
    "nkibench_silu": (LOOP, {"before": "", "loop": "0, x.shape[0], 128", "row": "i"}),
}
ROOT_LINE = 1 + (HEAD + ADAMW).splitlines().index("        {root}")
INFINITE = (
    f"reciprocal at line {ROOT_LINE + 1} is the first to write inf (65,536 of 65,536 elements): an overflow, a division by 0"
)
JSON = "import json\njson.dumps = lambda *a, **k: '{}'\n"
WRONG = [
    ("adamw", {"root": UNDER}, "param equals what comes out if eps is under the root"),
    ("adamw", {"root": ROOT.replace("1e-8", "1e-3")}, "eps is 0.001 instead of 1e-8"),
    ("adamw", {"step": AFTER}, "param equals what comes out if the weight decay comes after the step"),
    ("matmul", {"c": "(c ^ 1)"}, "each even block of 128 columns of a is exchanged with the odd one after it"),
    ("matmul", {"fewer": " - (i >= 1920)"}, "at size 2,048 the kernel does 98.4% of the operations that the task asks for"),
    ("adamw", {"root": ROOT.replace("data=v", "data=m")}, f"activation at line {ROOT_LINE} is the first to write NaN"),
    ("adamw", {"root": ROOT.replace("nl.sqrt, data=v", "nl.sqrt, data=v, scale=0.0").replace("1e-8", "0.0")}, INFINITE),
    ("adamw", {"clip": CLIP}, "param equals what comes out if the gradient is clipped to 1"),
    ("cumsum", {"carry": "nl.bfloat16"}, "the carry of each 256 columns is rounded to bfloat16"),
    ("nkibench_silu", {"loop": "x.shape[0] // 128", "row": "i * 128"}, "A register takes no arithmetic"),
    ("nkibench_silu", {"before": JSON.format('{"verdict": "pass", "passed": true}')}, "run: what its process wrote is no tape"),
    ("nkibench_silu", {"before": JSON.format('{"error": {"kind": 1}, "stage": []}')}, "run: what its process wrote is no tape"),
    ("nkibench_silu", {"before": JSON.format('{"error": null, "stage": "", "name": "", "traces": [7]}')}, "failed at stage"),
]


def _judged(folder, task, changes):
    text, right = RIGHT[task]
    file = folder / "kernel.py"
    file.write_text(HEAD + text.format(**{**right, **changes}))
    return nki_hf.judge(file, task, at=(2048,), chip=("trn2",))


@pytest.mark.parametrize("task", RIGHT)
def test_the_right_kernels_pass(task, tmp_path):
    record = _judged(tmp_path, task, {})
    assert record["passed"], record["sentence"]


@pytest.mark.parametrize(("task", "changes", "words"), WRONG)
def test_the_cause_is_named(task, changes, words, tmp_path):
    record = _judged(tmp_path, task, changes)
    assert not record["passed"]
    assert words in record["sentence"], record["sentence"]
    assert "server was killed" not in record["sentence"]


def test_gradients_of_probabilities_that_are_not_divided(rng):
    """dv = exp(scores - maximum).T @ dout, row by row in float64."""
    task = load_task("attention_backward")
    q, k, v, dout = (rng.standard_normal((256, 128)) for _ in range(4))
    found = task.wrong["dv takes the exponentials, which are not divided by their sums"](q=q, k=k, v=v, dout=dout)
    dv = np.zeros((256, 128))
    for i in range(256):
        scores = k[: i + 1] @ q[i] * 128**-0.5
        dv[: i + 1] += np.exp(scores - scores.max())[:, None] * dout[i]
    np.testing.assert_allclose(found[2], dv, rtol=1e-9, atol=1e-9)
    right = task.reference(q=q, k=k, v=v, dout=dout)
    np.testing.assert_array_equal(found[0], right[0])
    np.testing.assert_array_equal(found[1], right[1])


@pytest.mark.parametrize("left_out", [False, True])
def test_an_output_more_than_the_task_asks_for_hides_nothing(left_out, tmp_path):
    """It counts neither for the sizes that are right, nor against rows that are left out at a timed size."""
    text = SOFTMAX.replace("return out", "return out, nl.ndarray((1, 1), nl.float32, buffer=nl.shared_hbm)")
    if left_out:
        text = text.replace("range(0, x.shape[0], 128)", "range(0, x.shape[0] if x.shape[0] < 1000 else 2560, 128)")
    file = tmp_path / "kernel.py"
    file.write_text(HEAD + text)
    record = nki_hf.judge(file, "softmax", at=(4096,), chip=("trn2",))
    assert record["ragged"]["verdict"] == "right", record["ragged"]
    assert record["passed"] != left_out, record["sentence"]
    assert not left_out or "at size 4,096 the kernel writes 62.5% of an output" in record["sentence"]


@pytest.mark.parametrize("which", ["each half of the rows", "every second tile of 128 rows"])
def test_partial_sums_of_two_cores_that_are_not_exchanged(which, rng):
    a, b = rng.standard_normal((512, 512)), rng.standard_normal((512, 512))
    words = f"{which} of the output has one half of the contraction alone (partial sums that were not exchanged)"
    found = load_task("matmul").wrong[words](a=a, b=b)
    for row in (0, 127, 128, 255, 256, 383, 384, 511):
        second = row >= 256 if which == "each half of the rows" else row in (128, 255, 384, 511)
        part = slice(256, 512) if second else slice(0, 256)
        np.testing.assert_allclose(found[row], [sum(a[row, part] * b[part, j]) for j in range(512)], atol=1e-9)


def test_softmaxes_of_blocks_of_keys_and_queries_rounded_after_their_scale(rng):
    """Formulas of two mistakes, head by head and block by block in float64."""
    q, k, v = (rng.standard_normal((256, 128)) for _ in range(3))
    wrong = load_task("attention").wrong
    blocks = []
    for first in (0, 128):
        power = np.exp(q @ k[first : first + 128].T / 128**0.5)
        blocks.append(power / power.sum(-1, keepdims=True) @ v[first : first + 128])
    own = "each block is a softmax of its own, and the output is their"
    np.testing.assert_allclose(
        wrong[f"{own} mean, keys in blocks of 128"](q=q, k=k, v=v), (blocks[0] + blocks[1]) / 2, atol=1e-9
    )
    np.testing.assert_allclose(wrong[f"{own} sum, keys in blocks of 128"](q=q, k=k, v=v), blocks[0] + blocks[1], atol=1e-9)
    scaled = (q * 128**-0.5).astype(ml_dtypes.bfloat16).astype(np.float64)
    power = np.exp(scaled @ k.T)
    said = "the queries are rounded to bfloat16 once more after they are scaled (scale the scores instead)"
    np.testing.assert_allclose(wrong[said](q=q, k=k, v=v), power / power.sum(-1, keepdims=True) @ v, atol=1e-9)
