"""Kernels of functions of rows: softmax, RMSNorm, LayerNorm, cumulative sum, cross entropy, transpose."""

import nki
import nki.isa as nisa
import nki.language as nl

from nki_hf.tasks.kernels.parts import BANK, P, evict, inverse_rms, load, psum, sbuf, spread


def _like(x):
    return nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)


def _softmax(x, fused):
    out = _like(x)
    for start in range(0, x.shape[0], P):
        tile = load(x[start : start + P, :], nl.float32)
        top, total = sbuf((P, 1)), sbuf((P, 1))
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=tile, axis=1, negate=True)
        if fused:
            nisa.activation_reduce(dst=tile, op=nl.exp, data=tile, bias=top, reduce_op=nl.add, reduce_res=total)
        else:
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=top)
            nisa.activation(dst=tile, op=nl.exp, data=tile)
            nisa.tensor_reduce(dst=total, op=nl.add, data=tile, axis=1)
        nisa.reciprocal(dst=total, data=total)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=out[start : start + P, :], src=tile)
    return out


@nki.jit
def softmax_baseline(x):
    return _softmax(x, False)


@nki.jit
def softmax_best(x):
    return _softmax(x, True)


def _rmsnorm(x, weight, eps, fused):
    out = _like(x)
    wide = spread(weight, x.shape[1])
    for start in range(0, x.shape[0], P):
        tile = load(x[start : start + P, :])
        inverse = inverse_rms(tile, eps, fused)
        done = sbuf(tile.shape, x.dtype)
        if fused:
            nisa.scalar_tensor_tensor(dst=done, data=tile, op0=nl.multiply, operand0=inverse, op1=nl.multiply, operand1=wide)
        else:
            nisa.tensor_scalar(dst=done, data=tile, op0=nl.multiply, operand0=inverse)
            nisa.tensor_tensor(dst=done, data1=done, data2=wide, op=nl.multiply)
        nisa.dma_copy(dst=out[start : start + P, :], src=done)
    return out


@nki.jit
def rmsnorm_baseline(x, weight, eps=1e-6):
    return _rmsnorm(x, weight, eps, False)


@nki.jit
def rmsnorm_best(x, weight, eps=1e-6):
    return _rmsnorm(x, weight, eps, True)


def _layernorm(x, weight, bias, eps, fused):
    out = _like(x)
    width = x.shape[1]
    wide, added = spread(weight, width), spread(bias, width)
    for start in range(0, x.shape[0], P):
        tile = load(x[start : start + P, :])
        if fused:
            parts = width // BANK
            stats = sbuf((P, parts * 6))
            for i in range(parts):
                nisa.bn_stats(dst=stats[:, i * 6 : i * 6 + 6], data=tile[:, i * BANK : (i + 1) * BANK])
            moments = sbuf((P, 2))
            nisa.bn_aggr(dst=moments, data=stats)
            mean, inverse = moments[:, 0:1], sbuf((P, 1))
            nisa.tensor_scalar(dst=inverse, data=moments[:, 1:2], op0=nl.add, operand0=eps)
            nisa.activation(dst=inverse, op=nl.rsqrt, data=inverse)
        else:
            mean = sbuf((P, 1))
            nisa.tensor_reduce(dst=mean, op=nl.add, data=tile, axis=1)
            nisa.tensor_scalar(dst=mean, data=mean, op0=nl.multiply, operand0=1.0 / width)
            centred = sbuf((P, width))
            nisa.tensor_scalar(dst=centred, data=tile, op0=nl.subtract, operand0=mean)
            inverse = inverse_rms(centred, eps, False)
        done = sbuf((P, width))
        nisa.tensor_scalar(dst=done, data=tile, op0=nl.subtract, operand0=mean, op1=nl.multiply, operand1=inverse)
        nisa.tensor_tensor(dst=done, data1=done, data2=wide, op=nl.multiply)
        nisa.tensor_tensor(
            dst=done, data1=done, data2=added, op=nl.add, engine=nisa.engine.gpsimd if fused else nisa.engine.vector
        )
        nisa.dma_copy(dst=out[start : start + P, :], src=done)
    return out


@nki.jit
def layernorm_baseline(x, weight, bias, eps=1e-5):
    return _layernorm(x, weight, bias, eps, False)


@nki.jit
def layernorm_best(x, weight, bias, eps=1e-5):
    return _layernorm(x, weight, bias, eps, True)


