"""Causes that a wrong output of these kernels must be given in words: loops of run time, two cores, types, several outputs."""

import pytest

import nki_hf

HEAD = """
import nki
import nki.isa as nisa
import nki.language as nl

P = 128


def tile(shape, dtype=nl.float32, buffer=nl.sbuf):
    return nl.ndarray(shape, dtype, buffer=buffer)


def load(source, dtype=None):
    found = tile(source.shape, dtype or source.dtype)
    nisa.dma_copy(dst=found, src=source)
    return found


def output(shape, dtype):
    return nl.ndarray(shape, dtype, buffer=nl.shared_hbm)

"""
CONV1D = """
@nki.jit
def conv1d(x, weight):
    channels, n = x.shape
    out, taps = output(x.shape, x.dtype), load(weight)
    padded = nl.ndarray((channels, n + 3), x.dtype, buffer=nl.hbm)
    {zeros}
    nisa.dma_copy(dst=padded[:, 3:], src=x)
    for i in nl.dynamic_range(0, n, P):
        part, total = tile((channels, P + 3)), tile((channels, P))
        nisa.dma_copy(dst=part, src=padded[:, nl.ds(i, P + 3)])
        nisa.tensor_scalar(dst=total, data=part[:, :P], op0=nl.multiply, operand0=taps[:, 0:1])
        for j in range(1, 4):
            nisa.scalar_tensor_tensor(
                dst=total, data=part[:, j : j + P], op0=nl.multiply, operand0=taps[:, j : j + 1], op1=nl.add, operand1=total
            )
        nisa.dma_copy(dst=out[:, nl.ds(i, P)], src=total)
    return out
"""
ZEROS = "zeros = tile((channels, 3)); nisa.memset(dst=zeros, value=0.0); nisa.dma_copy(dst=padded[:, :3], src=zeros)"
MATMUL = """
@nki.jit
def matmul(a, b):
    (m, k), n = a.shape, b.shape[1]
    out = output((m, n), a.dtype)
    for i in range(0, m, P):
        left = [nl.load_transpose2d(a[i : i + P, c : c + P]) for c in range(0, k, P)]
        left = [nl.copy(item, dtype={dtype}) for item in left]
        for j in range(0, n, 512):
            bank = tile((P, 512), buffer=nl.psum)
            for c in {order}:
                nisa.nc_matmul(dst=bank, stationary=left[c], moving=load(b[c * P : (c + 1) * P, j : j + 512], {dtype}))
            done = tile((P, 512), a.dtype)
            nisa.tensor_copy(dst=done, src=bank)
            nisa.dma_copy(dst=out[i : i + P, j : j + 512], src=done)
    return out
"""
LOSS = """
@nki.jit
def cross_entropy(logits, labels):
    rows, width = logits.shape
    out, numbers = output((rows, 1), nl.float32), tile((P, width), {numbers})
    nisa.iota(dst=numbers, pattern=[[1, width]])
    for r in range(0, rows, P):
        x, label = load(logits[r : r + P]), load(labels[r : r + P], {labels})
        top, total, chosen, hit = tile((P, 1)), tile((P, 1)), tile((P, 1)), tile((P, width))
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=x, axis=1)
        nisa.tensor_scalar(dst=x, data=x, op0=nl.subtract, operand0=top)
        nisa.tensor_scalar(dst=hit, data=numbers, op0=nl.equal, operand0=label)
        nisa.tensor_tensor(dst=hit, data1=hit, data2=x, op=nl.multiply)
        nisa.tensor_reduce(dst=chosen, op=nl.add, data=hit, axis=1)
        nisa.activation_reduce(dst=x, op=nl.exp, data=x, reduce_op=nl.add, reduce_res=total)
        nisa.activation(dst=total, op=nl.log, data=total)
        nisa.tensor_tensor(dst=total, data1=total, data2=chosen, op=nl.subtract)
        nisa.dma_copy(dst=out[r : r + P], src=total)
    return out
"""
LOOP = """
@nki.jit
def cumsum(x):
    rows, width = x.shape
    out, ones = output(x.shape, x.dtype), tile((P, width))
    nisa.memset(dst=ones, value=1.0)
    xs, outs = x.reshape((rows // P, P, width)), out.reshape((rows // P, P, width))
    for i in nl.dynamic_range({first}, rows // P):
        part, done = load(xs[i]), tile((P, width))
        nisa.tensor_tensor_scan(dst=done, data0=ones, data1=part, initial=0.0, op0=nl.{op0}, op1=nl.{op1})
        nisa.dma_copy(dst=outs[i], src=done)
    return out
"""
RIGHT = {
    "conv1d": (CONV1D, {"zeros": ZEROS}),
    "matmul": (MATMUL, {"dtype": "nl.float32", "order": "range(k // P)"}),
    "cross_entropy": (LOSS, {"numbers": "nl.float32", "labels": "nl.float32"}),
    "cumsum": (LOOP, {"first": "0", "op0": "multiply", "op1": "add"}),
}
WRONG = [
    ("conv1d", {"zeros": "pass"}, "memory that was never written: 384 of"),
    ("matmul", {"dtype": "nl.bfloat16"}, "a and b are rounded to bfloat16"),
    ("matmul", {"order": "(0, 1, 0, 1)"}, "the first half of the contraction counts twice, the other not at all"),
    ("cross_entropy", {"labels": "nl.bfloat16"}, "the labels are rounded to bfloat16 (exact to 256)"),
    ("cross_entropy", {"numbers": "nl.bfloat16"}, "the numbers of the columns are rounded to bfloat16"),
    ("cumsum", {"first": "1"}, "the loop of run time at line 29 makes no turn, and nothing else writes out"),
    ("cumsum", {"op0": "add", "op1": "multiply"}, "the operators of the scan are exchanged"),
]


