"""Comparisons beside the right one, and sums below a running maximum: what they give is named."""

import pytest

import nki_hf

HEAD = """
import nki
import nki.isa as nisa
import nki.language as nl


def tile(shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype, buffer=nl.sbuf)


def load(source, dtype=None):
    found = tile(source.shape, dtype or source.dtype)
    nisa.dma_copy(dst=found, src=source)
    return found

"""
ENTROPY = """
@nki.jit
def entropy(logits, labels):
    rows, width = logits.shape
    out = nl.ndarray((rows, 1), logits.dtype, buffer=nl.shared_hbm)
    for r in range(0, rows, 128):
        label, x = load(labels[r : r + 128, :], nl.float32), load(logits[r : r + 128, :])
        top, total, chosen, part = tile((128, 1)), tile((128, 1)), tile((128, 1)), tile((128, 1))
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=x, axis=1, negate=True)
        power = tile((128, width))
        nisa.activation_reduce(dst=power, op=nl.exp, data=x, bias=top, reduce_op=nl.add, reduce_res=total)
        nisa.activation(dst=total, op=nl.log, data=total)
        nisa.memset(dst=chosen, value=0.0)
        for c in range(0, width, 256):
            mask = tile((128, 256))
            nisa.iota(dst=mask, pattern=[[1, 256]], offset=c)
            nisa.scalar_tensor_tensor(
                dst=mask, data=mask, op0={compare}, operand0=label, op1=nl.multiply, operand1=x[:, c : c + 256]
            )
            nisa.tensor_reduce(dst=part, op=nl.add, data=mask, axis=1)
            {chosen}
        nisa.tensor_tensor(dst=total, data1=total, data2=top, op=nl.subtract)
        nisa.tensor_tensor(dst=total, data1=total, data2=chosen, op=nl.subtract)
        nisa.dma_copy(dst=out[r : r + 128, :], src=total)
    return out
"""
SUM = "nisa.tensor_tensor(dst=chosen, data1=chosen, data2=part, op=nl.add)"
SOFTMAX = """
@nki.jit
def softmax(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    rows, width = x.shape
    for r in range(0, rows, 128):
        top, total = tile((128, 1)), tile((128, 1))
        nisa.memset(dst=top, value=-3.0e38)
        nisa.memset(dst=total, value=0.0)
        for c in range(0, width, 256):
            part = load(x[r : r + 128, c : c + 256])
            here, new, low, factor, sums = (tile((128, 1)) for _ in range(5))
            nisa.tensor_reduce(dst=here, op=nl.maximum, data=part, axis=1)
            nisa.tensor_tensor(dst=new, data1=top, data2=here, op=nl.maximum)
            nisa.tensor_scalar(dst=low, data=new, op0=nl.multiply, operand0=-1.0)
            nisa.activation(dst=factor, op=nl.exp, data=top, bias=low)
            nisa.activation_reduce(dst=part, op=nl.exp, data=part, bias=low, reduce_op=nl.add, reduce_res=sums)
            {total}
            nisa.tensor_copy(dst=top, src=new)
        nisa.reciprocal(dst=total, data=total)
        nisa.tensor_scalar(dst=top, data=top, op0=nl.multiply, operand0=-1.0)
        for c in range(0, width, 256):
            part = load(x[r : r + 128, c : c + 256])
            nisa.activation(dst=part, op=nl.exp, data=part, bias=top)
            nisa.tensor_scalar(dst=part, data=part, op0=nl.multiply, operand0=total)
            nisa.dma_copy(dst=out[r : r + 128, c : c + 256], src=part)
    return out
"""
CORRECTED = "nisa.scalar_tensor_tensor(dst=total, data=total, op0=nl.multiply, operand0=factor, op1=nl.add, operand1=sums)"
ADDED = "nisa.tensor_tensor(dst=total, data1=total, data2=sums, op=nl.add)"
CAUSES = (
    ("cross_entropy", ENTROPY.format(compare="nl.equal", chosen=SUM), ""),
    ("cross_entropy", ENTROPY.format(compare="nl.greater_equal", chosen=SUM), "greater_equal stands in place of equal"),
    ("cross_entropy", ENTROPY.format(compare="nl.less", chosen=SUM), "less stands in place of equal"),
    (
        "cross_entropy",
        ENTROPY.format(compare="nl.equal", chosen="nisa.tensor_copy(dst=chosen, src=part)"),
        "the label is found in the last 256 columns only",
    ),
    ("softmax", SOFTMAX.format(total=CORRECTED), ""),
    ("softmax", SOFTMAX.format(total=ADDED), "block by block of 256, and not corrected when the maximum moves"),
    (
        "softmax",
        SOFTMAX.format(total=f"{ADDED}; nisa.tensor_scalar(dst=total, data=total, op0=nl.multiply, operand0=factor)"),
        "block by block of 256, and what a block adds is corrected as well",
    ),
)


@pytest.mark.parametrize(("task", "text", "words"), CAUSES)
def test_the_cause_is_named(task, text, words, tmp_path):
    (tmp_path / "kernel.py").write_text(HEAD + text)
    record = nki_hf.judge(tmp_path / "kernel.py", task, until="values", seed=5)
    assert record["passed"] is (not words), record["sentence"]
    assert words in record["diagnosis"], record["diagnosis"]
