"""Right kernels with a last tile of its own for sizes that no tile divides, and mistakes in that tile."""

from __future__ import annotations

_HEAD = """
import nki
import nki.isa as nisa
import nki.language as nl

P = 128


def sb(p, f, dtype):
    return nl.ndarray((p, f), dtype, buffer=nl.sbuf)

"""

_SOFTMAX = """
@nki.jit
def softmax(x):
    rows, width = x.shape
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for start in range(0, rows, P):
        n = min(P, rows - start)
        t = sb(P, width, nl.float32)
        nisa.dma_copy(dst=t[0:n, :], src=x[start : start + n, :])
        top = sb(P, 1, nl.float32)
        nisa.tensor_reduce(dst=top[0:n, :], op=nl.maximum, data=t[0:n, :], axis=1, negate=True)
        total = sb(P, 1, nl.float32)
        nisa.activation_reduce(
            dst=t[0:n, :], op=nl.exp, data=t[0:n, :], bias=top[0:n, :], reduce_op=nl.add, reduce_res=total[0:n, :])
        nisa.reciprocal(dst=total[0:n, :], data=total[0:n, :])
        nisa.tensor_scalar(dst=t[0:n, :], data=t[0:n, :], op0=nl.multiply, operand0=total[0:n, :])
        nisa.dma_copy(dst=out[start : start + n, :], src=t[0:n, :])
    return out
"""

_SCAN = """
C = 256


@nki.jit
def selective_scan(decay, x):
    channels, size = x.shape
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    state = sb(channels, 1, nl.float32)
    nisa.memset(dst=state, value=0.0)
    for c in range(0, size, C):
        n = min(C, size - c)
        d, t, s = sb(channels, C, nl.float32), sb(channels, C, nl.float32), sb(channels, C, nl.float32)
        nisa.dma_copy(dst=d[:, 0:n], src=decay[:, c : c + n])
        nisa.dma_copy(dst=t[:, 0:n], src=x[:, c : c + n])
        nisa.tensor_tensor_scan(dst=s[:, 0:n], data0=d[:, 0:n], data1=t[:, 0:n], initial=state, op0=nl.multiply, op1=nl.add)
        nisa.tensor_copy(dst=state, src=s[:, n - 1 : n])
        nisa.dma_copy(dst=out[:, c : c + n], src=s[:, 0:n])
    return out
"""

