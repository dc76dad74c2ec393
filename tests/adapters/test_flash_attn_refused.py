"""What FlashAttention's functions refuse: by name, with the value, and before anything is written."""

import re

import pytest
import torch

import nki_hf
from nki_hf.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from nki_hf.settings import using


def I(*numbers):  # noqa: E743, N802
    return torch.tensor(numbers, dtype=torch.int32)


def _draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


TWO = I(2, 2)
NEW = {"k": _draw(2, 1, 2, 16), "v": _draw(2, 1, 2, 16), "cache_seqlens": I(4, 2)}
THREE = {"k": _draw(2, 3, 2, 16), "v": _draw(2, 3, 2, 16)}
ROTARY = {"rotary_cos": torch.ones(8, 4), "rotary_sin": torch.ones(8, 4)}
TABLE = I(0, 1, 2, 3).view(2, 2)
CACHED = {  # arguments beside q [2, 1, 4, 16] and caches [2, 8, 2, 16], or pages [4, 4, 2, 16]: what the message begins with
    "negative length": (NEW | {"cache_seqlens": I(-1, 2)}, "cache_seqlens[0]=-1 "),
    "negative length, int": (NEW | {"cache_seqlens": -1}, "cache_seqlens=-1 "),
    "negative length, read": ({"cache_seqlens": I(2, -1)}, "cache_seqlens[1]=-1 "),
    "length beyond the cache": ({"cache_seqlens": 10}, "cache_seqlens=10 "),
    "length beyond the cache, window": ({"cache_seqlens": 20, "window_size": (3, 0)}, "cache_seqlens=20 "),
    "new keys beyond the cache": (NEW | THREE | {"cache_seqlens": I(2, 7)}, "cache_seqlens[1]=7 "),
    "new keys beyond the cache, int": (NEW | THREE | {"cache_seqlens": 7}, "cache_seqlens=7 "),
    "more new keys than slots": (NEW | {"k": _draw(2, 9, 2, 16), "v": _draw(2, 9, 2, 16)}, "k.shape[1]=9 "),
    "length 4.7": ({"cache_seqlens": 4.7}, "cache_seqlens=4.7 "),
    "length True": ({"cache_seqlens": True}, "cache_seqlens=True "),
    "lengths of floats": ({"cache_seqlens": I(4, 2).float()}, "cache_seqlens.dtype=float32 "),
    "lengths of bools": ({"cache_seqlens": I(4, 2).bool()}, "cache_seqlens.dtype=bool "),
    "one length for two": ({"cache_seqlens": I(4)}, "cache_seqlens.shape=[1] "),
    "lengths of two axes": ({"cache_seqlens": I(4, 2)[None]}, "cache_seqlens.shape=[1, 2] "),
    "v longer than k": (NEW | {"v": _draw(2, 3, 2, 16)}, "v.shape=[2, 3, 2, 16] "),
    "v of another width": (NEW | {"v": _draw(2, 1, 2, 8)}, "v.shape=[2, 1, 2, 8] "),
    "v of fewer heads": (NEW | {"v": _draw(2, 1, 1, 16)}, "v.shape=[2, 1, 1, 16] "),
    "k of one batch": (NEW | {"k": _draw(1, 1, 2, 16)}, "k.shape=[1, 1, 2, 16] "),
    "k of three axes": (NEW | {"k": _draw(2, 2, 16)}, "k.shape=[2, 2, 16] "),
    "k in bfloat16": (NEW | {"k": NEW["k"].bfloat16()}, "k.dtype and k.device=bfloat16 on cpu "),
    "v in bfloat16": (NEW | {"v": NEW["v"].bfloat16()}, "v.dtype and v.device=bfloat16 on cpu "),
    "cache of batch 1": (NEW | {"caches": 1}, "k_cache.shape=[1, 8, 2, 16] "),
    "rows of one entry": (NEW | {"cache_batch_idx": I(0)}, "cache_batch_idx.shape=[1] "),
    "negative row": (NEW | {"cache_batch_idx": I(0, -1)}, "cache_batch_idx[1]=-1 "),
    "row beyond the cache": (NEW | {"cache_batch_idx": I(2, 0)}, "cache_batch_idx[0]=2 "),
    "rows of bools": (NEW | {"cache_batch_idx": I(0, 1).bool()}, "cache_batch_idx.dtype=bool "),
    "leftpad of one entry": (NEW | {"cache_leftpad": I(0)}, "cache_leftpad.shape=[1] "),
    "leftpad of three": (NEW | {"cache_leftpad": I(0, 0, 0)}, "cache_leftpad.shape=[3] "),
    "negative leftpad": (NEW | {"cache_leftpad": I(-1, 0)}, "cache_leftpad[0]=-1 "),
    "leftpad beyond the cache": (NEW | {"cache_leftpad": I(0, 9)}, "cache_leftpad[1]=9 "),
    "leftpad of floats": (NEW | {"cache_leftpad": TWO.float()}, "cache_leftpad.dtype=float32 "),
    "negative page, written": (NEW | {"block_table": I(0, -1, 1, -1).view(2, 2)}, "block_table[0, 1]=-1 "),
    "negative page, read": ({"cache_seqlens": I(6, 2), "block_table": I(0, -1, 1, -1).view(2, 2)}, "block_table[0, 1]=-1 "),
    "page beyond the cache": (NEW | {"block_table": I(0, 1, 4, 0).view(2, 2)}, "block_table[1, 0]=4 "),
    "whole cache, negative page": ({"block_table": I(0, 1, 2, -1).view(2, 2)}, "block_table[1, 1]=-1 "),
    "table of one row": (NEW | {"block_table": TABLE[:1]}, "block_table.shape=[1, 2] "),
    "table of one axis": (NEW | {"block_table": I(0, 1)}, "block_table.shape=[2] "),
    "table of floats": (NEW | {"block_table": TABLE.float()}, "block_table.dtype=float32 "),
    "table too short": (NEW | {"block_table": TABLE[:, :1]}, "cache_seqlens[0]=4 "),
    "rotary of width 1": (NEW | ROTARY | {"rotary_sin": torch.ones(8, 1)}, "rotary_sin.shape=[8, 1] "),
    "rotary too wide": (NEW | {"rotary_cos": torch.ones(8, 9), "rotary_sin": torch.ones(8, 9)}, "rotary_cos.shape=[8, 9] "),
    "rotary too short": (NEW | {"rotary_cos": torch.ones(4, 4), "rotary_sin": torch.ones(4, 4)}, "cache_seqlens[0]=4 "),
    "rotary of integers": (NEW | {"rotary_cos": TABLE, "rotary_sin": TABLE}, "rotary_cos.dtype=int32 "),
    "rotary of one axis": (NEW | {"rotary_cos": torch.ones(8), "rotary_sin": torch.ones(8)}, "rotary_cos.shape=[8] "),
    "window None": (NEW | {"window_size": None}, "window_size=None "),
    "window 3": (NEW | {"window_size": 3}, "window_size=3 "),
    "window of floats": (NEW | {"window_size": (1.5, 0)}, "window_size[0]=1.5 "),
    "window below -1": (NEW | {"window_size": (-2, 0)}, "window_size[0]=-2 "),
    "splits below 0": (NEW | {"num_splits": -1}, "num_splits=-1 "),
    "splits of floats": (NEW | {"num_splits": 1.5}, "num_splits=1.5 "),
    "splits True": (NEW | {"num_splits": True}, "num_splits=True "),
    "softcap below 0": (NEW | {"softcap": -1.0}, "softcap=-1.0 "),
    "scale without end": (NEW | {"softmax_scale": float("inf")}, "scale=inf "),
    "sinks of other heads": (NEW | {"s_aux": torch.zeros(3)}, "sink.shape=[3] "),
}


