"""The ways in which people run a model around a forward pass, each compared with eager attention run plainly.

python tests/graph_ways.py      writes docs/ways.md
"""

import contextlib
import copy
import io
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny import build, logits, tiny_qwen3, token_ids, worst

import nki_hf

LENGTHS = (9, 12, 15)
_SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 64,
    "max_position_embeddings": 256,
}
MODELS = {
    "qwen3": tiny_qwen3,
    "llama": lambda: build(LlamaForCausalLM, LlamaConfig(**_SIZES)),
    "mistral, window": lambda: build(MistralForCausalLM, MistralConfig(sliding_window=4, **_SIZES)),
    "gemma2, softcap": lambda: build(
        Gemma2ForCausalLM,
        Gemma2Config(sliding_window=4, attn_logit_softcapping=5.0, query_pre_attn_scalar=16, **_SIZES),
    ),
    "gemma3, window": lambda: build(Gemma3ForCausalLM, Gemma3TextConfig(sliding_window=4, **_SIZES)),
    "gpt_oss, sinks": lambda: build(
        GptOssForCausalLM, GptOssConfig(sliding_window=4, num_local_experts=2, num_experts_per_tok=1, **_SIZES)
    ),
}


@dataclass(frozen=True)
class Figure:
    """Largest absolute difference to eager (or how many tokens differ), graph breaks, graphs; None = nothing is traced."""

    difference: float
    breaks: int | None = None
    graphs: int | None = None


def _padded(length):
    mask = torch.ones((2, length), dtype=torch.long)
    mask[0, :3] = 0
    return mask


@contextlib.contextmanager
def _traced():
    """Counts what Dynamo does in the block: a function that returns (breaks, graphs)."""
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    yield lambda: (sum(counters["graph_break"].values()), counters["stats"]["unique_graphs"])
    torch._dynamo.reset()


def compiled(model, backend, dynamic):
    """`torch.compile(fullgraph=True)` over three lengths, with and without padding."""
    difference = 0.0
    with _traced() as counts:
        run = torch.compile(model, backend=backend, fullgraph=True, dynamic=dynamic)
        for length in LENGTHS:
            ids = token_ids(2, length)
            for mask in (_padded(length), None):
                expected = logits(model, "eager", ids, attention_mask=mask, use_cache=False)
                model.set_attn_implementation("nki")
                with torch.no_grad():
                    got = run(ids, attention_mask=mask, use_cache=False).logits
                difference = max(difference, worst(got, expected, mask))
        return Figure(difference, *counts())


def trained(model, backend):
    """One compiled training step with padding: the farthest gradient."""
    ids, mask = token_ids(2, 9), _padded(9)
    labels = ids.masked_fill(mask == 0, -100)
    labels[0, 3] = -100  # its logits come from a padded row, which sees nothing: eager makes a mean of it, kernels zero
    plain = copy.deepcopy(model).train()
    plain.set_attn_implementation("eager")
    plain(ids, attention_mask=mask, labels=labels, use_cache=False).loss.backward()
    model.train().set_attn_implementation("nki")
    with _traced() as counts:
        run = torch.compile(model, backend=backend, fullgraph=True)
        run(ids, attention_mask=mask, labels=labels, use_cache=False).loss.backward()
        figures = counts()
    pairs = zip(model.named_parameters(), plain.parameters(), strict=True)
    gradients = [(name, a.grad, b.grad) for (name, a), b in pairs]
    missing = [name for name, a, b in gradients if (a is None) != (b is None)]
    assert not missing, missing
    return Figure(max(worst(a, b) for _, a, b in gradients if a is not None), *figures)


def exported(model, strict):
    """`torch.export` with dynamic batch and length, then run at sizes it was not traced with."""
    model.set_attn_implementation("nki")
    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=4, max=128)
    wrapped = _Forward(model)
    ids, mask = token_ids(2, 9), _padded(9)
    with _traced() as counts, torch.no_grad():
        dims = ({0: batch, 1: length}, {0: batch, 1: length})
        program = torch.export.export(wrapped, (ids, mask), dynamic_shapes=dims, strict=strict)
        breaks, _ = counts()
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert sum("nki_hf.attention" in name for name in names) == model.config.num_hidden_layers, names
    difference = 0.0
    for size, rows in ((9, 2), (14, 3), (21, 4)):
        ids, mask = token_ids(rows, size), torch.ones((rows, size), dtype=torch.long)
        mask[0, :3] = 0
        expected = logits(model, "eager", ids, attention_mask=mask, use_cache=False)
        with torch.no_grad():
            difference = max(difference, worst(program.module()(ids, mask), expected, mask))
    return Figure(difference, breaks, 1)


class _Forward(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, mask):
        return self.model(ids, attention_mask=mask, use_cache=False).logits


