"""The steps that the `sd_*` rungs leave as they are; each rung spells out the one that it changes."""

from __future__ import annotations

from nki_hf.ladder.loading import TILE_KV, TILE_Q
from nki_hf.lang import nisa, nl

__all__ = [
    "SOFTMAX_SCALE",
    "divisor_columns",
    "load_transposed",
    "load_values",
    "probs_fused",
    "scores_and_max",
    "store_columns",
    "times_values_columns",
    "transposed_probs",
]

SOFTMAX_SCALE = 0.125


def load_transposed(target, tensor, i_tile, scale):
    """Load rows `[128, head_dim]` of `tensor` and write them as columns of `target` `[head_dim, seqlen]` bfloat16."""
    rows = nl.ndarray((TILE_Q, tensor.shape[1]), tensor.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=rows, src=tensor[nl.ds(i_tile * TILE_Q, TILE_Q), :])
    psum = nl.ndarray((tensor.shape[1], TILE_Q), tensor.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=psum, data=rows)
    nisa.activation(dst=target[:, nl.ds(i_tile * TILE_Q, TILE_Q)], op=nl.copy, data=psum, scale=scale)


def load_values(target, tensor, i_tile):
    """Load rows `[128, head_dim]` of V into `target[:, i_tile, :]`, cast to bfloat16 on the way."""
    nisa.dma_copy(dst=target[:, i_tile, :], src=tensor[nl.ds(i_tile * TILE_Q, TILE_Q), :])


def scores_and_max(q_columns, k_columns, i_q, dtype):
    """Scores `[128, seqlen]` in SBUF (evicted by Scalar) and minus their row max `[128, 1]` (Vector, from SBUF)."""
    seqlen = k_columns.shape[1]
    scores = nl.ndarray((TILE_Q, seqlen), dtype, buffer=nl.sbuf)
    maxima = nl.ndarray((TILE_Q, seqlen // TILE_KV), nl.float32, buffer=nl.sbuf)
    for i_kv in range(seqlen // TILE_KV):
        part = nl.ds(i_kv * TILE_KV, TILE_KV)
        psum = nl.ndarray((TILE_Q, TILE_KV), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=psum, stationary=q_columns[:, nl.ds(i_q * TILE_Q, TILE_Q)], moving=k_columns[:, part])
        nisa.activation(dst=scores[:, part], op=nl.copy, data=psum)
        nisa.tensor_reduce(dst=maxima[:, nl.ds(i_kv, 1)], op=nl.maximum, data=scores[:, part], axis=1, negate=True)
    negative_max = nl.ndarray((TILE_Q, 1), nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=negative_max, op=nl.minimum, data=maxima, axis=1)
    return scores, negative_max


def probs_fused(scores, negative_max):
    """exp, row sum and cast in one Scalar instruction: probs `[128, seqlen]` bfloat16, row_sum `[128, 1]`."""
    probs = nl.ndarray(scores.shape, nl.bfloat16, buffer=nl.sbuf)
    row_sum = nl.ndarray((TILE_Q, 1), nl.float32, buffer=nl.sbuf)
    nisa.activation_reduce(dst=probs, op=nl.exp, data=scores, bias=negative_max, reduce_op=nl.add, reduce_res=row_sum)
    return probs, row_sum


def transposed_probs(probs):
    """P^T `[128 keys, seqlen / 128, 128 queries]`: four transposes fill one bank, one Scalar instruction empties it."""
    count, per_bank = probs.shape[1] // TILE_Q, TILE_KV // TILE_Q
    probs_t = nl.ndarray((TILE_Q, count, TILE_Q), probs.dtype, buffer=nl.sbuf)
    for i_bank in range(count // per_bank):
        bank = nl.ndarray((TILE_Q, per_bank, TILE_Q), probs.dtype, buffer=nl.psum)
        for i in range(per_bank):
            nisa.nc_transpose(dst=bank[:, i, :], data=probs[:, nl.ds((i_bank * per_bank + i) * TILE_Q, TILE_Q)])
        nisa.activation(dst=probs_t[:, nl.ds(i_bank * per_bank, per_bank), :], op=nl.copy, data=bank)
    return probs_t


def times_values_columns(v_tiles, probs_t):
    """(P @ V)^T, `[head_dim, 128 queries]` float32, evicted to SBUF by Scalar."""
    head_dim = v_tiles.shape[2]
    psum = nl.ndarray((head_dim, TILE_Q), nl.float32, buffer=nl.psum)
    for i_kv in range(probs_t.shape[1]):
        nisa.nc_matmul(dst=psum, stationary=v_tiles[:, i_kv, :], moving=probs_t[:, i_kv, :])
    sbuf = nl.ndarray((head_dim, TILE_Q), nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=sbuf, op=nl.copy, data=psum)
    return sbuf


def divisor_columns(row_sum, head_dim):
    """1 / row_sum, copied into `head_dim` columns: `[128, head_dim]` float32."""
    inverse_sum = nl.ndarray((TILE_Q, 1), nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=inverse_sum, data=row_sum)
    columns = nl.ndarray((TILE_Q, head_dim), nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=columns, src=inverse_sum.ap(pattern=[[1, TILE_Q], [0, head_dim]]))
    return columns


def store_columns(out, i_q, columns, divisor_t):
    """Multiply `[head_dim, 128]` by the transposed divisor and store it transposed, element by element."""
    head_dim = columns.shape[0]
    scaled = nl.ndarray((head_dim, TILE_Q), out.dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=scaled, data1=columns, data2=divisor_t, op=nl.multiply)
    nisa.dma_copy(dst=out.ap(pattern=[[1, head_dim], [head_dim, TILE_Q]], offset=i_q * TILE_Q * head_dim), src=scaled)
