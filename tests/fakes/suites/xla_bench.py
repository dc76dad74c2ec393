"""The benchmark's xla half against the fake: trace, the cache of traced models under its key, reload, refusals."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import torch_neuronx
from fake_neuron import MACHINE, Refused

import nki_hf
from nki_hf.tools.model_bench.device import traced
from nki_hf.tools.model_bench.device.traced import package_sources, traced_key, traced_model
from nki_hf.tools.model_bench.options import BenchOptions, WrongUse
from nki_hf.tools.model_bench.run import run

FINGERPRINT = {"model": "m", "config": {"layers": 2}, "weights_sha256": "w"}


def _options(folder, tmp_path, **changes):
    given = {"layers": 2, "seqlen": 64, "iters": 2, "device": "xla", "attn": ("sdpa", "nki")}
    return BenchOptions(model=str(folder), cache_dir=tmp_path / "cache", json=tmp_path / "r.json", **given | changes)


def test_headline_passes_and_the_second_run_loads_what_the_first_traced(tiny_folder, tmp_path):
    options = _options(tiny_folder, tmp_path, attn=("eager", "sdpa", "nki"))
    result = run(options, say=print)
    assert result.passed, result.verdict
    assert result.header["neuron packages"].startswith("torch-neuronx 2.9.0.2.15.32035+standin, torch-xla 2.9.0+standin, ")
    assert result.header["chip"].startswith("trn2, instance unknown, LNC 2")
    assert MACHINE.count("trace") == 3
    assert MACHINE.count("flash_const_max_loop") == 1
    assert run(options, say=print).passed
    assert MACHINE.count("trace") == 3
    assert len(list(options.traced_dir.rglob("graph.neff"))) == 3
    flags = {flag for record in MACHINE.compiles if record.what == "trace" for flag in record.key[1]}
    assert flags == {"--model-type=transformer", "--auto-cast=none", "-O1", "--lnc=2"}


def test_padded_and_window_cases_pass(tiny_folder, tmp_path):
    for changes in ({"padded": True, "batch_size": 2}, {"seqlen": 41}, {"window": 8}):
        result = run(_options(tiny_folder, tmp_path, attn=("nki",), iters=1, **changes), say=print)
        assert result.passed, (changes, result.verdict)


def test_decode_is_refused(tiny_folder, tmp_path):
    with pytest.raises(WrongUse, match="cannot be timed on xla"):
        run(_options(tiny_folder, tmp_path, decode_steps=2), say=print)


class _Double(torch.nn.Module):
    def forward(self, x):
        return x * 2


def _key(**changes):
    given = {"attn": "nki", "dtype": "bf16", "inputs": [torch.ones(2, 3)], "arguments": ["-O1"], "lnc": 2, "chip": "trn2"}
    return traced_key(changes.pop("fingerprint", FINGERPRINT), **given | changes)


def _traced(tmp_path, key, said):
    return traced_model(_Double(), [torch.ones(2, 3)], key, folder=tmp_path, compiler_arguments=["-O1"], say=said.append)


@pytest.mark.parametrize(
    "changes",
    [
        {"attn": "sdpa"},
        {"dtype": "fp32"},
        {"inputs": [torch.ones(2, 4)]},
        {"arguments": ["-O2"]},
        {"lnc": 1},
        {"chip": "trn3"},
        {"fingerprint": {**FINGERPRINT, "config": {"layers": 3}}},
        {"fingerprint": {**FINGERPRINT, "model": "n"}},
        {"fingerprint": {**FINGERPRINT, "weights_sha256": "v"}},
    ],
    ids=str,
)
def test_each_part_of_the_key_makes_another_model(tmp_path, changes):
    said = []
    first = _traced(tmp_path, _key(), said)
    assert not first.hit
    assert _traced(tmp_path, _key(), said).hit
    assert not _traced(tmp_path, _key(**changes), said).hit
    assert said == []


def test_the_key_holds_weights_flags_versions_and_the_kernels_source(monkeypatch, tmp_path):
    key = _key()
    assert {"torch", "torch-neuronx", "neuronx-cc", "nki", "transformers"} <= set(key["versions"])
    assert key["weights_sha256"] == "w"
    for name in ("NEURON_CC_FLAGS", "NEURON_PLATFORM_TARGET_OVERRIDE", "NKI_COMPILER_FRONTEND"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "another")
            assert _key() != key, name
    for place, name, value in (
        (nki_hf, "__version__", "9"),
        (traced, "package_sources", lambda: "other"),
        (traced, "_version", lambda name: "9"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, value)
            assert _key() != key, name
    assert _key() == key


def test_every_module_of_the_package_counts(tmp_path):
    package = Path(nki_hf.__file__).parent
    copy = shutil.copytree(package, tmp_path / "nki_hf", ignore=shutil.ignore_patterns("__pycache__"))
    assert package_sources(copy) == package_sources()
    for name in (
        "dispatch.py",
        "chips/trn2.py",
        "backends/neuron_split.py",
        "kernels/flash_prefill/kernel.py",
        "adapters/layouts.py",
    ):
        before = package_sources(copy)
        (copy / name).write_text((copy / name).read_text() + "\n")
        assert package_sources(copy) != before, name


def test_a_model_traced_without_its_weights_is_refused(tmp_path):
    inputs = (torch.ones(2, 3),)
    bare = torch_neuronx.trace(_Double(), inputs, inline_weights_to_neff=False)
    with pytest.raises(Refused) as caught:
        bare(*inputs)
    assert caught.value.rule == "trace-weights"
    torch_neuronx.move_trace_to_device(bare, 0)
    assert torch.equal(bare(*inputs), torch.full((2, 3), 2.0))
    assert torch.equal(_traced(tmp_path, _key(), []).module(*inputs), torch.full((2, 3), 2.0))


@pytest.mark.parametrize("damage", ["model.pt", "key.json"])
def test_a_damaged_cache_is_one_line_and_traced_again(tmp_path, damage):
    said = []
    kept = _traced(tmp_path, _key(), said).folder
    (kept / damage).write_text(json.dumps({"other": "run"}) if damage == "key.json" else "")
    again = _traced(tmp_path, _key(), said)
    assert not again.hit
    assert len(said) == 1
    assert "tracing it again" in said[0]
    assert torch.equal(again.module(torch.ones(2, 3)), torch.full((2, 3), 2.0))


def test_an_interrupted_trace_leaves_nothing_to_load(tmp_path, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(torch_neuronx, "trace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _traced(tmp_path, _key(), [])
    monkeypatch.undo()
    assert not _traced(tmp_path, _key(), []).hit
