"""A Qwen3 model through the whole adapter on the native fake: values, and how often anything is compiled."""

from pathlib import Path

import pytest
import torch
from fake_neuron import MACHINE
from tiny_qwen3 import eager_and_nki
from transformers import StaticCache

import nki_hf
from nki_hf.backends.neuron import neuron_backend
from nki_hf.backends.neuron_launch import LaunchFailed
from nki_hf.errors import UnsupportedProblem
from nki_hf.tools.model_bench.generation import generate
from nki_hf.tools.model_bench.model import Prompt

PAGE = (Path(__file__).parents[3] / "docs" / "trainium.md").read_text()


@pytest.fixture(autouse=True)
def _strict():
    torch._dynamo.reset()
    neuron_backend().compiled.clear()
    with nki_hf.using(strict=True):
        yield


def _ids(batch=1, length=130):
    return torch.randint(1, 64, (batch, length), generator=torch.Generator().manual_seed(1))


def _kernels():
    """Compilations of forward kernels, whichever dispatch took."""
    return sum(record.what not in ("graph", "trace") and "backward" not in record.what for record in MACHINE.compiles)


@torch.no_grad()
def test_28_layers_compile_each_distinct_shape_once(counted):
    on_cpu, on_device = eager_and_nki(layers=28)
    counts = []
    for length in (32, 64, 32, 64, 96):
        ids = _ids(length=length)
        out = on_device(ids.to("neuron"), use_cache=False).logits
        counts.append(_kernels())
        if length == 32:
            torch.testing.assert_close(out.cpu(), on_cpu(ids, use_cache=False).logits, rtol=0, atol=2e-2)
    assert counts == [1, 2, 2, 2, 3]
    assert len(MACHINE.launches) == 28 * 5
    assert len(neuron_backend().compiled) == 3
    assert counted("Qwen3, 28 layers, prefill of 32, 64, 32, 64, 96 tokens: 140 launches", _kernels()) == 3


@torch.no_grad()
def test_64_decode_steps_with_a_static_cache_compile_once(counted):
    on_cpu, on_device = eager_and_nki(layers=1)
    ids = _ids(length=16)
    cache = StaticCache(config=on_device.config, max_cache_len=128)
    out = on_device(ids.to("neuron"), cache=cache)
    prefill = _kernels()
    produced = [int(out.logits[0, -1].cpu().argmax())]
    for _ in range(64):
        out = on_device(torch.tensor([[produced[-1]]]).to("neuron"), cache=cache)
        produced.append(int(out.logits[0, -1].cpu().argmax()))
    assert counted("Qwen3, 64 decode steps, static cache of 128", _kernels() - prefill) == 1
    expected = on_cpu.generate(ids, max_new_tokens=65, do_sample=False, pad_token_id=0)[0, 16:]
    assert produced[: len(expected)] == expected.tolist()


@torch.no_grad()
def test_64_decode_steps_with_a_growing_cache_share_buckets(counted):
    _, on_device = eager_and_nki(layers=1)
    out = on_device(_ids(length=16).to("neuron"), use_cache=True)
    prefill = _kernels()
    for _ in range(64):
        token = out.logits[:, -1:].cpu().argmax(-1).to("neuron")
        out = on_device(token, cache=out.past_key_values, use_cache=True)
    assert counted("Qwen3, 64 decode steps, cache growing from 16 to 80 keys", _kernels() - prefill) == 1


@pytest.mark.parametrize("padded", [False, True])
def test_no_decode_step_of_the_benchmark_meets_an_operation_of_another_size(padded):
    """Outside of graphs each operation of the model's own is compiled for each size, too."""
    _, on_device = eager_and_nki(layers=1)
    mask = torch.ones(2, 24, dtype=torch.int64)
    mask[0, :5] = 0
    ids = _ids(batch=2, length=24).to("neuron")
    prompt = Prompt(input_ids=ids, attention_mask=mask.to("neuron") if padded else None, source="ids")
    begins = {}
    made = generate(
        on_device.model,
        prompt,
        steps=4,
        warmup=0,
        iters=1,
        wait=lambda: None,
        say=lambda what: begins.setdefault(what, len(MACHINE.ops)),
    )
    met = [(name, tuple(sizes)) for name, sizes in MACHINE.ops]
    steps = [begins[f"decode warm-up step {number}/4"] for number in (1, 2, 3, 4)] + [begins["decode step 1/4"]]
    assert steps == sorted(set(steps))
    later = set(met[steps[1] : steps[4]]) - set(met[: steps[1]])
    assert later == set()
    assert made.hidden.shape == (2, 5, on_device.config.hidden_size)


