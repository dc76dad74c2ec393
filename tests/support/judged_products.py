"""A right product of 512 columns by 2,048, and its task: sources as users write them."""

ROWS_TASK = """
import numpy as np
from nki_hf.tasks import FLOAT, Task

TASK = Task(
    name="product", about="a @ b", arrays=lambda n: {{"a": ((n, 512), FLOAT), "b": ((512, 2048), FLOAT)}},
    reference=lambda a, b: a @ b, flops=lambda n: 2 * n * 512 * 2048, check=(128, 256), at=(16384,){part},
)
"""

MATMUL = '''
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def product(a, b):
    """a [n, 512] @ b [512, 2048]."""
    n = a.shape[0]
    out = nl.ndarray((n, 2048), dtype=a.dtype, buffer=nl.shared_hbm)
    right = nl.ndarray((128, 4, 2048), dtype=b.dtype, buffer=nl.sbuf)
    for k in range(4):
        nisa.dma_copy(dst=right[:, k, :], src=b[k * 128 : (k + 1) * 128, :])
    for i in range(n // 128):
        rows = nl.ndarray((128, 4, 128), dtype=a.dtype, buffer=nl.sbuf)
        for k in range(4):
            nisa.dma_transpose(dst=rows[:, k, :], src=a[i * 128 : (i + 1) * 128, k * 128 : (k + 1) * 128])
        done = nl.ndarray((128, 2048), dtype=a.dtype, buffer=nl.sbuf)
        for j in range(4):
            bank = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
            for k in range(4):
                nisa.nc_matmul(dst=bank, stationary=rows[:, k, :], moving=right[:, k, j * 512 : (j + 1) * 512])
            nisa.tensor_copy(dst=done[:, j * 512 : (j + 1) * 512], src=bank)
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=done)
    return out
'''
