"""The benchmark's native half against the fake: all attentions, padding, window, decode, waiting, warm caches."""

import pytest
import torch
import torch_neuronx
from fake_neuron import MACHINE

from nki_hf.tools.model_bench.model import load_subject
from nki_hf.tools.model_bench.options import BenchOptions
from nki_hf.tools.model_bench.run import run
from nki_hf.tools.model_bench.worlds import device_notes, prepare


def _options(folder, tmp_path, **changes):
    given = {"layers": 1, "seqlen": 64, "iters": 2, "device": "neuron", "attn": ("sdpa", "nki")}
    return BenchOptions(model=str(folder), cache_dir=tmp_path / "cache", json=tmp_path / "r.json", **given | changes)


def test_headline_passes_and_every_reading_waits_for_the_device(tiny_folder, tmp_path):
    result = run(_options(tiny_folder, tmp_path, attn=("eager", "sdpa", "nki")), say=print)
    assert result.passed, result.verdict
    assert [row.attn for row in result.rows] == ["eager", "sdpa", "nki"]
    assert all(row.accuracy.passed for row in result.rows)
    assert MACHINE.count("graph") == 3
    assert MACHINE.count("flash_const_max_loop") == 1
    calls = 3 * (1 + 1 + 2)  # first, warm-up, timed
    assert MACHINE.synchronized == 2 * calls
    assert "resident" in result.header["times"]
    assert result.header["neuron packages"].startswith("torch-neuronx 2.13.3.0+standin, neuronx-cc missing, nki ")
    assert result.header["chip"] == "trn2, instance unknown, LNC 2 (torch_neuronx.utils.get_logical_neuron_cores())"
    assert result.header["source"].startswith(("git ", "no git checkout"))
    assert result.header["ops that ran on the CPU"] == "none"


def test_the_model_is_compiled_as_one_static_graph_of_32_bit_ids(tiny_folder, tmp_path, monkeypatch):
    seen, compile_ = [], torch.compile
    monkeypatch.setattr(torch, "compile", lambda module, **given: seen.append(given) or compile_(module, **given))
    options = _options(tiny_folder, tmp_path, padded=True, batch_size=2)
    ready = prepare("neuron", load_subject(options), options)
    assert seen == [{"backend": "neuron", "fullgraph": True, "dynamic": False}]
    assert {ready.prompt.input_ids.dtype, ready.prompt.attention_mask.dtype} == {torch.int32}


def test_64_bit_token_ids_are_refused_by_the_back_end():
    table = torch.nn.Embedding(4, 4).to("neuron")
    with pytest.raises(Exception, match="graph-integers"):
        torch.compile(table, backend="neuron", fullgraph=True)(torch.ones(2, dtype=torch.int64).to("neuron"))


def test_ops_that_ran_on_the_cpu_are_in_the_header(monkeypatch):
    assert device_notes("neuron")["ops that ran on the CPU"] == "none"
    monkeypatch.setattr(torch_neuronx, "get_fallback_ops", lambda: ["aten::multinomial"])
    assert device_notes("neuron")["ops that ran on the CPU"] == "aten::multinomial"
    assert device_notes("cpu") == {}
