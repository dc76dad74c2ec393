"""v11: software pipelining over query tiles, exp from SBUF.

Changes from v8: exp reads the copies that the max pass made, buffers live outside the loop (two for scores and sums, one
for the rest), and the body of iteration i works on three tiles: exp of tile i + 1, scores of tile i + 2 interleaved with
PV of tile i, transposes of tile i + 1. The order is pinned with `nl.no_reorder`.

Working set per partition at head_dim 128: q, k, v and V^T 2 B * seqlen each (v ends with the transposes), scores 8 B *
seqlen, exps and P^T 2 B * seqlen each: 20 B * seqlen are allocated. Fewer are live at once: v ends with the transposes, and
between its last read and its next write a tile holds nothing. docs/timing.md has what the model finds at 8192 and 16384.
"""

from __future__ import annotations

from nki_hf.ladder.loading import TILE_KV, TILE_Q, load, new_output, transposed_values
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

    even = []
    odd = []
    for _ in range(num_kv):
        even.append(nl.ndarray((TILE_Q, TILE_KV), nl.float32, buffer=nl.sbuf))
    for _ in range(num_kv):
        odd.append(nl.ndarray((TILE_Q, TILE_KV), nl.float32, buffer=nl.sbuf))
    scores = (even, odd)
    maxima = nl.ndarray((TILE_Q, num_kv), nl.float32, buffer=nl.sbuf)
    negative_max = nl.ndarray((TILE_Q, 1), nl.float32, buffer=nl.sbuf)
    exps = nl.ndarray((TILE_Q, seqlen), nl.bfloat16, buffer=nl.sbuf)
    sums = nl.ndarray((TILE_Q, 2, num_kv), nl.float32, buffer=nl.sbuf)
    probs_t = nl.ndarray((TILE_Q, num_small, TILE_Q), nl.bfloat16, buffer=nl.sbuf)

    for i_q in range(2):
        for i_kv in range(num_kv):
            _score(q_sbuf, k_sbuf, scores[i_q], maxima, i_q, i_kv)
        nisa.tensor_reduce(dst=negative_max, op=nl.maximum, data=maxima, axis=1, negate=True)
        if i_q == 0:
            _exponentiate(exps, sums, scores[0], negative_max, 0)
            _transpose(probs_t, exps)
    with nl.no_reorder():
        for i_q in range(num_q - 2):
            _exponentiate(exps, sums, scores[(i_q + 1) % 2], negative_max, i_q + 1)
            pv_psum = nl.ndarray((TILE_Q, head_dim), nl.float32, buffer=nl.psum)
            for i_kv in range(num_kv):
                _score(q_sbuf, k_sbuf, scores[i_q % 2], maxima, i_q + 2, i_kv)
                _weigh(pv_psum, probs_t, v_keys, i_kv * per_tile, (i_kv + 1) * per_tile)
            pv_sbuf = _evict(pv_psum)
            nisa.tensor_reduce(dst=negative_max, op=nl.maximum, data=maxima, axis=1, negate=True)
            _transpose(probs_t, exps)
            _write_back(out, sums, i_q, pv_sbuf)
    for i_q in range(num_q - 2, num_q):
        if i_q == num_q - 1:
            _exponentiate(exps, sums, scores[i_q % 2], negative_max, i_q)
            _transpose(probs_t, exps)
        pv_psum = nl.ndarray((TILE_Q, head_dim), nl.float32, buffer=nl.psum)
        _weigh(pv_psum, probs_t, v_keys, 0, num_small)
        _write_back(out, sums, i_q, _evict(pv_psum))
    return out


def _score(q_sbuf, k_sbuf, scores, maxima, i_q, i_kv):
    """One tile of scores of query tile `i_q`, copied to SBUF with its row maximum."""
    psum = nl.ndarray((TILE_Q, TILE_KV), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(
        dst=psum, stationary=q_sbuf[:, nl.ds(i_q * TILE_Q, TILE_Q)], moving=k_sbuf[:, nl.ds(i_kv * TILE_KV, TILE_KV)]
    )
    nisa.tensor_scalar_reduce(
        dst=scores[i_kv], data=psum, op0=nl.multiply, operand0=1.0, reduce_op=nl.maximum, reduce_res=maxima[:, nl.ds(i_kv, 1)]
    )


def _exponentiate(exps, sums, scores, negative_max, i_q):
    """Exponentials of query tile `i_q` and their sums per tile of keys."""
    for i_kv in range(len(scores)):
        nisa.activation_reduce(
            dst=exps[:, nl.ds(i_kv * TILE_KV, TILE_KV)],
            op=nl.exp,
            data=scores[i_kv],
            bias=negative_max,
            reduce_op=nl.add,
            reduce_res=sums[:, i_q % 2, nl.ds(i_kv, 1)],
        )


def _transpose(probs_t, exps):
    """P^T as `[128 keys, seqlen / 128, 128 queries]`."""
    per_tile = TILE_KV // TILE_Q
    for i_bank in range(exps.shape[1] // TILE_KV):
        bank = nl.ndarray((TILE_Q, per_tile, TILE_Q), nl.bfloat16, buffer=nl.psum)
        for i in range(per_tile):
            i_kv = i_bank * per_tile + i
            nisa.nc_transpose(dst=bank[:, i, :], data=exps[:, nl.ds(i_kv * TILE_Q, TILE_Q)])
            nisa.activation(dst=probs_t[:, i_kv, :], op=nl.copy, data=bank[:, i, :])


def _weigh(pv_psum, probs_t, v_keys, first, last):
    """P @ V over key tiles `[first, last)`, accumulated in PSUM."""
    for i_kv in range(first, last):
        nisa.nc_matmul(dst=pv_psum, stationary=probs_t[:, i_kv, :], moving=v_keys[:, i_kv, :])


def _evict(pv_psum):
    """The output of one query tile, from PSUM to SBUF."""
    pv_sbuf = nl.ndarray(pv_psum.shape, nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=pv_sbuf, src=pv_psum)
    return pv_sbuf


def _write_back(out, sums, i_q, pv_sbuf):
    """Divide query tile `i_q` by its row sums and store it."""
    row_sum = nl.ndarray((TILE_Q, 1), nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=row_sum, op=nl.add, data=sums[:, i_q % 2, :], axis=1)
    inverse_sum = nl.ndarray((TILE_Q, 1), nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=inverse_sum, data=row_sum)
    out_sbuf = nl.ndarray(pv_sbuf.shape, out.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=out_sbuf, data=pv_sbuf, op0=nl.multiply, operand0=inverse_sum)
    nisa.dma_copy(dst=out[nl.ds(i_q * TILE_Q, TILE_Q), :], src=out_sbuf)
