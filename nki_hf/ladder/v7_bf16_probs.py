"""v7: probabilities and V in bfloat16.

Changes from v6: exp writes bfloat16 and V is cast, so that transposes and PV run at the Tensor engine's 16-bit rate, a
quarter of the float32 cost.
"""

from __future__ import annotations

from nki_hf.ladder.loading import TILE_Q, load, new_output, transposed_values
from nki_hf.ladder.steps import (
    exps_and_sums,
    score_tiles,
    store_divided,
    sum_of,
    tile_max,
    times_values,
    transposed_probs,
)
from nki_hf.lang import nki, nl

__all__ = ["bf16_probs"]


@nki.jit
def bf16_probs(q, k, v):
    """Attention of one head, `softmax(q.T @ k) @ v.T`; see the package for layouts."""
    out = new_output(q)
    q_sbuf, k_sbuf = load(q), load(k)
    v_keys = transposed_values(load(v), nl.bfloat16)

    for i_q in nl.affine_range(q.shape[1] // TILE_Q):
        scores = score_tiles(q_sbuf, k_sbuf, i_q)
        exps, sums = exps_and_sums(scores, tile_max(scores, negate=True), nl.bfloat16)
        inverse_sum = sum_of(sums)
        store_divided(out, i_q, times_values(transposed_probs(exps), v_keys), inverse_sum)
    return out
