"""Masks on the native stand-in: which structure reaches the kernel, and that the numbers are eager's."""

import numpy as np
import pytest
import torch
from fake_neuron import MACHINE
from mask_cases import CASES, SEQLEN, SIZES, WINDOW, compare, masks_seen, models, padding_of  # noqa: F401  (a fixture)
from transformers import Gemma2Config, Gemma2Model, GptOssConfig, GptOssModel, Llama4TextConfig, Llama4TextModel, StaticCache
from transformers import masking_utils as builders

import nki_hf
from nki_hf.adapters.device_mask import DeviceMask
from nki_hf.adapters.mask_function import nki_mask
from tools import mask_blocks

_VIEWS = ("aten::slice", "aten::view", "aten::detach", "aten::alias", "aten::expand", "aten::copy_")


@pytest.fixture(autouse=True)
def _strict():
    torch._dynamo.reset()
    with nki_hf.using(strict=True):
        yield


@pytest.mark.parametrize("cache", [False, True], ids=["no cache", "cache"])
@pytest.mark.parametrize("case", CASES)
def test_a_mask_keeps_its_structure_and_its_numbers(case, cache, masks_seen):  # noqa: F811
    compare(case, cache, masks_seen, compiled=False)


@pytest.mark.parametrize("case", CASES)
def test_explain_names_the_form_of_the_mask(case, masks_seen):  # noqa: F811
    nki_hf.explain(reset=True)
    compare(case, False, masks_seen, compiled=False)
    report = nki_hf.explain(reset=True)
    form = "band + key mask" if CASES[case][1] else "band"
    assert {row.first.problem.mask.form for row in report.rows} == {form}
    assert f"  {form}" in str(report)


@torch.no_grad()
def test_explain_names_a_dense_mask():
    _, on_device = models(None)
    ids = torch.ones(1, 8, dtype=torch.int32)
    mask = torch.ones(1, 1, 8, 8, dtype=torch.bool).tril()
    mask[..., ::3] = True
    nki_hf.explain(reset=True)
    on_device(ids.to("neuron"), attention_mask=mask.to("neuron"), use_cache=False)
    assert {row.first.problem.mask.form for row in nki_hf.explain(reset=True).rows} == {"dense mask"}


def test_padding_with_holes_is_exact(masks_seen):  # noqa: F811
    compare("both", False, masks_seen, compiled=False, holes=True)


@torch.no_grad()
def test_a_static_cache_longer_than_the_prompt_gives_bounds(masks_seen):  # noqa: F811
    on_cpu, on_device = models(None)
    ids, padding = torch.arange(2 * SEQLEN).reshape(2, -1) % 63, padding_of()
    expected = on_cpu(ids, attention_mask=padding, use_cache=False).last_hidden_state
    cache = StaticCache(config=on_device.config, max_cache_len=300)
    inputs = {"attention_mask": padding.to("neuron"), "cache": cache}
    found = on_device(ids.to("neuron"), **inputs).last_hidden_state.cpu()
    torch.testing.assert_close(found[padding.bool()], expected[padding.bool()], rtol=0, atol=2e-2)
    assert all(mask.ahead == 1 and not mask.bias_rows for mask, _ in masks_seen)


def test_layers_share_one_conversion_of_the_mask():
    _, on_device = models(None)
    ids = torch.ones(2, SEQLEN, dtype=torch.int32).to("neuron")
    MACHINE.ops.clear()
    with torch.no_grad():
        on_device(ids, attention_mask=padding_of().to("neuron"), use_cache=False)
    large = [name for name, sizes in MACHINE.ops if sizes and max(sizes) >= 2 * SEQLEN * SEQLEN]
    assert large == [], "something of seqlen x seqlen was built"
    conversions = [sizes for name, sizes in MACHINE.ops if name == "aten::_to_copy" and 2 * SEQLEN in sizes]
    # The padding to bool by Transformers, and to the dtype of kernels: once for both layers.
    assert len(conversions) <= 3, MACHINE.ops


