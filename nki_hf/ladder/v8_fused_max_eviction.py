"""v8: row max and PSUM eviction in one Vector instruction.

Changes from v7: tensor_scalar_reduce copies the scores to SBUF while it takes their maximum, so that their PSUM banks are
free sooner. As in the original, exp still reads PSUM: the copy is made and not used (v11 is the rung that uses it).
"""

from __future__ import annotations

from nki_hf.ladder.loading import TILE_KV, TILE_Q, load, new_output, transposed_values
from nki_hf.ladder.steps import (
    exps_and_sums,
    score_tiles,
    store_divided,
    sum_of,
    times_values,
    transposed_probs,
)
from nki_hf.lang import nisa, nki, nl

__all__ = ["fused_max_eviction"]


@nki.jit
def fused_max_eviction(q, k, v):
    """Attention of one head, `softmax(q.T @ k) @ v.T`; see the package for layouts."""
    seqlen = q.shape[1]
    out = new_output(q)
    q_sbuf, k_sbuf = load(q), load(k)
    v_keys = transposed_values(load(v), nl.bfloat16)

    for i_q in nl.affine_range(seqlen // TILE_Q):
        scores = score_tiles(q_sbuf, k_sbuf, i_q)
        copies = nl.ndarray((TILE_Q, seqlen), nl.float32, buffer=nl.sbuf)
        maxima = nl.ndarray((TILE_Q, len(scores)), nl.float32, buffer=nl.sbuf)
        for i_kv in range(len(scores)):
            nisa.tensor_scalar_reduce(
                dst=copies[:, nl.ds(i_kv * TILE_KV, TILE_KV)],
                data=scores[i_kv],
                op0=nl.multiply,
                operand0=1.0,
                reduce_op=nl.maximum,
                reduce_res=maxima[:, nl.ds(i_kv, 1)],
            )
        negative_max = nl.ndarray((TILE_Q, 1), nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=negative_max, op=nl.maximum, data=maxima, axis=1, negate=True)
        exps, sums = exps_and_sums(scores, negative_max, nl.bfloat16)
        inverse_sum = sum_of(sums)
        store_divided(out, i_q, times_values(transposed_probs(exps), v_keys), inverse_sum)
    return out
