"""Step 1: every intermediate goes through HBM, in float32, one step after another. Right, and slow."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def attention(q, k, v):
    """softmax(q^T k / sqrt(d)) v of one head: q, k [d, seqlen], v [seqlen, d]; d 128, seqlen a multiple of 512."""
    head_dim, seqlen = q.shape
    out = nl.ndarray((seqlen, head_dim), q.dtype, buffer=nl.shared_hbm)
    probs = nl.ndarray((seqlen, seqlen), nl.float32, buffer=nl.hbm)
    for i in range(seqlen // 128):
        rows = slice(i * 128, (i + 1) * 128)
        q_tile = nl.ndarray((head_dim, 128), q.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=q_tile, src=q[:, rows])
        for j in range(seqlen // 512):
            keys = slice(j * 512, (j + 1) * 512)
            k_tile = nl.ndarray((head_dim, 512), k.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=k_tile, src=k[:, keys])
            scores = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=scores, stationary=q_tile, moving=k_tile)
            scaled = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=scaled, data=scores, op0=nl.multiply, operand0=head_dim**-0.5)
            nisa.dma_copy(dst=probs[rows, keys], src=scaled)
        row = nl.ndarray((128, seqlen), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=row, src=probs[rows, :])
        top = nl.ndarray((128, 1), nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=row, axis=1)
        nisa.tensor_scalar(dst=row, data=row, op0=nl.subtract, operand0=top)
        nisa.activation(dst=row, op=nl.exp, data=row)
        total = nl.ndarray((128, 1), nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total, op=nl.add, data=row, axis=1)
        nisa.reciprocal(dst=total, data=total)
        nisa.tensor_scalar(dst=row, data=row, op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=probs[rows, :], src=row)
        summed = nl.ndarray((128, head_dim), nl.float32, buffer=nl.psum)
        for j in range(seqlen // 128):
            keys = slice(j * 128, (j + 1) * 128)
            p_tile = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=p_tile, src=probs[rows, keys])
            turned = nl.ndarray((128, 128), nl.float32, buffer=nl.psum)
            nisa.nc_transpose(dst=turned, data=p_tile)
            p_turned = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=p_turned, src=turned)
            v_tile = nl.ndarray((128, head_dim), v.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=v_tile, src=v[keys, :])
            v_wide = nl.ndarray((128, head_dim), nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=v_wide, src=v_tile)
            nisa.nc_matmul(dst=summed, stationary=p_turned, moving=v_wide)
        out_tile = nl.ndarray((128, head_dim), q.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=out_tile, src=summed)
        nisa.dma_copy(dst=out[rows, :], src=out_tile)
    return out