@pytest.mark.parametrize("kind", ["bool", "float32", "bfloat16"])
def test_a_mask_of_the_users_own_is_converted_once_for_all_layers_and_again_in_the_next_pass(kind):
    on_cpu, on_device = models(None)
    ids = torch.ones(1, 140, dtype=torch.int64)
    # Half of the keys hidden at random: only a dense mask says so.
    seen = (torch.rand(1, 1, 140, 140, generator=torch.Generator().manual_seed(3)) > 0.5) | torch.eye(140, dtype=torch.bool)
    given = seen if kind == "bool" else torch.zeros(seen.shape).masked_fill(~seen, -1e4).to(getattr(torch, kind))
    other = given.flip(3).contiguous()
    other[..., torch.arange(140), torch.arange(140)] = True if kind == "bool" else 0.0
    mask = given.to("neuron")
    with torch.no_grad():
        for values in (given, other):
            mask.data.copy_(values.to("neuron"))  # a write that the mask's version does not tell
            expected = on_cpu(ids, attention_mask=values if kind == "bool" else values.float(), use_cache=False)
            MACHINE.ops.clear()
            found = on_device(ids.int().to("neuron"), attention_mask=mask, use_cache=False).last_hidden_state.cpu()
            torch.testing.assert_close(found, expected.last_hidden_state, rtol=0, atol=2e-2)
            made = [name for name, sizes in MACHINE.ops if max(sizes, default=0) == 140 * 140 and name not in _VIEWS]
            assert len(made) == len(set(made)), made  # each conversion once, not once a layer
            assert made, "nothing was converted: the test looks at the wrong ops"


# ---- what is not the adapter sees the mask that a DeviceMask stands for ------------------------------------------------------


def _mask(function=builders.causal_mask_function, padding=None, **changes):
    options = {
        "batch_size": 2,
        "q_length": 5,
        "kv_length": 8,
        "q_offset": 3,
        "kv_offset": 0,
        "mask_function": function,
        "attention_mask": padding,
        "allow_is_causal_skip": True,
        "device": torch.device("neuron"),
        "config": None,
    }
    return nki_mask(**options | changes)


def _expected(function=builders.causal_mask_function, padding=None, **changes):
    options = {"q_length": 5, "kv_length": 8, "q_offset": 3, "kv_offset": 0} | changes
    return builders.sdpa_mask(
        batch_size=2, mask_function=function, attention_mask=padding, allow_is_causal_skip=False, **options
    )


FUNCTIONS = {
    "causal": builders.causal_mask_function,
    "window": builders.sliding_window_causal_mask_function(3),
    "both directions": builders.sliding_window_bidirectional_mask_function(2),
    "everything": builders.bidirectional_mask_function,
}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("offset", [3, 0, torch.tensor(2)], ids=str)
def test_a_device_mask_stands_for_transformers_own_mask(function, padded, offset):
    padding = torch.tensor([[0, 0, 1, 1, 1, 1, 0, 1], [1] * 8]).bool() if padded else None
    on_device = None if padding is None else padding.to("neuron")
    placed = offset.to("neuron") if isinstance(offset, torch.Tensor) else offset
    mask = _mask(FUNCTIONS[function], on_device, q_offset=placed)
    assert isinstance(mask, DeviceMask)
    expected = _expected(FUNCTIONS[function], padding, q_offset=offset)
    assert mask.shape == expected.shape
    for found, right in (
        (mask.dense(), expected),
        (mask[:, :, 1:, :6], expected[:, :, 1:, :6]),
        (~mask, ~expected),
        (mask & mask, expected),
        (torch.where(mask, 0.0, 1.0), torch.where(expected, 0.0, 1.0)),
        (mask.to(torch.float32), expected.to(torch.float32)),
        (mask == 0, expected == 0),
    ):
        assert torch.equal(found.cpu(), right)
    for moved in (mask.to("cpu"), mask.to("cpu", torch.bool), mask.to(device=torch.device("cpu"))):
        assert isinstance(moved, DeviceMask), "the structure was lost on the way"
        assert moved.dense().device.type == "cpu"
        assert torch.equal(moved.dense(), expected)
    assert mask.to(mask.device).keys(5, 8) is not None


def test_keys_of_a_window_that_slid_on_count_from_its_first():
    window, padding = builders.sliding_window_causal_mask_function(4), torch.ones(2, 11).bool()
    padding[0, :5] = False
    sizes = {"q_length": 3, "kv_length": 6, "q_offset": 8, "kv_offset": 5}
    mask = _mask(window, padding.to("neuron"), local_size=4, **sizes)
    assert torch.equal(mask.dense().cpu(), _expected(window, padding, **sizes))
    assert (mask.q_offset, mask.window, mask.ahead) == (3, 4, 1)


@pytest.mark.parametrize(("q_offset", "kv_offset", "triangle"), [(0, 0, True), (5, 5, True), (3, 0, False), (2, 5, False)])
def test_as_many_rows_as_keys_are_a_triangle_only_where_both_begin_at_one_position(q_offset, kv_offset, triangle):
    sizes = {"q_length": 5, "kv_length": 5, "q_offset": q_offset, "kv_offset": kv_offset}
    mask = _mask(**sizes)
    assert (mask is None) == triangle
    if mask is not None:
        assert torch.equal(mask.dense().cpu(), _expected(**sizes))


