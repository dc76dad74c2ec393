"""Mistakes that unit normal inputs hide: a maximum that begins at 0, an eps that is lost in the mean of squares."""

import pytest

import nki_hf
from tests.support.judged_kernels import OPTIONS, RIGHT

NORM = """
import nki
import nki.isa as nisa
import nki.language as nl

P = 128


@nki.jit
def norm_matmul(x, residual, weight):
    rows, width = x.shape
    columns = weight.shape[1]
    out = nl.ndarray((rows, columns), x.dtype, buffer=nl.shared_hbm)
    for row in range(0, rows, P):
        tile, more = nl.ndarray((P, width), x.dtype, buffer=nl.sbuf), nl.ndarray((P, width), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[row : row + P, :])
        nisa.dma_copy(dst=more, src=residual[row : row + P, :])
        whole, square = nl.ndarray((P, width), nl.float32, buffer=nl.sbuf), nl.ndarray((P, width), nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=whole, data1=tile, data2=more, op=nl.add)
        mean = nl.ndarray((P, 1), nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(dst=square, op=nl.square, data=whole, reduce_op=nl.add, reduce_res=mean)
        nisa.tensor_scalar(dst=mean, data=mean, op0=nl.multiply, operand0=1.0 / width, op1=nl.add, operand1={eps})
        nisa.activation(dst=mean, op=nl.rsqrt, data=mean)
        nisa.tensor_scalar(dst=tile, data=whole, op0=nl.multiply, operand0=mean)
        for column in range(0, columns, 512):
            total = nl.ndarray((P, 512), nl.float32, buffer=nl.psum)
            for k in range(width // P):
                bank, turned = nl.ndarray((P, P), x.dtype, buffer=nl.psum), nl.ndarray((P, P), x.dtype, buffer=nl.sbuf)
                nisa.nc_transpose(dst=bank, data=tile[:, k * P : (k + 1) * P])
                nisa.tensor_copy(dst=turned, src=bank)
                part = nl.ndarray((P, 512), x.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=part, src=weight[k * P : (k + 1) * P, column : column + 512])
                nisa.nc_matmul(dst=total, stationary=turned, moving=part, accumulate=k > 0)
            found = nl.ndarray((P, 512), x.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=found, src=total)
            nisa.dma_copy(dst=out[row : row + P, column : column + 512], src=found)
    return out
"""


@pytest.mark.parametrize("eps", ["1e-6", "1e-3", "1e-5", "0.0"])
def test_another_eps_is_found_before_a_matmul_too(eps, tmp_path):
    (tmp_path / "kernel.py").write_text(NORM.replace("{eps}", eps))
    record = nki_hf.judge(tmp_path / "kernel.py", "residual_rmsnorm_matmul", until="values")
    assert record["passed"] is (eps == "1e-6"), record["sentence"]
    assert eps == "1e-6" or f"eps is {float(eps)} instead of 1e-6" in record["sentence"], record["sentence"]


def test_a_running_maximum_that_begins_at_0_is_found(tmp_path):
    """Where every score of a row is below -110, exp(score - 0) is 0 in float32, and so is the divisor."""
    start = "value=-3.0e38"
    assert start in RIGHT
    (tmp_path / "kernel.py").write_text(RIGHT.replace(start, "value=0.0", 1))
    record = nki_hf.judge(tmp_path / "kernel.py", "attention_causal", until="values", **OPTIONS)
    assert not record["passed"]
    assert "a running maximum begins at 0" in record["sentence"], record["sentence"]


SOFTMAX = """
import nki
import nki.isa as nisa
import nki.language as nl

P, BLOCK = 128, 256


@nki.jit
def softmax(x):
    rows, width = x.shape
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for row in range(0, rows, P):
        tile = nl.ndarray((P, width), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[row : row + P, :])
        top, here = nl.ndarray((P, 1), nl.float32, buffer=nl.sbuf), nl.ndarray((P, 1), nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=top, value=START)
        for first in range(0, width, BLOCK):
            nisa.tensor_reduce(dst=here, op=nl.maximum, data=tile[:, first : first + BLOCK], axis=1)
            nisa.tensor_tensor(dst=top, data1=top, data2=here, op=nl.maximum)
        nisa.tensor_scalar(dst=top, data=top, op0=nl.multiply, operand0=-1.0)
        total = nl.ndarray((P, 1), nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(dst=tile, op=nl.exp, data=tile, bias=top, reduce_op=nl.add, reduce_res=total)
        nisa.reciprocal(dst=total, data=total)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=out[row : row + P, :], src=tile)
    return out
"""


@pytest.mark.parametrize(("start", "passes"), [("-3.0e38", True), ("0.0", False), ("-50.0", False), ("-1000.0", False)])
def test_a_maximum_of_a_softmax_that_begins_too_high_is_found(start, passes, tmp_path):
    """Rows below the start: exp of what is far below it is 0, and so is the divisor."""
    (tmp_path / "kernel.py").write_text(SOFTMAX.replace("START", start))
    record = nki_hf.judge(tmp_path / "kernel.py", "softmax", until="values")
    assert record["passed"] is passes, record["sentence"]
    assert passes or "a running maximum begins too high" in record["sentence"], record["sentence"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nisa.scans(", "nisa.scans does not exist"),
        ("nisa.affine(", "nisa.affine does not exist"),
        ("nisa.select_affine(", "nisa.select_affine does not exist"),
        ("nl.tile_math.exp(", "nl.tile_math does not exist"),
        ("nisa.memset(engine=nisa.engine.pool, ", "engine.pool does not exist"),
    ],
)
def test_modules_of_the_simulator_are_no_names_of_the_language(name, said, tmp_path):
    text = SOFTMAX.replace("START", "-3.0e38").replace("nisa.reciprocal(", name)
    (tmp_path / "kernel.py").write_text(text)
    record = nki_hf.judge(tmp_path / "kernel.py", "softmax", until="values")
    assert (record["passed"], record["stage"]) == (False, "run")
    line = text.splitlines().index(next(words for words in text.splitlines() if name in words)) + 1
    assert f"{said} (kernel.py:{line})" in record["sentence"]
    modules = ("nisa.affine or", "nisa.affine?", "nisa.scans", "nl.tile_math")
    assert not any(word in record["sentence"].partition("does not exist")[2] for word in modules)
