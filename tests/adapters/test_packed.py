"""Packed sequences in pieces: every visible pair of row and key once and no other; packed training; how many programs."""

import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_qwen3
from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments
from varlen_reference import starts, visible

import nki_hf
from nki_hf.adapters.keys import Keys
from nki_hf.adapters.masks import read_mask
from nki_hf.adapters.packed.mixed import MixedSequencesWarning
from nki_hf.adapters.packed.pieces import KINDS, Segments, cut
from nki_hf.adapters.packed.segments import segments_of, segments_of_bounds
from nki_hf.adapters.transformers import nki_attention
from nki_hf.flash_attn import flash_attn_varlen_func


def _segments(lengths, history=None, **reach):
    kv = [a + b for a, b in zip(lengths, history or [0] * len(lengths), strict=True)]
    return Segments(cu_q=tuple(starts(lengths).tolist()), cu_kv=tuple(starts(kv).tolist()), **reach)


def _seen_by_pieces(pieces, rows, keys):
    """How often each row of the pack meets each key, by the pieces' own masks."""
    count, offset = np.zeros((rows, keys), int), 0
    owner = {}
    for row, places in enumerate(pieces.slots):
        owner.update((place, row) for place in places)
    for launch in pieces.launches:
        for piece in range(launch.kind.pieces):
            for i in range(launch.kind.rows):
                row = owner.get(offset + piece * launch.kind.rows + i)
                if row is None:
                    continue
                assert launch.rows[piece, i] == row
                if launch.kind.mask == "causal":
                    seen = np.arange(launch.kind.keys) <= i
                elif launch.kind.mask == "keys":
                    seen = launch.seen[piece]
                else:
                    seen = (np.arange(launch.kind.keys) >= launch.lo[piece, i]) & (
                        np.arange(launch.kind.keys) < launch.hi[piece, i]
                    )
                np.add.at(count[row], launch.keys[piece][seen], 1)
        offset += launch.kind.pieces * launch.kind.rows
    return count


