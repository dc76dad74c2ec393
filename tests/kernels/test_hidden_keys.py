"""A hidden key counts for nothing, whatever its score: flash_prefill and flash_backward, every kind of mask.

What hides must select, or be beyond float32's range: a finite number that is added to a hidden score may cancel with it.
flash_decode and flash_const_max have tests of their own (what they hold differs: bounds only, a certificate).
"""

import backward_cases
import ml_dtypes
import numpy as np
import prefill_cases
import pytest

from nki_hf.chips import CHIPS
from nki_hf.problem import Mask, Problem
from nki_hf.testing import attention_inputs

KEYS, SEEN = 300, 128
SIZES = (float(ml_dtypes.bfloat16(1e30)), float(ml_dtypes.finfo(ml_dtypes.bfloat16).max))
MASKS = {
    "bounds": Mask(runtime_bounds=True),
    "static": Mask(q_offset=SEEN - 40, ahead=1, window=SEEN - 40),
    "boolean": Mask(bias="boolean"),
    "additive": Mask(bias="additive"),
}


def inputs_of(mask, size, rows, dtype, scale=1.0, softcap=None):
    """A call with scores of `size` and minus that and values of 1000 at hidden keys, 0 and 1 at visible ones; what rows see."""
    case = Problem(
        batch=1,
        num_heads_q=2,
        num_heads_kv=1,
        seqlen_q=rows,
        seqlen_kv=KEYS,
        head_dim=8,
        head_dim_v=8,
        dtype=dtype,
        softmax_scale=scale,
        softcap=softcap,
        mask=MASKS[mask],
    )
    inputs = attention_inputs(case)
    key, row = np.arange(KEYS), np.arange(rows)[:, None]
    seen = np.broadcast_to(key < SEEN, (rows, KEYS))
    if mask == "static":
        seen = (key <= SEEN - 40 + row) & (key > row)
    any_row = seen.any(0)
    inputs.q[:], inputs.k[:], inputs.v[:] = 0, 0, 1
    inputs.q[..., 0], inputs.k[:, :, ~any_row, 0] = size, 1
    inputs.k[:, :, 1::2] *= -1
    inputs.v[:, :, ~any_row] = 1000
    if mask == "bounds":
        inputs.lo[:], inputs.hi[:] = 0, SEEN
    if mask == "boolean":
        inputs.bias[:] = key < SEEN
    if mask == "additive":
        inputs.bias[:] = np.where(key < SEEN, 0, -np.inf)
    return inputs, seen


@pytest.mark.parametrize("chip", list(CHIPS))
@pytest.mark.parametrize("rows", [3, 40])
@pytest.mark.parametrize("mask", list(MASKS))
@pytest.mark.parametrize(
    ("dtype", "scale", "softcap"), [("bfloat16", 1.0, None), ("float32", -0.125, None), ("bfloat16", 1.0, 20.0)]
)
def test_flash_prefill_gives_a_hidden_key_no_share(dtype, scale, softcap, mask, rows, chip):
    for size in SIZES:
        inputs, seen = inputs_of(mask, size, rows, dtype, scale, softcap)
        out, lse = prefill_cases.outputs(inputs, chip)
        assert (out == 1).all()
        np.testing.assert_allclose(lse, np.broadcast_to(np.log(seen.sum(-1)), lse.shape), rtol=1e-5)


@pytest.mark.parametrize("chip", list(CHIPS))
@pytest.mark.parametrize("mask", list(MASKS))
@pytest.mark.parametrize(("dtype", "scale"), [("bfloat16", 1.0), ("float32", -0.125)])
def test_flash_backward_gives_a_hidden_key_no_gradient(dtype, scale, mask, chip):
    """P is 1 / visible keys, so dv of a key is the sum of that over the rows that see it and both heads."""
    rows = 40
    for size in SIZES:
        inputs, seen = inputs_of(mask, size, rows, dtype, scale)
        dout = np.ones((1, 2, rows, 8), inputs.q.dtype)
        with np.errstate(all="ignore"):  # of the reference, whose hidden products overflow
            found = backward_cases.gradients(inputs, dout, chip=chip)
        want = 2 * (seen / seen.sum(-1, keepdims=True)).sum(0)
        got = found["dv"][0, 0].astype(np.float64)
        np.testing.assert_allclose(got, np.broadcast_to(want[:, None], got.shape), rtol=2e-2 if dtype == "bfloat16" else 1e-5)
        assert (found["dk"][0, 0, ~seen.any(0)] == 0).all()
