"""Training through the adapter: arguments that come with a loss, labels of rows that are padding, and gradients in a graph."""

import copy

import pytest
import torch
from tiny import tiny_qwen3, token_ids, worst
from ways_models import padding, training_inputs

import nki_hf


@pytest.fixture(autouse=True)
def _strict():
    with nki_hf.using(strict=True):
        yield


def _step(model, implementation, **given):
    """Loss and gradients of one step, from the same weights."""
    model = copy.deepcopy(model).train()
    model.set_attn_implementation(implementation)
    loss = model(**given).loss
    loss.backward()
    return loss.detach(), [weight.grad for weight in model.parameters()]


def test_shifted_labels_reach_the_loss_and_cause_no_fallback():
    ids = token_ids(2, 9)
    shifted = torch.nn.functional.pad(ids[:, 2:], (0, 2), value=-100)  # not the usual shift, so that it must be read
    nki_hf.explain(reset=True)
    given = {"input_ids": ids, "labels": ids, "use_cache": False}
    loss, gradients = _step(tiny_qwen3(), "nki", shift_labels=shifted, **given)
    expected, wanted = _step(tiny_qwen3(), "eager", shift_labels=shifted, **given)
    usual, _ = _step(tiny_qwen3(), "eager", **given)
    assert abs(expected - usual) > 1e-3
    assert abs(loss - expected) < 1e-6
    assert max(map(worst, gradients, wanted)) < 1e-6
    report = nki_hf.explain()
    assert report.calls == 2
    assert report.fallbacks == 0


def test_an_argument_that_is_not_known_is_refused_by_name():
    ids = token_ids(2, 9)
    with pytest.raises(nki_hf.UnsupportedProblem, match="shifted_labels is not a known argument"):
        _step(tiny_qwen3(), "nki", input_ids=ids, labels=ids, shifted_labels=ids)


def test_gradients_are_eagers_where_the_labels_of_padded_rows_are_masked():
    given = training_inputs("decoder", 2, 9, padding(2, 9))
    _, gradients = _step(tiny_qwen3(), "nki", **given)
    _, expected = _step(tiny_qwen3(), "eager", **given)
    assert max(map(worst, gradients, expected)) < 1e-6
    # Rows of padding see no key: eager gives them the mean of all values, kernels zero. A label of one trains on neither.
    unmasked = {**given, "labels": given["input_ids"]}
    _, gradients = _step(tiny_qwen3(), "nki", **unmasked)
    _, expected = _step(tiny_qwen3(), "eager", **unmasked)
    assert max(map(worst, gradients, expected)) > 1e-3


def test_under_left_padding_the_last_padded_row_predicts_the_first_real_token_and_trains_as_under_sdpa():
    ids, mask = token_ids(2, 9), padding(2, 9)
    assert mask[0].tolist() != [1] * 9
    usual = ids.masked_fill(mask == 0, -100)  # labels as collators make them
    careful = usual.clone()
    careful[0, int(mask[0].argmax())] = -100  # the first real token
    found = {}
    for name, labels in (("usual", usual), ("careful", careful)):
        given = {"input_ids": ids, "attention_mask": mask, "labels": labels, "use_cache": False}
        found[name] = {each: _step(tiny_qwen3(), each, **given) for each in ("nki", "sdpa", "eager")}
    for name, other, same in (("usual", "sdpa", True), ("usual", "eager", False), ("careful", "eager", True)):
        loss, gradients = found[name]["nki"]
        expected, wanted = found[name][other]
        apart = max(abs(float(loss - expected)), *map(worst, gradients, wanted))
        assert apart < 1e-6 if same else apart > 1e-3, (name, other, apart)


def test_gradients_in_one_graph_whose_every_size_is_a_symbol_are_float64s():
    """dynamic=True makes head_dim a symbol too, which decides what runs; another head_dim is another graph."""
    torch.compiler.reset()
    draw = torch.Generator().manual_seed(0)
    graph = torch.compile(nki_hf.attention, backend="aot_eager", dynamic=True, fullgraph=True)
    for length, head_dim, head_dim_v in ((9, 16, 16), (12, 24, 8)):
        shapes = {"q": (2, 4, 9, head_dim), "k": (2, 2, length, head_dim), "v": (2, 2, length, head_dim_v)}
        given = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
        given["mask"] = torch.randn(1, 4, 9, length, generator=draw)
        ours = {name: value.clone().requires_grad_() for name, value in given.items()}
        exact = {name: value.double().requires_grad_() for name, value in given.items()}
        graph(**ours).square().sum().backward()
        sdpa = torch.nn.functional.scaled_dot_product_attention
        sdpa(exact["q"], exact["k"], exact["v"], exact["mask"], enable_gqa=True).square().sum().backward()
        for name, value in exact.items():
            torch.testing.assert_close(ours[name].grad.double(), value.grad, rtol=2e-5, atol=2e-5)
