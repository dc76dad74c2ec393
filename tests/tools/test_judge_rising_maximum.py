"""Few rows: that a block does not correct what is kept of earlier ones shows only where the maximum moves in it."""

import numpy as np
import pytest

import nki_hf
from nki_hf.tasks import load_task

DECODE = '''
import nki
import nki.isa as nisa
import nki.language as nl

T = 128


@nki.jit
def decode(q, k, v):
    """softmax(q.T @ k * d ** -0.5) @ v; q [d, heads, 1], k [d, 1, s], v [1, s, d]."""
    d, heads, _ = q.shape
    s = k.shape[2]
    out = nl.ndarray((heads, 1, d), dtype=q.dtype, buffer=nl.shared_hbm)
    qs = nl.ndarray((d, heads), dtype=q.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=qs, src=q[:, :, 0])
    top = nl.ndarray((heads, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=top, value=-3.0e38)
    total = nl.ndarray((heads, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=total, value=0.0)
    acc = nl.ndarray((heads, d), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=acc, value=0.0)
    for j in range(s // T):
        ks, vs = nl.ndarray((d, T), dtype=k.dtype, buffer=nl.sbuf), nl.ndarray((T, d), dtype=v.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=ks, src=k[:, 0, j * T : (j + 1) * T])
        nisa.dma_copy(dst=vs, src=v[0, j * T : (j + 1) * T, :])
        product = nl.ndarray((heads, T), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=product, stationary=qs, moving=ks)
        scores = nl.ndarray((heads, T), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=scores, data=product, op0=nl.multiply, operand0=d**-0.5)
        here = nl.ndarray((heads, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=here, op=nl.maximum, data=scores, axis=1)
        new = nl.ndarray((heads, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=new, data1=top, data2=here, op=nl.maximum)
        negative = nl.ndarray((heads, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=negative, data=new, op0=nl.multiply, operand0=-1.0)
        correction = nl.ndarray((heads, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=correction, op=nl.exp, data=OLD, bias=negative)
        nisa.tensor_copy(dst=top, src=new)
        probs, sums = nl.ndarray((heads, T), nl.bfloat16, buffer=nl.sbuf), nl.ndarray((heads, 1), nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(dst=probs, op=nl.exp, data=scores, bias=negative, reduce_op=nl.add, reduce_res=sums)
        nisa.scalar_tensor_tensor(dst=total, data=total, op0=nl.multiply, operand0=correction, op1=nl.add, operand1=sums)
        turned, probs_t = (nl.ndarray((T, heads), nl.bfloat16, buffer=space) for space in (nl.psum, nl.sbuf))
        nisa.nc_transpose(dst=turned, data=probs)
        nisa.tensor_copy(dst=probs_t, src=turned)
        part = nl.ndarray((heads, d), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=part, stationary=probs_t, moving=vs)
        nisa.scalar_tensor_tensor(dst=acc, data=acc, op0=nl.multiply, operand0=correction, op1=nl.add, operand1=part)
    inverse = nl.ndarray((heads, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=inverse, data=total)
    done = nl.ndarray((heads, d), dtype=q.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=done, data=acc, op0=nl.multiply, operand0=inverse)
    nisa.dma_copy(dst=out[:, 0, :], src=done)
    return out
'''


def judged(tmp_path, old, seed):
    file = tmp_path / "kernel.py"
    file.write_text(DECODE.replace("OLD", old))
    return nki_hf.judge(file, "attention_decode", layout="q=dhs,k=dhs", check=(512,), at=(4096,), chip=("trn2",), seed=seed)


def moved(name, seed):
    """Share of the blocks of 128 keys, but for the first, in which the maximum of one of 8 rows moves."""
    arrays = load_task("attention_decode").inputs(4096, name, np.random.default_rng(seed))
    block = (arrays["q"][:, 0] @ arrays["k"][0].T).reshape(8, 32, 128).max(-1)
    return float((block[:, 1:] > np.maximum.accumulate(block, 1)[:, :-1]).any(0).mean())


def test_maxima_move_in_most_blocks():
    assert np.mean([moved("normal", seed) for seed in range(20)]) < 0.6
    assert np.mean([moved("rising_maximum", seed) for seed in range(20)]) > 0.8


@pytest.mark.parametrize("block", [13, 22, 29])
def test_one_block_that_corrects_nothing_at_the_timed_size_is_found(block, tmp_path):
    """With seeds whose normal inputs move no maximum in that block: `top` in place of `new` corrects by exp(0) there."""
    for seed in range(200):
        rng = np.random.default_rng([seed, 4096, *b"normal"])
        arrays = load_task("attention_decode").inputs(4096, "normal", rng)
        scores = (arrays["q"][:, 0] @ arrays["k"][0].T).reshape(8, 32, 128).max(-1)
        if not (scores[:, block] > scores[:, :block].max(1) - 1e-3).any():
            break
    assert judged(tmp_path, "top", seed)["passed"]
    record = judged(tmp_path, f"new if s == 4096 and j == {block} else top", seed)
    assert not record["passed"]
    assert "rising_maximum" in record["sentence"]