@pytest.mark.parametrize("name", CACHED)
def test_a_cache_is_unchanged_by_what_is_refused(name):
    arguments, words = CACHED[name]
    arguments = dict(arguments)
    rows = arguments.pop("caches", 2)
    shape = (4, 4, 2, 16) if "block_table" in arguments else (rows, 8, 2, 16)
    caches = [_draw(*shape), _draw(*shape) + 1]
    before = [cache.clone() for cache in caches]
    with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
        flash_attn_with_kvcache(_draw(2, 1, 4, 16), *caches, **arguments)
    assert all(map(torch.equal, caches, before))


def test_a_cache_is_unchanged_by_what_a_strict_process_refuses():
    caches = [_draw(2, 8, 2, 16).double(), _draw(2, 8, 2, 16).double()]
    before = [cache.clone() for cache in caches]
    with using(strict=True), pytest.raises(nki_hf.UnsupportedProblem, match="float64"):
        flash_attn_with_kvcache(_draw(2, 1, 4, 16).double(), *caches, NEW["k"].double(), NEW["v"].double(), cache_seqlens=TWO)
    assert all(map(torch.equal, caches, before))


def test_pages_that_no_row_sees_may_be_anything():
    pages, q = [_draw(4, 4, 2, 16), _draw(4, 4, 2, 16) + 1], _draw(2, 1, 4, 16)
    expected = flash_attn_with_kvcache(q, *pages, cache_seqlens=I(7, 3), block_table=TABLE, window_size=(1, 0))
    table = I(-9, 1, 2, 99).view(2, 2)  # before a window of two keys, and behind the last key
    assert torch.equal(
        flash_attn_with_kvcache(q, *pages, cache_seqlens=I(7, 3), block_table=table, window_size=(1, 0)), expected
    )
    packed = dict(causal=True, window_size=(1, 0), block_table=table)
    found = flash_attn_varlen_func(q[:, 0], *pages, I(0, 1, 2), I(0, 7, 10), **packed)[:, None]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


