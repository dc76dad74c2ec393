"""A right kernel for each task of the package that is no attention."""

from __future__ import annotations

_HEAD = """
import nki
import nki.isa as nisa
import nki.language as nl


def tile(rows, columns, dtype=nl.float32):
    return nl.ndarray((rows, columns), dtype, buffer=nl.sbuf)


def loaded(src, rows, columns, dtype=nl.float32):
    t = tile(rows, columns, dtype)
    nisa.dma_copy(dst=t, src=src)
    return t


def product(out, a, b):
    nisa.tensor_tensor(dst=out, data1=a, data2=b, op=nl.multiply)

"""

_SOFTMAX = """
@nki.jit
def softmax(x):
    rows, width = x.shape
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for start in range(0, rows, 128):
        t = loaded(x[start : start + 128, :], 128, width)
        top = tile(128, 1)
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=t, axis=1, negate=True)
        total = tile(128, 1)
        nisa.activation_reduce(dst=t, op=nl.exp, data=t, bias=top, reduce_op=nl.add, reduce_res=total)
        nisa.reciprocal(dst=total, data=total)
        nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=out[start : start + 128, :], src=t)
    return out
"""

_RMSNORM = """
@nki.jit
def rmsnorm(x, weight, eps=1e-6):
    rows, width = x.shape
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    w = tile(128, width)
    for p in range(128):
        nisa.dma_copy(dst=w[p : p + 1, :], src=weight)
    for start in range(0, rows, 128):
        t = loaded(x[start : start + 128, :], 128, width)
        square = tile(128, width)
        product(square, t, t)
        mean = tile(128, 1)
        nisa.tensor_reduce(dst=mean, op=nl.add, data=square, axis=1)
        nisa.tensor_scalar(dst=mean, data=mean, op0=nl.multiply, operand0=1.0 / width, op1=nl.add, operand1=eps)
        nisa.activation(dst=mean, op=nl.rsqrt, data=mean)
        nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=mean)
        product(t, t, w)
        nisa.dma_copy(dst=out[start : start + 128, :], src=t)
    return out
"""

_LAYERNORM = """
@nki.jit
def layernorm(x, weight, bias, eps=1e-5):
    rows, width = x.shape
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    w, b = tile(128, width), tile(128, width)
    for p in range(128):
        nisa.dma_copy(dst=w[p : p + 1, :], src=weight)
        nisa.dma_copy(dst=b[p : p + 1, :], src=bias)
    for start in range(0, rows, 128):
        t = loaded(x[start : start + 128, :], 128, width)
        mean = tile(128, 1)
        nisa.tensor_reduce(dst=mean, op=nl.add, data=t, axis=1)
        nisa.tensor_scalar(dst=mean, data=mean, op0=nl.multiply, operand0=1.0 / width)
        centred = tile(128, width)
        nisa.tensor_scalar(dst=centred, data=t, op0=nl.subtract, operand0=mean)
        square = tile(128, width)
        product(square, centred, centred)
        variance = tile(128, 1)
        nisa.tensor_reduce(dst=variance, op=nl.add, data=square, axis=1)
        nisa.tensor_scalar(dst=variance, data=variance, op0=nl.multiply, operand0=1.0 / width, op1=nl.add, operand1=eps)
        nisa.activation(dst=variance, op=nl.rsqrt, data=variance)
        nisa.tensor_scalar(dst=centred, data=centred, op0=nl.multiply, operand0=variance)
        product(centred, centred, w)
        nisa.tensor_tensor(dst=centred, data1=centred, data2=b, op=nl.add)
        nisa.dma_copy(dst=out[start : start + 128, :], src=centred)
    return out
"""

_CUMSUM = """
@nki.jit
def cumsum(x):
    rows, width = x.shape
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    ones = tile(128, 256)
    nisa.memset(dst=ones, value=1.0)
    for start in range(0, rows, 128):
        t = loaded(x[start : start + 128, :], 128, width)
        s = tile(128, width)
        for c in range(0, width, 256):
            before = s[:, c - 1 : c] if c else 0.0
            nisa.tensor_tensor_scan(
                dst=s[:, c : c + 256], data0=ones, data1=t[:, c : c + 256], initial=before, op0=nl.multiply, op1=nl.add
            )
        nisa.dma_copy(dst=out[start : start + 128, :], src=s)
    return out
"""