@pytest.mark.parametrize("kind", ["chunked", "image blocks", "user"])
def test_what_is_no_band_stays_a_dense_mask(kind):
    block = torch.tensor([[-1, 0, 0, 0, -1, 1, 1, -1]] * 2).to("neuron")
    function, changes = {
        "chunked": (builders.chunked_causal_mask_function(3, torch.zeros(2).int().to("neuron")), {"local_size": 3}),
        "image blocks": (
            builders.or_masks(builders.causal_mask_function, builders.blockwise_overlay(block)),
            {"allow_is_causal_skip": False},
        ),
        "user": (lambda b, h, q, k: (k <= q) & (k % 2 == 0), {}),
    }[kind]
    mask = _mask(function, **changes)
    expected = builders.sdpa_mask(
        batch_size=2, q_length=5, kv_length=8, q_offset=3, mask_function=function, device="neuron", allow_is_causal_skip=False
    )
    assert mask.bias.shape[2] == 5
    assert torch.equal(mask.dense().cpu(), expected.cpu())


def _chunked_model(place):
    torch.manual_seed(0)
    config = Llama4TextConfig(
        **SIZES,
        attention_chunk_size=WINDOW,
        intermediate_size_mlp=32,
        num_local_experts=1,
        moe_layers=[],
        pad_token_id=0,
        layer_types=["chunked_attention", "full_attention"],
        no_rope_layers=[1, 1],
        attn_temperature_tuning=False,
        attn_implementation="eager",
    )
    model = Llama4TextModel(config).eval()
    if place == "neuron":
        model.set_attn_implementation("nki")
    return model.to(place)


def _assert_near(model, ids, padding, expected, *, compiled):
    """The model on the device gives what one on the CPU gave, wherever a token is real."""

    def forward(ids, padding):
        return model(ids, attention_mask=padding, use_cache=False).last_hidden_state

    run = torch.compile(forward, backend="neuron", fullgraph=True, dynamic=False) if compiled else forward
    found = run(ids.int().to("neuron"), None if padding is None else padding.int().to("neuron")).cpu()
    seen = slice(None) if padding is None else padding.bool()
    torch.testing.assert_close(found[seen], expected[seen], rtol=0, atol=2e-2)


@torch.no_grad()
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "left-padded"])
def test_chunks_of_a_prompt_are_a_band_and_where_each_begins(padded, compiled, masks_seen):  # noqa: F811
    ids = torch.randint(1, 64, (2, SEQLEN), generator=torch.Generator().manual_seed(1))
    padding = padding_of() if padded else None
    expected = _chunked_model("cpu")(ids, attention_mask=padding, use_cache=False).last_hidden_state
    _assert_near(_chunked_model("neuron"), ids, padding, expected, compiled=compiled)
    masks = {mask for mask, _ in masks_seen}
    assert {mask.window for mask in masks} == {WINDOW, None}
    assert all(mask.ahead == 1 and not mask.bias_rows for mask in masks), masks
    assert all(mask.runtime_bounds for mask in masks if mask.window)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("length", [2, 7, 8, 9, 40])
