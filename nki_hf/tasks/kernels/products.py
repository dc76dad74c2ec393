"""Kernels that consist of products: matmul, batched matmul with softmax, SwiGLU, norms before and after, LoRA."""

import nki
import nki.isa as nisa
import nki.language as nl

from nki_hf.tasks.kernels.parts import BANK, P, evict, inverse_rms, load, product, sbuf, spread, stacked, turned

ROWS = 1024


def _evicted(bank, dtype, odd):
    """A PSUM tile in SBUF; the engines take turns."""
    done = sbuf(bank.shape, dtype)
    evict(done, bank, odd)
    return done


def _blocks(left_of, right, out, rows_per_block, finish=None):
    """Out = left @ right; `left_of(first, rows)` gives rows of left with the contraction on partitions."""
    rows, n = out.shape
    for m in range(0, rows, rows_per_block):
        lefts = []
        for r in range(m, min(m + rows_per_block, rows), P):
            lefts.append(left_of(r, min(P, rows - r)))
        for c in range(0, n, BANK):
            w = min(BANK, n - c)
            columns = stacked(right, c, w, nl.bfloat16)
            for i in range(len(lefts)):
                bank = product(lefts[i], columns, 0, w)
                r = m + i * P
                nisa.dma_copy(dst=out[r : r + lefts[i].shape[2], c : c + w], src=_evicted(bank, out.dtype, i % 2))


def _rows_of(x):
    def left_of(first, count):
        return turned(load(x[first : first + count, :], nl.bfloat16), count)

    return left_of


def _matmul(a, b, rows):
    out = nl.ndarray((a.shape[0], b.shape[1]), a.dtype, buffer=nl.shared_hbm)
    _blocks(_rows_of(a), b, out, rows)
    return out


@nki.jit
def matmul_baseline(a, b):
    return _matmul(a, b, P)


@nki.jit
def matmul_best(a, b):
    return _matmul(a, b, ROWS)


def _transposed(lhs, rhs, rows):
    out = nl.ndarray((lhs.shape[1], rhs.shape[1]), lhs.dtype, buffer=nl.shared_hbm)

    def left_of(first, count):
        return stacked(lhs, first, count, nl.bfloat16)

    _blocks(left_of, rhs, out, rows)
    return out


@nki.jit
def transpose_matmul_baseline(lhs, rhs):
    return _transposed(lhs, rhs, P)


@nki.jit
def transpose_matmul_best(lhs, rhs):
    return _transposed(lhs, rhs, ROWS)


def _normed(x, residual, gain, eps, fused):
    """Rows of `rmsnorm(x + residual) * gain` with the contraction on partitions."""
    wide = None if gain is None else spread(gain, x.shape[1])

    def left_of(first, count):
        tile = load(x[first : first + count, :], nl.float32)
        if residual is not None:
            nisa.tensor_tensor(dst=tile, data1=tile, data2=load(residual[first : first + count, :], nl.float32), op=nl.add)
        inverse = inverse_rms(tile, eps, fused)
        done = sbuf(tile.shape, nl.bfloat16)
        if wide is None:
            nisa.tensor_scalar(dst=done, data=tile, op0=nl.multiply, operand0=inverse)
        else:
            nisa.scalar_tensor_tensor(
                dst=done, data=tile, op0=nl.multiply, operand0=inverse, op1=nl.multiply, operand1=wide[:count, :]
            )
        return turned(done, count)

    return left_of


def _norm_matmul(x, residual, gain, weight, eps, rows, fused):
    out = nl.ndarray((x.shape[0], weight.shape[1]), x.dtype, buffer=nl.shared_hbm)
    _blocks(_normed(x, residual, gain, eps, fused), weight, out, rows)
    return out


@nki.jit
def residual_rmsnorm_matmul_baseline(x, residual, weight):
    return _norm_matmul(x, residual, None, weight, 1e-6, P, False)


@nki.jit
def residual_rmsnorm_matmul_best(x, residual, weight):
    return _norm_matmul(x, residual, None, weight, 1e-6, ROWS, True)