_ATTENTION = """
@nki.jit
def attention(q, k, v):
    s, d = q.shape
    out = nl.ndarray((s, d), q.dtype, buffer=nl.shared_hbm)
    tiles = (s + P - 1) // P
    for i in range(tiles):
        h = min(P, s - i * P)
        qn = sb(P, d, q.dtype)
        nisa.dma_copy(dst=qn[0:h, :], src=q[i * P : i * P + h, :])
        qp = nl.ndarray((d, P), q.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=qp[:, 0:h], data=qn[0:h, :])
        qt = sb(d, P, q.dtype)
        nisa.tensor_copy(dst=qt[:, 0:h], src=qp[:, 0:h])
        top, total, acc = sb(P, 1, nl.float32), sb(P, 1, nl.float32), sb(P, d, nl.float32)
        nisa.memset(dst=top, value=-3.0e38)
        nisa.memset(dst=total, value=0.0)
        nisa.memset(dst=acc, value=0.0)
        for j in range(tiles):
            w = min(P, s - j * P)
            kn = sb(P, d, k.dtype)
            nisa.dma_copy(dst=kn[0:w, :], src=k[j * P : j * P + w, :])
            kp = nl.ndarray((d, P), k.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=kp[:, 0:w], data=kn[0:w, :])
            kt = sb(d, P, k.dtype)
            nisa.tensor_copy(dst=kt[:, 0:w], src=kp[:, 0:w])
            vt = sb(P, d, v.dtype)
            nisa.dma_copy(dst=vt[0:w, :], src=v[j * P : j * P + w, :])
            product = nl.ndarray((P, P), nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=product[0:h, 0:w], stationary=qt[:, 0:h], moving=kt[:, 0:w])
            scores = sb(P, P, nl.float32)
            nisa.tensor_scalar(dst=scores[0:h, 0:w], data=product[0:h, 0:w], op0=nl.multiply, operand0=d**-0.5)
            here, new, negative, correction, sums = (sb(P, 1, nl.float32) for _ in range(5))
            nisa.tensor_reduce(dst=here[0:h, :], op=nl.maximum, data=scores[0:h, 0:w], axis=1)
            nisa.tensor_tensor(dst=new[0:h, :], data1=top[0:h, :], data2=here[0:h, :], op=nl.maximum)
            nisa.tensor_scalar(dst=negative[0:h, :], data=new[0:h, :], op0=nl.multiply, operand0=-1.0)
            nisa.activation(dst=correction[0:h, :], op=nl.exp, data=top[0:h, :], bias=negative[0:h, :])
            nisa.tensor_copy(dst=top[0:h, :], src=new[0:h, :])
            probs = sb(P, P, nl.bfloat16)
            nisa.activation_reduce(
                dst=probs[0:h, 0:w], op=nl.exp,
                data=scores[0:h, 0:w], bias=negative[0:h, :], reduce_op=nl.add, reduce_res=sums[0:h, :])
            nisa.scalar_tensor_tensor(
                dst=total[0:h, :], data=total[0:h, :], op0=nl.multiply, operand0=correction[0:h, :],
                op1=nl.add, operand1=sums[0:h, :])
            turned = nl.ndarray((P, P), nl.bfloat16, buffer=nl.psum)
            nisa.nc_transpose(dst=turned[0:w, 0:h], data=probs[0:h, 0:w])
            pt = sb(P, P, nl.bfloat16)
            nisa.tensor_copy(dst=pt[0:w, 0:h], src=turned[0:w, 0:h])
            part = nl.ndarray((P, d), nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=part[0:h, :], stationary=pt[0:w, 0:h], moving=vt[0:w, :])
            nisa.scalar_tensor_tensor(
                dst=acc[0:h, :], data=acc[0:h, :], op0=nl.multiply, operand0=correction[0:h, :],
                op1=nl.add, operand1=part[0:h, :])
        inverse = sb(P, 1, nl.float32)
        nisa.reciprocal(dst=inverse[0:h, :], data=total[0:h, :])
        done = sb(P, d, q.dtype)
        nisa.tensor_scalar(dst=done[0:h, :], data=acc[0:h, :], op0=nl.multiply, operand0=inverse[0:h, :])
        nisa.dma_copy(dst=out[i * P : i * P + h, :], src=done[0:h, :])
    return out
"""

RIGHT = {
    "softmax": _HEAD + _SOFTMAX,
    "selective_scan": _HEAD + _SCAN,
    "attention": _HEAD + _ATTENTION,
}

WRONG = {
    # name: task, text, its replacement, words of the diagnosis
    "sums of the last tile not inverted": (
        "softmax",
        "        nisa.reciprocal(dst=total[0:n, :], data=total[0:n, :])\n",
        "        if n == P:\n            nisa.reciprocal(dst=total[0:n, :], data=total[0:n, :])\n",
        "multiplied by their sums",
    ),
    "maximum of the last tile from its first columns": (
        "softmax",
        "data=t[0:n, :], axis=1, negate=True",
        "data=t[0:n, :] if n == P else t[0:n, 0:128], axis=1, negate=True",
        "a maximum is missing",
    ),
    "last rows written twice": (
        "softmax",
        "dst=out[start : start + n, :], src=t[0:n, :])\n",
        "dst=out[start : start + n, :], src=t[0:n, :])\n"
        "        if n < P:\n            nisa.dma_copy(dst=out[0:n, :], src=t[0:n, :])\n",
        "wrong in rows 0 to 71",
    ),
    "state lost before the last columns": (
        "selective_scan",
        "initial=state, op0",
        "initial=state if n == C else 0.0, op0",
        "a carry is missing",
    ),
    "last keys filled up count": (
        "attention",
        "reduce_res=sums[0:h, :])\n",
        "reduce_res=sums[0:h, :])\n            if w < P:\n"
        "                nisa.tensor_scalar(dst=sums[0:h, :], data=sums[0:h, :], op0=nl.add, operand0=float(P - w))\n",
        "64 added to its result",
    ),
    "V of the last keys from the block before": (
        "attention",
        "src=v[j * P : j * P + w, :]",
        "src=v[j * P : j * P + w, :] if w == P else v[j * P - w : j * P, :]",
        "the last tile is wrong",
    ),
    "another scale for the last queries": (
        "attention",
        "operand0=d**-0.5)",
        "operand0=d**-0.5 if h == P else h**-0.5)",
        "in rows 256 to 319 the scale",
    ),
}
