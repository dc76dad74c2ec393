"""`nki_hf.flash_attn`: what FlashAttention documents of its functions, against float64."""

import itertools

import pytest
import torch
from varlen_reference import attention, packed, starts, visible

import nki_hf
from nki_hf.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

CLOSE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


def _draw(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _close(found, expected, dtype=torch.float32):
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=CLOSE[dtype])


@pytest.mark.parametrize(
    ("seqlen_q", "seqlen_kv", "seen"),
    [(2, 5, ["11110", "11111"]), (5, 2, ["00", "00", "00", "10", "11"])],
    ids=["2 queries, 5 keys", "5 queries, 2 keys"],
)
def test_causal_is_aligned_at_the_bottom_right_as_documented(seqlen_q, seqlen_kv, seen):
    expected = torch.tensor([[float(cell) for cell in row] for row in seen])
    q, k = torch.zeros(1, seqlen_q, 1, 8), _draw(1, seqlen_kv, 1, 8)
    v = torch.eye(seqlen_kv, 8)[None, :, None]
    out = flash_attn_func(q, k, v, causal=True)[0, :, 0, :seqlen_kv]
    # All scores are 0: a row is the share of each key that it sees.
    _close(out, expected / expected.sum(1, keepdim=True).clamp(min=1))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [(-1, -1), (3, 0), (-1, 2), (5, 4)])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_windows_caps_and_grouped_heads(causal, window, softcap):
    q, k, v = _draw(2, 9, 4, 16), _draw(2, 13, 2, 16, seed=1), _draw(2, 13, 2, 16, seed=2)
    out, lse, dropped = flash_attn_func(
        q, k, v, causal=causal, window_size=window, softcap=softcap, softmax_scale=0.3, return_attn_probs=True
    )
    assert lse.shape == (2, 4, 9)
    assert lse.dtype == torch.float32
    assert dropped is None
    for batch in range(2):
        seen = visible(9, 13, causal=causal, window=window)
        expected, expected_lse = attention(q[batch], k[batch], v[batch], seen, softcap=softcap, scale=0.3)
        _close(out[batch], expected)
        _close(lse[batch], expected_lse)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences_of_many_lengths(dtype, causal):
    lengths_q, lengths_kv = [5, 1, 130, 0, 150], [5, 40, 130, 3, 550]
    q, k, v = (
        _draw(sum(n), heads, 32, dtype=dtype, seed=s)
        for s, (n, heads) in enumerate([(lengths_q, 4), (lengths_kv, 2), (lengths_kv, 2)])
    )
    for window in [(-1, -1), (60, 0 if causal else 9)]:
        out, lse, _ = flash_attn_varlen_func(
            q, k, v, starts(lengths_q), starts(lengths_kv), 150, 550, causal=causal, window_size=window, return_attn_probs=True
        )
        expected, expected_lse = packed(q, k, v, lengths_q, lengths_kv, causal=causal, window=window)
        assert lse.shape == (4, sum(lengths_q))
        _close(out, expected, dtype)
        _close(lse, expected_lse, dtype)


@pytest.mark.parametrize("seqlen_kv", [3, 0])
def test_the_lse_includes_the_sink_in_rows_without_keys_too(seqlen_kv):
    q, k, v, sink = _draw(6, 4, 16), _draw(seqlen_kv, 2, 16, seed=1), _draw(seqlen_kv, 2, 16, seed=2), _draw(4, seed=3)
    seen = visible(6, seqlen_kv, causal=True)
    assert not seen[:3].any()
    expected, expected_lse = attention(q, k, v, seen, sink=sink)
    _close(expected_lse[:, :3], sink[:, None].expand(4, 3))  # nothing else is in the sum
    out, lse, _ = flash_attn_func(q[None], k[None], v[None], causal=True, s_aux=sink, return_attn_probs=True)
    packed_out, packed_lse, _ = flash_attn_varlen_func(
        q, k, v, starts([6]), starts([seqlen_kv]), causal=True, s_aux=sink, return_attn_probs=True
    )
    caches = [torch.cat([each, torch.full((5, 2, 16), torch.nan)])[None] for each in (k, v)]
    cached_out, cached_lse = flash_attn_with_kvcache(
        q[None], *caches, cache_seqlens=seqlen_kv, causal=True, s_aux=sink, return_softmax_lse=True
    )
    for found, found_lse in ((out[0], lse[0]), (packed_out, packed_lse), (cached_out[0], cached_lse[0])):
        _close(found, expected)
        _close(found_lse, expected_lse)