_ENTROPY = """
@nki.jit
def cross_entropy(logits, labels):
    rows, width = logits.shape
    out = nl.ndarray((rows, 1), logits.dtype, buffer=nl.shared_hbm)
    columns = tile(128, width)
    nisa.iota(columns, [[1, width]], offset=0, channel_multiplier=0)
    for start in range(0, rows, 128):
        t = loaded(logits[start : start + 128, :], 128, width)
        label = tile(128, 1)
        nisa.tensor_copy(dst=label, src=loaded(labels[start : start + 128, :], 128, 1, nl.int32))
        top = tile(128, 1)
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=t, axis=1, negate=True)
        power, total = tile(128, width), tile(128, 1)
        nisa.activation_reduce(dst=power, op=nl.exp, data=t, bias=top, reduce_op=nl.add, reduce_res=total)
        nisa.activation(dst=total, op=nl.log, data=total)
        nisa.tensor_tensor(dst=total, data1=total, data2=top, op=nl.subtract)
        hot, picked = tile(128, width), tile(128, 1)
        nisa.tensor_scalar(dst=hot, data=columns, op0=nl.equal, operand0=label)
        product(hot, hot, t)
        nisa.tensor_reduce(dst=picked, op=nl.add, data=hot, axis=1)
        nisa.tensor_tensor(dst=total, data1=total, data2=picked, op=nl.subtract)
        nisa.dma_copy(dst=out[start : start + 128, :], src=total)
    return out
"""

_TRANSPOSE = """
@nki.jit
def transpose(x):
    rows, width = x.shape
    out = nl.ndarray((width, rows), x.dtype, buffer=nl.shared_hbm)
    for r in range(0, rows, 128):
        t = loaded(x[r : r + 128, :], 128, width, x.dtype)
        for c in range(0, width, 128):
            turned = nl.ndarray((128, 128), x.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=turned, data=t[:, c : c + 128])
            kept = tile(128, 128, x.dtype)
            nisa.tensor_copy(dst=kept, src=turned)
            nisa.dma_copy(dst=out[c : c + 128, r : r + 128], src=kept)
    return out
"""

_MATMUL = """
@nki.jit
def matmul(a, b):
    rows, depth = a.shape
    columns = b.shape[1]
    out = nl.ndarray((rows, columns), a.dtype, buffer=nl.shared_hbm)
    right = [loaded(b[k : k + 128, :], 128, columns, b.dtype) for k in range(0, depth, 128)]
    for m in range(0, rows, 128):
        left = loaded(a[m : m + 128, :], 128, depth, a.dtype)
        turned = []
        for k in range(0, depth, 128):
            part = nl.ndarray((128, 128), a.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=part, data=left[:, k : k + 128])
            kept = tile(128, 128, a.dtype)
            nisa.tensor_copy(dst=kept, src=part)
            turned.append(kept)
        for n in range(0, columns, 512):
            acc = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
            for k in range(depth // 128):
                nisa.nc_matmul(dst=acc, stationary=turned[k], moving=right[k][:, n : n + 512])
            done = tile(128, 512, a.dtype)
            nisa.tensor_copy(dst=done, src=acc)
            nisa.dma_copy(dst=out[m : m + 128, n : n + 512], src=done)
    return out
"""

_ROPE = """
@nki.jit
def rope(x, cos, sin):
    rows, width = x.shape
    half = width // 2
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for start in range(0, rows, 128):
        part = slice(start, start + 128)
        t, c, s = (loaded(item[part, :], 128, width) for item in (x, cos, sin))
        turned = tile(128, width)
        nisa.tensor_scalar(dst=turned[:, :half], data=t[:, half:], op0=nl.multiply, operand0=-1.0)
        nisa.tensor_copy(dst=turned[:, half:], src=t[:, :half])
        product(turned, turned, s)
        product(t, t, c)
        nisa.tensor_tensor(dst=t, data1=t, data2=turned, op=nl.add)
        nisa.dma_copy(dst=out[part, :], src=t)
    return out
"""

