"""What the rungs of the ladder share: loading an input, and V with its keys on partitions."""

from __future__ import annotations

from nki_hf.lang import nisa, nl

__all__ = ["TILE_KV", "TILE_Q", "load", "new_output", "transposed_values"]

TILE_Q = 128
TILE_KV = 512


def load(tensor):
    """The HBM tensor `[128, seqlen]` as one SBUF tile."""
    tile = nl.ndarray(tensor.shape, tensor.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=tensor)
    return tile


def new_output(q):
    """HBM output `[seqlen, head_dim]`."""
    return nl.ndarray((q.shape[1], q.shape[0]), q.dtype, buffer=nl.shared_hbm)


def transposed_values(v_sbuf, dtype):
    """V as `[128 keys, seqlen / 128, head_dim]`, through the Tensor engine, 128 keys at a time."""
    head_dim, seqlen = v_sbuf.shape
    v_keys = nl.ndarray((TILE_Q, seqlen // TILE_Q, head_dim), dtype, buffer=nl.sbuf)
    for i_kv in nl.affine_range(seqlen // TILE_Q):
        v_psum = nl.ndarray((TILE_Q, head_dim), v_sbuf.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=v_psum, data=v_sbuf[:, nl.ds(i_kv * TILE_Q, TILE_Q)])
        nisa.activation(dst=v_keys[:, i_kv, :], op=nl.copy, data=v_psum)
    return v_keys
