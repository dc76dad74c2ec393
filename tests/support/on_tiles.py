"""One instruction, or a few, on tiles that hold given arrays."""

from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl

__all__ = ["on_tiles"]


def on_tiles(body, *arrays, out, dtype="float32", options=None, space="sbuf"):
    """Load the arrays into SBUF, run `body(result, *tiles)` and return the result tile `[out]`."""

    def kernel(x0=None, x1=None, x2=None):
        tiles = []
        for array in (x0, x1, x2):
            if array is not None:
                tiles.append(nl.ndarray(array.shape, array.dtype))
                nisa.dma_copy(dst=tiles[-1], src=array)
        result = nl.ndarray(out, dtype, buffer=getattr(nl, space))
        body(result, *tiles)
        if space == "psum":
            staged, result = result, nl.ndarray(out, dtype)
            nisa.tensor_copy(dst=result, src=staged)
        hbm = nl.ndarray(out, result.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=hbm, src=result)
        return hbm

    return launch(kernel, arrays, options=options or SimOptions()).outputs[0]
