"""A part that kernels share: it must speak the language of the kernel that imports it."""

from nki_hf.lang import nisa, nl


def copy_in(x):
    """X in HBM -> the same in SBUF."""
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    return tile