Q, PAGES, CU = _draw(10, 4, 16), _draw(4, 4, 2, 16), I(0, 10)
KEYS = _draw(10, 2, 16)
PACKED = {  # cu_seqlens_q, cu_seqlens_k, more arguments beside q of 10 tokens and k and v of 10: what the message begins with
    "falling": (I(0, 7, 5, 10), I(0, 7, 5, 10), {}, "cu_seqlens_q[2]=5 "),
    "falling keys": (I(0, 5, 7, 10), I(0, 7, 5, 10), {}, "cu_seqlens_k[2]=5 "),
    "negative": (I(0, -2, 10), I(0, -2, 10), {}, "cu_seqlens_q[1]=-2 "),
    "floats": (torch.tensor([0, 7.9, 10]), I(0, 7, 10), {}, "cu_seqlens_q.dtype=float32 "),
    "bools": (CU, CU.bool(), {}, "cu_seqlens_k.dtype=bool "),
    "one entry": (I(0), I(0), {}, "cu_seqlens_q.shape=[1] "),
    "no entry": (I(), I(), {}, "cu_seqlens_q.shape=[0] "),
    "two axes": (CU[None], CU[None], {}, "cu_seqlens_q.shape=[1, 2] "),
    "more sequences of keys": (CU, I(0, 5, 10), {}, "cu_seqlens_k.shape=[3] "),
    "more sequences of rows": (I(0, 5, 10, 10), I(0, 5, 10), {}, "cu_seqlens_k.shape=[3] "),
    "not from 0": (I(3, 7, 10), I(3, 7, 10), {}, "cu_seqlens_q[0]=3 "),
    "keys not from 0": (I(0, 7, 10), I(3, 7, 10), {}, "cu_seqlens_k[0]=3 "),
    "not from 0, and too far": (I(3, 7, 12), I(3, 7, 12), {}, "cu_seqlens_q[0]=3 "),
    "rows that end behind": (I(0, 12), CU, {}, "cu_seqlens_q[-1]=12 "),
    "keys that end behind": (CU, I(0, 12), {}, "cu_seqlens_k[-1]=12 "),
    "max_seqlen too small": (CU, CU, {"max_seqlen_q": 9, "max_seqlen_k": 10}, "max_seqlen_q=9 "),
    "max_seqlen_k too small": (CU, CU, {"max_seqlen_q": 10, "max_seqlen_k": 9}, "max_seqlen_k=9 "),
    "max_seqlen of floats": (CU, CU, {"max_seqlen_q": 10.0}, "max_seqlen_q=10.0 "),
    "max_seqlen True": (CU, CU, {"max_seqlen_k": True}, "max_seqlen_k=True "),
    "window None": (CU, CU, {"window_size": None}, "window_size=None "),
    "window below -1": (CU, CU, {"window_size": (-2, 0)}, "window_size[0]=-2 "),
    "window below -1 ahead": (CU, CU, {"window_size": (3, -7), "causal": True}, "window_size[1]=-7 "),
    "negative page": (CU, I(0, 6), {"block_table": I(0, -1)[None]}, "block_table[0, 1]=-1 "),
    "page beyond": (CU, I(0, 6), {"block_table": I(4, 0)[None]}, "block_table[0, 0]=4 "),
    "table too short": (CU, I(0, 9), {"block_table": I(0, 1)[None]}, "block_table.shape=[1, 2] "),
    "table of too few rows": (I(0, 5, 10), I(0, 4, 8), {"block_table": I(0, 1)[None]}, "block_table.shape=[1, 2] "),
    "table of too many rows": (CU, I(0, 4), {"block_table": TABLE}, "block_table.shape=[2, 2] "),
    "table of one axis": (CU, I(0, 4), {"block_table": I(0, 1)}, "block_table.shape=[2] "),
    "table of floats": (CU, I(0, 4), {"block_table": TABLE[:1].float()}, "block_table.dtype=float32 "),
}


