"""A kernel is one folder and one line: everything that drives ours drives a second one, which nothing else was told about."""

import json
from dataclasses import replace
from pathlib import Path

import flash_small.call
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import nki_hf
from nki_hf.adapters import decision as made
from nki_hf.adapters.layouts import packed_call
from nki_hf.backends.neuron_launch import LaunchFailed
from nki_hf.backends.neuron_split import join, split
from nki_hf.backends.simulator import SimulatorBackend
from nki_hf.chips import get_chip
from nki_hf.cli import app
from nki_hf.dispatch import decide
from nki_hf.errors import Reason
from nki_hf.kernels import registry
from nki_hf.problem import Mask, Problem
from nki_hf.testing import assert_matches_reference, attention_inputs
from nki_hf.tools import explain
from nki_hf.tools.verify_subject import LAYOUT

SIZES = {
    "batch": 2,
    "num_heads_q": 6,
    "num_heads_kv": 2,
    "seqlen_q": 40,
    "seqlen_kv": 200,
    "head_dim": 32,
    "head_dim_v": 24,
    "dtype": "float32",
}
SHAPE = "b=2,hq=6,hkv=2,sq=40,skv=200,d=32,dv=24"


def _forget():
    decide.cache_clear()
    made._decided.cache_clear()


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    """The one line."""
    monkeypatch.setattr(registry, "PACKAGES", ["nki_hf.kernels.flash_prefill", "flash_small"])
    _forget()
    yield
    _forget()


def _tensors(inputs):
    return {name: torch.from_numpy(np.asarray(getattr(inputs, name))) for name in "qkv"}


def _decided(lnc=None, **changes):
    return decide(Problem(**{**SIZES, **changes}), backend="simulator", chip="trn2", lnc=lnc)


def test_attention_runs_it_where_it_is_cheaper_and_the_other_where_it_refuses():
    inputs = attention_inputs(Problem(**SIZES))
    nki_hf.explain(reset=True)
    out, lse = nki_hf.attention(**_tensors(inputs), return_lse=True)
    assert_matches_reference(inputs, out.numpy(), lse.numpy())
    nki_hf.attention(**_tensors(inputs), causal=True)
    assert [row.first.kernel for row in nki_hf.explain().rows] == ["flash_small", "flash_prefill"]


def test_the_decision_says_which_of_several_and_why():
    decision = _decided()
    assert decision.kernel == "flash_small"
    assert decision.why == "flash_small (1.0 us, one block a head) before flash_prefill (no estimate)"
    assert decision.plan.entry == "flash_small_loop"  # the simulator has loops at run time
    refused = _decided(seqlen_kv=513)
    assert refused.kernel == "flash_prefill"
    assert [(reason.kernel, reason.field) for reason in refused.rejected] == [("flash_small", "seqlen_kv")]


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("threads", [1, 3])
def test_threads_and_cores_give_the_undivided_values(threads, lnc):
    inputs = attention_inputs(Problem(**{**SIZES, "seqlen_q": 128}))
    decision = _decided(lnc=lnc, seqlen_q=128)
    assert decision.kernel == "flash_small"
    backend = SimulatorBackend(get_chip("trn2"), threads=threads)
    call = packed_call(decision, _tensors(inputs))
    out, lse = backend.run(call).outputs
    assert out.shape == (2, 6, 128, 24)
    assert_matches_reference(inputs, out.numpy(), lse.numpy())
    whole = backend.record(call)  # the launch itself on `lnc` cores
    assert {event.core for event in whole.events} == set(range(lnc))


@pytest.mark.parametrize(("limit", "launches"), [(10_000, 1), (130, 2), (70, 4), (1, 12)])
def test_launches_are_bounded_by_instructions_and_joined(limit, launches, monkeypatch):
    monkeypatch.setattr(flash_small.call, "COUNTS", True)  # with the optional output
    inputs = attention_inputs(Problem(**SIZES))
    call = packed_call(_decided(), _tensors(inputs))
    parts = split(call, limit)
    assert len(parts) == launches
    backend = SimulatorBackend(get_chip("trn2"), threads=1)
    out, lse, seen = join(call, [backend.run(part).outputs for part in parts], limit)
    assert_matches_reference(inputs, out.numpy(), lse.numpy())
    assert torch.equal(seen, torch.full((2, 6), 200, dtype=torch.int32))


