"""Breaks output-shared-hbm."""

from nki_hf.lang import nisa, nki, nl


@nki.jit
def hbm_output(x):
    """x [rows, columns] -> a copy, in the wrong memory."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.hbm)
    nisa.dma_copy(dst=out, src=x)
    return out
