"""Attention of up to 128 query rows and 512 keys without a mask: one score block per head, softmax in one go."""

from nki_hf.lang import nisa, nki, nl

TILE = 128


@nki.jit
def flash_small(q, k, v, softmax_scale=1.0, count=False):
    """Output [batch, num_heads_q, seqlen_q, head_dim_v] and lse; with `count` also the keys each head saw, int32."""
    return attend(q, k, v, softmax_scale, count, nl.static_range)


@nki.jit
def flash_small_loop(q, k, v, softmax_scale=1.0, count=False):
    """The same for front ends with loops at run time."""
    return attend(q, k, v, softmax_scale, count, nl.affine_range)


def attend(q, k, v, softmax_scale, count, heads_of):
    """All heads of this core."""
    batch, num_heads_q, seqlen_q, num_heads_kv = q.shape[0], q.shape[1], q.shape[3], k.shape[0]
    out = nl.ndarray((batch, num_heads_q, seqlen_q, v.shape[3]), dtype=q.dtype, buffer=nl.shared_hbm, name="out")
    lse = nl.ndarray((batch, num_heads_q, seqlen_q), dtype=nl.float32, buffer=nl.shared_hbm, name="lse")
    seen = None
    if count:
        seen = nl.ndarray((batch, num_heads_q), dtype=nl.int32, buffer=nl.shared_hbm, name="seen")
    program, programs = 0, 1
    if nl.program_ndim() > 0:
        program, programs = nl.program_id(axis=0), nl.num_programs(axes=0)
    for head in heads_of(batch * num_heads_q):
        if head * programs // (batch * num_heads_q) == program:
            one_head(
                q, k, v, out, lse, seen, head // num_heads_q, head % num_heads_q, softmax_scale, num_heads_q // num_heads_kv
            )
    if count:
        return out, lse, seen
    return out, lse


def one_head(q, k, v, out, lse, seen, b, h, scale, group):
    """One query head."""
    head_dim, rows, keys, width = q.shape[2], q.shape[3], k.shape[3], v.shape[3]
    q_tile = nl.ndarray((head_dim, rows), dtype=q.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=q_tile, src=q[b, h, 0:head_dim, 0:rows])
    k_tile = nl.ndarray((head_dim, keys), dtype=k.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=k_tile, src=k[h // group, b, 0:head_dim, 0:keys])
    scores = nl.ndarray((rows, keys), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=scores, stationary=q_tile, moving=k_tile)
    top = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=top, op=nl.maximum, data=scores, axis=(1,))
    shift = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=shift, data=top, op0=nl.multiply, operand0=-scale)
    probs = nl.ndarray((rows, keys), dtype=v.dtype, buffer=nl.sbuf)
    total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(
        dst=probs,
        op=nl.exp,
        data=scores,
        bias=shift,
        scale=scale,
        reduce_op=nl.add,
        reduce_res=total,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )
    result = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.psum)
    for key in range(0, keys, TILE):
        size = min(TILE, keys - key)
        v_tile = nl.ndarray((size, width), dtype=v.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=v_tile, src=v[b, h // group, key : key + size, 0:width])
        bank = nl.ndarray((size, rows), dtype=v.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=bank, data=probs[0:rows, key : key + size], engine=nisa.engine.tensor)
        turned = nl.ndarray((size, rows), dtype=v.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=turned, src=bank, engine=nisa.engine.vector)
        nisa.nc_matmul(dst=result, stationary=turned, moving=v_tile)
    factor = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=factor, data=total)
    place = nl.ndarray((rows, width), dtype=out.dtype, buffer=nl.sbuf)
    nisa.activation(dst=place, op=nl.copy, data=result, scale=factor)
    nisa.dma_copy(dst=out[b, h, 0:rows, 0:width], src=place)
    log = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=log, op=nl.log, data=total)
    nisa.tensor_tensor(dst=log, data1=log, data2=shift, op=nl.subtract)
    nisa.dma_copy(dst=lse.ap(pattern=[[1, rows], [1, 1]], offset=(b * q.shape[1] + h) * rows), src=log)
    if seen != None:  # noqa: E711
        number = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.memset(dst=number, value=keys)
        nisa.dma_copy(dst=seen.ap(pattern=[[1, 1], [1, 1]], offset=b * q.shape[1] + h), src=number)