@nki.jit
def rmsnorm_matmul_baseline(x, weight):
    return _norm_matmul(x, None, None, weight, 1e-5, P, False)


@nki.jit
def rmsnorm_matmul_best(x, weight):
    return _norm_matmul(x, None, None, weight, 1e-5, ROWS, True)


@nki.jit
def add_rmsnorm_matmul_baseline(x, weight, z, g):
    return _norm_matmul(x, z, g, weight, 1e-5, P, False)


@nki.jit
def add_rmsnorm_matmul_best(x, weight, z, g):
    return _norm_matmul(x, z, g, weight, 1e-5, ROWS, True)


def _matmul_norm(x, weight, z, g, rows, fused):
    """rmsnorm(x @ weight + z) * g: whole rows of the product stay in SBUF."""
    n = weight.shape[1]
    out = nl.ndarray(z.shape, x.dtype, buffer=nl.shared_hbm)
    gain, left_of = spread(g, n), _rows_of(x)
    for m in range(0, x.shape[0], rows):
        tiles = []
        for r in range(m, min(m + rows, x.shape[0]), P):
            tiles.append((left_of(r, P), load(z[r : r + P, :], nl.float32)))
        for c in range(0, n, BANK):
            columns = stacked(weight, c, BANK, nl.bfloat16)
            for left, total in tiles:
                part = total[:, c : c + BANK]
                nisa.tensor_tensor(dst=part, data1=part, data2=product(left, columns, 0, BANK), op=nl.add)
        for i in range(len(tiles)):
            total = tiles[i][1]
            inverse, done = inverse_rms(total, 1e-5, fused), sbuf(total.shape, out.dtype)
            nisa.scalar_tensor_tensor(dst=done, data=total, op0=nl.multiply, operand0=inverse, op1=nl.multiply, operand1=gain)
            nisa.dma_copy(dst=out[m + i * P : m + (i + 1) * P, :], src=done)
    return out


@nki.jit
def matmul_add_rmsnorm_baseline(x, weight, z, g):
    return _matmul_norm(x, weight, z, g, P, False)


@nki.jit
def matmul_add_rmsnorm_best(x, weight, z, g):
    return _matmul_norm(x, weight, z, g, 512, True)


def _swiglu(x, gate, up, down, rows, fused):
    """(silu(x @ gate) * (x @ up)) @ down; the hidden rows of a block stay in SBUF, already transposed."""
    hidden, left_of = gate.shape[1], _rows_of(x)
    out = nl.ndarray((x.shape[0], down.shape[1]), x.dtype, buffer=nl.shared_hbm)
    for m in range(0, x.shape[0], rows):
        lefts, middles = [], []
        for r in range(m, min(m + rows, x.shape[0]), P):
            lefts.append(left_of(r, P))
            middles.append(sbuf((P, hidden), nl.bfloat16))
        for c in range(0, hidden, BANK):
            gates, ups = stacked(gate, c, BANK, nl.bfloat16), stacked(up, c, BANK, nl.bfloat16)
            for i in range(len(lefts)):
                g, u = product(lefts[i], gates, 0, BANK), product(lefts[i], ups, 0, BANK)
                active = sbuf((P, BANK))
                if fused:
                    nisa.activation(dst=active, op=nl.silu, data=g)
                else:
                    nisa.activation(dst=active, op=nl.sigmoid, data=g)
                    nisa.tensor_tensor(dst=active, data1=active, data2=g, op=nl.multiply)
                nisa.tensor_tensor(dst=middles[i][:, c : c + BANK], data1=active, data2=u, op=nl.multiply)
        columns = [turned(middle, P) for middle in middles]
        for c in range(0, down.shape[1], BANK):
            downs = stacked(down, c, BANK, nl.bfloat16)
            for i in range(len(columns)):
                done = _evicted(product(columns[i], downs, 0, BANK), out.dtype, i % 2)
                nisa.dma_copy(dst=out[m + i * P : m + (i + 1) * P, c : c + BANK], src=done)
    return out


@nki.jit
def swiglu_baseline(x, gate, up, down):
    return _swiglu(x, gate, up, down, P, False)