def test_a_mask_of_chunks_stands_for_transformers_own(length, padded):
    padding = torch.ones(2, length).bool()
    padding[1, : length // 2] = False
    before = (~padding).sum(-1) if padded else torch.zeros(2, dtype=torch.int64)
    sizes = {"batch_size": 2, "q_length": length, "kv_length": length}
    function = builders.chunked_causal_mask_function(8, before)
    expected = builders.sdpa_mask(
        **sizes, mask_function=function, attention_mask=padding if padded else None, allow_is_causal_skip=False
    )
    on_device = builders.chunked_causal_mask_function(8, before.to("neuron"))
    mask = nki_mask(
        **sizes,
        mask_function=on_device,
        attention_mask=padding.to("neuron") if padded else None,
        use_vmap=False,
        local_size=8,
        device=torch.device("neuron"),
        config=Llama4TextConfig(attention_chunk_size=8),
    )
    assert (mask.window, mask.ahead) == (8, 1)
    assert torch.equal(mask.dense().cpu(), expected)


# ---- models that decline sdpa ------------------------------------------------------------------------------------------------

DECLINING = {
    "gemma2": (Gemma2Config, Gemma2Model, {"query_pre_attn_scalar": 16}),
    "gpt_oss": (GptOssConfig, GptOssModel, {"num_local_experts": 2, "num_experts_per_tok": 1}),
}


def _declining(kind, place):
    config, model, own = DECLINING[kind]
    torch.manual_seed(0)
    sizes = {**SIZES, **own, "sliding_window": WINDOW, "pad_token_id": 0, "attn_implementation": "eager"}
    made = model(config(**sizes)).eval()
    for layer in made.layers:
        if kind == "gpt_oss":  # its experts count with a histogram of integers, and have nothing to do with attention
            layer.mlp.forward = lambda hidden: (hidden, None)
    if place == "neuron":
        made.set_attn_implementation("nki")
    return made.to(place)


@torch.no_grad()
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "left-padded"])
@pytest.mark.parametrize("kind", DECLINING)
def test_a_model_that_declines_sdpa_keeps_the_structure_of_its_masks(kind, padded, compiled, masks_seen):  # noqa: F811
    ids = torch.randint(1, 64, (2, SEQLEN), generator=torch.Generator().manual_seed(1))
    padding = padding_of() if padded else None
    expected = _declining(kind, "cpu")(ids, attention_mask=padding, use_cache=False).last_hidden_state
    _assert_near(_declining(kind, "neuron"), ids, padding, expected, compiled=compiled)
    masks = {mask for mask, _ in masks_seen}
    assert {mask.window for mask in masks} == {WINDOW, None}
    assert all(mask.ahead == 1 and not mask.bias_rows for mask in masks), masks


@pytest.mark.parametrize("function", ["causal", "window", "everything"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_where_a_declining_model_adds_its_mask_it_adds_eagers(function, padded, dtype):
    padding = torch.tensor([[0, 0, 1, 1, 1, 1, 0, 1], [1] * 8]).bool() if padded else None
    sizes = {"batch_size": 2, "q_length": 5, "kv_length": 8, "q_offset": 3, "mask_function": FUNCTIONS[function]}
    expected = builders.eager_mask(**sizes, attention_mask=padding, dtype=dtype)
    placed = None if padding is None else padding.to("neuron")
    device = torch.device("neuron")
    mask = nki_mask(
        **sizes,
        attention_mask=placed,
        dtype=dtype,
        device=device,
        config=Gemma2Config(),
        allow_is_bidirectional_skip=function == "everything",
    )
    assert isinstance(mask, DeviceMask)
    scores = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(2)).to(dtype)
    assert mask.dtype == dtype
    assert torch.equal((scores.to("neuron") + mask).cpu(), scores + expected)
    assert torch.equal((mask + scores.to("neuron")).cpu(), scores + expected)
    assert torch.equal(mask[..., 1:, :6].cpu(), expected[..., 1:, :6])
    assert isinstance(mask.to(dtype), DeviceMask), "the structure was lost on the way"
    assert torch.equal(mask.to(torch.float64).cpu(), expected.to(torch.float64))
    assert torch.equal(mask.to("cpu").tensor(), expected)


class _Attends(torch.nn.Module):
    """Somebody's attention, put into a model: it knows tensors only."""

    def forward(self, hidden_states, attention_mask=None, **_):
        scores = hidden_states @ hidden_states.mT
        if isinstance(attention_mask, torch.Tensor):
            scores = scores + attention_mask[:, 0]
        return torch.softmax(scores, -1) @ hidden_states, None


@torch.no_grad()
def test_an_attention_that_was_put_into_a_declining_model_gets_eagers_mask_as_a_tensor():
    ids = torch.randint(1, 64, (2, 20), generator=torch.Generator().manual_seed(1))
    results = []
    for place in ("cpu", "neuron"):
        model = _declining("gemma2", place)
        model.layers[0].self_attn = _Attends()
        results.append(model(ids.int().to(place), use_cache=False).last_hidden_state.cpu())
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=2e-2)


# ---- the tool that counts blocks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["causal", "window, left-padded"])
def test_the_tool_counts_the_blocks_that_hold_a_visible_key(case):
    seqlen = 1024
    sliding, padded = mask_blocks.CASES[case]
    rows, keys = np.arange(seqlen)[:, None], np.arange(seqlen)[None]
    seen = keys <= rows
    if sliding:
        seen &= keys > rows - mask_blocks.WINDOW[seqlen]
    # Padding is known when the kernel runs: no block is left out for it.
    expected = int(seen.reshape(seqlen // 128, 128, seqlen // 512, 512).any(axis=(1, 3)).sum())
    blocks, problem = mask_blocks.row(case, seqlen)
    assert blocks == {"cpu": expected, "eager": expected, "compiled": expected}
    assert (problem.mask.window is not None, problem.mask.bias is not None) == (sliding, padded)