def test_sinks_softcap_and_tokens_behind_the_last_sequence():
    lengths, sink = [7, 20], _draw(4, seed=9)
    q, k, v = (_draw(30, heads, 16, seed=s) for s, heads in enumerate((4, 2, 2)))
    cu = starts(lengths)
    out, lse, _ = flash_attn_varlen_func(q, k, v, cu, cu, 20, 20, causal=True, softcap=1.5, s_aux=sink, return_attn_probs=True)
    expected, expected_lse = packed(q[:27], k[:27], v[:27], lengths, lengths, causal=True, softcap=1.5, sink=sink)
    _close(out[:27], expected)
    _close(lse[:, :27], expected_lse)
    assert not out[27:].any()


def test_gradients_of_packed_sequences_are_those_of_each_alone():
    lengths = [140, 3, 270]
    given = [_draw(sum(lengths), heads, 16, seed=s).requires_grad_() for s, heads in enumerate((2, 1, 1))]
    sink = _draw(2, seed=7).requires_grad_()
    cu = starts(lengths)
    out, lse, _ = flash_attn_varlen_func(*given, cu, cu, 270, 270, causal=True, s_aux=sink, return_attn_probs=True)
    ((out * out).sum() + lse.sum()).backward()
    found = [each.grad.clone() for each in (*given, sink)]
    doubles = [each.detach().double().requires_grad_() for each in (*given, sink)]
    out, lse = packed(*doubles[:3], lengths, lengths, causal=True, sink=doubles[3])
    ((out * out).sum() + lse.sum()).backward()
    for each, expected in zip(found, doubles, strict=True):
        torch.testing.assert_close(each.double(), expected.grad, rtol=2e-4, atol=2e-5)


