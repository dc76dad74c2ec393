"""Matrix multiplication, blocked over all three dimensions: every byte loaded serves a whole block.

The idea of the last version in AWS's tutorial on matrix multiplication: DMA rows of 4 to 8 KiB, partial sums of a block of
k kept in SBUF, so that the Tensor engine is the only engine that is ever waited for.
"""

from __future__ import annotations

from nki_hf.lang import nisa, nki, nl

__all__ = ["matmul_blocked"]

_TILE_K, _TILE_M, _TILE_N = 128, 128, 512
_LOAD_M = 1024


@nki.jit
def matmul_blocked(lhs_t, rhs, block_m=16, block_n=2, block_k=8):
    """`lhs_t.T @ rhs`; lhs_t `[k, m]`, rhs `[k, n]` -> `[m, n]`, all of one dtype.

    Blocks are loaded in tiles of 1024 columns of lhs_t and 512 of rhs, so that parts of the next block can be loaded as soon
    as parts of this one are done.

    Args:
      lhs_t, rhs: HBM; k, m and n must be multiples of the blocks.
      block_m, block_n, block_k: tiles (128, 512, 128) per block.
    """
    k, m = lhs_t.shape
    n = rhs.shape[1]
    out = nl.ndarray((m, n), lhs_t.dtype, buffer=nl.shared_hbm)
    wide_n = block_n * _TILE_N
    load_m = min(_LOAD_M, block_m * _TILE_M)
    for i_n in nl.affine_range(n // wide_n):
        sums = []
        for _ in range(m // _TILE_M):
            sums.append(nl.ndarray((_TILE_M, block_n, _TILE_N), out.dtype, buffer=nl.sbuf))
        for i_k in range(k // (block_k * _TILE_K)):
            right = []
            for t_n in range(block_n):
                right.append(_load(rhs, i_k, block_k, i_n * wide_n + t_n * _TILE_N, _TILE_N))
            for i_m in nl.affine_range(m // (block_m * _TILE_M)):
                first = i_m * block_m * _TILE_M
                left = []
                for i in range(block_m * _TILE_M // load_m):
                    left.append(_load(lhs_t, i_k, block_k, first + i * load_m, load_m))
                for t_n in range(block_n):
                    for t_m in range(block_m):
                        rows, columns, column = left[t_m * _TILE_M // load_m], right[t_n], t_m * _TILE_M % load_m
                        psum = nl.ndarray((_TILE_M, _TILE_N), nl.float32, buffer=nl.psum)
                        for j in range(block_k):
                            nisa.nc_matmul(dst=psum, stationary=rows[j][:, nl.ds(column, _TILE_M)], moving=columns[j])
                        total = sums[i_m * block_m + t_m][:, t_n, :]
                        if i_k == 0:
                            nisa.tensor_copy(dst=total, src=psum)
                        else:
                            nisa.tensor_tensor(dst=total, data1=total, data2=psum, op=nl.add)
        for t_m in range(m // _TILE_M):
            nisa.dma_copy(
                dst=out[nl.ds(t_m * _TILE_M, _TILE_M), nl.ds(i_n * wide_n, wide_n)],
                src=sums[t_m].reshape((_TILE_M, wide_n)),
            )
    return out


def _load(tensor, i_k, block_k, column, width):
    """`block_k` tiles `[128, width]` of consecutive rows of `tensor`."""
    tiles = []
    for j in range(block_k):
        tile = nl.ndarray((_TILE_K, width), tensor.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=tensor[nl.ds((i_k * block_k + j) * _TILE_K, _TILE_K), nl.ds(column, width)])
        tiles.append(tile)
    return tiles
