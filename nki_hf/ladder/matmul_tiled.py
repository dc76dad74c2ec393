"""Matrix multiplication, tiled: every tile is loaded each time it is used.

The idea of the second version in AWS's tutorial on matrix multiplication (nki/guides/tutorials): correct, and bound by DMA.
"""

from __future__ import annotations

from nki_hf.lang import nisa, nki, nl

__all__ = ["matmul_tiled"]

_TILE_K, _TILE_M, _TILE_N = 128, 128, 512


@nki.jit
def matmul_tiled(lhs_t, rhs):
    """`lhs_t.T @ rhs`; lhs_t `[k, m]`, rhs `[k, n]` -> `[m, n]`, all of one dtype; k, m multiples of 128, n of 512."""
    k, m = lhs_t.shape
    n = rhs.shape[1]
    out = nl.ndarray((m, n), lhs_t.dtype, buffer=nl.shared_hbm)
    for i_m in nl.affine_range(m // _TILE_M):
        columns = nl.ds(i_m * _TILE_M, _TILE_M)
        for i_n in nl.affine_range(n // _TILE_N):
            wide = nl.ds(i_n * _TILE_N, _TILE_N)
            psum = nl.ndarray((_TILE_M, _TILE_N), nl.float32, buffer=nl.psum)
            for i_k in nl.affine_range(k // _TILE_K):
                rows = nl.ds(i_k * _TILE_K, _TILE_K)
                left = nl.ndarray((_TILE_K, _TILE_M), lhs_t.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=left, src=lhs_t[rows, columns])
                right = nl.ndarray((_TILE_K, _TILE_N), rhs.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=right, src=rhs[rows, wide])
                nisa.nc_matmul(dst=psum, stationary=left, moving=right)
            sbuf = nl.ndarray((_TILE_M, _TILE_N), out.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=sbuf, src=psum)
            nisa.dma_copy(dst=out[columns, wide], src=sbuf)
    return out