GENERATIONS = {
    "dynamic cache": {},
    "static cache": {"cache_implementation": "static", "disable_compile": True},
    "prompt lookup": {"prompt_lookup_num_tokens": 2, "batch": 1},
    "assisted": {"assistant": True, "batch": 1},
    "beam search": {"num_beams": 3},
    "sampling": {"do_sample": True, "top_k": 8},
}


def generated(model, options):
    """`generate` of 6 tokens from a prompt with padding on the left: how many tokens differ from eager's."""
    options = dict(options)
    batch = options.pop("batch", 2)
    ids, mask = token_ids(2, 9)[-batch:], _padded(9)[-batch:]
    if options.pop("assistant", False):
        options["assistant_model"] = model
    options = {"do_sample": False, **options}
    outputs = []
    for implementation in ("eager", "nki"):
        model.set_attn_implementation(implementation)
        torch.manual_seed(0)
        with contextlib.redirect_stdout(io.StringIO()):
            outputs.append(model.generate(ids, attention_mask=mask, max_new_tokens=6, pad_token_id=0, **options))
    assert outputs[0].shape == outputs[1].shape
    return Figure(int((outputs[0] != outputs[1]).sum()))


def generated_compiled(model):
    """A decode step compiled with fullgraph over a static cache, as `generate` does on devices: tokens that differ."""
    from transformers import StaticCache

    def tokens(step):
        cache, ids, out = StaticCache(config=model.config, max_cache_len=32), token_ids(2, 9), []
        with torch.no_grad():
            following = model(ids, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
            for position in range(9, 15):
                out.append(following)
                at = torch.full((2, 1), position)
                following = step(following, past_key_values=cache, position_ids=at, use_cache=True).logits.argmax(-1)
        return torch.cat(out, 1)

    model.set_attn_implementation("eager")
    expected = tokens(model)
    model.set_attn_implementation("nki")
    with _traced() as counts:
        got = tokens(torch.compile(model, backend="aot_eager", fullgraph=True))
        return Figure(int((got != expected).sum()), *counts())


def autocast(model):
    """Under bfloat16 autocast: how much farther from eager in float32 than eager under the same autocast."""
    ids, mask = token_ids(2, 9), _padded(9)
    exact = logits(model, "eager", ids, attention_mask=mask)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = logits(model, "eager", ids, attention_mask=mask)
        got = logits(model, "nki", ids, attention_mask=mask)
    return Figure(max(0.0, worst(got, exact, mask) - worst(plain, exact, mask)))


WAYS = {
    **{
        f"compile, {backend}, dynamic={dynamic}": (lambda model, b=backend, d=dynamic: compiled(model, b, d))
        for backend in ("eager", "aot_eager", "inductor")
        for dynamic in (False, True, None)
    },
    "compiled training step, aot_eager": lambda model: trained(model, "aot_eager"),
    "export, strict": lambda model: exported(model, True),
    "export, non-strict": lambda model: exported(model, False),
    **{f"generate, {name}": (lambda model, o=options: generated(model, o)) for name, options in GENERATIONS.items()},
    "decode step compiled over a static cache": generated_compiled,
    "autocast to bfloat16": autocast,
}


def run(model, way):
    """The figure of one model run one way, strictly: a fallback is an error."""
    with nki_hf.using(strict=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return WAYS[way](MODELS[model]())


_PAGE = Path(__file__).parents[1] / "docs" / "ways.md"
_HEADER = """# Ways of running a model

Written by `python tests/graph_ways.py [part of a way's name ...]`, which runs tiny models through the kernels on the simulator,
strictly (a fallback is an error), and compares with eager attention run plainly. Difference: largest absolute one of logits or
gradients in float32; for `generate` and decoding, how many tokens differ; for autocast, by how much the error against float32
exceeds eager's. Breaks: graph breaks. Graphs: what Dynamo compiled for all lengths together (three lengths, with and without
padding). Ways without a row were not part of the run that wrote this page; `pytest -m slow tests/test_graphs_compile.py` runs
them all.

The choice of an attention is not saved with a model (Transformers' rule): pass `attn_implementation="nki"` to
`from_pretrained` each time, or `model_kwargs={"attn_implementation": "nki"}` to a pipeline.

| model | way | difference | breaks | graphs |
|---|---|---|---|---|
"""


def main(parts):
    """Write the page, row by row, for the ways whose name holds one of `parts` (none: all)."""
    rows = []
    for way in WAYS:
        for model in MODELS if not parts or any(part in way for part in parts) else ():
            figure = run(model, way)
            cells = ["-" if value is None else value for value in (figure.breaks, figure.graphs)]
            rows.append(f"| {model} | {way} | {figure.difference:.2g} | {cells[0]} | {cells[1]} |\n")
            _PAGE.write_text(_HEADER + "".join(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
