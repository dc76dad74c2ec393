"""Attention as it is written down, and its gradients: baselines of attention tasks; the best gradients are flash_backward."""

from dataclasses import replace

import nki
import nki.isa as nisa
import nki.language as nl

from nki_hf.chips import CHIPS, get_chip
from nki_hf.kernels.flash_backward.kernel import flash_backward
from nki_hf.kernels.flash_backward.plan import plan_backward
from nki_hf.problem import Mask, Problem
from nki_hf.tasks.kernels.parts import BANK, P, load, psum, sbuf, turned

LOWEST = -3.0e38


def _columns(rows):
    """`[n, 128]` in HBM as `[128, n]` in SBUF, through the Tensor engine."""
    n, d = rows.shape
    out = sbuf((d, n), nl.bfloat16)
    for r in range(0, n, P):
        count = min(P, n - r)
        nisa.tensor_copy(dst=out[:, r : r + count], src=turned(load(rows[r : r + count, :]), count)[:, 0, :])
    return out


def _values(v):
    """`[n, d]` in HBM as `[128, n / 128, d]`."""
    n, d = v.shape
    assert n % P == 0, "keys come in tiles of 128"  # noqa: S101  (a kernel refuses so)
    out = sbuf((P, n // P, d), v.dtype)
    for t in range(n // P):
        nisa.dma_copy(dst=out[:, t, :], src=v[t * P : (t + 1) * P, :])
    return out


def _probabilities(q_columns, k_columns, first, rows, scale, seen, masked, window=0):
    """Softmax rows `[first, first + rows)` over the first `seen` keys, float32 in SBUF; a `window` of 0 is none."""
    scores = sbuf((rows, seen))
    for c in range(0, seen, BANK):
        w = min(BANK, seen - c)
        bank = psum((rows, w))
        nisa.nc_matmul(dst=bank, stationary=q_columns[:, first : first + rows], moving=k_columns[:, c : c + w])
        nisa.tensor_scalar(dst=scores[:, c : c + w], data=bank, op0=nl.multiply, operand0=scale)
    if masked:
        nisa.affine_select(
            dst=scores,
            pattern=[[-1, seen]],
            channel_multiplier=1,
            on_true_tile=scores,
            on_false_value=LOWEST,
            cmp_op=nl.greater_equal,
            offset=first,
        )
    if window:
        nisa.affine_select(
            dst=scores,
            pattern=[[1, seen]],
            channel_multiplier=-1,
            on_true_tile=scores,
            on_false_value=LOWEST,
            cmp_op=nl.greater,
            offset=window - first,
        )
    top, total = sbuf((rows, 1)), sbuf((rows, 1))
    nisa.tensor_reduce(dst=top, op=nl.maximum, data=scores, axis=1, negate=True)
    nisa.tensor_scalar(dst=scores, data=scores, op0=nl.add, operand0=top)
    nisa.activation(dst=scores, op=nl.exp, data=scores)
    nisa.tensor_reduce(dst=total, op=nl.add, data=scores, axis=1)
    nisa.reciprocal(dst=total, data=total)
    nisa.tensor_scalar(dst=scores, data=scores, op0=nl.multiply, operand0=total)
    return scores


def _head(q, k, v, out, causal, scale, window):
    rows, d = q.shape
    keys = k.shape[0]
    q_columns, k_columns, values = _columns(q), _columns(k), _values(v)
    for r in range(0, rows, P):
        count = min(P, rows - r)
        seen = min(keys, r + P) if causal else keys
        probs = sbuf((count, seen), nl.bfloat16)
        nisa.tensor_copy(dst=probs, src=_probabilities(q_columns, k_columns, r, count, scale, seen, causal, window))
        columns, total = turned(probs, count), psum((count, d))
        for t in range(seen // P):
            nisa.nc_matmul(dst=total, stationary=columns[:, t, :], moving=values[:, t, :])
        done = sbuf((count, d), out.dtype)
        nisa.tensor_copy(dst=done, src=total)
        nisa.dma_copy(dst=out[r : r + count, :], src=done)


@nki.jit
def baseline(q, k, v, causal=False, scale=128**-0.5, window=0):
    out = nl.ndarray(q.shape, q.dtype, buffer=nl.shared_hbm)
    if len(q.shape) == 2:
        _head(q, k, v, out, causal, scale, window)
    else:
        for h in range(q.shape[0]):
            kv = h * k.shape[0] // q.shape[0]
            _head(q[h], k[kv], v[kv], out[h], causal, scale, window)
    return out


def _added(total, bank, first):
    if first:
        nisa.tensor_copy(dst=total, src=bank)
    else:
        nisa.tensor_tensor(dst=total, data1=total, data2=bank, op=nl.add)


@nki.jit
def backward_baseline(q, k, v, dout):
    """dq, dk, dv of causal attention: probabilities are computed again, query tile by query tile."""
    rows, d = q.shape
    tiles, scale = rows // P, d**-0.5
    outs = [nl.ndarray(q.shape, q.dtype, buffer=nl.shared_hbm) for _ in range(3)]
    q_columns, k_columns, v_columns, d_columns = _columns(q), _columns(k), _columns(v), _columns(dout)
    k_rows, q_rows, d_rows = _values(k), _values(q), _values(dout)
    dk, dv = sbuf((P, tiles, d)), sbuf((P, tiles, d))
    for i in range(tiles):
        seen = (i + 1) * P
        probs = _probabilities(q_columns, k_columns, i * P, P, scale, seen, True)
        dprobs, products, delta = sbuf((P, seen)), sbuf((P, seen)), sbuf((P, 1))
        for c in range(0, seen, BANK):
            w = min(BANK, seen - c)
            bank = psum((P, w))
            nisa.nc_matmul(dst=bank, stationary=d_columns[:, i * P : (i + 1) * P], moving=v_columns[:, c : c + w])
            nisa.tensor_copy(dst=dprobs[:, c : c + w], src=bank)
        nisa.tensor_tensor(dst=products, data1=probs, data2=dprobs, op=nl.multiply)
        nisa.tensor_reduce(dst=delta, op=nl.add, data=products, axis=1)
        nisa.tensor_scalar(dst=dprobs, data=dprobs, op0=nl.subtract, operand0=delta, op1=nl.multiply, operand1=scale)
        dscores, narrow = sbuf((P, seen), nl.bfloat16), sbuf((P, seen), nl.bfloat16)
        nisa.tensor_tensor(dst=dscores, data1=dprobs, data2=probs, op=nl.multiply)
        nisa.tensor_copy(dst=narrow, src=probs)
        turned_scores, dq = turned(dscores, P), psum((P, d))
        for t in range(i + 1):
            part = slice(t * P, (t + 1) * P)
            nisa.nc_matmul(dst=dq, stationary=turned_scores[:, t, :], moving=k_rows[:, t, :])
            for total, left, right in ((dv, narrow, d_rows), (dk, dscores, q_rows)):
                bank = psum((P, d))
                nisa.nc_matmul(dst=bank, stationary=left[:, part], moving=right[:, i, :])
                _added(total[:, t, :], bank, t == i)
        done = sbuf((P, d), q.dtype)
        nisa.tensor_copy(dst=done, src=dq)
        nisa.dma_copy(dst=outs[0][i * P : (i + 1) * P, :], src=done)
    for total, out in ((dk, outs[1]), (dv, outs[2])):
        for t in range(tiles):
            done = sbuf((P, d), q.dtype)
            nisa.tensor_copy(dst=done, src=total[:, t, :])
            nisa.dma_copy(dst=out[t * P : (t + 1) * P, :], src=done)
    return tuple(outs)


@nki.jit
def backward_best(q, k, v, dout):
    """dq, dk, dv of causal attention by flash_backward, which finds the statistics of its rows in a first pass."""
    rows, d = q.shape
    problem = Problem(
        batch=1,
        num_heads_q=1,
        num_heads_kv=1,
        seqlen_q=rows,
        seqlen_kv=k.shape[0],
        head_dim=d,
        head_dim_v=d,
        dtype="bfloat16",
        mask=Mask(ahead=1),
    )
    chip = next(get_chip(name) for name in CHIPS if get_chip(name).generation == nisa.get_nc_version().value)
    constants = replace(plan_backward(problem, chip), recompute=True).constants()
    dlse, zeros = nl.ndarray((1, 1, rows), nl.float32, buffer=nl.hbm), sbuf((1, rows))
    nisa.memset(dst=zeros, value=0.0)
    nisa.dma_copy(dst=dlse.reshape((1, rows)), src=zeros)
    four = [array.reshape((1, 1, *array.shape)) for array in (q, k, v)]
    found = flash_backward(*four, dout.reshape((1, rows, 1, d)), None, None, dlse, **constants)
    return tuple([gradient.reshape((rows, d)) for gradient in found[:3]])