@torch.no_grad()
def test_left_padded_batches_of_changing_lengths_compile_once(counted):
    on_cpu, on_device = eager_and_nki()
    for lengths in ((100, 128), (64, 90), (128, 3), (17, 17)):
        mask = torch.stack([(torch.arange(128) >= 128 - length).long() for length in lengths])
        ids = _ids(batch=2, length=128)
        out = on_device(ids.to("neuron"), attention_mask=mask.to("neuron"), use_cache=False).logits.cpu()
        expected = on_cpu(ids, attention_mask=mask, use_cache=False).logits
        torch.testing.assert_close(out[mask.bool()], expected[mask.bool()], rtol=0, atol=2e-2)
    assert counted("Qwen3, left-padded batches of 128 tokens, four different paddings", _kernels()) == 1


@torch.no_grad()
def test_a_scale_per_layer_compiles_once_per_scale(counted):
    _, on_device = eager_and_nki(layers=6)
    for number, layer in enumerate(on_device.model.layers):
        layer.self_attn.scaling = (0.25, 0.25 + 1e-12, 0.3)[number % 3]
    on_device(_ids(length=32).to("neuron"), use_cache=False)
    assert counted("Qwen3, 6 layers of three scales, two of them equal in float32", _kernels()) == 2


@torch.no_grad()
def test_a_compiled_model_is_one_graph_and_its_kernel_is_built_once(counted):
    on_cpu, on_device = eager_and_nki()
    compiled = torch.compile(
        lambda ids: on_device(ids, use_cache=False).logits, backend="neuron", fullgraph=True, dynamic=False
    )
    ids = _ids(length=128)
    for _ in range(2):
        out = compiled(ids.int().to("neuron"))
    torch.testing.assert_close(out.cpu(), on_cpu(ids, use_cache=False).logits, rtol=0, atol=2e-2)
    assert (counted("Qwen3, torch.compile, two calls", MACHINE.count("graph"), "graphs"), _kernels()) == (1, 1)
    assert {where for _, where in MACHINE.launches} == {"graph"}


@torch.no_grad()
@pytest.mark.parametrize("failure", ["memory", "compiler"])
def test_failures_surface_with_kernel_shape_and_layer(failure):
    _, on_device = eager_and_nki()
    if failure == "memory":
        MACHINE.hbm_bytes = 1000
    else:
        MACHINE.broken_kernels["kernel"] = "[F134] neuronx-cc terminated abnormally"
    with pytest.raises(LaunchFailed, match=r"flash_prefill\[2\]\(q=\[1, 4, 16, 128\] float32") as caught:
        on_device(_ids(length=128).to("neuron"), use_cache=False)
    assert any("Qwen3Attention 0" in note for note in caught.value.__notes__)


@torch.no_grad()
def test_inside_a_graph_a_failure_names_kernel_and_shape_and_no_layer():
    _, on_device = eager_and_nki()
    compiled = torch.compile(on_device, backend="neuron", fullgraph=True, dynamic=False)
    MACHINE.hbm_bytes = 1000
    with pytest.raises(LaunchFailed, match=r"flash_prefill\[2\]\(q=\[1, 4, 16, 128\] float32.*memory is full") as caught:
        compiled(_ids(length=128).int().to("neuron"), use_cache=False)
    assert getattr(caught.value, "__notes__", []) == []
    assert "Inside a graph no note names the layer" in PAGE


@torch.no_grad()
@pytest.mark.parametrize(("max_blocks", "launches", "kernels"), [(16, 1, 1), (8, 2, 1), (4, 4, 1), (2, 8, 1), (1, 16, 2)])
def test_a_call_that_unrolls_too_far_is_split_and_its_parts_share_a_compilation(monkeypatch, max_blocks, launches, kernels):
    """Over batch and heads first; then over rows, of which the last 2 of 130 are another shape."""
    draw = torch.Generator().manual_seed(0)
    q, bias = torch.randn(2, 4, 130, 16, generator=draw), torch.randn(2, 4, 130, 90, generator=draw)
    k, v = (torch.randn(2, 2, 90, 16, generator=draw) for _ in range(2))
    sink = torch.randn(4, generator=draw)
    monkeypatch.setattr(neuron_backend(), "_max_instructions", max_blocks * 16)  # of a score block
    arguments = {"mask": bias, "sink": sink}
    expected = nki_hf.attention(q, k, v, **arguments)
    on_device = {name: value.to("neuron") if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}
    found = nki_hf.attention(q.to("neuron"), k.to("neuron"), v.to("neuron"), **on_device)
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0)
    assert len(MACHINE.launches) == launches
    assert _kernels() == kernels


