"""The benchmark's native half against the fake, beside the headline: padding with a window, odd lengths, decode, compiling."""

import pytest
import torch
from fake_neuron import MACHINE

from nki_hf.tools.model_bench.options import BenchOptions
from nki_hf.tools.model_bench.run import compile_only, run


@pytest.fixture(autouse=True)
def _fresh_graphs():
    torch._dynamo.reset()


def _options(folder, tmp_path, **changes):
    given = {"layers": 1, "seqlen": 64, "iters": 2, "device": "neuron", "attn": ("nki",)}
    return BenchOptions(model=str(folder), cache_dir=tmp_path / "cache", json=tmp_path / "r.json", **given | changes)


def test_padded_odd_and_window_cases_pass(tiny_folder, tmp_path):
    for changes in ({"padded": True, "batch_size": 2, "window": 8}, {"seqlen": 41}):
        torch._dynamo.reset()
        result = run(_options(tiny_folder, tmp_path, iters=1, **changes), say=print)
        assert result.passed, (changes, result.verdict)


def test_decode_runs_on_the_device(tiny_folder, tmp_path):
    result = run(_options(tiny_folder, tmp_path, iters=1, warmup=0, decode_steps=3), say=print)
    assert result.passed, result.verdict
    assert result.rows[0].decode.accuracy.passed


def test_compile_only_compiles_what_the_timed_run_needs(tiny_folder, tmp_path):
    compile_only(_options(tiny_folder, tmp_path), say=print)
    assert MACHINE.count("graph") == 1
    assert MACHINE.count("kernel") == 1
