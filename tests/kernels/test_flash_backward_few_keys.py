"""flash_backward in rows of few keys, beside sinks of any size, and rows of which one key has nearly all: what is left of
dS = P * (dprobs - delta) is then small.

A delta from out, which the forward rounded to 16 bits, errs by a rounding of dprobs itself, which a row with a key of weight P
has as an error 1 / (1 - P) times as large as the gradient's own. Every case runs a forward kernel, and hands on all that it
returns.
"""

from dataclasses import replace

import numpy as np
import pytest
from backward_bar import errors, luck
from backward_cases import dominated, forward, forward_run, gradients, problem, upstream

from nki_hf.observers.races import races
from nki_hf.problem import Mask
from nki_hf.testing import attention_inputs

UNITS = {"bfloat16": 2.0**-9, "float16": 2.0**-12, "float32": 2.0**-24}
DTYPES = list(UNITS)
SINKS = [None, -12.0, -4.0, 0.0, 4.0, 12.0]
"""Without one; from one that is tiny to one that has nearly all of a row."""


def check(case, sink):
    """`assert_right` of random inputs beside sinks of that size, None for no sink."""
    case = replace(case, sink=sink is not None)
    inputs = attention_inputs(case)
    if sink is not None:
        inputs = replace(inputs, sink=np.full(case.num_heads_q, sink, np.float32))
    assert_right(inputs)


def assert_right(inputs, kernel="flash_prefill", chip="trn2", lnc=1):
    """Gradients err at most 1.5 times as much as eager's in the same dtype, against float64, plus their own rounding; of a few
    numbers (d_sink has one per head) as much as one in a million cases does by luck.
    """
    dout, _ = upstream(inputs, with_lse=False)
    got = gradients(inputs, dout, None, chip, lnc, forward_results=forward(inputs, kernel, chip, lnc))
    for name, (error, plain, size, numbers) in errors(inputs, got, dout).items():
        limit = max(1.5, luck(numbers)) * plain + UNITS[inputs.problem.dtype] * size
        assert np.isfinite(limit), name
        assert error <= limit, f"{name}: RMS error {error:.3g}, at most {limit:.3g} (size {size:.3g})"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("weight", [0.5, 0.9, 0.95, 0.99, 0.999])
@pytest.mark.parametrize(("rows", "keys", "mask"), [(130, 256, Mask(ahead=1)), (40, 700, Mask()), (150, 4, Mask())])
def test_one_key_with_nearly_all_of_a_row(rows, keys, mask, weight, dtype):
    case = problem(dtype=dtype, seqlen_q=rows, seqlen_kv=keys, head_dim=32, head_dim_v=48, mask=mask)
    assert_right(dominated(attention_inputs(case), weight))


@pytest.mark.parametrize(
    ("kernel", "rows", "sink"), [("flash_prefill", 150, True), ("flash_const_max", 150, False), ("flash_decode", 5, True)]
)
@pytest.mark.parametrize(("chip", "lnc"), [("trn2", 1), ("trn3", 2)])
def test_output_and_its_rest_are_the_output_in_float32(chip, lnc, kernel, rows, sink):
    # Queries of zeros give equal weights: their rounding changes no output, but beside a sink that of flash_const_max, relative
    # to a constant. The first rows see no key.
    case = problem(
        dtype="bfloat16",
        num_heads_q=6,
        num_heads_kv=3,
        seqlen_q=rows,
        seqlen_kv=300,
        head_dim=16,
        head_dim_v=144,
        sink=sink,
        mask=Mask(ahead=1, q_offset=-3),
    )
    inputs = attention_inputs(case)
    inputs.q[:] = 0
    launched = forward_run(inputs, kernel, chip, lnc)
    assert races(launched.events) == []
    out, rest = (launched.outputs[n].swapaxes(1, 2).astype(np.float64) for n in (0, 4))
    assert launched.outputs[4].dtype == np.float32
    assert np.abs(rest).max() > 0
    assert (np.abs(rest) <= 2**-8 * np.abs(out)).all()  # half of the last of 8 bits
    largest = np.abs(inputs.v.astype(np.float64)).max()
    np.testing.assert_allclose(out + rest, inputs.expected[0], rtol=0, atol=2**-20 * largest)


@pytest.mark.parametrize("weight", [0.95, 0.999, 0.99999])
@pytest.mark.parametrize(("kernel", "rows"), [("flash_const_max", 140), ("flash_decode", 5)])
@pytest.mark.parametrize(("chip", "lnc"), [("trn2", 1), ("trn3", 2)])
def test_every_forward_kernel_hands_on_what_its_output_lost(chip, lnc, kernel, rows, weight):
    case = problem(
        dtype="bfloat16",
        num_heads_q=8,
        seqlen_q=rows,
        seqlen_kv=300,
        head_dim=32,
        head_dim_v=200,
        sink=kernel == "flash_decode",
    )
    inputs = attention_inputs(case)
    if case.sink:
        inputs = replace(inputs, sink=inputs.sink - 20)
    assert_right(dominated(inputs, weight), kernel, chip, lnc)


def test_rows_that_flash_const_max_computes_again():
    # One number more in every score of a row changes no gradient; 1e3 overflows the constant shift's exponentials.
    case = problem(dtype="bfloat16", seqlen_q=140, seqlen_kv=300, head_dim=32, head_dim_v=32)
    inputs = attention_inputs(case)
    inputs.k[..., 0] = 0
    inputs = dominated(inputs, 0.999)
    dout, _ = upstream(inputs, with_lse=False)
    near = gradients(inputs, dout, forward_results=forward(inputs, "flash_const_max"))
    inputs.q[..., 0], inputs.k[..., 0] = 32**0.5, 1e3
    left = forward(inputs, "flash_const_max")
    assert left[2].min() > 900  # the row's own largest score, not the constant shift
    far = gradients(inputs, dout, forward_results=left)
    for name, value in near.items():
        alike = np.s_[..., 1:] if name in ("dq", "dk") else np.s_[...]
        change = far[name][alike].astype(np.float64) - value[alike].astype(np.float64)
        assert np.linalg.norm(change) <= 4 * UNITS["bfloat16"] * np.linalg.norm(value[alike].astype(np.float64)), name


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
        dtype=dtype,
        num_heads_q=1,
        seqlen_q=130,
        seqlen_kv=640,
        head_dim=32,
        head_dim_v=32,
        mask=Mask(ahead=1, window=window, q_offset=450),
    )
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


@pytest.mark.parametrize(("kernel", "rows"), [("flash_prefill", 140), ("flash_const_max", 140), ("flash_decode", 5)])
def test_rows_with_one_key_give_q_and_k_no_gradient_at_all_whatever_ran_before(kernel, rows):
    inputs = attention_inputs(problem(dtype="bfloat16", num_heads_q=4, seqlen_q=rows, seqlen_kv=1, head_dim=32, head_dim_v=32))
    dout, _ = upstream(inputs, with_lse=False)
    got = gradients(inputs, dout, forward_results=forward(inputs, kernel))
    assert not got["dq"].any()
    assert not got["dk"].any()
