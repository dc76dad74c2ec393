"""Ways of `generate`: caches, searches, helpers, and its compiled forms. The figure is how many tokens differ from eager's."""

import contextlib
import copy
import io

import torch
from tiny import token_ids
from transformers import CompileConfig
from ways_graphs import Figure, traced
from ways_models import VOCABULARY, padding

NEW_TOKENS = 6
GENERATIONS = {
    "dynamic cache": {},
    "static cache": {"cache_implementation": "static", "disable_compile": True},
    "prompt lookup": {"prompt_lookup_num_tokens": 2, "batch": 1},
    "assisted": {"assistant": True, "batch": 1},
    "beam search": {"num_beams": 3},
    "sampling": {"do_sample": True, "top_k": 8},
}


def generated(model, options):
    """`generate` from a prompt with padding on the left."""
    options = dict(options)
    if options.pop("assistant", False):
        options["assistant_model"] = _assistant(model)
    return Figure(_different(_generate(model, "nki", **options), _generate(model, "eager", **options)))


def generated_by_itself(model, backend):
    """`generate` with a static cache that compiles the decode step by itself, as it does on devices."""
    expected = _generate(model, "eager", cache_implementation="static", disable_compile=True)
    config = CompileConfig(fullgraph=True, backend=backend, mode=None)
    config._compile_all_devices = True  # Transformers' own switch for CPUs
    with traced(kinds=1) as counts:
        got = _generate(model, "nki", cache_implementation="static", compile_config=config)
        figures = counts()
    assert figures[1] >= 1, "generate did not compile"
    return Figure(_different(got, expected), *figures)


def generated_with_compiled_forward(model, options):
    """`generate` over `model.forward = torch.compile(model.forward, fullgraph=True)`: prefill and decode are graphs."""
    expected = _generate(model, "eager", **options)
    plain = model.forward
    with traced(kinds=2) as counts:
        model.forward = torch.compile(plain, backend="aot_eager", fullgraph=True)
        got = _generate(model, "nki", **options)
        figures = counts()
    assert figures[1] >= 2, "the compiled forward did not run"
    return Figure(_different(got, expected), *figures)


def _generate(model, implementation, batch=2, **options):
    model.set_attn_implementation(implementation)
    if "assistant_model" in options:
        options["assistant_model"].set_attn_implementation(implementation)
    ids, mask = token_ids(2, 9)[-batch:], padding(2, 9)[-batch:]
    torch.manual_seed(0)
    with contextlib.redirect_stdout(io.StringIO()):
        return model.generate(
            ids, attention_mask=mask, max_new_tokens=NEW_TOKENS, pad_token_id=0, **{"do_sample": False, **options}
        )


def _assistant(model):
    """A model that agrees with `model` sometimes, so that tokens are both accepted and taken back."""
    other, draw = copy.deepcopy(model), torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in other.parameters():
            weight += 0.01 * torch.randn(weight.shape, generator=draw)
    return other


def _different(got, expected):
    assert got.shape == expected.shape, (got.shape, expected.shape)
    assert int(got.max()) < VOCABULARY
    return int((got != expected).sum())
