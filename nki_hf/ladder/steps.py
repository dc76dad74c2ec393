"""The steps that the rungs v4 to v8 leave as they are; each rung spells out the one that it changes."""

from __future__ import annotations

from nki_hf.ladder.loading import TILE_KV, TILE_Q
from nki_hf.lang import nisa, nl

__all__ = [
    "exps_and_sums",
    "score_tiles",
    "store_divided",
    "subtract_max",
    "sum_of",
    "tile_max",
    "times_values",
    "transposed_probs",
]


def score_tiles(q_sbuf, k_sbuf, i_q):
    """Scores of one query tile: a list of `[128, 512]` float32 PSUM tiles, one bank each."""
    tiles = []
    for i_kv in range(k_sbuf.shape[1] // TILE_KV):
        tile = nl.ndarray((TILE_Q, TILE_KV), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(
            dst=tile, stationary=q_sbuf[:, nl.ds(i_q * TILE_Q, TILE_Q)], moving=k_sbuf[:, nl.ds(i_kv * TILE_KV, TILE_KV)]
        )
        tiles.append(tile)
    return tiles


def tile_max(scores, negate):
    """Row maximum over all tiles, `[128, 1]`: one tensor_reduce per tile from PSUM, and one over the tiles' maxima."""
    maxima = nl.ndarray((TILE_Q, len(scores)), nl.float32, buffer=nl.sbuf)
    for i_kv in range(len(scores)):
        nisa.tensor_reduce(dst=maxima[:, nl.ds(i_kv, 1)], op=nl.maximum, data=scores[i_kv], axis=1)
    row_max = nl.ndarray((TILE_Q, 1), nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=row_max, op=nl.maximum, data=maxima, axis=1, negate=negate)
    return row_max


def subtract_max(scores, row_max):
    """`scores - row_max` as `[128, seqlen]` float32 in SBUF, on the Vector engine."""
    shifted = nl.ndarray((TILE_Q, len(scores) * TILE_KV), nl.float32, buffer=nl.sbuf)
    for i_kv in range(len(scores)):
        nisa.tensor_scalar(dst=shifted[:, nl.ds(i_kv * TILE_KV, TILE_KV)], data=scores[i_kv], op0=nl.subtract, operand0=row_max)
    return shifted


def exps_and_sums(scores, negative_max, dtype):
    """`exp(scores - max)` `[128, seqlen]` and its sum per tile `[128, tiles]`: one Scalar instruction per tile."""
    exps = nl.ndarray((TILE_Q, len(scores) * TILE_KV), dtype, buffer=nl.sbuf)
    sums = nl.ndarray((TILE_Q, len(scores)), nl.float32, buffer=nl.sbuf)
    for i_kv in range(len(scores)):
        nisa.activation_reduce(
            dst=exps[:, nl.ds(i_kv * TILE_KV, TILE_KV)],
            op=nl.exp,
            data=scores[i_kv],
            bias=negative_max,
            reduce_op=nl.add,
            reduce_res=sums[:, nl.ds(i_kv, 1)],
        )
    return exps, sums


def sum_of(sums):
    """`1 / row sum`, `[128, 1]`."""
    row_sum = nl.ndarray((TILE_Q, 1), nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=row_sum, op=nl.add, data=sums, axis=1)
    inverse_sum = nl.ndarray((TILE_Q, 1), nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=inverse_sum, data=row_sum)
    return inverse_sum


def transposed_probs(probs):
    """P^T as `[128 keys, seqlen / 128, 128 queries]`: per 128 keys one transpose (Tensor) and one eviction (Scalar)."""
    count, per_bank = probs.shape[1] // TILE_Q, TILE_KV // TILE_Q
    probs_t = nl.ndarray((TILE_Q, count, TILE_Q), probs.dtype, buffer=nl.sbuf)
    for i_bank in range(count // per_bank):
        bank = nl.ndarray((TILE_Q, per_bank, TILE_Q), probs.dtype, buffer=nl.psum)
        for i in range(per_bank):
            i_kv = i_bank * per_bank + i
            nisa.nc_transpose(dst=bank[:, i, :], data=probs[:, nl.ds(i_kv * TILE_Q, TILE_Q)])
            nisa.activation(dst=probs_t[:, i_kv, :], op=nl.copy, data=bank[:, i, :])
    return probs_t


def times_values(probs_t, v_keys):
    """P @ V, `[128 queries, head_dim]` float32 in PSUM, accumulated over the keys."""
    out_psum = nl.ndarray((TILE_Q, v_keys.shape[2]), nl.float32, buffer=nl.psum)
    for i_kv in range(probs_t.shape[1]):
        nisa.nc_matmul(dst=out_psum, stationary=probs_t[:, i_kv, :], moving=v_keys[:, i_kv, :])
    return out_psum


def store_divided(out, i_q, out_psum, inverse_sum):
    """Divide one query tile by its row sums and store it."""
    out_sbuf = nl.ndarray(out_psum.shape, out.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=out_sbuf, data=out_psum, op0=nl.multiply, operand0=inverse_sum)
    nisa.dma_copy(dst=out[nl.ds(i_q * TILE_Q, TILE_Q), :], src=out_sbuf)
