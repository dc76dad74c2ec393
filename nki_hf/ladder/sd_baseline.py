"""Stable Diffusion attention, baseline: exp, row sum and cast are three passes over the scores.

The shape of a public kernel for that model: seqlen 4096, head_dim 64, float32 in and out, bfloat16 matmuls. Scores are
evicted to SBUF in float32, the output comes out with head_dim on partitions, so the divisor is transposed to match and
the store scatters single elements.
"""

from __future__ import annotations

from nki_hf.ladder.loading import TILE_Q
from nki_hf.ladder.sd_steps import (
    SOFTMAX_SCALE,
    divisor_columns,
    load_transposed,
    load_values,
    scores_and_max,
    store_columns,
    times_values_columns,
    transposed_probs,
)
from nki_hf.lang import nisa, nki, nl

__all__ = ["sd_baseline"]


@nki.jit
def sd_baseline(q, k, v):
    """Attention of one head, `softmax(q @ k.T / 8) @ v`; q, k, v `[seqlen, 64]` float32 -> out of the same kind."""
    seqlen, head_dim = q.shape
    tiles = seqlen // TILE_Q
    out = nl.ndarray((seqlen, head_dim), q.dtype, buffer=nl.shared_hbm)
    v_tiles = nl.ndarray((TILE_Q, tiles, head_dim), nl.bfloat16, buffer=nl.sbuf)
    q_columns = nl.ndarray((head_dim, seqlen), nl.bfloat16, buffer=nl.sbuf)
    k_columns = nl.ndarray((head_dim, seqlen), nl.bfloat16, buffer=nl.sbuf)
    for i_tile in nl.affine_range(tiles):
        load_values(v_tiles, v, i_tile)
    for i_tile in nl.affine_range(tiles):
        load_transposed(q_columns, q, i_tile, SOFTMAX_SCALE)
    for i_tile in nl.affine_range(tiles):
        load_transposed(k_columns, k, i_tile, 1.0)

    for i_q in nl.affine_range(tiles):
        scores, negative_max = scores_and_max(q_columns, k_columns, i_q, nl.float32)
        exps = nl.ndarray((TILE_Q, seqlen), nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=exps, op=nl.exp, data=scores, bias=negative_max)
        row_sum = nl.ndarray((TILE_Q, 1), nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=row_sum, op=nl.add, data=exps, axis=1)
        probs = nl.ndarray((TILE_Q, seqlen), nl.bfloat16, buffer=nl.sbuf)
        nisa.activation(dst=probs, op=nl.copy, data=exps)
        divisor = divisor_columns(row_sum, head_dim)
        columns = times_values_columns(v_tiles, transposed_probs(probs))
        divisor_t = nl.ndarray((head_dim, TILE_Q), nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=divisor_t, data=divisor)
        store_columns(out, i_q, columns, divisor_t)
    return out