def _cumsum(x, step):
    out = _like(x)
    width = x.shape[1]
    ones = sbuf((P, step))
    nisa.memset(dst=ones, value=1.0)
    for start in range(0, x.shape[0], P):
        tile, done = load(x[start : start + P, :]), sbuf((P, width))
        for first in range(0, width, step):
            before = done[:, first - 1 : first] if first else 0.0
            nisa.tensor_tensor_scan(
                dst=done[:, first : first + step],
                data0=ones,
                data1=tile[:, first : first + step],
                initial=before,
                op0=nl.multiply,
                op1=nl.add,
            )
        nisa.dma_copy(dst=out[start : start + P, :], src=done)
    return out


@nki.jit
def cumsum_baseline(x):
    return _cumsum(x, 128)


@nki.jit
def cumsum_best(x):
    return _cumsum(x, x.shape[1])


def _cross_entropy(logits, labels, fused):
    rows, width = logits.shape
    out = nl.ndarray((rows, 1), logits.dtype, buffer=nl.shared_hbm)
    numbers = sbuf((P, width))
    nisa.iota(dst=numbers, pattern=[[1, width]])
    for start in range(0, rows, P):
        tile, label = load(logits[start : start + P, :]), load(labels[start : start + P, :], nl.float32)
        top, total, chosen = sbuf((P, 1)), sbuf((P, 1)), sbuf((P, 1))
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=tile, axis=1, negate=True)
        powers, mask = sbuf((P, width)), sbuf((P, width))
        if fused:
            nisa.activation_reduce(dst=powers, op=nl.exp, data=tile, bias=top, reduce_op=nl.add, reduce_res=total)
            nisa.scalar_tensor_tensor(dst=mask, data=numbers, op0=nl.equal, operand0=label, op1=nl.multiply, operand1=tile)
        else:
            nisa.tensor_scalar(dst=powers, data=tile, op0=nl.add, operand0=top)
            nisa.activation(dst=powers, op=nl.exp, data=powers)
            nisa.tensor_reduce(dst=total, op=nl.add, data=powers, axis=1)
            nisa.tensor_scalar(dst=mask, data=numbers, op0=nl.equal, operand0=label)
            nisa.tensor_tensor(dst=mask, data1=mask, data2=tile, op=nl.multiply)
        nisa.tensor_reduce(dst=chosen, op=nl.add, data=mask, axis=1)
        nisa.activation(dst=total, op=nl.log, data=total)
        nisa.tensor_tensor(dst=total, data1=total, data2=top, op=nl.subtract)
        nisa.tensor_tensor(dst=total, data1=total, data2=chosen, op=nl.subtract)
        nisa.dma_copy(dst=out[start : start + P, :], src=total)
    return out


@nki.jit
def cross_entropy_baseline(logits, labels):
    return _cross_entropy(logits, labels, False)


@nki.jit
def cross_entropy_best(logits, labels):
    return _cross_entropy(logits, labels, True)


@nki.jit
def transpose_baseline(x):
    rows, width = x.shape
    out = nl.ndarray((width, rows), x.dtype, buffer=nl.shared_hbm)
    for r in range(0, rows, P):
        for c in range(0, width, P):
            there = psum((P, P), x.dtype)
            nisa.nc_transpose(dst=there, data=load(x[r : r + P, c : c + P]))
            done = sbuf((P, P), x.dtype)
            nisa.tensor_copy(dst=done, src=there)
            nisa.dma_copy(dst=out[c : c + P, r : r + P], src=done)
    return out


@nki.jit
def transpose_best(x):
    rows, width = x.shape
    out = nl.ndarray((width, rows), x.dtype, buffer=nl.shared_hbm)
    for r in range(0, rows, BANK):
        count = min(BANK, rows - r) // P
        tiles = []
        for i in range(count):
            tiles.append(load(x[r + i * P : r + (i + 1) * P, :]))
        for c in range(0, width, P):
            bank = psum((P, count, P), x.dtype)
            for i in range(count):
                nisa.nc_transpose(dst=bank[:, i, :], data=tiles[i][:, c : c + P])
            done = sbuf((P, count, P), x.dtype)
            evict(done, bank, c // P % 2)
            nisa.dma_copy(dst=out[c : c + P, r : r + count * P], src=done.reshape((P, count * P)))
    return out
