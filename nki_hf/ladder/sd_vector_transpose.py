"""Step 3: V joins the loading loop, and the Vector engine transposes the divisor, 32 x 32 at a time.

Changes from sd_joint_loads: the Tensor engine and PSUM no longer wait for the divisor.
"""

from __future__ import annotations

from nki_hf.ladder.loading import TILE_Q
from nki_hf.ladder.sd_steps import (
    SOFTMAX_SCALE,
    divisor_columns,
    load_transposed,
    load_values,
    probs_fused,
    scores_and_max,
    store_columns,
    times_values_columns,
    transposed_probs,
)
from nki_hf.lang import nisa, nki, nl

__all__ = ["sd_vector_transpose"]


@nki.jit
def sd_vector_transpose(q, k, v):
    """Attention of one head, `softmax(q @ k.T / 8) @ v`; q, k, v `[seqlen, 64]` float32 -> out of the same kind."""
    seqlen, head_dim = q.shape
    tiles = seqlen // TILE_Q
    out = nl.ndarray((seqlen, head_dim), q.dtype, buffer=nl.shared_hbm)
    v_tiles = nl.ndarray((TILE_Q, tiles, head_dim), nl.bfloat16, buffer=nl.sbuf)
    q_columns = nl.ndarray((head_dim, seqlen), nl.bfloat16, buffer=nl.sbuf)
    k_columns = nl.ndarray((head_dim, seqlen), nl.bfloat16, buffer=nl.sbuf)
    for i_tile in nl.affine_range(tiles):
        load_values(v_tiles, v, i_tile)
        load_transposed(q_columns, q, i_tile, SOFTMAX_SCALE)
        load_transposed(k_columns, k, i_tile, 1.0)

    for i_q in nl.affine_range(tiles):
        scores, negative_max = scores_and_max(q_columns, k_columns, i_q, nl.float32)
        probs, row_sum = probs_fused(scores, negative_max)
        divisor = divisor_columns(row_sum, head_dim)
        columns = times_values_columns(v_tiles, transposed_probs(probs))
        divisor_t = nl.ndarray((head_dim, TILE_Q), nl.float32, buffer=nl.sbuf)
        for row in range(0, TILE_Q, 32):
            for column in range(0, head_dim, 32):
                nisa.nc_transpose(
                    dst=divisor_t[nl.ds(column, 32), nl.ds(row, 32)],
                    data=divisor[nl.ds(row, 32), nl.ds(column, 32)],
                    engine=nisa.engine.vector,
                )
        store_columns(out, i_q, columns, divisor_t)
    return out
