"""Breaks kernel-pure as soon as somebody assigns its global."""

from nki_hf.lang import nisa, nki, nl

FACTOR = 2.0


@nki.jit
def reads_global(x):
    """X -> x * FACTOR."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=FACTOR)
    nisa.dma_copy(dst=out, src=tile)
    return out
