"""Pages of `nki_hf report` for the tests of them: names that their files share."""

import pytest
from headless import chromium

from nki_hf.tools.modelled import ModelRequest
from nki_hf.tools.report import side_of

DRAWN = 'document.documentElement.dataset.drawn === "yes"'
in_browser = pytest.mark.skipif(chromium() is None, reason="no Chromium is installed")


def side_by_name(kernel, seqlen, chip="trn1"):
    """What a page of one of our kernels is made of."""
    return side_of(ModelRequest(kernel=kernel, seqlen=seqlen, chip=chip), window=64)


OWN = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def rows(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(x.shape[0] // 128):
        tile = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[i * 128 : (i + 1) * 128, :])
        power = nl.ndarray((128, x.shape[1]), dtype=nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total, op=nl.maximum, data=tile, axis=1)
        nisa.activation(dst=power, op=nl.exp, data=tile)
        nisa.tensor_reduce(dst=total, op=nl.add, data=power, axis=1)  # <i>no tag</i>
        nisa.tensor_scalar(dst=power, data=power, op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=power)
    return out
"""
