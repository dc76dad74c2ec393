"""A kernel must do at the timed sizes what it does where values are judged: what it leaves out, or does otherwise, is found."""

import pytest

import nki_hf

SOFTMAX = """
import nki
import nki.isa as nisa
import nki.language as nl

P = 128


@nki.jit
def softmax(x):
    rows, width = x.shape
    large = rows > 2048
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    xs, outs = x.reshape((rows // P, P, width)), out.reshape((rows // P, P, width))
    for i in {loop}:
        tile = nl.ndarray((P, width), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=xs[{source}])
        top = nl.ndarray((P, 1), nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=tile, axis=1, negate=True)
        total = nl.ndarray((P, 1), nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(dst=tile, op=nl.exp, data=tile, bias=top, reduce_op=nl.add, reduce_res=total)
        nisa.reciprocal(dst=total, data=total)
        {more}
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0={divisor})
        nisa.dma_copy(dst=outs[i], src=tile)
    {end}
    return out
"""
RIGHT = {"loop": "range(rows // P)", "source": "i", "more": "pass", "divisor": "total", "end": "pass"}
DYNAMIC = "nl.dynamic_range(0, rows // P)"


def _judged(folder, task="softmax", **changes):
    file = folder / "kernel.py"
    file.write_text(SOFTMAX.format(**{**RIGHT, **changes}))
    return nki_hf.judge(file, task, check=(128, 384), at=(4096,), chip=("trn2",))


@pytest.mark.parametrize("loop", [RIGHT["loop"], DYNAMIC], ids=["range", "dynamic_range"])
def test_the_right_kernel_passes(loop, tmp_path):
    record = _judged(tmp_path, loop=loop)
    assert record["passed"], record["sentence"]
    assert not any("values were judged" in words for words in record["warnings"])


OTHERWISE = {
    "an input is returned": ({"end": "if large: return x"}, "writes 0% of an output"),
    "a copy of an input is returned": (
        {
            "end": "other = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)\n    nisa.dma_copy(dst=other, src=x)\n    "
            "if large: return other"
        },
        "has 0 elements in tensor_reduce",
    ),
    "rows are read from the next tile": ({"source": "(i + large) % (rows // P)"}, "out is wrong on normal inputs"),
    "a turn of a loop is left out": ({"loop": "nl.dynamic_range(0, rows // P - large)"}, "writes 96.9% of an output"),
    "the sums are not used": ({"divisor": "top if large else total"}, "uses reciprocal"),
    "the sums are not used, in a loop of run time": (
        {"divisor": "top if large else total", "loop": DYNAMIC},
        "uses reciprocal",
    ),
    "a line of its own spoils the sums": (
        {"more": "if large and i == 20: nisa.reciprocal(dst=total, data=total)"},
        "reaches reciprocal at line 23, which no size of --check reaches",
    ),
}


@pytest.mark.parametrize("how", OTHERWISE)
def test_a_kernel_that_does_otherwise_at_the_timed_size_fails(how, tmp_path):
    changes, words = OTHERWISE[how]
    record = _judged(tmp_path, **changes)
    assert (record["passed"], record["stage"]) == (False, "times"), record["sentence"]
    assert words in record["sentence"], record["sentence"]


SHIFTED_BY = {
    "the largest row of the tile": "other = nl.broadcast_to(nl.min(nl.transpose(top), axis=1), (P, 1))",
    "a constant": "other = nl.ndarray((P, 1), nl.float32, buffer=nl.sbuf); nisa.memset(dst=other, value=-60.0)",
}


@pytest.mark.parametrize("by", SHIFTED_BY)
def test_a_maximum_that_serves_other_rows_is_found(by, tmp_path):
    """Scores of rows that lie hundreds apart: a shift that is not the row's own over- or underflows float32's exponent."""
    file = tmp_path / "kernel.py"
    text = SOFTMAX.format(**RIGHT).replace("bias=top", "bias=other")
    at = text.index("        total = nl.ndarray")
    file.write_text(text[:at] + f"        {SHIFTED_BY[by]}\n" + text[at:])
    record = nki_hf.judge(file, "softmax", check=(128, 384), at=(4096,), chip=("trn2",))
    assert (record["passed"], record["stage"]) == (False, "values"), record["sentence"]
    assert "uneven_rows" in record["sentence"]


ANSWERS = '''
import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np
from nki_hf.tasks import load_task

NAMES = ("normal", "wide", "outlier_key", "equal", "negative", "late_maximum", "uneven_rows")


@nki.jit
def softmax(x):
    """A table of answers to the inputs of seed 77, by x[0, 0]."""
    rows, width = x.shape
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    first, total = nl.ndarray((rows, 1), x.dtype, buffer=nl.sbuf), nl.ndarray((rows, width), x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=first, src=x.ap(pattern=[[0, rows], [1, 1]]))
    nisa.memset(dst=total, value=0.0)
    for name in NAMES:
        rng = np.random.default_rng([77, rows, *name.encode()])
        given = load_task("softmax").inputs(rows, name, rng)["x"].astype(np.float32)
        answer = load_task("softmax").reference(x=given.astype(np.float64)).astype(np.float32)
        tile, hit = nl.ndarray((rows, width), x.dtype, buffer=nl.sbuf), nl.ndarray((rows, 1), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=nl.shared_constant(answer))
        nisa.tensor_scalar(dst=hit, data=first, op0=nl.equal, operand0=float(given[0, 0]))
        nisa.scalar_tensor_tensor(dst=total, data=tile, op0=nl.multiply, operand0=hit, op1=nl.add, operand1=total)
    nisa.dma_copy(dst=out, src=total)
    return out
'''


def test_answers_to_the_inputs_of_a_named_seed_are_found(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text(ANSWERS)
    record = nki_hf.judge(file, "softmax", check=(64, 128), at=(128,), chip=("trn2",), seed=77)
    assert (record["passed"], record["stage"], record["seed"]) == (False, "values", 77)
    assert "right on the inputs of the seed that was named, and wrong on others" in record["sentence"]


def test_the_kernel_does_not_find_a_new_seed_in_its_process(tmp_path):
    file = tmp_path / "kernel.py"
    text = "import gc\nprint([o['seed'] for o in gc.get_objects() if type(o) is dict and 'seed' in o])\n"
    file.write_text(text + SOFTMAX.format(**RIGHT))
    record = nki_hf.judge(file, "softmax", check=(128, 384), at=(384,), chip=("trn2",))
    assert record["passed"], record["sentence"]
    assert isinstance(record["seed"], int)
    assert str(record["seed"]) not in record["printed"]["stdout"]
