"""Masks become the smallest `Keys` that say the same, and never anything else."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nki_hf
from nki_hf.adapters.keys import Keys
from nki_hf.adapters.masks import read_mask, restrict_to_indices, with_position_bias
from nki_hf.errors import UnsupportedProblem
from nki_hf.problem import Band, chunk_begin

MIN = torch.finfo(torch.float32).min


def q_of(batch=1, heads=2, seqlen_q=7):
    return torch.zeros(batch, heads, seqlen_q, 4)


def causal_mask(seqlen_q, seqlen_kv, q_offset=None):
    rows = torch.arange(seqlen_q)[:, None] + (seqlen_kv - seqlen_q if q_offset is None else q_offset)
    return (torch.arange(seqlen_kv) <= rows)[None, None]


def shown(keys, seqlen_q, seqlen_kv):
    mask = keys.dense(seqlen_q, seqlen_kv, torch.device("cpu"))
    return torch.ones(1, 1, seqlen_q, seqlen_kv, dtype=torch.bool) if mask is None else mask


def says(keys, mask, seqlen_kv):
    """True if `keys` hides exactly what the bool mask hides."""
    mask = mask[..., :seqlen_kv]
    seqlen_q = mask.shape[2]
    return bool((shown(keys, seqlen_q, seqlen_kv) == mask).all())


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


def test_a_mask_is_read_once_and_again_after_a_change(monkeypatch):
    from nki_hf.adapters import mask_values

    scans = []
    real = mask_values._runs
    monkeypatch.setattr(mask_values, "_runs", lambda visible: scans.append(1) or real(visible))
    mask = causal_mask(7, 7).clone()
    for _ in range(3):
        read_mask(mask, q=q_of(), seqlen_kv=7, causal=False)
    assert len(scans) == 1
    mask[..., 3, :] = False
    assert says(read_mask(mask, q=q_of(), seqlen_kv=7, causal=False), mask, 7)
    assert len(scans) == 2


WRITES = {
    "in place": lambda mask, values: mask.copy_(values),
    "through .data": lambda mask, values: mask.data.copy_(values),
    "through a shared array": lambda mask, values: np.copyto(mask.numpy(), values.numpy()),
    "through detach": lambda mask, values: mask.detach().numpy().__setitem__(Ellipsis, values.numpy()),
    "without versions": lambda mask, values: (
        torch.autograd._unsafe_preserve_version_counter(mask).__enter__() or mask.copy_(values)
    ),
    "by set_data": lambda mask, values: setattr(mask, "data", values.clone()),
}


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.float16])
@pytest.mark.parametrize("way", WRITES)
def test_every_way_of_writing_a_mask_is_seen(way, dtype):
    def made(visible):
        if dtype == torch.bool:
            return visible.clone()
        return torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, -torch.inf)

    window = causal_mask(7, 7) & ~causal_mask(7, 7, -3)
    mask = made(torch.ones(1, 1, 7, 7, dtype=torch.bool))
    assert read_mask(mask, q=q_of(), seqlen_kv=7, causal=False) == Keys()
    for values in (causal_mask(7, 7), window, causal_mask(7, 7)):
        WRITES[way](mask, made(values))
        for _ in range(2):
            assert says(read_mask(mask, q=q_of(), seqlen_kv=7, causal=False), values, 7)


def test_a_large_mask_is_compared_to_its_last_element():
    mask = torch.ones(2, 1, 2100, 2100, dtype=torch.bool)
    assert read_mask(mask, q=q_of(2, seqlen_q=2100), seqlen_kv=2100, causal=False) == Keys()
    mask.data[1, 0, 2099, 2099] = False
    keys = read_mask(mask, q=q_of(2, seqlen_q=2100), seqlen_kv=2100, causal=False)
    assert keys.hi[1, 2099] == 2099
    assert int((keys.hi == 2100).sum()) == 2 * 2100 - 1


def test_a_mask_of_inference_mode_is_read_once_too(monkeypatch):
    from nki_hf.adapters import mask_values

    scans = []
    real = mask_values._runs
    monkeypatch.setattr(mask_values, "_runs", lambda visible: scans.append(1) or real(visible))
    with torch.inference_mode():
        mask = causal_mask(7, 7).clone()
        for _ in range(28):
            assert read_mask(mask, q=q_of(), seqlen_kv=7, causal=False) == Keys(ahead=1)
    assert len(scans) == 1


def test_a_mask_that_was_read_can_be_freed():
    import gc
    import weakref

    makers = (lambda: causal_mask(7, 7).clone(), lambda: torch.randn(1, 2, 7, 7), lambda: torch.rand(1, 1, 7, 7) > 0.5)
    for make in makers:
        mask = make()
        read_mask(mask, q=q_of(), seqlen_kv=7, causal=False)
        alive = weakref.ref(mask)
        del mask
        gc.collect()
        assert alive() is None


def test_values_are_not_read_while_compiling(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    mask = causal_mask(7, 7)
    assert read_mask(mask, q=q_of(), seqlen_kv=7, causal=False).bias is not None


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


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("ahead", [None, 1, 4])
@pytest.mark.parametrize("q_offset", [-3, 0, 2])
def test_a_band_as_bounds_is_the_band(window, ahead, q_offset):
    keys = Keys(q_offset=q_offset, window=window, ahead=ahead)
    lo, hi = keys.bounds(6, 8, torch.device("cpu"))
    row, key = torch.arange(6)[:, None] + q_offset, torch.arange(8)
    band = torch.ones(6, 8, dtype=torch.bool)
    if window is not None:
        band &= key > row - window
    if ahead is not None:
        band &= key < row + ahead
    assert torch.equal(shown(keys, 6, 8).expand_as(band[None, None]), band[None, None])
    assert torch.equal(shown(Keys().within_band(keys, 6, 8, torch.device("cpu")), 6, 8), band[None, None])
    assert torch.equal(shown(Keys(lo=lo, hi=hi), 6, 8)[0, 0], band)


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


def _replaced(mask, other):
    mask.data = other


def _set(mask, other):
    mask.set_(other)


def _grown(mask, other):
    with torch.no_grad():
        mask.resize_(1, 1, 40, 40).copy_(other.expand(1, 1, 40, 40))


@pytest.mark.parametrize("change", [_replaced, _set, _grown])
def test_a_mask_that_gets_other_memory_is_read_again(change):
    mask = torch.ones(1, 1, 40, 40, dtype=torch.bool).tril()
    other = torch.ones(1, 1, 40, 40, dtype=torch.bool).triu()
    q = torch.zeros(1, 1, 40, 8)
    for _ in range(2):
        read_mask(mask, q=q, seqlen_kv=40, causal=False)
    change(mask, other)
    for _ in range(2):
        keys = read_mask(mask, q=q, seqlen_kv=40, causal=False)
        assert torch.equal(keys.dense(40, 40, mask.device), other)


OWN_FORMULA = {
    "adapters/paged.py",  # says a window in FlashAttention's words
    "tasks/attention_backward.py",
    "tasks/attention_mistakes.py",
    "tasks/attention_reference.py",  # independent references
}


def _edges_computed(tree):
    """Sums and differences with a window or `ahead`: the edges of a band, which `problem.Band` computes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            names = [getattr(side, "attr", getattr(side, "id", "")) for side in (node.left, node.right)]
            if {"window", "ahead", "sliding_window"} & set(names):
                yield ast.unparse(node)


