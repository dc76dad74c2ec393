"""v11: software pipelining over query tiles, exp from SBUF.

Changes from v8: exp reads the copies that the max pass made, buffers live outside the loop (two for scores and sums, one
for the rest), and the body of iteration i works on three tiles: exp of tile i + 1, scores of tile i + 2 interleaved with
PV of tile i, transposes of tile i + 1. The order is pinned with `nl.no_reorder`.

Working set per partition at head_dim 128: q, k, v and V^T 2 B * seqlen each (v ends with the transposes), scores 8 B *
seqlen, exps and P^T 2 B * seqlen each: 20 B * seqlen are allocated. Fewer are live at once: v ends with the transposes, and
between its last read and its next write a tile holds nothing. docs/timing.md has what the model finds at 8192 and 16384.
"""

from __future__ import annotations

from nki_hf.kernels.ladder.loading import TILE_KV, TILE_Q, load, new_output, transposed_values
from nki_hf.lang import nisa, nki, nl

__all__ = ["software_pipeline"]


@nki.jit
def software_pipeline(q, k, v):
    """Attention of one head, `softmax(q.T @ k) @ v.T`, seqlen at least 256 keys; see the package for layouts."""
    head_dim, seqlen = q.shape
    num_q, num_kv, num_small = seqlen // TILE_Q, seqlen // TILE_KV, seqlen // TILE_Q
    per_tile = TILE_KV // TILE_Q
    out = new_output(q)
    q_sbuf, k_sbuf = load(q), load(k)
    v_keys = transposed_values(load(v), nl.bfloat16)

    scores = ([], [])
    for half in scores:
        for _ in range(num_kv):
            half.append(nl.ndarray((TILE_Q, TILE_KV), nl.float32, buffer=nl.sbuf))
    maxima = nl.ndarray((TILE_Q, num_kv), nl.float32, buffer=nl.sbuf)
    negative_max = nl.ndarray((TILE_Q, 1), nl.float32, buffer=nl.sbuf)
    exps = nl.ndarray((TILE_Q, seqlen), nl.bfloat16, buffer=nl.sbuf)
    sums = nl.ndarray((TILE_Q, 2, num_kv), nl.float32, buffer=nl.sbuf)
    probs_t = nl.ndarray((TILE_Q, num_small, TILE_Q), nl.bfloat16, buffer=nl.sbuf)

    def score(i_q, i_kv):
        psum = nl.ndarray((TILE_Q, TILE_KV), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(
            dst=psum, stationary=q_sbuf[:, nl.ds(i_q * TILE_Q, TILE_Q)], moving=k_sbuf[:, nl.ds(i_kv * TILE_KV, TILE_KV)]
        )
        nisa.tensor_scalar_reduce(
            dst=scores[i_q % 2][i_kv], data=psum, op0=nl.multiply, operand0=1.0, reduce_op=nl.maximum,
            reduce_res=maxima[:, nl.ds(i_kv, 1)],
        )  # fmt: skip

    def finish_max():
        nisa.tensor_reduce(dst=negative_max, op=nl.maximum, data=maxima, axis=1, negate=True)

    def exponentiate(i_q):
        for i_kv in range(num_kv):
            nisa.activation_reduce(
                dst=exps[:, nl.ds(i_kv * TILE_KV, TILE_KV)], op=nl.exp, data=scores[i_q % 2][i_kv], bias=negative_max,
                reduce_op=nl.add, reduce_res=sums[:, i_q % 2, nl.ds(i_kv, 1)],
            )  # fmt: skip

    def transpose():
        for i_bank in range(num_kv):
            bank = nl.ndarray((TILE_Q, per_tile, TILE_Q), nl.bfloat16, buffer=nl.psum)
            for i in range(per_tile):
                i_kv = i_bank * per_tile + i
                nisa.nc_transpose(dst=bank[:, i, :], data=exps[:, nl.ds(i_kv * TILE_Q, TILE_Q)])
                nisa.activation(dst=probs_t[:, i_kv, :], op=nl.copy, data=bank[:, i, :])

    def weigh(pv_psum, first, last):
        for i_kv in range(first, last):
            nisa.nc_matmul(dst=pv_psum, stationary=probs_t[:, i_kv, :], moving=v_keys[:, i_kv, :])

    def evict(pv_psum):
        pv_sbuf = nl.ndarray((TILE_Q, head_dim), nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=pv_sbuf, src=pv_psum)
        return pv_sbuf

    def write_back(i_q, pv_sbuf):
        row_sum = nl.ndarray((TILE_Q, 1), nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=row_sum, op=nl.add, data=sums[:, i_q % 2, :], axis=1)
        inverse_sum = nl.ndarray((TILE_Q, 1), nl.float32, buffer=nl.sbuf)
        nisa.reciprocal(dst=inverse_sum, data=row_sum)
        out_sbuf = nl.ndarray((TILE_Q, head_dim), out.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=out_sbuf, data=pv_sbuf, op0=nl.multiply, operand0=inverse_sum)
        nisa.dma_copy(dst=out[nl.ds(i_q * TILE_Q, TILE_Q), :], src=out_sbuf)

    def weigh_alone(i_q):
        pv_psum = nl.ndarray((TILE_Q, head_dim), nl.float32, buffer=nl.psum)
        weigh(pv_psum, 0, num_small)
        write_back(i_q, evict(pv_psum))

    def score_alone(i_q):
        for i_kv in range(num_kv):
            score(i_q, i_kv)
        finish_max()

    score_alone(0)
    exponentiate(0)
    transpose()
    score_alone(1)
    with nl.no_reorder():
        for i_q in range(num_q - 2):
            exponentiate(i_q + 1)
            pv_psum = nl.ndarray((TILE_Q, head_dim), nl.float32, buffer=nl.psum)
            for i_kv in range(num_kv):
                score(i_q + 2, i_kv)
                weigh(pv_psum, i_kv * per_tile, (i_kv + 1) * per_tile)
            pv_sbuf = evict(pv_psum)
            finish_max()
            transpose()
            write_back(i_q, pv_sbuf)
    weigh_alone(num_q - 2)
    exponentiate(num_q - 1)
    transpose()
    weigh_alone(num_q - 1)
    return out