@pytest.mark.parametrize("lnc", ["1", "2"])
def test_verify_lays_out_its_arguments(lnc):
    path = f"{Path(flash_small.call.__file__).with_name('kernel.py')}:flash_small"
    done = CliRunner().invoke(app, ["verify", path, "--shape", SHAPE, "--dtype", "float32", "--lnc", lnc, "--json", "-"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["passed"]
    assert LAYOUT["out"] == "bshd"  # a kernel without a binding is still taken as the first of ours


def test_plain_verify_runs_it_on_what_it_takes():
    path = f"{Path(flash_small.call.__file__).with_name('kernel.py')}:flash_small"
    done = CliRunner().invoke(app, ["verify", path])
    assert done.exit_code == 0, done.output
    assert done.stdout.rstrip().endswith("PASS")
    assert "run on b=1,hq=2,hkv=1,sq=128,skv=512,d=64" in done.stderr  # of the usual 256 rows it takes no more
    refused = CliRunner().invoke(app, ["verify", path, "--scale=-1"])  # on no number of rows: the reasons of the first are said
    assert refused.exit_code == 2
    assert "seqlen_q=256" in refused.stderr
    assert "softmax_scale=-1" in refused.stderr


@pytest.mark.parametrize("words", [[], ["--causal"]])
def test_plain_verify_of_a_kernel_that_takes_only_causal_calls_makes_one(words, monkeypatch):
    def causal_only(problem, target):
        if problem.mask.causal:
            return flash_small.call.plan(replace(problem, mask=Mask()), target)
        return (Reason(kernel="flash_small", field="mask", value=problem.mask.kind, limit="must be causal"),)

    own = replace(flash_small.call.BINDING, plan=causal_only)
    monkeypatch.setattr(
        registry, "_load", {"nki_hf.kernels.flash_prefill": registry.binding("flash_prefill"), "flash_small": own}.get
    )
    path = f"{Path(flash_small.call.__file__).with_name('kernel.py')}:flash_small"
    done = CliRunner().invoke(app, ["verify", path, *words])
    assert "sq=128,skv=512,d=64" in done.stderr
    assert "mask=none" not in done.stderr
    assert done.exit_code == 1  # the kernel, which hides nothing, is found to be wrong on it
    assert done.stdout.rstrip().endswith("FAIL")


def test_bench_has_a_row_of_it_on_every_chip_and_names_it():
    done = CliRunner().invoke(app, ["bench", "--shape", SHAPE, "--layers", "2"])
    assert done.exit_code == 0, done.output
    chips = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("trn")]
    assert {"trn1", "trn2", "trn3"} <= set(chips)
    assert "kernel: flash_small\n" in done.stdout
    assert done.stdout.count("nki flash_small") == 3  # of two layers


@pytest.mark.parametrize(
    "words",
    [
        ["bench", "--shape", SHAPE, "--chip", "trn2", "--json"],
        ["report", "--kernel", "flash_small", "--shape", SHAPE, "--json"],
        ["bench", "--shape", f"{SHAPE},causal", "--chip", "trn2", "--json"],
    ],
)
def test_bench_and_report_model_it(words):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    if words[0] == "bench":
        (row,) = json.loads(done.stdout)
        assert row["kernel"] == ("flash_prefill" if "causal" in words[2] else "flash_small")
        assert row["nki_us_simulated"] > 0


def test_explain_names_it_with_its_tiles():
    rows = [item for item in explain.run("bert", seqlen=100) if item.kernel == "flash_small"]
    assert rows
    assert rows[0].tiles == {"keys": 100}
    assert rows[0].entry == "flash_small_loop"
    assert rows[0].why.startswith("flash_small (1.0 us, one block a head) before ")


def test_a_failed_launch_gives_the_flags_of_its_shape():
    tensors = _tensors(attention_inputs(Problem(**SIZES)))
    message = str(LaunchFailed(packed_call(_decided(), tensors), RuntimeError("no")))
    assert "--batch 2 --heads 6 --kv-heads 2 --seqlen 40 --seqlen-kv 200 --head-dim 32 --head-dim-v 24 --dtype fp32" in message


def test_gradients_and_graphs_take_it(tmp_path):
    tensors = {name: tensor.requires_grad_() for name, tensor in _tensors(attention_inputs(Problem(**SIZES))).items()}
    out = nki_hf.attention(**tensors)
    compiled = torch.compile(nki_hf.attention, backend="aot_eager", dynamic=True)(**tensors)
    torch.testing.assert_close(compiled, out, rtol=0, atol=0)
    out.square().sum().backward()
    q, k, v = (tensor.detach().double().requires_grad_() for tensor in tensors.values())
    torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True).square().sum().backward()
    for tensor, exact in zip(tensors.values(), (q, k, v), strict=True):
        torch.testing.assert_close(tensor.grad.double(), exact.grad, rtol=1e-4, atol=1e-5)


def test_a_kernel_whose_mask_it_lacks_is_not_asked_twice():
    decision = _decided(mask=Mask(ahead=1))
    assert decision.kernel == "flash_prefill"
    assert decision.why == ""
