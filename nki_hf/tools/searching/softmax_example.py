"""softmax over the last axis of x [rows, width], rows a multiple of 128: the example of `nki_hf prompt`."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def softmax(x):
    """The softmax of x [rows, width] in HBM, of the same shape and type."""
    rows, width = x.shape
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for start in range(0, rows, 128):
        tile = nl.ndarray((128, width), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[start : start + 128, :])
        top = nl.ndarray((128, 1), nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=tile, axis=1, negate=True)
        total = nl.ndarray((128, 1), nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(dst=tile, op=nl.exp, data=tile, bias=top, reduce_op=nl.add, reduce_res=total)
        nisa.reciprocal(dst=total, data=total)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=out[start : start + 128, :], src=tile)
    return out