@torch.no_grad()
@pytest.mark.parametrize(
    ("cache", "compiles"),
    [
        (None, [("flash_prefill", "eager")] * 2),  # prefill and decode
        ("static", [("flash_prefill", "eager"), ("graph", "graph"), ("flash_prefill", "graph")]),
    ],
    ids=["growing", "static"],
)
def test_generate_gives_the_cpus_tokens_left_padded_and_compiles_decode_once(cache, compiles):
    """With a static cache Transformers compiles the decode step by itself on this device."""
    # generate() makes int64 ids of its own; that a graph refuses them is one report, that generate() compiles is documented.
    MACHINE.takes_int64 = True
    on_cpu, on_device = eager_and_nki(layers=1)
    ids = _ids(batch=2, length=9)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    expected = on_cpu.generate(ids, attention_mask=mask, **options)
    found = on_device.generate(ids.to("neuron"), attention_mask=mask.to("neuron"), cache_implementation=cache, **options)
    assert found.cpu().tolist() == expected.tolist()
    assert [(record.what, record.where) for record in MACHINE.compiles] == compiles


@torch.no_grad()
def test_a_static_cache_without_compilation_needs_no_64_bit_graph():
    """The line of the page on Trainium, where a graph takes no int64 ids; with what it leaves out, the graph refuses them."""
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    line = {"cache_implementation": "static", "disable_compile": True}
    assert (
        f"model.generate(**inputs, {', '.join(f'{name}={value!r}' for name, value in line.items())})".replace("'", '"') in PAGE
    )
    on_cpu, on_device = eager_and_nki(layers=1)
    ids = _ids(batch=2, length=9)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    expected = on_cpu.generate(ids, attention_mask=mask, **options)
    found = on_device.generate(ids.to("neuron"), attention_mask=mask.to("neuron"), **line, **options)
    assert found.cpu().tolist() == expected.tolist()
    assert MACHINE.count("graph") == 0
    with pytest.raises(Exception, match="graph-integers"):
        on_device.generate(ids.to("neuron"), attention_mask=mask.to("neuron"), cache_implementation="static", **options)


@torch.no_grad()
def test_under_autocast_mixed_dtypes_reach_the_kernel_in_its_dtype():
    q, k, v = (torch.randn(1, heads, 24, 16) for heads in (4, 2, 2))
    with torch.autocast("neuron", dtype=torch.bfloat16):
        out = nki_hf.attention(q.to("neuron"), k.bfloat16().to("neuron"), v.to("neuron"), causal=True)
    ((key, _),) = MACHINE.launches
    assert [dtype for _, dtype in key[2:5]] == ["torch.bfloat16"] * 3
    wide = [x.repeat_interleave(2, dim=1) for x in (k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(q, *wide, is_causal=True)
    torch.testing.assert_close(out.cpu().float(), expected, rtol=3e-2, atol=3e-2)


@torch.no_grad()
def test_float16_scores_beyond_the_range_of_float16_are_right():
    q, k, v = ((torch.randn(1, 2, 40, 64) * scale).half() for scale in (60, 60, 1))
    scores = q.double() @ k.double().transpose(-1, -2)
    assert scores.abs().max() > torch.finfo(torch.float16).max
    out = nki_hf.attention(q.to("neuron"), k.to("neuron"), v.to("neuron"), scale=0.01).cpu()
    torch.testing.assert_close(out.double(), (scores * 0.01).softmax(-1) @ v.double(), rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_8_bit_floats_are_refused_by_name(dtype):
    q, k, v = (torch.randn(1, 2, 8, 16).to(dtype).to("neuron") for _ in range(3))
    with pytest.raises(UnsupportedProblem, match=rf"dtype={str(dtype).removeprefix('torch.')} .*bfloat16"):
        nki_hf.attention(q, k, v)
    assert MACHINE.launches == []
