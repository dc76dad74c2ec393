"""Masks become the smallest `Keys` that say the same, and never anything else."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_forms import causal_mask, q_of, says, shown

from nki_hf.adapters.keys import Keys
from nki_hf.adapters.masks import read_mask, restrict_to_indices, with_position_bias
from nki_hf.errors import UnsupportedProblem

MIN = torch.finfo(torch.float32).min


def test_no_mask_is_bottom_right_causal_or_nothing():
    assert read_mask(None, q=q_of(seqlen_q=3), seqlen_kv=10, causal=True) == Keys(q_offset=7, ahead=1)
    assert read_mask(None, q=q_of(seqlen_q=3), seqlen_kv=10, causal=False) == Keys()
    assert read_mask(None, q=q_of(seqlen_q=1), seqlen_kv=10, causal=True) == Keys()


def test_a_plain_causal_mask_is_static():
    mask = causal_mask(7, 7).expand(2, 1, 7, 7)
    assert read_mask(mask, q=q_of(2), seqlen_kv=7, causal=False) == Keys(q_offset=0, ahead=1)


def test_all_true_is_no_mask():
    assert read_mask(torch.ones(2, 1, 7, 9, dtype=torch.bool), q=q_of(2), seqlen_kv=9, causal=False) == Keys()


def test_a_later_chunk_keeps_its_offset():
    assert read_mask(causal_mask(3, 11), q=q_of(seqlen_q=3), seqlen_kv=11, causal=False) == Keys(q_offset=8, ahead=1)


def test_static_cache_prefill_is_causal_from_the_first_key():
    assert read_mask(causal_mask(4, 12, 0), q=q_of(seqlen_q=4), seqlen_kv=12, causal=False) == Keys(q_offset=0, ahead=1)


@pytest.mark.parametrize("window", [1, 4, 7, 9])
def test_a_sliding_window_counts_the_query_itself(window):
    rows, cols = torch.arange(7)[:, None], torch.arange(7)
    mask = ((cols <= rows) & (cols > rows - window))[None, None]
    keys = read_mask(mask, q=q_of(), seqlen_kv=7, causal=False)
    assert says(keys, mask, 7)
    assert (keys.ahead, keys.lo) == (1, None)
    assert keys.window == (window if window < 7 else None)


def test_a_bidirectional_window_is_static():
    rows, cols = torch.arange(9)[:, None], torch.arange(9)
    mask = ((cols - rows).abs() <= 2)[None, None]
    assert read_mask(mask, q=q_of(seqlen_q=9), seqlen_kv=9, causal=False) == Keys(q_offset=0, window=3, ahead=3)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_becomes_bounds_inside_the_causal_band(side):
    padding = torch.ones(2, 7, dtype=torch.bool)
    padding[0, slice(None, 3) if side == "left" else slice(4, None)] = False
    mask = causal_mask(7, 7) & padding[:, None, None]
    keys = read_mask(mask, q=q_of(2), seqlen_kv=7, causal=False)
    assert says(keys, mask, 7)
    assert (keys.ahead, keys.q_offset, keys.bias) == (1, 0, None)
    assert keys.lo.dtype == keys.hi.dtype == torch.int32
    assert keys.lo.shape == keys.hi.shape == (2, 7)


def test_the_window_hint_keeps_a_band_around_padded_rows():
    padding = torch.ones(2, 12, dtype=torch.bool)
    padding[1, :5] = False
    rows, cols = torch.arange(12)[:, None], torch.arange(12)
    mask = (((cols <= rows) & (cols > rows - 4))[None, None]) & padding[:, None, None]
    keys = read_mask(mask, q=q_of(2, seqlen_q=12), seqlen_kv=12, causal=False, window=4)
    assert says(keys, mask, 12)
    assert (keys.window, keys.ahead) == (4, 1)
    wrong_hint = read_mask(mask.clone(), q=q_of(2, seqlen_q=12), seqlen_kv=12, causal=False, window=2)
    assert says(wrong_hint, mask, 12)
    assert wrong_hint.window is None


def test_a_decode_row_never_makes_a_static_band():
    mask = torch.zeros(2, 1, 1, 9, dtype=torch.bool)
    mask[0, ..., :6] = True
    mask[1, ..., 2:6] = True
    keys = read_mask(mask, q=q_of(2, seqlen_q=1), seqlen_kv=9, causal=False)
    assert says(keys, mask, 9)
    assert (keys.window, keys.ahead) == (None, None)


def test_packed_sequences_and_image_blocks_are_bounds():
    segment = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    packed = causal_mask(7, 7) & (segment[:, None] == segment)[None, None]
    image = torch.tensor([-1, 0, 0, 0, -1, -1, -1])
    overlay = causal_mask(7, 7) | ((image[:, None] == image) & (image >= 0))[None, None]
    for mask in (packed, overlay):
        keys = read_mask(mask, q=q_of(), seqlen_kv=7, causal=False)
        assert says(keys, mask, 7)
        assert keys.bias is None


def test_rows_without_keys_stay_without_keys():
    mask = causal_mask(7, 7).clone()
    mask[..., 2, :] = False
    keys = read_mask(mask, q=q_of(), seqlen_kv=7, causal=False)
    assert says(keys, mask, 7)
    assert keys.bias is None
    nothing = torch.zeros(1, 1, 7, 7, dtype=torch.bool)
    assert says(read_mask(nothing, q=q_of(), seqlen_kv=7, causal=False), nothing, 7)


def test_more_queries_than_keys_leave_the_first_rows_empty():
    keys = read_mask(None, q=q_of(seqlen_q=6), seqlen_kv=3, causal=True)
    assert says(keys, causal_mask(6, 3), 3)
    assert read_mask(causal_mask(6, 3), q=q_of(seqlen_q=6), seqlen_kv=3, causal=False) == keys


def test_holes_stay_dense_without_a_copy():
    mask = causal_mask(7, 7).clone()
    mask[..., 5, 2] = False
    keys = read_mask(mask, q=q_of(), seqlen_kv=7, causal=False)
    assert keys.bias.dtype == torch.bool
    assert keys.bias.data_ptr() == mask.data_ptr()


@pytest.mark.parametrize("low", [MIN, float("-inf"), torch.finfo(torch.bfloat16).min])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_float_mask_of_two_values_is_read_like_the_bool_mask(low, dtype):
    bool_mask = causal_mask(7, 7)
    mask = torch.where(bool_mask, 0.0, low).to(dtype)
    assert read_mask(mask, q=q_of(), seqlen_kv=7, causal=False) == Keys(q_offset=0, ahead=1)


def test_real_biases_are_kept_as_they_are():
    for mask in (torch.randn(1, 2, 7, 7), torch.where(causal_mask(7, 7), 0.0, -1e4), torch.full((1, 1, 7, 7), -1.0)):
        keys = read_mask(mask, q=q_of(), seqlen_kv=7, causal=False)
        assert keys.bias.data_ptr() == mask.data_ptr()


def test_an_integer_mask_is_added_as_eager_does_and_said_so():
    mask = torch.ones(1, 1, 7, 7, dtype=torch.int64).tril()
    with pytest.warns(UserWarning, match=r"attention_mask.dtype=int64: integers are added.*Pass a bool mask"):
        keys = read_mask(mask, q=q_of(), seqlen_kv=7, causal=False)
    assert keys.bias.dtype == torch.float32
    assert torch.equal(keys.bias, mask.float())


def test_broadcast_masks_stay_small():
    rows = torch.ones(2, 1, 1, 9, dtype=torch.bool)
    rows[1, ..., 6:] = False
    keys = read_mask(rows.expand(2, 2, 7, 9), q=q_of(2), seqlen_kv=9, causal=False)
    assert says(keys, rows.expand(2, 1, 7, 9), 9)
    assert keys.bias is None
    bias = torch.randn(1, 2, 1, 9)
    assert read_mask(bias.expand(2, 2, 7, 9), q=q_of(2), seqlen_kv=9, causal=False).bias.shape == (1, 2, 1, 9)
    assert read_mask(torch.randn(9), q=q_of(2), seqlen_kv=9, causal=False).bias.shape == (1, 1, 1, 9)


def test_a_mask_longer_than_the_keys_is_refused_as_by_eager_and_sdpa_or_cut_where_a_release_does():
    mask = causal_mask(7, 12, 0)
    with pytest.raises(UnsupportedProblem, match=r"attention_mask.shape=\[1, 1, 7, 12\]"):
        read_mask(mask, q=q_of(), seqlen_kv=7, causal=False)
    assert read_mask(mask, q=q_of(), seqlen_kv=7, causal=False, cut=True) == Keys(q_offset=0, ahead=1)


def test_a_mask_expanded_for_another_batch_is_refused():
    mask = torch.ones(1, 1, 7, 9, dtype=torch.bool)
    assert read_mask(mask.expand(2, -1, -1, -1), q=q_of(2), seqlen_kv=9, causal=False) == Keys()
    with pytest.raises(UnsupportedProblem, match=r"attention_mask.shape=\[5, 1, 7, 9\]"):
        read_mask(mask.expand(5, -1, -1, -1), q=q_of(2), seqlen_kv=9, causal=False)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2])
def test_masks_of_dtypes_that_are_no_mask_are_refused_by_name(dtype):
    mask = torch.zeros(1, 1, 7, 9).to(dtype)
    with pytest.raises(UnsupportedProblem, match=r"attention_mask.dtype=.* must be bool, float16"):
        read_mask(mask, q=q_of(), seqlen_kv=9, causal=False)


@pytest.mark.parametrize("make", [torch.Tensor.to_sparse, torch.Tensor.to_mkldnn], ids=["sparse", "mkldnn"])
def test_masks_without_strides_are_refused_by_name(make):
    with pytest.raises(UnsupportedProblem, match=r"attention_mask.layout=.* Call to_dense\(\)"):
        read_mask(make(torch.ones(1, 1, 7, 9)), q=q_of(), seqlen_kv=9, causal=False)


def test_chunks_of_packed_sequences_are_counted_from_each_ones_start():
    """Two sequences of 5 and 6 tokens behind 0 and 3 cached keys, chunks of 4."""
    cu_q, cu_kv = torch.tensor([0, 5, 11]), torch.tensor([0, 5, 14])
    keys = Keys().within_segments(cu_q, cu_kv, seqlen_q=11, ahead=1, chunk=4)
    rows = [(0, position) for position in range(5)] + [(5, position) for position in range(3, 9)]
    expected = [(start + position // 4 * 4, start + position + 1) for start, position in rows]
    assert list(zip(keys.lo[0].tolist(), keys.hi[0].tolist(), strict=True)) == expected


@pytest.mark.parametrize("shape", [(3, 1, 7, 9), (1, 3, 7, 9), (1, 1, 6, 9), (1, 1, 7, 8), (1, 1, 1, 7, 9)])
def test_a_mask_that_does_not_broadcast_is_refused_with_both_shapes(shape):
    with pytest.raises(UnsupportedProblem, match=r"attention_mask.shape=\[.*must broadcast to"):
        read_mask(torch.ones(shape, dtype=torch.bool), q=q_of(2), seqlen_kv=9, causal=False)


def test_a_position_bias_combines_with_every_kind_of_mask():
    bias = torch.randn(1, 2, 7, 9)
    holes = torch.rand(1, 1, 7, 7) > 0.3
    additive = torch.randn(1, 1, 7, 7)
    for mask, causal in ((None, True), (causal_mask(7, 7), False), (holes, False), (additive, False)):
        keys = read_mask(mask, q=q_of(), seqlen_kv=7, causal=causal)
        keys = with_position_bias(keys, bias, q=q_of(), seqlen_kv=7)
        visible = causal_mask(7, 7) if mask is None else mask
        if visible.dtype == torch.bool:
            expected = torch.where(visible, bias[..., :7], float("-inf"))
        else:
            expected = bias[..., :7] + visible
        torch.testing.assert_close(shown(keys, 7, 7), expected)


def test_indices_hide_every_other_key():
    indices = torch.tensor([[[0, 2], [1, -1], [2, 0]]])
    expected = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 0], [1, 0, 1, 0]], dtype=torch.bool)
    sizes = {"seqlen_q": 3, "seqlen_kv": 4}
    assert torch.equal(restrict_to_indices(indices, None, causal=False, **sizes)[0, 0], expected)
    triangle = causal_mask(3, 4)[0, 0]
    assert torch.equal(restrict_to_indices(indices, None, causal=True, **sizes)[0, 0], expected & triangle)
    given = torch.zeros(1, 1, 3, 4)
    floats = restrict_to_indices(indices, given, causal=False, **sizes)[0, 0]
    assert torch.equal(floats == 0, expected)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_indices_hide_every_other_key_of_an_integer_mask_which_adds(dtype):
    indices = torch.tensor([[[0, 2], [1, -1], [2, 0]]])
    hidden = torch.tensor([[0, 1, 0, 1], [1, 0, 1, 1], [0, 1, 0, 1]], dtype=torch.bool)
    given = torch.arange(12).reshape(1, 1, 3, 4).to(dtype)
    with pytest.warns(UserWarning, match="integers are added to the scores"):
        got = restrict_to_indices(indices, given, seqlen_q=3, seqlen_kv=4, causal=False)
    assert torch.equal(got[0, 0], given[0, 0].float().masked_fill(hidden, MIN))


@pytest.mark.parametrize("causal", [True, False])
def test_segments_see_only_themselves(causal):
    cu = torch.tensor([0, 3, 7], dtype=torch.int32)
    keys = Keys().within_segments(cu, cu, seqlen_q=9, ahead=1 if causal else None)
    segment = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 3])
    expected = (segment[:, None] == segment) & (segment < 2)
    if causal:
        expected = expected & causal_mask(9, 9)[0, 0]
    assert torch.equal(shown(keys, 9, 9)[0, 0], expected)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(st.data())
def test_any_bool_mask_keeps_its_meaning(data):
    batch, heads = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
    rows, cols = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    if data.draw(st.booleans()):
        starts = data.draw(st.lists(st.integers(0, cols), min_size=batch * rows, max_size=batch * rows))
        lengths = data.draw(st.lists(st.integers(0, cols), min_size=batch * rows, max_size=batch * rows))
        lo, hi = torch.tensor(starts).view(batch, 1, rows, 1), torch.tensor(lengths).view(batch, 1, rows, 1)
        position = torch.arange(cols)
        mask = (position >= lo) & (position < lo + hi)
    else:
        bits = data.draw(st.lists(st.booleans(), min_size=batch * heads * rows * cols, max_size=batch * heads * rows * cols))
        mask = torch.tensor(bits).view(batch, heads, rows, cols)
    hint = data.draw(st.sampled_from([None, 1, 2, 3]))
    keys = read_mask(mask, q=q_of(batch, heads, rows), seqlen_kv=cols, causal=False, window=hint)
    assert says(keys, mask, cols)
