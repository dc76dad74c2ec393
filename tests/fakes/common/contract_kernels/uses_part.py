"""A kernel with a part in another module."""

from contract_kernels.shared_part import copy_in
from nki_hf.lang import nisa, nki, nl


@nki.jit
def uses_part(x):
    """X -> a copy."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=copy_in(x))
    return out
