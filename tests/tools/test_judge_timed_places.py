"""At the timed size a kernel must use all that it loads, as it does where values are judged."""

import pytest

import nki_hf

KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl

T = 128


@nki.jit
def attention(q, k, v):
    d, s = q.shape
    tiles, far = s // T, s > 2048
    out = nl.ndarray((s, d), dtype=q.dtype, buffer=nl.shared_hbm)
    qs = nl.ndarray((d, s), dtype=q.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=qs, src=q)
    ks = nl.ndarray((d, s), dtype=k.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=ks, src=k)
    vs = nl.ndarray((T, tiles, d), dtype=v.dtype, buffer=nl.sbuf)
    for t in range(tiles):
        nisa.dma_copy(dst=vs[:, t, :], src=v[t * T : (t + 1) * T, :])
    for i in range(tiles):
        top = nl.ndarray((T, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=top, value=-3.0e38)
        total = nl.ndarray((T, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=total, value=0.0)
        acc = nl.ndarray((T, d), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=acc, value=0.0)
        for j in range(tiles):
            product = nl.ndarray((T, T), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=product, stationary=qs[:, {q} * T : ({q} + 1) * T], moving=ks[:, {k} * T : ({k} + 1) * T])
            scores = nl.ndarray((T, T), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=scores, data=product, op0=nl.multiply, operand0=d**-0.5)
            here = nl.ndarray((T, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_reduce(dst=here, op=nl.maximum, data=scores, axis=1)
            new = nl.ndarray((T, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=new, data1=top, data2=here, op=nl.maximum)
            negative = nl.ndarray((T, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=negative, data=new, op0=nl.multiply, operand0=-1.0)
            correction = nl.ndarray((T, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=correction, op=nl.exp, data=top, bias=negative)
            nisa.tensor_copy(dst=top, src=new)
            probs = nl.ndarray((T, T), dtype=nl.bfloat16, buffer=nl.sbuf)
            sums = nl.ndarray((T, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation_reduce(dst=probs, op=nl.exp, data=scores, bias=negative, reduce_op=nl.add, reduce_res=sums)
            nisa.scalar_tensor_tensor(dst=total, data=total, op0=nl.multiply, operand0=correction, op1=nl.add, operand1=sums)
            turned = nl.ndarray((T, T), dtype=nl.bfloat16, buffer=nl.psum)
            nisa.nc_transpose(dst=turned, data=probs)
            probs_t = nl.ndarray((T, T), dtype=nl.bfloat16, buffer=nl.sbuf)
            nisa.tensor_copy(dst=probs_t, src=turned)
            part = nl.ndarray((T, d), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=part, stationary=probs_t, moving=vs[:, {v}, :])
            nisa.scalar_tensor_tensor(dst=acc, data=acc, op0=nl.multiply, operand0=correction, op1=nl.add, operand1=part)
        inverse = nl.ndarray((T, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.reciprocal(dst=inverse, data=total)
        done = nl.ndarray((T, d), dtype=q.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=done, data=acc, op0=nl.multiply, operand0=inverse)
        nisa.dma_copy(dst=out[i * T : (i + 1) * T, :], src=done)
    return out
"""
RIGHT = {"q": "i", "k": "j", "v": "j"}
PLACES = {
    "the first tile of values": {"v": "(0 if far else j)"},
    "the first half of the keys": {"k": "(j // 2 if far else j)"},
    "the first tile of queries": {"q": "(0 if far else i)"},
}


def _judged(folder, **changes):
    file = folder / "kernel.py"
    file.write_text(KERNEL.format(**{**RIGHT, **changes}))
    return nki_hf.judge(file, "attention", layout="q=ds,k=ds,v=sd", check=(256, 512), at=(4096,), chip=("trn2",))


def test_the_right_kernel_passes(tmp_path):
    record = _judged(tmp_path)
    assert record["passed"], record["sentence"]


@pytest.mark.parametrize("how", PLACES)
def test_a_kernel_that_uses_a_part_of_what_it_loads_fails(how, tmp_path):
    record = _judged(tmp_path, **PLACES[how])
    assert (record["passed"], record["stage"]) == (False, "times"), record["sentence"]
    assert "of what it loads of an input, and 100% at size 512" in record["sentence"]