def test_keys_and_values_in_pages():
    lengths_q, lengths_kv, page = [1, 6], [21, 10], 8
    table = torch.tensor([[4, 0, 2], [1, 3, -1]], dtype=torch.int32)
    pages = [_draw(5, page, 2, 16, seed=s) for s in (1, 2)]
    q = _draw(7, 4, 16)
    out = flash_attn_varlen_func(q, *pages, starts(lengths_q), starts(lengths_kv), 6, 21, causal=True, block_table=table)
    rows = [
        each[table[n, : -(-count // page)].long()].flatten(0, 1)[:count] for each in pages for n, count in enumerate(lengths_kv)
    ]
    expected, _ = packed(q, torch.cat(rows[:2]), torch.cat(rows[2:]), lengths_q, lengths_kv, causal=True)
    _close(out, expected)


# ---- the cache ------------------------------------------------------------------------------------------------------


def _caches(paged):
    if paged:
        return _draw(6, 8, 2, 16, seed=1), _draw(6, 8, 2, 16, seed=2), torch.tensor([[5, 0, 2], [1, 3, 4]], dtype=torch.int32)
    return _draw(3, 24, 2, 16, seed=1), _draw(3, 24, 2, 16, seed=2), None


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("seqlen_new", [1, 4])
@pytest.mark.parametrize("window", [(-1, -1), (4, 0)])
def test_new_keys_are_written_in_place_and_seen(paged, seqlen_new, window):
    k_cache, v_cache, table = _caches(paged)
    before, lengths = (k_cache.clone(), v_cache.clone()), [7, 15]
    rows = None if paged else torch.tensor([2, 0])
    q, k, v = _draw(2, seqlen_new, 4, 16), _draw(2, seqlen_new, 2, 16, seed=3), _draw(2, seqlen_new, 2, 16, seed=4)
    out, lse = flash_attn_with_kvcache(
        q,
        k_cache,
        v_cache,
        k,
        v,
        cache_seqlens=torch.tensor(lengths, dtype=torch.int32),
        cache_batch_idx=rows,
        block_table=table,
        causal=True,
        window_size=window,
        return_softmax_lse=True,
    )
    changed = 0
    for n, length in enumerate(lengths):
        whole = []
        for cache, old, new in ((k_cache, before[0], k), (v_cache, before[1], v)):
            sequence, kept = (c[table[n].long()].flatten(0, 1) if paged else c[rows[n]] for c in (cache, old))
            assert torch.equal(sequence[:length], kept[:length])
            assert torch.equal(sequence[length : length + seqlen_new], new[n])
            assert torch.equal(sequence[length + seqlen_new :], kept[length + seqlen_new :])
            whole.append(sequence[: length + seqlen_new])
            changed += seqlen_new
        expected, expected_lse = attention(q[n], *whole, visible(seqlen_new, len(whole[0]), causal=True, window=window))
        _close(out[n], expected)
        _close(lse[n], expected_lse)
    assert sum(int((a != b).flatten(2).any(2).sum()) for a, b in zip((k_cache, v_cache), before, strict=True)) == changed


def test_lengths_left_padding_and_whole_caches():
    k_cache, v_cache, _ = _caches(False)
    q = _draw(3, 1, 4, 16)
    out = flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=9, cache_leftpad=torch.tensor([0, 2, 8]))
    for n, first in enumerate((0, 2, 8)):
        _close(out[n], attention(q[n], k_cache[n, first:9], v_cache[n, first:9], torch.ones(1, 9 - first, dtype=torch.bool))[0])
    out = flash_attn_with_kvcache(q, k_cache, v_cache)
    _close(out[1], attention(q[1], k_cache[1], v_cache[1], torch.ones(1, 24, dtype=torch.bool))[0])


@pytest.mark.parametrize(("interleaved", "causal"), list(itertools.product([True, False], repeat=2)))
def test_rotary_turns_new_keys_and_queries_at_their_positions(interleaved, causal):
    k_cache, v_cache, _ = _caches(False)
    lengths, seqlen, half = [3, 6], 2, 4
    angle = torch.arange(24)[:, None] * (0.7 ** torch.arange(half).double())
    q, k, v = _draw(2, seqlen, 4, 16), _draw(2, seqlen, 2, 16, seed=3), _draw(2, seqlen, 2, 16, seed=4)
    tables = angle.cos().float(), angle.sin().float()
    out = flash_attn_with_kvcache(
        q,
        k_cache,
        v_cache,
        k,
        v,
        *tables,
        torch.tensor(lengths),
        cache_batch_idx=torch.tensor([0, 1]),
        causal=causal,
        rotary_interleaved=interleaved,
    )

    def turned(x, place):  # complex multiplication of pairs; without a mask all queries stand at the first position
        x = x.double()
        pairs = x[..., : 2 * half].unflatten(-1, (half, 2)) if interleaved else x[..., : 2 * half].unflatten(-1, (2, half)).mT
        both = torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angle), angle)[place][:, None]
        pairs = torch.view_as_real(both)
        return torch.cat([pairs.flatten(-2) if interleaved else pairs.mT.flatten(-2), x[..., 2 * half :]], -1)

    for n, length in enumerate(lengths):
        place = torch.arange(length, length + seqlen)
        expected_k = turned(k[n], place)
        _close(k_cache[n, length : length + seqlen], expected_k)
        queries = turned(q[n], place if causal else torch.full_like(place, length))
        keys = torch.cat([k_cache[n, :length].double(), expected_k])
        expected = attention(queries, keys, v_cache[n, : length + seqlen], visible(seqlen, length + seqlen, causal=causal))[0]
        _close(out[n], expected, torch.float32)


# ---- what is refused, and what torch runs ---------------------------------------------------------------------------