@nki.jit
def swiglu_best(x, gate, up, down):
    return _swiglu(x, gate, up, down, 512, True)


def _lora(x, w, a, b, rows):
    """X @ w + (x @ a) @ b: the low-rank part is one more product into the same PSUM tile."""
    n, rank = w.shape[1], a.shape[1]
    out = nl.ndarray((x.shape[0], n), x.dtype, buffer=nl.shared_hbm)
    left_of, narrow = _rows_of(x), stacked(a, 0, rank, nl.bfloat16)
    for m in range(0, x.shape[0], rows):
        lefts, lows = [], []
        for r in range(m, min(m + rows, x.shape[0]), P):
            left = left_of(r, P)
            low = sbuf((P, rank), nl.bfloat16)
            nisa.tensor_copy(dst=low, src=product(left, narrow, 0, rank))
            lefts.append(left)
            lows.append(turned(low, P))
        for c in range(0, n, BANK):
            columns, more = stacked(w, c, BANK, nl.bfloat16), load(b[:, c : c + BANK], nl.bfloat16)
            for i in range(len(lefts)):
                bank = product(lefts[i], columns, 0, BANK)
                nisa.nc_matmul(dst=bank, stationary=lows[i][:, 0, :], moving=more)
                nisa.dma_copy(dst=out[m + i * P : m + (i + 1) * P, c : c + BANK], src=_evicted(bank, out.dtype, i % 2))
    return out


@nki.jit
def lora_baseline(x, w, a, b):
    return _lora(x, w, a, b, P)


@nki.jit
def lora_best(x, w, a, b):
    return _lora(x, w, a, b, ROWS)


def _bmm(lhs, rhs, softmax, fused):
    """Per batch entry lhs [m, k <= 128] @ rhs [k, n], and softmax over n."""
    batch, m, k = lhs.shape
    n = rhs.shape[2]
    out = nl.ndarray((batch, m, n), lhs.dtype, buffer=nl.shared_hbm)
    for e in range(batch):
        right = load(rhs[e], nl.bfloat16)
        for r in range(0, m, P):
            rows = load(lhs[e, r : r + P, :], nl.bfloat16)
            bank = nl.ndarray((k, P), nl.bfloat16, buffer=nl.psum)
            nisa.nc_transpose(dst=bank, data=rows)
            left = sbuf((k, P), nl.bfloat16)
            nisa.tensor_copy(dst=left, src=bank)
            done = sbuf((P, n), nl.float32 if softmax else out.dtype)
            for c in range(0, n, BANK):
                scores = nl.ndarray((P, BANK), nl.float32, buffer=nl.psum)
                nisa.nc_matmul(dst=scores, stationary=left, moving=right[:, c : c + BANK])
                evict(done[:, c : c + BANK], scores, fused and c // BANK % 2)
            if softmax:
                top, total = sbuf((P, 1)), sbuf((P, 1))
                nisa.tensor_reduce(dst=top, op=nl.maximum, data=done, axis=1, negate=True)
                if fused:
                    nisa.activation_reduce(dst=done, op=nl.exp, data=done, bias=top, reduce_op=nl.add, reduce_res=total)
                else:
                    nisa.tensor_scalar(dst=done, data=done, op0=nl.add, operand0=top)
                    nisa.activation(dst=done, op=nl.exp, data=done)
                    nisa.tensor_reduce(dst=total, op=nl.add, data=done, axis=1)
                nisa.reciprocal(dst=total, data=total)
                probs = sbuf((P, n), out.dtype)
                nisa.tensor_scalar(dst=probs, data=done, op0=nl.multiply, operand0=total)
                done = probs
            nisa.dma_copy(dst=out[e, r : r + P, :], src=done)
    return out


@nki.jit
def bmm_baseline(lhs, rhs):
    return _bmm(lhs, rhs, False, False)


@nki.jit
def bmm_best(lhs, rhs):
    return _bmm(lhs, rhs, False, True)


@nki.jit
def bmm_softmax_baseline(lhs, rhs):
    return _bmm(lhs, rhs, True, False)


@nki.jit
def bmm_softmax_best(lhs, rhs):
    return _bmm(lhs, rhs, True, True)