def test_the_formula_of_visibility_stands_in_one_place():
    package = Path(nki_hf.__file__).parent
    found = {}
    for path in sorted(package.rglob("*.py")):
        where = path.relative_to(package)
        kernels = where.parts[0] in ("kernels", "ladder") or where.parts[:2] == ("tasks", "kernels")
        if not kernels and where.parts[0] not in ("timing", "observers"):  # their window is of instructions
            found[str(where)] = list(_edges_computed(ast.parse(path.read_text())))
    assert {where for where, lines in found.items() if lines} == OWN_FORMULA | {"problem.py"}
    assert list(_edges_computed(ast.parse("seen = key > row - self.window"))) == ["row - self.window"]


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.none() | st.integers(1, 6), st.none() | st.integers(1, 6), st.integers(0, 5), st.integers(0, 9), st.integers(1, 4))
def test_a_band_among_keys_and_chunks_is_that_of_its_rows_one_by_one(window, ahead, begin, keys, chunk):
    band, end = Band(window=window, ahead=ahead), begin + keys
    for make in (np.arange, torch.arange):
        rows = make(12)
        lo, hi = band.cut(rows, rows * 0 + begin, rows * 0 + end)
        own = chunk_begin(rows, rows * 0 + begin, chunk)
        for row in range(12):
            seen = [
                key
                for key in range(begin, end)
                if (window is None or key > row - window) and (ahead is None or key < row + ahead)
            ]
            assert list(range(int(lo[row]), int(hi[row]))) == seen
            assert int(own[row]) == max(range(begin, max(row, begin) + 1, chunk))