_CONV1D = """
@nki.jit
def conv1d(x, weight):
    channels, size = x.shape
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    padded = tile(channels, size + 3)
    nisa.memset(dst=padded, value=0.0)
    nisa.dma_copy(dst=padded[:, 3:], src=x)
    taps = loaded(weight, channels, 4)
    acc = tile(channels, size)
    nisa.memset(dst=acc, value=0.0)
    for j in range(4):
        nisa.scalar_tensor_tensor(
            dst=acc, data=padded[:, j : j + size], op0=nl.multiply, operand0=taps[:, j : j + 1], op1=nl.add, operand1=acc
        )
    nisa.dma_copy(dst=out, src=acc)
    return out
"""

_SCAN = """
@nki.jit
def selective_scan(decay, x):
    channels, size = x.shape
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    d, t, s = loaded(decay, channels, size), loaded(x, channels, size), tile(channels, size)
    for c in range(0, size, 256):
        before = s[:, c - 1 : c] if c else 0.0
        part = slice(c, c + 256)
        nisa.tensor_tensor_scan(dst=s[:, part], data0=d[:, part], data1=t[:, part], initial=before, op0=nl.multiply, op1=nl.add)
    nisa.dma_copy(dst=out, src=s)
    return out
"""

_ADAMW = """
@nki.jit
def adamw(param, grad, exp_avg, exp_avg_sq):
    rows, width = param.shape
    b1, b2, lr, eps, decay = 0.9, 0.999, 1e-3, 1e-8, 0.01
    outs = [nl.ndarray(param.shape, param.dtype, buffer=nl.shared_hbm) for _ in range(3)]
    for start in range(0, rows, 128):
        part = slice(start, start + 128)
        p, g, m, v = (loaded(item[part, :], 128, width) for item in (param, grad, exp_avg, exp_avg_sq))
        step = tile(128, width)
        nisa.tensor_scalar(dst=m, data=m, op0=nl.multiply, operand0=b1)
        nisa.tensor_scalar(dst=step, data=g, op0=nl.multiply, operand0=1 - b1)
        nisa.tensor_tensor(dst=m, data1=m, data2=step, op=nl.add)
        product(step, g, g)
        nisa.tensor_scalar(dst=step, data=step, op0=nl.multiply, operand0=1 - b2)
        nisa.tensor_scalar(dst=v, data=v, op0=nl.multiply, operand0=b2)
        nisa.tensor_tensor(dst=v, data1=v, data2=step, op=nl.add)
        nisa.activation(dst=step, op=nl.sqrt, data=v)
        nisa.tensor_scalar(dst=step, data=step, op0=nl.add, operand0=eps)
        nisa.reciprocal(dst=step, data=step)
        product(step, step, m)
        nisa.tensor_scalar(dst=step, data=step, op0=nl.multiply, operand0=-lr)
        nisa.tensor_scalar(dst=p, data=p, op0=nl.multiply, operand0=1 - lr * decay)
        nisa.tensor_tensor(dst=p, data1=p, data2=step, op=nl.add)
        for out, value in zip(outs, (p, m, v)):
            nisa.dma_copy(dst=out[part, :], src=value)
    return tuple(outs)
"""

RIGHT = {
    "softmax": _HEAD + _SOFTMAX,
    "rmsnorm": _HEAD + _RMSNORM,
    "layernorm": _HEAD + _LAYERNORM,
    "cumsum": _HEAD + _CUMSUM,
    "cross_entropy": _HEAD + _ENTROPY,
    "transpose": _HEAD + _TRANSPOSE,
    "matmul": _HEAD + _MATMUL,
    "rope": _HEAD + _ROPE,
    "conv1d": _HEAD + _CONV1D,
    "selective_scan": _HEAD + _SCAN,
    "adamw": _HEAD + _ADAMW,
}
