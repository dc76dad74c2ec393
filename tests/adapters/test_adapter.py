"""Transformers' signature and keyword arguments: each one honoured, refused by name, or known to be harmless."""

import re
from pathlib import Path
from types import SimpleNamespace

import model_arguments
import pytest
import torch
from adapter_calls import check, eager, layer, tensors, triangle
from tiny import build, logits, tiny_qwen3, token_ids, worst
from transformers import OlmoeConfig, OlmoeForCausalLM

import nki_hf
from nki_hf import UnsupportedProblem
from nki_hf.adapters.call_log import FallbackWarning
from nki_hf.adapters.model_arguments import MEANINGFUL, PASSED_ALONG
from nki_hf.adapters.transformers import HARMLESS, HONOURED, nki_attention


@pytest.fixture(autouse=True)
def _strict():
    with nki_hf.using(strict=True):
        yield


def test_output_is_contiguous_bshd_in_the_query_dtype_and_weights_are_none():
    query, key, value = (tensor.bfloat16() for tensor in tensors(head_dim_v=5))
    out, weights = nki_attention(layer(), query, key, value, None)
    assert (out.shape, out.dtype, out.is_contiguous(), weights) == ((2, 6, 4, 5), torch.bfloat16, True, None)


def test_parameters_carry_the_names_of_the_protocol():
    query, key, value = tensors()
    out, _ = nki_attention(module=layer(), query=query, key=key, value=value, attention_mask=None, scaling=0.5)
    check(out, eager(query, key, value, triangle(6, 6), scaling=0.5))


@pytest.mark.parametrize(
    ("module", "kwarg", "causal"),
    [
        ({}, None, True),
        ({"is_causal": False}, None, False),
        ({"is_causal": True}, None, True),
        ({"is_causal": True}, False, False),
        ({"is_causal": False}, True, True),
    ],
)
def test_the_is_causal_argument_beats_the_module_and_neither_means_causal(module, kwarg, causal):
    query, key, value = tensors()
    out, _ = nki_attention(layer(**module), query, key, value, None, is_causal=kwarg)
    check(out, eager(query, key, value, triangle(6, 6) if causal else None))


def test_a_given_mask_decides_alone():
    query, key, value = tensors()
    mask = torch.ones(2, 1, 6, 6, dtype=torch.bool)
    out, _ = nki_attention(layer(is_causal=True), query, key, value, mask)
    check(out, eager(query, key, value))


@pytest.mark.parametrize(("seqlen_q", "seqlen_kv"), [(3, 10), (1, 10), (6, 6)])
def test_no_mask_lets_the_last_query_see_the_last_key(seqlen_q, seqlen_kv):
    query, key, value = tensors(seqlen_q=seqlen_q, seqlen_kv=seqlen_kv)
    out, _ = nki_attention(layer(), query, key, value, None)
    check(out, eager(query, key, value, triangle(seqlen_q, seqlen_kv)))


@pytest.mark.parametrize("heads", [(4, 4), (4, 1), (9, 3), (6, 2)])
def test_group_size_comes_from_the_shapes(heads):
    query, key, value = tensors(heads=heads[0], heads_kv=heads[1])
    out, _ = nki_attention(layer(num_key_value_groups=1.5), query, key, value, None)
    check(out, eager(query, key, value, triangle(6, 6)))


def test_one_tensor_as_key_and_value():
    query, key, _ = tensors()
    out, _ = nki_attention(layer(), query, key, key, None)
    check(out, eager(query, key, key, triangle(6, 6)))


@pytest.mark.parametrize("one", ["query", "key"])
def test_a_batch_of_one_is_repeated(one):
    query, key, value = tensors()
    if one == "query":
        query = query[:1]
    else:
        key, value = key[:1], value[:1]
    out, _ = nki_attention(layer(is_causal=False), query, key, value, None)
    check(out, eager(query.expand(2, -1, -1, -1), key.expand(2, -1, -1, -1), value.expand(2, -1, -1, -1)))


def test_softcap_comes_after_the_scale_and_before_the_mask():
    query, key, value = tensors()
    mask = torch.randn(1, 1, 6, 6)
    out, _ = nki_attention(layer(), query * 5, key, value, mask, scaling=0.7, softcap=2.0)
    check(out, eager(query * 5, key, value, mask, scaling=0.7, softcap=2.0))


@pytest.mark.parametrize("name", ["s_aux", "sinks"])
@pytest.mark.parametrize("shape", [(4,), (1, 4, 1, 1), (2, 4, 6, 1), (1, 4, 6, 1), (2, 1, 6, 1)])
def test_sinks_under_both_names_per_head_or_per_row(name, shape):
    query, key, value = tensors()
    sink = torch.randn(shape)
    out, _ = nki_attention(layer(), query, key, value, None, **{name: sink})
    check(out, eager(query, key, value, triangle(6, 6), sink=sink.view(1, 4, 1, 1) if sink.numel() == 4 else sink))


