"""out = x * scale (+ shift): keeps every rule, right under LNC 1 and 2."""

from nki_hf.lang import nisa, nki, nl


@nki.jit
def scale_rows(x, shift, scale, square=False):
    """x [rows, columns], rows even and <= 128; shift None or like x -> out like x."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    cores = nl.num_programs()
    rows = x.shape[0] // cores
    first = nl.program_id() * rows
    x_sbuf = nl.ndarray((rows, x.shape[1]), x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=x_sbuf, src=x[first : first + rows, :])
    nisa.tensor_scalar(dst=x_sbuf, data=x_sbuf, op0=nl.multiply, operand0=scale)
    if shift != None:  # noqa: E711
        shift_sbuf = nl.ndarray((rows, x.shape[1]), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=shift_sbuf, src=shift[first : first + rows, :])
        nisa.tensor_tensor(dst=x_sbuf, data1=x_sbuf, data2=shift_sbuf, op=nl.add)
    if square:
        nisa.tensor_tensor(dst=x_sbuf, data1=x_sbuf, data2=x_sbuf, op=nl.multiply)
    nisa.dma_copy(dst=out[first : first + rows, :], src=x_sbuf)
    return out