Q4, Q3, CU = torch.zeros(2, 3, 2, 8), torch.zeros(6, 2, 8), torch.tensor([0, 6])
REFUSED = {
    "alibi_slopes": lambda: flash_attn_func(Q4, Q4, Q4, alibi_slopes=torch.ones(2)),
    "alibi_slopes, packed": lambda: flash_attn_varlen_func(Q3, Q3, Q3, CU, CU, 6, 6, alibi_slopes=torch.ones(2)),
    "alibi_slopes, cache": lambda: flash_attn_with_kvcache(Q4, Q4, Q4, alibi_slopes=torch.ones(2)),
    "return_attn_probs": lambda: flash_attn_func(Q4, Q4, Q4, 0.5, return_attn_probs=True),
    "q.shape": lambda: flash_attn_func(Q3, Q4, Q4),
    "k.shape": lambda: flash_attn_varlen_func(Q3, Q4, Q4, CU, CU, 6, 6),
    "k and v": lambda: flash_attn_with_kvcache(Q4, Q4, Q4, Q4, cache_seqlens=0),
    "cache_seqlens": lambda: flash_attn_with_kvcache(Q4, Q4, Q4, Q4, Q4),
    "rotary_cos": lambda: flash_attn_with_kvcache(Q4, Q4, Q4, rotary_cos=torch.ones(3, 2), rotary_sin=torch.ones(3, 2)),
    "cache_batch_idx": lambda: flash_attn_with_kvcache(
        Q4, Q4, Q4, cache_batch_idx=torch.tensor([0, 1]), block_table=torch.tensor([[0], [1]])
    ),
    "cache_leftpad": lambda: flash_attn_with_kvcache(
        Q4, Q4, Q4, cache_leftpad=torch.tensor([0, 1]), block_table=torch.tensor([[0], [1]])
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_done_is_refused_by_name(name):
    with pytest.raises(nki_hf.UnsupportedProblem, match=name.partition(",")[0]):
        REFUSED[name]()


def test_sequences_that_end_behind_the_tokens_are_refused():
    with pytest.raises(ValueError, match="cu_seqlens_k"):
        flash_attn_varlen_func(Q3, Q3, Q3, CU, torch.tensor([0, 7]), 6, 7)


def test_what_no_kernel_takes_runs_torch_is_counted_and_has_its_lse():
    nki_hf.explain(reset=True)
    q, k, v = (_draw(20, 2, 8, seed=s).double() for s in range(3))
    cu = starts([12, 8])
    with pytest.warns(match="torch"):
        out, lse, _ = flash_attn_varlen_func(q, k, v, cu, cu, 12, 12, causal=True, return_attn_probs=True)
    expected, expected_lse = packed(q, k, v, [12, 8], [12, 8], causal=True)
    torch.testing.assert_close(out, expected)
    _close(lse, expected_lse)
    assert nki_hf.explain(reset=True).fallbacks == 1
    with pytest.warns(match="dropout"):
        flash_attn_func(Q4, Q4, Q4, dropout_p=0.5)


@pytest.mark.parametrize("poisoned", ["k", "v"])
def test_slots_beyond_the_length_of_a_sequence_may_hold_anything(poisoned):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 1, 4, 16, generator=generator)
    caches = {name: torch.randn(2, 8, 2, 16, generator=generator) for name in "kv"}
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), caches["k"].double().repeat_interleave(2, 2)) * 16**-0.5
    lengths, leftpad = torch.tensor([6, 4], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)
    slots = torch.arange(8)
    filled = (slots < lengths[:, None]) & (slots >= leftpad[:, None])
    weights = scores.masked_fill(~filled[:, None, None], -torch.inf).softmax(-1)
    expected = torch.einsum("bhqk,bkhd->bqhd", weights, caches["v"].double().repeat_interleave(2, 2))
    caches[poisoned][~filled] = torch.nan
    out = flash_attn_with_kvcache(q, caches["k"], caches["v"], cache_seqlens=lengths, cache_leftpad=leftpad)
    assert torch.allclose(out.double(), expected, atol=1e-5)