@pytest.mark.parametrize("mask", ["none", "bool", "holes", "float"])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_position_bias_adds_to_every_kind_of_mask(mask, batch):
    query, key, value = tensors()
    bias = torch.randn(batch, 4, 6, 9)
    holes = torch.rand(2, 1, 6, 6, generator=torch.Generator().manual_seed(2)) > 0.3
    holes[..., 0] = True
    given = {"none": None, "bool": triangle(6, 6).expand(2, 1, 6, 6), "holes": holes, "float": torch.randn(2, 1, 6, 6)}[mask]
    out, _ = nki_attention(layer(), query, key, value, given, position_bias=bias)
    check(out, eager(query, key, value, triangle(6, 6) if given is None else given, bias=bias[..., :6]))


def test_indices_restrict_the_keys():
    query, key, value = tensors(batch=1)
    indices = torch.tensor([[[0, 1], [0, 1], [2, 1], [0, 3], [4, 2], [5, 0]]])
    keep = torch.zeros(1, 1, 6, 6, dtype=torch.bool)
    keep[0, 0].scatter_(-1, indices[0], True)
    out, _ = nki_attention(layer(), query, key, value, None, indices=indices)
    check(out, eager(query, key, value, keep & triangle(6, 6)))


def test_indices_restrict_the_keys_of_an_integer_mask():
    query, key, value = tensors(batch=1)
    indices = torch.tensor([[[0, 1], [0, 1], [2, 1], [0, 3], [4, 2], [5, 0]]])
    given = torch.arange(36).reshape(1, 1, 6, 6) % 3
    keep = torch.zeros(1, 1, 6, 6, dtype=torch.bool)
    keep[0, 0].scatter_(-1, indices[0], True)
    with pytest.warns(UserWarning, match="integers are added"):
        out, _ = nki_attention(layer(), query, key, value, given, indices=indices)
    check(out, eager(query, key, value, given.double().masked_fill(~keep, -torch.inf)))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("softcap", [0.0, 0, -2.0, float("inf"), float("nan")])
def test_a_softcap_that_caps_nothing_is_refused_by_name(softcap, strict):
    query, key, value = tensors()
    with nki_hf.using(strict=strict), pytest.raises(UnsupportedProblem, match=r"softcap=.*above 0.*None switches it off"):
        nki_attention(layer(), query, key, value, None, softcap=softcap)


@pytest.mark.parametrize("options", [{"softcap": 0.7}, {"sinks": torch.linspace(-1, 2, 4).double()}, {"s_aux": torch.ones(4)}])
def test_the_fallback_computes_float64_in_float64(options):
    query, key, value = (tensor.double() for tensor in tensors())
    with nki_hf.using(strict=False):
        out, _ = nki_attention(layer(), query, key, value, None, **options)
    sink = options.get("sinks", options.get("s_aux"))
    sink = None if sink is None else sink.view(1, -1, 1, 1)
    expected = eager(query, key, value, triangle(6, 6), softcap=options.get("softcap"), sink=sink)
    assert out.dtype == torch.float64
    torch.testing.assert_close(out, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    "name",
    """
    position_ids use_cache output_hidden_states pixel_values vision_feature_select_strategy vision_feature_layer generation_mode
    image_position_ids min_new_tokens num_beams num_logits_to_keep
    """.split(),
)
def test_harmless_arguments_are_ignored(name):
    query, key, value = tensors()
    out, _ = nki_attention(layer(), query, key, value, None, **{name: torch.ones(3)})
    assert torch.equal(out, nki_attention(layer(), query, key, value, None)[0])


def test_the_list_of_harmless_arguments_is_that_of_the_installed_release():
    can_pass, reads = model_arguments.scan()
    missing = can_pass - reads - model_arguments.TENSORS - set(HONOURED) - MEANINGFUL - HARMLESS
    assert not missing, "run: python tools/model_arguments.py --write"
    assert not (reads & HARMLESS) - {"cache_position"}, "an attention function reads it, so it may change the result"


