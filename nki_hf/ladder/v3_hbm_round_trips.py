"""v3: tiles, but every intermediate goes through HBM.

The naive translation of the five steps scores, max, exp, sum, PV: each step is a loop over all tiles that loads its input
from HBM and stores its result there, in float32. Only the scores stay in PSUM, all of them: at seqlen 1024 that is 4 MiB
of 2 MiB, so the kernel needs spills (timing/spills.py), as its compiler had to make them.
"""

from __future__ import annotations

from nki_hf.ladder.loading import TILE_KV, TILE_Q, load, new_output
from nki_hf.lang import nisa, nki, nl

__all__ = ["hbm_round_trips"]


@nki.jit
def hbm_round_trips(q, k, v):
    """Attention of one head, `softmax(q.T @ k) @ v.T`; see the package for layouts."""
    head_dim, seqlen = q.shape
    num_q, num_kv, num_small = seqlen // TILE_Q, seqlen // TILE_KV, seqlen // TILE_Q
    out = new_output(q)
    q_sbuf, k_sbuf, v_sbuf = load(q), load(k), load(v)

    scores = []
    for i_q in range(num_q):
        tiles = []
        for i_kv in range(num_kv):
            tile = nl.ndarray((TILE_Q, TILE_KV), nl.float32, buffer=nl.psum)
            nisa.nc_matmul(
                dst=tile,
                stationary=q_sbuf[:, nl.ds(i_q * TILE_Q, TILE_Q)],
                moving=k_sbuf[:, nl.ds(i_kv * TILE_KV, TILE_KV)],
            )
            tiles.append(tile)
        scores.append(tiles)

    row_max = nl.ndarray((TILE_Q, num_q), nl.float32, buffer=nl.sbuf)
    for i_q in range(num_q):
        maxima = nl.ndarray((TILE_Q, num_kv), nl.float32, buffer=nl.sbuf)
        for i_kv in range(num_kv):
            nisa.tensor_reduce(dst=maxima[:, nl.ds(i_kv, 1)], op=nl.maximum, data=scores[i_q][i_kv], axis=1)
        nisa.tensor_reduce(dst=row_max[:, nl.ds(i_q, 1)], op=nl.maximum, data=maxima, axis=1)

    shifted = nl.ndarray((num_q, TILE_Q, seqlen), nl.float32, buffer=nl.hbm)
    for i_q in range(num_q):
        row = nl.ndarray((TILE_Q, seqlen), nl.float32, buffer=nl.sbuf)
        for i_kv in range(num_kv):
            nisa.tensor_scalar(
                dst=row[:, nl.ds(i_kv * TILE_KV, TILE_KV)],
                data=scores[i_q][i_kv],
                op0=nl.subtract,
                operand0=row_max[:, nl.ds(i_q, 1)],
            )
        nisa.dma_copy(dst=shifted[i_q], src=row)

    exps = nl.ndarray((num_q, TILE_Q, seqlen), nl.float32, buffer=nl.hbm)
    for i_q in range(num_q):
        row = load(shifted[i_q])
        powers = nl.ndarray((TILE_Q, seqlen), nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=powers, op=nl.exp, data=row)
        nisa.dma_copy(dst=exps[i_q], src=powers)

    row_sum = nl.ndarray((TILE_Q, num_q), nl.float32, buffer=nl.sbuf)
    for i_q in range(num_q):
        nisa.tensor_reduce(dst=row_sum[:, nl.ds(i_q, 1)], op=nl.add, data=load(exps[i_q]), axis=1)
    inverse_sum = nl.ndarray((TILE_Q, num_q), nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=inverse_sum, data=row_sum)

    probs = nl.ndarray((num_q, TILE_Q, seqlen), nl.float32, buffer=nl.hbm)
    for i_q in range(num_q):
        row = load(exps[i_q])
        scaled = nl.ndarray((TILE_Q, seqlen), nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=scaled, data=row, op0=nl.multiply, operand0=inverse_sum[:, nl.ds(i_q, 1)])
        nisa.dma_copy(dst=probs[i_q], src=scaled)

    v_keys = nl.ndarray((num_small, TILE_Q, head_dim), nl.float32, buffer=nl.hbm)
    for i_kv in range(num_small):
        _transpose_through_hbm(v_keys[i_kv], v_sbuf[:, nl.ds(i_kv * TILE_Q, TILE_Q)])

    probs_t = nl.ndarray((num_small, num_q, TILE_Q, TILE_Q), nl.float32, buffer=nl.hbm)
    for i_q in range(num_q):
        for i_kv in range(num_small):
            _transpose_through_hbm(probs_t[i_kv, i_q], load(probs[i_q, :, nl.ds(i_kv * TILE_Q, TILE_Q)]))

    for i_q in range(num_q):
        out_psum = nl.ndarray((TILE_Q, head_dim), nl.float32, buffer=nl.psum)
        for i_kv in range(num_small):
            nisa.nc_matmul(dst=out_psum, stationary=load(probs_t[i_kv, i_q]), moving=load(v_keys[i_kv]))
        out_sbuf = nl.ndarray((TILE_Q, head_dim), out.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=out_sbuf, src=out_psum)
        nisa.dma_copy(dst=out[nl.ds(i_q * TILE_Q, TILE_Q), :], src=out_sbuf)
    return out


def _transpose_through_hbm(target_hbm, tile):
    """Transpose one `[128, 128]` SBUF tile and store it in float32."""
    psum = nl.ndarray((TILE_Q, TILE_Q), tile.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=psum, data=tile)
    sbuf = nl.ndarray((TILE_Q, TILE_Q), nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=sbuf, op=nl.copy, data=psum)
    nisa.dma_copy(dst=target_hbm, src=sbuf)
