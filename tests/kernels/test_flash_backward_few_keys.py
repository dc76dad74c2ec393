"""flash_backward in rows of few keys, beside sinks of any size: what is left of dS = P * (dprobs - delta) is then small.

A delta from out, which the forward rounded to 16 bits, errs by a rounding of dprobs itself, which a row with one key and a sink
that weighs 1 - P has as an error 1 / (1 - P) times as large as the gradient's own.
"""

from dataclasses import replace

import numpy as np
import pytest
from backward_bar import errors, luck
from backward_cases import gradients, problem, upstream
from test_flash_backward_ties import forward

from nki_hf.problem import Mask
from nki_hf.testing import attention_inputs

UNITS = {"bfloat16": 2.0**-9, "float16": 2.0**-12, "float32": 2.0**-24}
DTYPES = list(UNITS)
SINKS = [None, -12.0, -4.0, 0.0, 4.0, 12.0]
"""Without one; from one that is tiny to one that has nearly all of a row."""


def check(case, sink):
    """Gradients err at most 1.5 times as much as eager's in the same dtype, against float64, plus their own rounding; of a few
    numbers (d_sink has one per head) as much as one in a million cases does by luck.
    """
    case = replace(case, sink=sink is not None, row_statistics=True)
    inputs = attention_inputs(case)
    if sink is not None:
        inputs = replace(inputs, sink=np.full(case.num_heads_q, sink, np.float32))
    dout, _ = upstream(inputs, with_lse=False)
    got = gradients(inputs, dout, forward_results=forward(inputs))
    for name, (error, plain, size, numbers) in errors(inputs, got, dout).items():
        limit = max(1.5, luck(numbers)) * plain + UNITS[case.dtype] * size
        assert np.isfinite(limit), name
        assert error <= limit, f"{name}: RMS error {error:.3g}, at most {limit:.3g} (size {size:.3g})"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("keys", [1, 2, 3, 17])
def test_few_keys_beside_a_sink_of_any_size(keys, sink, dtype):
    check(problem(dtype=dtype, num_heads_q=4, num_heads_kv=2, seqlen_q=64, seqlen_kv=keys), sink)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sink", [None, -8.0])
@pytest.mark.parametrize("window", [1, 2])
def test_narrow_windows_on_both_sides_of_a_blocks_edge(window, sink, dtype):
    # Rows 512 on see keys of two blocks of 512, as their query tile does.
    case = problem(
        dtype=dtype, num_heads_q=1, seqlen_q=130, seqlen_kv=640, head_dim=32, head_dim_v=32,
        mask=Mask(ahead=1, window=window, q_offset=450),
    )  # fmt: skip
    check(case, sink)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_first_rows_of_a_causal_call(dtype):
    case = problem(dtype=dtype, seqlen_q=3, seqlen_kv=3, head_dim=40, head_dim_v=200, num_heads_q=8, mask=Mask(ahead=1))
    check(case, -6.0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("keys", [100, 600])
@pytest.mark.parametrize("size", [1e5, 1e6, 1e8])
def test_rows_that_one_key_has_nearly_alone(size, keys, dtype):
    check(problem(dtype=dtype, num_heads_q=1, seqlen_q=70, seqlen_kv=keys, head_dim=16, softmax_scale=size / 4), None)