def test_block_indices_hide_the_keys_that_the_models_indexer_says():
    """The indexer is the model's own (MiniMax M3): it makes a mask of chosen blocks within the mask that it is given."""
    query, key, value = tensors()

    def build_block_mask(chosen, mask, seqlen_kv, dtype, device, positions):
        block = torch.arange(seqlen_kv) // 2
        return mask & (chosen[..., None] == block).any(-2) & (positions[0] == torch.arange(query.shape[2])).all()

    chosen = torch.tensor([[[0, 0], [0, 0], [1, 0], [1, 0], [2, 0], [2, 1]]] * 2)[:, None]  # [batch, 1, seqlen_q, blocks]
    module = layer(is_causal=True, indexer=SimpleNamespace(build_block_mask=build_block_mask))
    out, _ = nki_attention(module, query, key, value, None, block_indices=chosen)
    seen = torch.tensor(
        [[1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 1, 0], [0, 0, 1, 1, 1, 1]]
    ).bool()
    torch.testing.assert_close(out.double(), eager(query, key, value, mask=seen[None, None]), rtol=1e-5, atol=1e-5)


def test_every_argument_that_is_listed_by_hand_has_a_test():
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    listed = (HARMLESS - PASSED_ALONG) | set(HONOURED)
    assert listed
    assert {name for name in listed if not re.search(rf"\b{name}\b", tests)} == set()


@pytest.mark.parametrize("name", ["head_mask", "layer_head_mask"])
def test_an_argument_that_changes_values_and_that_torch_has_no_place_for_is_refused_in_any_mode(name):
    query, key, value = tensors()
    with nki_hf.using(strict=False), pytest.raises(UnsupportedProblem, match=f"{name}=given"):
        nki_attention(layer(), query, key, value, None, **{name: torch.ones(4)})


def test_a_window_without_a_mask_hides_nothing_as_in_eager():
    """OLMoE passes a window that its mask never had."""
    config = OlmoeConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_experts=2,
        num_experts_per_tok=1,
        sliding_window=4,
        pad_token_id=0,
        eos_token_id=None,
        bos_token_id=None,
    )
    model, ids = build(OlmoeForCausalLM, config), token_ids(2, 9)
    assert worst(logits(model, "nki", ids), logits(model, "eager", ids)) <= 1e-5


def test_an_unknown_argument_is_named_in_strict_and_a_counted_fallback_else():
    query, key, value = tensors()
    with pytest.raises(UnsupportedProblem, match="attention_sparsity=float is not supported"):
        nki_attention(layer(), query, key, value, None, attention_sparsity=0.5)
    nki_attention(layer(), query, key, value, None, attention_sparsity=None)
    nki_hf.explain(reset=True)
    with nki_hf.using(strict=False), pytest.warns(FallbackWarning, match="attention_sparsity"):
        nki_attention(layer(), query, key, value, None, attention_sparsity=0.5)
    assert nki_hf.explain().fallbacks == 1


@pytest.mark.parametrize("options", [{"softcap": 2.0}, {"s_aux": torch.randn(4)}, {"position_bias": torch.randn(1, 4, 6, 6)}])
def test_the_fallback_honours_every_option(options):
    """The same call by a kernel and, with an argument that no kernel knows, by torch."""
    query, key, value = tensors()
    mask = triangle(6, 6).repeat(2, 1, 1, 1)
    mask[0, ..., :2] = False
    by_kernel, _ = nki_attention(layer(), query, key, value, mask, scaling=0.4, **options)
    with nki_hf.using(strict=False):
        by_torch, _ = nki_attention(layer(), query, key, value, mask, scaling=0.4, unheard_of=1, **options)
    torch.testing.assert_close(by_torch, by_kernel, rtol=2e-6, atol=2e-6)


def test_a_tensor_subclass_is_refused():
    class Sharded(torch.Tensor):
        pass

    query, key, value = tensors()
    with pytest.raises(UnsupportedProblem, match="q=Sharded"):
        nki_attention(layer(), query.as_subclass(Sharded), key, value, None)


def test_continuous_batching_is_refused_by_transformers_with_the_name():
    model = tiny_qwen3()
    model.set_attn_implementation("nki")
    with pytest.raises(ValueError, match=r"nki.*continuous batching"):
        model.generate_batch([[1, 2, 3]], generation_config=model.generation_config)


@pytest.mark.parametrize("name", ["k", "v"])
def test_a_tensor_subclass_in_any_place_is_refused(name):
    class Subclass(torch.Tensor):
        pass

    places = dict(zip("qkv", tensors(), strict=True))
    places[name] = places[name].as_subclass(Subclass)
    with pytest.raises(UnsupportedProblem, match=f"{name}=Subclass"):
        nki_hf.attention(**places)


@pytest.mark.parametrize("window", [0, -1, 2.5, True])
def test_a_window_that_counts_no_keys_is_refused_with_a_mask_too(window):
    with pytest.raises(ValueError, match=f"window={window}"):
        nki_hf.attention(*tensors(), torch.ones(6, 6, dtype=torch.bool), window=window)