@pytest.mark.parametrize("name", PACKED)
def test_sequences_that_are_none_are_refused(name):
    cu_q, cu_k, more, words = PACKED[name]
    k = PAGES if "block_table" in more else KEYS
    with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
        flash_attn_varlen_func(Q, k, k, cu_q, cu_k, **more)


def test_a_batch_is_not_broadcast_and_a_list_is_no_tensor():
    q, one = _draw(2, 3, 2, 16), _draw(1, 3, 2, 16)
    for given, name in (((q, one, one), "k"), ((one, q, q), "k"), ((q, q, one), "v")):
        with pytest.raises(ValueError, match=rf"^{name}\.shape=\[[12], 3, 2, 16\] .* nothing is broadcast"):
            flash_attn_func(*given)
    with pytest.raises(TypeError, match="cu_seqlens_k=list"):
        flash_attn_varlen_func(Q, KEYS, KEYS, CU, [0, 10])
    with pytest.raises(TypeError, match="cache_leftpad=list"):
        flash_attn_with_kvcache(q, q, q, cache_leftpad=[0, 0])


def test_a_graph_checks_types_and_shapes():
    def packed(cu):
        return flash_attn_varlen_func(Q, KEYS, KEYS, cu, cu, causal=True)

    compiled = torch.compile(packed, backend="eager")
    torch.testing.assert_close(compiled(I(0, 4, 10)), packed(I(0, 4, 10)), rtol=0, atol=1e-6)
    with pytest.raises(Exception, match=r"cu_seqlens_q\.dtype=float32"):
        torch.compile(packed, backend="eager")(CU.float())


@pytest.mark.parametrize("rows", [5, 0])
def test_without_a_visible_key_gradients_are_zeros(rows):
    keys = 0 if rows else 4
    for packed in (True, False):
        given = [_draw(n, heads, 16).requires_grad_() for n, heads in ((rows, 4), (keys, 2), (keys, 2))]
        if packed:
            out = flash_attn_varlen_func(*given, I(0, rows), I(0, keys))
        else:
            out = flash_attn_func(*(each[None] for each in given))
        out.sum().backward()
        for each in given:
            assert torch.equal(each.grad, torch.zeros_like(each))


@pytest.mark.parametrize("lengths", [3, I(3, 2)], ids=["int", "tensor"])
@pytest.mark.parametrize("table", [None, TABLE], ids=["rows", "pages"])
def test_a_cache_is_written_by_one_graph_as_without(lengths, table):
    def step(q, k_cache, v_cache, k, lengths):
        return flash_attn_with_kvcache(q, k_cache, v_cache, k, k, cache_seqlens=lengths, block_table=table, causal=True)

    shape = (2, 8, 2, 16) if table is None else (4, 4, 2, 16)
    caches, others = [torch.zeros(shape), torch.ones(shape)], [torch.zeros(shape), torch.ones(shape)]
    q, k = _draw(2, 1, 4, 16), _draw(2, 1, 2, 16)
    expected = step(q, *caches, k, lengths)
    found = torch.compile(step, backend="eager", fullgraph=True)(q, *others, k, lengths)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert all(map(torch.equal, caches, others))
