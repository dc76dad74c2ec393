"""Kernels along a sequence: RoPE, convolution, scans, Mamba; and functions of single elements: SiLU, AdamW; and pooling."""

import nki
import nki.isa as nisa
import nki.language as nl

from nki_hf.tasks.kernels.parts import P, load, sbuf

WIDE = 2048


def _like(x):
    return nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)


def _rope_tile(x, cos, sin, shape, half):
    """`x * cos + rotate(x) * sin` of tiles `[128, count, head_dim]`."""
    out, turned = sbuf(shape), sbuf(shape)
    nisa.tensor_tensor(dst=out, data1=x, data2=cos, op=nl.multiply)
    nisa.scalar_tensor_tensor(
        dst=turned[:, :, :half], data=x[:, :, half:], op0=nl.multiply, operand0=-1.0, op1=nl.multiply, operand1=sin[:, :, :half]
    )
    nisa.tensor_tensor(dst=turned[:, :, half:], data1=x[:, :, :half], data2=sin[:, :, half:], op=nl.multiply)
    nisa.tensor_tensor(dst=out, data1=out, data2=turned, op=nl.add)
    return out


def _rope(x, cos, sin, most):
    rows, width = x.shape
    out = _like(x)
    count = rows // P  # rows p * count + i: whole stretches of HBM on each partition
    views = [tensor.reshape((P, count, width)) for tensor in (x, cos, sin, out)]
    for first in range(0, count, most):
        last = min(first + most, count)
        tiles = [load(view[:, first:last, :]) for view in views[:3]]
        done = _rope_tile(*tiles, (P, last - first, width), width // 2)
        nisa.dma_copy(dst=views[3][:, first:last, :], src=done)
    return out


@nki.jit
def rope_baseline(x, cos, sin):
    return _rope(x, cos, sin, 1)


@nki.jit
def rope_best(x, cos, sin):
    return _rope(x, cos, sin, 8)


def _rope_columns(x, cos, sin, step):
    half, size = cos.shape
    out = _like(x)
    for c in range(0, size, step):
        w = min(step, size - c)
        low, high = load(x[:half, c : c + w]), load(x[half:, c : c + w])
        cosine, sine = load(cos[:, c : c + w]), load(sin[:, c : c + w])
        for part, (a, b, op) in enumerate(((low, high, nl.subtract), (high, low, nl.add))):
            first, second = sbuf((half, w)), sbuf((half, w))
            nisa.tensor_tensor(dst=first, data1=a, data2=cosine, op=nl.multiply)
            nisa.tensor_tensor(dst=second, data1=b, data2=sine, op=nl.multiply)
            nisa.tensor_tensor(dst=first, data1=first, data2=second, op=op)
            nisa.dma_copy(dst=out[part * half : (part + 1) * half, c : c + w], src=first)
    return out


@nki.jit
def rope_columns_baseline(x, cos, sin):
    return _rope_columns(x, cos, sin, 512)


@nki.jit
def rope_columns_best(x, cos, sin):
    return _rope_columns(x, cos, sin, 1024)


def _conv1d(x, weight, step, fused):
    out = _like(x)
    taps = load(weight)
    for c in range(0, x.shape[1], step):
        w = min(step, x.shape[1] - c)
        tile = sbuf((P, w + 3))
        if c:
            nisa.dma_copy(dst=tile, src=x[:, c - 3 : c + w])
        else:
            nisa.memset(dst=tile[:, :3], value=0.0)
            nisa.dma_copy(dst=tile[:, 3:], src=x[:, :w])
        done = sbuf((P, w))
        nisa.tensor_scalar(dst=done, data=tile[:, :w], op0=nl.multiply, operand0=taps[:, 0:1])
        for j in range(1, 4):
            part = tile[:, j : j + w]
            if fused:
                nisa.scalar_tensor_tensor(
                    dst=done, data=part, op0=nl.multiply, operand0=taps[:, j : j + 1], op1=nl.add, operand1=done
                )
            else:
                product = sbuf((P, w))
                nisa.tensor_scalar(dst=product, data=part, op0=nl.multiply, operand0=taps[:, j : j + 1])
                nisa.tensor_tensor(dst=done, data1=done, data2=product, op=nl.add)
        nisa.dma_copy(dst=out[:, c : c + w], src=done)
    return out


@nki.jit
def conv1d_baseline(x, weight):
    return _conv1d(x, weight, 512, False)


@nki.jit
def conv1d_best(x, weight):
    return _conv1d(x, weight, 1024, True)


def _scan(decay, x, step):
    out = _like(x)
    state = 0.0
    for c in range(0, x.shape[1], step):
        w = min(step, x.shape[1] - c)
        done = sbuf((P, w))
        nisa.tensor_tensor_scan(
            dst=done, data0=load(decay[:, c : c + w]), data1=load(x[:, c : c + w]), initial=state, op0=nl.multiply, op1=nl.add
        )
        state = done[:, w - 1 : w]
        nisa.dma_copy(dst=out[:, c : c + w], src=done)
    return out


@nki.jit
def selective_scan_baseline(decay, x):
    return _scan(decay, x, 128)


@nki.jit
def selective_scan_best(decay, x):
    return _scan(decay, x, 1024)


def _mamba(delta, u, a, b, c, step, split):
    channels, size = delta.shape
    states = a.shape[1]
    out = _like(delta)
    other = nisa.engine.gpsimd if split else nisa.engine.vector
    for p in range(0, channels, P):
        rates = load(a[p : p + P, :])
        last = sbuf((P, states))
        nisa.memset(dst=last, value=0.0)
        for m in range(0, size, step):
            w = min(step, size - m)
            d, v = load(delta[p : p + P, m : m + w]), load(u[p : p + P, m : m + w])
            nisa.tensor_tensor(dst=v, data1=d, data2=v, op=nl.multiply)
            total = sbuf((P, w))
            for s in range(states):
                decay, row, scan = sbuf((P, w)), sbuf((P, w)), sbuf((P, w))
                nisa.activation(dst=decay, op=nl.exp, data=d, scale=rates[:, s : s + 1])
                nisa.dma_copy(dst=row, src=b.ap(pattern=[[0, P], [1, w]], offset=s * size + m))
                nisa.tensor_tensor(dst=row, data1=row, data2=v, op=nl.multiply, engine=other)
                nisa.tensor_tensor_scan(
                    dst=scan, data0=decay, data1=row, initial=last[:, s : s + 1], op0=nl.multiply, op1=nl.add
                )
                nisa.tensor_copy(dst=last[:, s : s + 1], src=scan[:, w - 1 : w])
                gate = sbuf((P, w))
                nisa.dma_copy(dst=gate, src=c.ap(pattern=[[0, P], [1, w]], offset=s * size + m))
                nisa.tensor_tensor(dst=scan, data1=scan, data2=gate, op=nl.multiply, engine=other)
                if s:
                    nisa.tensor_tensor(dst=total, data1=total, data2=scan, op=nl.add)
                else:
                    nisa.tensor_copy(dst=total, src=scan)
            nisa.dma_copy(dst=out[p : p + P, m : m + w], src=total)
    return out


@nki.jit
def mamba_baseline(delta, u, a, b, c):
    return _mamba(delta, u, a, b, c, 512, False)


@nki.jit
def mamba_best(delta, u, a, b, c):
    return _mamba(delta, u, a, b, c, 1024, True)


def _dense(tensor):
    """The elements of a tensor, 128 stretches of HBM."""
    total = 1
    for n in tensor.shape:
        total *= n
    return tensor.reshape((P, total // P))


@nki.jit
def silu_baseline(x):
    out = _like(x)
    for start in range(0, x.shape[0], P):
        for c in range(0, x.shape[1], 512):
            tile = load(x[start : start + P, c : c + 512])
            gate = sbuf(tile.shape)
            nisa.activation(dst=gate, op=nl.sigmoid, data=tile)
            nisa.tensor_tensor(dst=tile, data1=tile, data2=gate, op=nl.multiply)
            nisa.dma_copy(dst=out[start : start + P, c : c + 512], src=tile)
    return out


@nki.jit
def silu_best(x):
    out = _like(x)
    source, target = _dense(x), _dense(out)
    for c in range(0, source.shape[1], WIDE):
        w = min(WIDE, source.shape[1] - c)
        tile = load(source[:, c : c + w])
        nisa.activation(dst=tile, op=nl.silu, data=tile)
        nisa.dma_copy(dst=target[:, c : c + w], src=tile)
    return out


def _moment(old, new, keep, fused):
    """`keep * old + (1 - keep) * new` into `old`."""
    nisa.tensor_scalar(dst=new, data=new, op0=nl.multiply, operand0=1.0 - keep)
    if fused:
        nisa.scalar_tensor_tensor(dst=old, data=old, op0=nl.multiply, operand0=keep, op1=nl.add, operand1=new)
    else:
        nisa.tensor_scalar(dst=old, data=old, op0=nl.multiply, operand0=keep)
        nisa.tensor_tensor(dst=old, data1=old, data2=new, op=nl.add)


def _adamw(param, grad, exp_avg, exp_avg_sq, step, fused, *, lr, decay, eps, scale, all_out):
    outs = [_like(param), _like(param), _like(param)] if all_out else [_like(param)]
    sources = [_dense(t) for t in (param, grad, exp_avg, exp_avg_sq)]
    targets = [_dense(t) for t in outs]
    for c in range(0, sources[0].shape[1], step):
        w = min(step, sources[0].shape[1] - c)
        p, g, m, v = (load(t[:, c : c + w]) for t in sources)
        square = sbuf((P, w))
        if fused:
            nisa.activation(dst=square, op=nl.square, data=g)
        else:
            nisa.tensor_tensor(dst=square, data1=g, data2=g, op=nl.multiply)
        _moment(m, g, 0.9, fused)
        _moment(v, square, 0.999, fused)
        root = sbuf((P, w))
        nisa.activation(dst=root, op=nl.sqrt, data=v, scale=scale)
        nisa.tensor_scalar(dst=root, data=root, op0=nl.add, operand0=eps)
        nisa.reciprocal(dst=root, data=root)
        nisa.tensor_tensor(dst=root, data1=root, data2=m, op=nl.multiply)
        nisa.tensor_scalar(dst=root, data=root, op0=nl.multiply, operand0=lr)
        if fused:
            nisa.scalar_tensor_tensor(dst=p, data=p, op0=nl.multiply, operand0=1.0 - decay, op1=nl.subtract, operand1=root)
        else:
            nisa.tensor_scalar(dst=p, data=p, op0=nl.multiply, operand0=1.0 - decay)
            nisa.tensor_tensor(dst=p, data1=p, data2=root, op=nl.subtract)
        for target, tile in zip(targets, (p, m, v), strict=False):
            nisa.dma_copy(dst=target[:, c : c + w], src=tile)
    return tuple(outs) if all_out else outs[0]


@nki.jit
def adamw_baseline(param, grad, exp_avg, exp_avg_sq):
    return _adamw(param, grad, exp_avg, exp_avg_sq, 512, False, lr=1e-3, decay=1e-5, eps=1e-8, scale=1.0, all_out=True)


@nki.jit
def adamw_best(param, grad, exp_avg, exp_avg_sq):
    return _adamw(param, grad, exp_avg, exp_avg_sq, 1024, True, lr=1e-3, decay=1e-5, eps=1e-8, scale=1.0, all_out=True)


@nki.jit
def adamw_step_baseline(theta, g, m, v):
    return _adamw(theta, g, m, v, 512, False, lr=0.01, decay=1e-5, eps=1e-8, scale=1000.0, all_out=False)


@nki.jit
def adamw_step_best(theta, g, m, v):
    return _adamw(theta, g, m, v, 1024, True, lr=0.01, decay=1e-5, eps=1e-8, scale=1000.0, all_out=False)


def _maxpool(x, step, split):
    rows, width = x.shape
    out = nl.ndarray((rows - 2, width - 2), x.dtype, buffer=nl.shared_hbm)
    other = nisa.engine.gpsimd if split else nisa.engine.vector
    for r in range(0, rows - 2, P):
        n = min(P, rows - 2 - r)
        for c in range(0, width - 2, step):
            w = min(step, width - 2 - c)
            lines = [load(x[r + i : r + i + n, c : c + w + 2]) for i in range(3)]
            nisa.tensor_tensor(dst=lines[0], data1=lines[0], data2=lines[1], op=nl.maximum, engine=other)
            nisa.tensor_tensor(dst=lines[0], data1=lines[0], data2=lines[2], op=nl.maximum)
            done = sbuf((n, w), x.dtype)
            nisa.tensor_tensor(dst=done, data1=lines[0][:, :w], data2=lines[0][:, 1 : 1 + w], op=nl.maximum)
            nisa.tensor_tensor(dst=done, data1=done, data2=lines[0][:, 2 : 2 + w], op=nl.maximum, engine=other)
            nisa.dma_copy(dst=out[r : r + n, c : c + w], src=done)
    return out


@nki.jit
def maxpool_baseline(x):
    return _maxpool(x, 512, False)


@nki.jit
def maxpool_best(x):
    return _maxpool(x, WIDE, True)
