"""v5: the division is delayed to the output.

Changes from v4: the `[128, seqlen]` multiplication by 1 / row sum is gone; the `[128, head_dim]` output is multiplied
instead while it leaves PSUM. The Vector engine makes three passes over the scores instead of four.
"""

from __future__ import annotations

from nki_hf.ladder.loading import TILE_KV, TILE_Q, load, new_output, transposed_values
from nki_hf.ladder.steps import (
    score_tiles,
    store_divided,
    subtract_max,
    sum_of,
    tile_max,
    times_values,
    transposed_probs,
)
from nki_hf.lang import nisa, nki, nl

__all__ = ["delayed_division"]


@nki.jit
def delayed_division(q, k, v):
    """Attention of one head, `softmax(q.T @ k) @ v.T`; see the package for layouts."""
    seqlen = q.shape[1]
    num_kv = seqlen // TILE_KV
    out = new_output(q)
    q_sbuf, k_sbuf = load(q), load(k)
    v_keys = transposed_values(load(v), nl.float32)

    for i_q in nl.affine_range(seqlen // TILE_Q):
        scores = score_tiles(q_sbuf, k_sbuf, i_q)
        shifted = subtract_max(scores, tile_max(scores, negate=False))
        exps = nl.ndarray((TILE_Q, seqlen), nl.float32, buffer=nl.sbuf)
        sums = nl.ndarray((TILE_Q, num_kv), nl.float32, buffer=nl.sbuf)
        for i_kv in nl.affine_range(num_kv):
            part = nl.ds(i_kv * TILE_KV, TILE_KV)
            nisa.activation(dst=exps[:, part], op=nl.exp, data=shifted[:, part])
        for i_kv in nl.affine_range(num_kv):
            part = nl.ds(i_kv * TILE_KV, TILE_KV)
            nisa.tensor_reduce(dst=sums[:, nl.ds(i_kv, 1)], op=nl.add, data=exps[:, part], axis=1)
        inverse_sum = sum_of(sums)
        store_divided(out, i_q, times_values(transposed_probs(exps), v_keys), inverse_sum)
    return out