sequence = st.tuples(st.integers(0, 700), st.integers(-3, 600))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(sequence, min_size=1, max_size=3),
    st.sampled_from(
        [(-1, -1, True), (0, 0, True), (100, 0, True), (530, 0, True), (-1, -1, False), (70, 30, False), (-1, 5, False)]
    ),
)
def test_every_visible_pair_is_met_once_and_no_other(sequences, mask):
    left, right, causal = mask
    lengths = [rows for rows, _ in sequences]
    history = [max(more, -rows) for rows, more in sequences]
    ahead = 1 if causal else None if right < 0 else right + 1
    segments = _segments(lengths, history, window=None if left < 0 else left + 1, ahead=ahead)
    found = _seen_by_pieces(cut(segments), segments.cu_q[-1], segments.cu_kv[-1])
    expected = np.zeros_like(found)
    for n, rows in enumerate(lengths):
        q, k = slice(*segments.cu_q[n : n + 2]), slice(*segments.cu_kv[n : n + 2])
        expected[q, k] = visible(rows, k.stop - k.start, causal=causal, window=(left, right)).numpy()
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(("count", "tokens"), [(16, 512), (64, 128), (5, 640), (3, 1100)])
def test_only_tiles_of_a_sequences_own_block_are_visited(count, tokens):
    pieces = cut(_segments([tokens] * count, ahead=1))
    tiles = -(-tokens // 128)
    assert pieces.needed == count * tiles * (tiles + 1) // 2
    assert pieces.visited <= 1.1 * pieces.needed


def test_any_lengths_use_few_kinds_of_pieces():
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(40):
        lengths = rng.integers(1, 2000, 6).tolist()
        history = rng.integers(0, 2000, 6).tolist()
        for window in (None, 512):
            seen |= {launch.kind for launch in cut(_segments(lengths, history, ahead=1, window=window)).launches}
            seen |= {launch.kind for launch in cut(_segments([1] * 6, history, ahead=1, window=window)).launches}
    assert seen <= {*KINDS.values()} | {kind for kind in seen if kind.name in ("decode 512", "decode 2048")}


def test_a_request_never_meets_what_another_holds():
    # NaN in the keys and values of one sequence, inf in those of another.
    lengths = [3, 200, 1, 90]
    cu = starts(lengths)
    q, k, v = (torch.randn(294, 2, 16, generator=torch.Generator().manual_seed(n)) for n in range(3))
    clean = flash_attn_varlen_func(q, k, v, cu, cu, 200, 200, causal=True)
    k[:3], v[:3], v[204:] = torch.nan, torch.nan, torch.inf
    found = flash_attn_varlen_func(q, k, v, cu, cu, 200, 200, causal=True)
    assert torch.equal(found[3:204], clean[3:204])


@pytest.mark.parametrize("decoded", [False, True])
def test_nan_in_one_sequence_reaches_no_gradient_of_another(decoded):
    # The first keys of the pack belong to a sequence without rows: its key 0 and row 0 are of different sequences.
    rows, keys = ([0, 5, 1, 9], [3, 5, 700, 9]) if decoded else ([0, 5, 295], [3, 5, 295])
    drawn = [torch.randn(sum(n), 2, 16, generator=torch.Generator().manual_seed(s)) for s, n in enumerate((rows, keys, keys))]
    for sick in range(len(keys)):
        found = []
        k = slice(sum(keys[:sick]), sum(keys[: sick + 1]))
        q = slice(sum(rows[:sick]), sum(rows[: sick + 1]))
        for value in (None, torch.nan):
            given = [each.clone() for each in drawn]
            if value is not None:
                given[1][k], given[2][k] = value, value
            given = [each.requires_grad_() for each in given]
            out = flash_attn_varlen_func(*given, starts(rows), starts(keys), causal=True)
            (out * out).sum().backward()
            found.append((out.detach(), *(each.grad for each in given)))
        for clean, other, own in zip(*found, (q, q, k, k), strict=True):
            well = torch.ones(len(clean), dtype=torch.bool)
            well[own] = False
            assert torch.equal(clean[well], other[well])


def test_first_rows_that_are_none_are_refused_by_the_name_that_models_pass():
    q = torch.zeros(1, 2, 10, 16)
    module = SimpleNamespace(is_causal=True, training=False, config=None)
    good = torch.tensor([0, 10])
    for bad in ([0, 7, 5, 10], [3, 10], [0, 12], [0, -2, 10], [0], []):
        with pytest.raises(ValueError, match="cu_seq_lens_q"):
            nki_attention(module, q, q, q, None, cu_seq_lens_q=torch.tensor(bad, dtype=torch.int32))
    with pytest.raises(ValueError, match="cu_seq_lens_k"):
        nki_attention(module, q, q, q, None, cu_seq_lens_q=good, cu_seq_lens_k=torch.tensor([0, 5, 10]))
    with pytest.raises(ValueError, match=r"cu_seq_lens_q\.dtype=float"):
        nki_attention(module, q, q, q, None, cu_seq_lens_q=good.float())


def test_sequences_are_found_in_the_bounds_of_a_mask():
    for lengths, window in (([3, 5, 2], None), ([9, 6], 4), ([4], None)):
        cu = starts(lengths)
        keys = Keys().within_segments(cu, cu, seqlen_q=sum(lengths), ahead=1, window=window)
        found = segments_of_bounds(keys, sum(lengths))
        assert found == segments_of(cu, cu, window=window, ahead=1)
    padded = Keys(lo=torch.tensor([[0, 0, 2, 2]], dtype=torch.int32), hi=torch.tensor([[0, 0, 3, 4]], dtype=torch.int32))
    chunks = Keys().within_segments(starts([9]), starts([9]), seqlen_q=9, ahead=1, chunk=4)
    both_ways = Keys().within_segments(starts([4, 5]), starts([4, 5]), seqlen_q=9)
    assert segments_of_bounds(padded, 4) is None
    assert segments_of_bounds(both_ways, 9) is None
    assert segments_of_bounds(chunks, 9) == Segments(cu_q=(0, 4, 8, 9), cu_kv=(0, 4, 8, 9), ahead=1)  # the same keys


def test_layers_that_share_a_mask_ask_for_its_sequences_once(monkeypatch):
    from nki_hf.adapters.packed import segments as found

    asked, real = [], found._sequences
    monkeypatch.setattr(found, "_sequences", lambda keys, seqlen: asked.append(1) or real(keys, seqlen))

    def packed(lengths):
        return torch.block_diag(*(torch.ones(n, n, dtype=torch.bool).tril() for n in lengths))[None, None]

    def read():
        return read_mask(mask, q=torch.zeros(1, 2, 9, 4), seqlen_kv=9, causal=False)

    mask = packed([4, 5])
    for _ in range(5):
        assert segments_of_bounds(read(), 9).cu_q == (0, 4, 9)
    assert len(asked) == 1
    mask.data.copy_(packed([2, 7]))  # a write that no version tells
    assert segments_of_bounds(read(), 9).cu_q == (0, 2, 9)
    assert segments_of_bounds(replace(read(), bias=torch.zeros(1, 1, 9, 9)), 9) is None
    mask.copy_(torch.ones(9, 9).tril(2) > 0)  # runs that are no pack: the answer None is kept as well
    mask[..., 0, 0] = False
    for _ in range(5):
        assert segments_of_bounds(read(), 9) is None
    assert len(asked) == 3


def test_bounds_of_somebody_else_are_read_every_time():
    def bounds(lengths):
        keys = Keys().within_segments(starts(lengths), starts(lengths), seqlen_q=9, ahead=1)
        return keys.lo, keys.hi

    lo, hi = (each.clone() for each in bounds([4, 5]))
    keys = Keys(lo=lo, hi=hi)
    assert segments_of_bounds(keys, 9).cu_q == (0, 4, 9)
    lo.copy_(bounds([2, 7])[0])
    assert segments_of_bounds(keys, 9).cu_q == (0, 2, 9)


def test_packed_training_by_positions_equals_each_sequence_alone_and_runs_in_pieces():
    lengths = [200, 300, 5, 120, 260, 400, 150]
    ids = torch.randint(1, 64, (1, sum(lengths)), generator=torch.Generator().manual_seed(0))
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    grads = []
    for implementation in ("nki", "eager"):
        model = tiny_qwen3(max_position_embeddings=512).train()
        model.set_attn_implementation(implementation)
        nki_hf.explain(reset=True)
        if implementation == "nki":
            logits = [model(ids, position_ids=positions, use_cache=False).logits]
            report = nki_hf.explain()
        else:
            logits = [model(part, use_cache=False).logits for part in ids.split(lengths, 1)]
        torch.cat(logits, 1).pow(2).mean().backward()
        grads.append([torch.cat(logits, 1).detach(), *(weight.grad for weight in model.parameters())])
    for found, expected in zip(*grads, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    assert report.fallbacks == 0
    assert max(row.seqlens_q[1] for row in report.rows) < sum(lengths)


def test_a_batch_in_trls_form_equals_each_sequence_alone():
    lengths = [90, 1, 240, 60, 300]
    ids = torch.randint(1, 64, (1, sum(lengths)), generator=torch.Generator().manual_seed(0))
    cu = starts(lengths)
    batch = {
        "position_ids": torch.cat([torch.arange(n) for n in lengths])[None],
        "cu_seq_lens_q": cu,
        "cu_seq_lens_k": cu,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
        "seq_idx": torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[None],
    }
    model = tiny_qwen3(max_position_embeddings=512)
    with torch.no_grad():
        expected = torch.cat([model(part, use_cache=False).logits for part in ids.split(lengths, 1)], 1)
        model.set_attn_implementation("nki")
        # The cache that a forward makes by default keeps Transformers from reading positions: the first rows are enough.
        for use_cache in (False, True):
            found = model(ids, use_cache=use_cache, **batch).logits
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_packed_mask_that_a_batch_shares_holds_for_every_entry():
    lengths = [300, 90, 250]
    cu, total = starts(lengths), sum(lengths)
    keys = Keys().within_segments(cu, cu, seqlen_q=total, ahead=1)
    mask = keys.dense(total, total, torch.device("cpu"))
    q, k, v = torch.randn(3, 2, 2, total, 16, generator=torch.Generator().manual_seed(0))
    module = SimpleNamespace(is_causal=True, training=False)
    both, _ = nki_attention(module, q, k, v, mask)
    for entry in range(2):
        alone, _ = nki_attention(module, *(each[entry : entry + 1] for each in (q, k, v)), mask)
        torch.testing.assert_close(both[entry], alone[0], rtol=0, atol=1e-6)


def _padded(batch):
    longest = max(len(each["input_ids"]) for each in batch)
    ids, seen = torch.zeros(len(batch), longest, dtype=torch.long), torch.zeros(len(batch), longest, dtype=torch.long)
    labels = torch.full_like(ids, -100)
    for n, each in enumerate(batch):
        row = torch.tensor(each["input_ids"])
        ids[n, : len(row)], seen[n, : len(row)], labels[n, 1 : len(row)] = row, 1, row[1:]
    return {"input_ids": ids, "attention_mask": seen, "labels": labels}


@pytest.mark.parametrize("first_rows", [False, True])
def test_a_trainer_with_the_padding_free_collator_has_the_losses_of_a_padded_run_with_eager(first_rows, tmp_path):
    draw = torch.Generator().manual_seed(0)
    data = [{"input_ids": torch.randint(1, 64, (n,), generator=draw).tolist()} for n in (60, 130, 5, 90, 1, 40, 170, 30)]
    runs = {}
    for name, collator in (("eager", _padded), ("nki", DataCollatorWithFlattening(return_flash_attn_kwargs=first_rows))):
        nki_hf.explain(reset=True)
        model = tiny_qwen3(max_position_embeddings=512).train()
        model.set_attn_implementation(name)
        given = TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=4,
            max_steps=2,
            learning_rate=1e-2,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(model, given, train_dataset=data, data_collator=collator)
        with warnings.catch_warnings():
            warnings.simplefilter("error", MixedSequencesWarning)
            trainer.train()
        runs[name] = [step["loss"] for step in trainer.state.log_history if "loss" in step]
    assert runs["nki"] == pytest.approx(runs["eager"], rel=1e-5)
    assert len(set(runs["eager"])) == 2
    report = nki_hf.explain(reset=True)
    assert (report.calls >= 4, report.gradients, report.fallbacks) == (True, 4, 0)