def _judged(folder, task, changes):
    text, right = RIGHT[task]
    file = folder / "kernel.py"
    file.write_text(HEAD + text.format(**{**right, **changes}))
    return nki_hf.judge(file, task, dtype="float32", at=(512,), chip=("trn2",))


@pytest.mark.parametrize("task", RIGHT)
def test_the_right_kernels_pass(task, tmp_path):
    record = _judged(tmp_path, task, {})
    assert record["passed"], record["sentence"]


@pytest.mark.parametrize(("task", "changes", "words"), WRONG, ids=lambda item: str(item)[:40])
def test_the_cause_is_named(task, changes, words, tmp_path):
    record = _judged(tmp_path, task, changes)
    assert not record["passed"]
    assert words in record["sentence"], record["sentence"]


TASK = """
import numpy as np
from nki_hf.tasks import FLOAT, Task

TASK = Task(name="largest", about="the largest element of each row, and its place", arrays=lambda n: {"x": ((128, n), FLOAT)},
            reference=lambda x: (x.max(-1, keepdims=True) * np.ones_like(x), x.argmax(-1)[:, None].astype(np.int32)),
            flops=lambda n: 128 * n, check=(64, 128), at=(256,), dtype="float32", outputs=("top", "place"),
            out_dtypes=("float32", "int32"))
"""
LARGEST = """
@nki.jit
def largest(x):
    n = x.shape[1]
    top, place = output(x.shape, x.dtype), output((P, 1), nl.int32)
    values, found, best = load(x), tile((P, 8), nl.uint32), tile((P, 8))
    nisa.max8(dst=best, src=values)
    nisa.nc_find_index8(dst=found, data=values, vals=best)
    wide, one = tile((P, n)), tile((P, 1), nl.int32)
    nisa.memset(dst=wide, value=0.0)
    nisa.tensor_scalar(dst=wide, data=wide, op0=nl.add, operand0=best[:, 0:1])
    nisa.tensor_copy(dst=one, src=found[:, {column}])
    nisa.dma_copy(dst=top, src=wide)
    nisa.dma_copy(dst=place, src=one)
    return {order}
"""


@pytest.mark.parametrize(
    ("column", "order", "words"),
    [
        ("0:1", "top, place", ""),
        ("0:1", "place, top", "top holds what belongs to place: the outputs are returned in another order"),
        ("1:2", "top, place", "of 128 numbers differ, the first at [0, 0]: "),
    ],
)
def test_several_outputs_and_whole_numbers(column, order, words, tmp_path):
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "kernel.py").write_text(HEAD + LARGEST.format(column=column, order=order))
    record = nki_hf.judge(tmp_path / "kernel.py", tmp_path / "task.py", chip=("trn2",))
    assert record["passed"] == (not words), record["sentence"]
    assert words in record["sentence"]
