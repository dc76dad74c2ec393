"""What the kernels of the tasks share: loads, transposes, products; ordinary NKI."""

import nki.isa as nisa
import nki.language as nl

P = 128
BANK = 512


def sbuf(shape, dtype=nl.float32):
    """A tile in SBUF."""
    return nl.ndarray(shape, dtype, buffer=nl.sbuf)


def psum(shape, dtype=nl.float32):
    """A tile in PSUM."""
    return nl.ndarray(shape, dtype, buffer=nl.psum)


def load(source, dtype=None):
    """A region of HBM with at most 128 rows as a tile, cast on the way."""
    tile = sbuf(source.shape, dtype or source.dtype)
    nisa.dma_copy(dst=tile, src=source)
    return tile


def spread(row, width):
    """A row `[1, width]` of HBM on all 128 partitions."""
    tile = sbuf((P, width), row.dtype)
    nisa.dma_copy(dst=tile, src=row.ap(pattern=[[0, P], [1, width]]))
    return tile


def evict(target, bank, on_scalar):
    """A copy out of PSUM on the Scalar or the Vector engine; Scalar copies by an activation on every generation."""
    if on_scalar:
        nisa.activation(dst=target, op=nl.copy, data=bank)
    else:
        nisa.tensor_copy(dst=target, src=bank)


def turned(tile, count, dtype=nl.bfloat16):
    """Rows `[count, width]` in SBUF with the columns on partitions: `[128, width / 128, count]`; four tiles a PSUM bank."""
    width = tile.shape[1]
    out = sbuf((P, width // P, count), dtype)
    per_bank = BANK // P
    for first in range(0, width // P, per_bank):
        tiles = min(per_bank, width // P - first)
        bank = psum((P, tiles, count + count % 2), tile.dtype)  # PSUM is written at multiples of 4 bytes
        for i in range(tiles):
            column = (first + i) * P
            nisa.nc_transpose(dst=bank[:, i, :count], data=tile[:, column : column + P])
        nisa.tensor_copy(dst=out[:, first : first + tiles, :], src=bank[:, :, :count])
    return out


def stacked(source, first, width, dtype=None):
    """Columns `[first, first + width)` of `[k, n]` in HBM with 128 rows at a time on partitions: `[128, k / 128, width]`."""
    k, n = source.shape
    tile = sbuf((P, k // P, width), dtype or source.dtype)
    nisa.dma_copy(dst=tile, src=source.ap(pattern=[[n, P], [P * n, k // P], [1, width]], offset=first))
    return tile


def product(left, right, first, width):
    """`left.T @ right` in PSUM: left `[128, k / 128, rows]`, columns `[first, first + width)` of right `[128, k / 128, n]`."""
    out = psum((left.shape[2], width))
    for i in range(left.shape[1]):
        nisa.nc_matmul(dst=out, stationary=left[:, i, :], moving=right[:, i, first : first + width])
    return out


def inverse_rms(tile, eps, fused):
    """`1 / sqrt(mean(x ** 2) + eps)` of each row, `[rows, 1]` float32."""
    rows, width = tile.shape
    squares, total = sbuf((rows, width)), sbuf((rows, 1))
    if fused:
        nisa.activation_reduce(dst=squares, op=nl.square, data=tile, reduce_op=nl.add, reduce_res=total)
    else:
        nisa.tensor_tensor(dst=squares, data1=tile, data2=tile, op=nl.multiply)
        nisa.tensor_reduce(dst=total, op=nl.add, data=squares, axis=1)
    nisa.tensor_scalar(dst=total, data=total, op0=nl.multiply, operand0=1.0 / width, op1=nl.add, operand1=eps)
    nisa.activation(dst=total, op=nl.rsqrt, data=total)
    return total
