"""Step 4: four transposes share a PSUM bank and leave it in one copy; Vector and Scalar take turns with the copies."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def attention(q, k, v):
    """softmax(q^T k / sqrt(d)) v of one head: q, k [d, seqlen], v [seqlen, d]; d 128, seqlen a multiple of 512."""
    head_dim, seqlen = q.shape
    scale, blocks = head_dim**-0.5, seqlen // 512
    out = nl.ndarray((seqlen, head_dim), q.dtype, buffer=nl.shared_hbm)
    q_all = nl.ndarray((head_dim, seqlen), q.dtype, buffer=nl.sbuf)
    k_all = nl.ndarray((head_dim, seqlen), k.dtype, buffer=nl.sbuf)
    v_all = nl.ndarray((128, seqlen // 128, head_dim), nl.bfloat16, buffer=nl.sbuf)
    nisa.dma_copy(dst=q_all, src=q)
    nisa.dma_copy(dst=k_all, src=k)
    for j in range(seqlen // 128):
        nisa.dma_copy(dst=v_all[:, j, :], src=v[j * 128 : (j + 1) * 128, :])
    for i in range(seqlen // 128):
        scores = []
        tops = nl.ndarray((128, blocks), nl.float32, buffer=nl.sbuf)
        for j in range(blocks):
            tile = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
            scores.append(tile)
            nisa.nc_matmul(dst=tile, stationary=q_all[:, i * 128 : (i + 1) * 128], moving=k_all[:, j * 512 : (j + 1) * 512])
            nisa.tensor_reduce(dst=tops[:, j : j + 1], op=nl.maximum, data=tile, axis=1)
        top = nl.ndarray((128, 1), nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=tops, axis=1, negate=True)
        nisa.tensor_scalar(dst=top, data=top, op0=nl.multiply, operand0=scale)
        probs = nl.ndarray((128, seqlen), nl.bfloat16, buffer=nl.sbuf)
        sums = nl.ndarray((128, blocks), nl.float32, buffer=nl.sbuf)
        for j in range(blocks):
            nisa.activation_reduce(
                dst=probs[:, j * 512 : (j + 1) * 512],
                op=nl.exp,
                data=scores[j],
                bias=top,
                scale=scale,
                reduce_op=nl.add,
                reduce_res=sums[:, j : j + 1],
            )
        total = nl.ndarray((128, 1), nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total, op=nl.add, data=sums, axis=1)
        nisa.reciprocal(dst=total, data=total)
        summed = nl.ndarray((128, head_dim), nl.float32, buffer=nl.psum)
        for j in range(blocks):
            turned = nl.ndarray((128, 4, 128), nl.bfloat16, buffer=nl.psum)
            for n in range(4):
                first = (4 * j + n) * 128
                nisa.nc_transpose(dst=turned[:, n, :], data=probs[:, first : first + 128])
            p_turned = nl.ndarray((128, 4, 128), nl.bfloat16, buffer=nl.sbuf)
            if j % 2:
                nisa.activation(dst=p_turned, op=nl.copy, data=turned)  # on Scalar
            else:
                nisa.tensor_copy(dst=p_turned, src=turned)  # on Vector
            for n in range(4):
                nisa.nc_matmul(dst=summed, stationary=p_turned[:, n, :], moving=v_all[:, 4 * j + n, :])
        out_tile = nl.ndarray((128, head_dim), q.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=out_tile, data=summed, op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=out_tile)
    return out
