"""Python that NKI 0.7 traces and that the parsers of 0.3 to 0.6 reject."""

from nki_hf.lang import nisa, nki, nl


@nki.jit
def for_the_tracer(x, scale):
    """X -> a copy, times scale if there is one."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    for place, factor in enumerate((scale,)):
        if place == 0 and factor != None:  # noqa: E711
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=factor)
    nisa.dma_copy(dst=out, src=tile)
    return out
