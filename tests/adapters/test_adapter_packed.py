"""Packed sequences through Transformers' signature, by cumulative lengths and by position: apart, or refused by name."""

import pytest
import torch
from adapter_calls import check, eager, layer, tensors, triangle
from tiny import build, token_ids
from transformers import Llama4ForCausalLM, Llama4TextConfig

import nki_hf
from nki_hf import UnsupportedProblem
from nki_hf.adapters.transformers import nki_attention


@pytest.fixture(autouse=True)
def _strict():
    with nki_hf.using(strict=True):
        yield


def test_packed_sequences_by_cumulative_lengths_are_separate():
    query, key, value = tensors(batch=1)
    cu = torch.tensor([0, 2, 6], dtype=torch.int32)
    out, _ = nki_attention(layer(), query, key, value, None, cu_seq_lens_q=cu, cu_seq_lens_k=cu, max_length_q=4, max_length_k=4)
    for start, stop in ((0, 2), (2, 6)):
        part = [tensor[:, :, start:stop] for tensor in (query, key, value)]
        check(out[:, start:stop], eager(*part, triangle(stop - start, stop - start)))


def test_packed_sequences_in_a_batch_are_refused_by_name():
    query, key, value = tensors()
    cu = torch.tensor([0, 2, 6], dtype=torch.int32)
    with pytest.raises(UnsupportedProblem, match=r"cu_seq_lens_q.*batch of 1"):
        nki_attention(layer(), query, key, value, None, cu_seq_lens_q=cu, cu_seq_lens_k=cu)


@pytest.mark.parametrize("name", ["cu_seq_lens_q", "cu_seq_lens_k"])
def test_cumulative_lengths_of_one_side_stand_for_both(name):
    query, key, value = tensors(batch=1)
    out, _ = nki_attention(layer(), query, key, value, None, **{name: torch.tensor([0, 2, 6], dtype=torch.int32)})
    for start, stop in ((0, 2), (2, 6)):
        part = [tensor[:, :, start:stop] for tensor in (query, key, value)]
        check(out[:, start:stop], eager(*part, triangle(stop - start, stop - start)))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(("given", "missing"), [("cu_seq_lens_q", "cu_seq_lens_k"), ("cu_seq_lens_k", "cu_seq_lens_q")])
def test_cumulative_lengths_of_one_side_are_refused_where_the_other_has_another_length(given, missing, strict):
    query, key, value = tensors(batch=1, seqlen_kv=9)
    with nki_hf.using(strict=strict), pytest.raises(UnsupportedProblem, match=f"{missing}=None.*seqlen_q=6 and seqlen_kv=9"):
        nki_attention(layer(), query, key, value, None, **{given: torch.tensor([0, 2, 6], dtype=torch.int32)})


def test_packed_chunked_attention_keeps_sequences_apart_with_a_cache():
    """Llama 4: each sequence alone, in eager, is what it is in the pack."""
    config = Llama4TextConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, intermediate_size_mlp=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, attention_chunk_size=4, num_local_experts=2,
        interleave_moe_layer_step=1, layer_types=["chunked_attention", "full_attention"], no_rope_layers=[1, 0],
        attn_temperature_tuning=False, pad_token_id=0, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    model, ids = build(Llama4ForCausalLM, config), token_ids(1, 13)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.3, generator=torch.Generator().manual_seed(len(name)))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        alone = torch.cat([model(ids[:, :6]).logits, model(ids[:, 6:]).logits], 1)
        model.set_attn_implementation("nki")
        cu = torch.tensor([0, 6, 13], dtype=torch.int32)
        places = torch.cat([torch.arange(6), torch.arange(7)])[None]
        packed = {"position_ids": places, "cu_seq_lens_q": cu, "cu_seq_lens_k": cu, "max_length_q": 7, "max_length_k": 7}
        for use_cache in (True, False):
            found = model(ids, use_cache=use_cache, **packed).logits
            torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-4)
