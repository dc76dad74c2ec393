"""`nki_hf verify` of the kernels of this package: masks, rows that cancel, few rows, certificates, inferred orders."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner
from verify_call import invoke

from nki_hf.cli import app
from nki_hf.kernels import registry
from nki_hf.kernels.flash_const_max import certificate
from nki_hf.testing import DISTRIBUTIONS
from nki_hf.tools.verify_judge import judge


def test_our_own_kernel_passes_with_every_kind_of_mask_of_the_command():
    for more in ((), ("--causal",), ("--causal", "--window", "100"), ("--lnc", "2", "--dtype", "float32")):
        result = invoke("nki_hf.kernels.flash_prefill:flash_prefill", "--shape", "b=1,hq=2,hkv=1,sq=130,skv=200,d=64", *more)
        assert result.exit_code == 0, result.stdout
        assert "PASS" in result.stdout


@pytest.mark.parametrize("shape", ["sq=17,skv=33,d=1", "sq=128,skv=128,d=2", "sq=17,skv=33,d=4"])
def test_rows_whose_values_cancel_do_not_fail_a_right_kernel(shape):
    result = invoke("nki_hf.kernels.flash_prefill:flash_prefill", "--shape", f"b=1,hq=1,hkv=1,{shape}", "--causal")
    assert result.exit_code == 0, result.stdout


def test_a_row_that_cancels_is_judged_by_what_was_summed():
    reference = np.array([[1.0], [1e-6]])
    output = reference + 1e-3
    assert judge(output, reference, tolerance=0.01, scale=np.array([1.0, 1.0])).passed
    assert judge(output, reference, tolerance=0.01).verdict == "rows"
    assert judge(reference + np.array([[0.0], [0.02]]), reference, tolerance=0.01, scale=np.array([1.0, 1.0])).verdict == "rows"


ROUND_TRIP = """
from nki_hf.lang import nisa, nki, nl


@nki.jit
def round_trip(x, queues):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    middle = nl.ndarray(x.shape, x.dtype, buffer=nl.hbm)
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    back = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    second = nisa.engine.scalar if queues == 2 else nisa.engine.sync
    nisa.dma_copy(dst=tile, src=x, engine=nisa.engine.sync)
    nisa.dma_copy(dst=middle, src=tile, engine=nisa.engine.sync)
    nisa.dma_copy(dst=back, src=middle, engine=second)
    nisa.dma_copy(dst=out, src=back, engine=second)
    return out


def same(x, queues):
    return x
"""


@pytest.mark.parametrize("queues", [1, 2])
@pytest.mark.parametrize("foreign", [False, True])
def test_orders_that_are_only_inferred_are_a_finding_of_their_own(tmp_path, queues, foreign):
    file = tmp_path / "round_trip.py"
    file.write_text(ROUND_TRIP)
    call = [f"{file}:round_trip", "--arg", "x=128x64", "--const", f"queues={queues}", "--reference", f"{file}:same"]
    result = invoke(*call, "--json", "-", *(["--third-party"] if foreign else []))
    report = json.loads(result.stdout)
    assert (result.exit_code, report["faults"]) == (0, [])
    assert [found["details"]["cause"] for found in report["inferred"]] == (["hbm"] if queues == 2 and not foreign else [])
    if report["inferred"]:
        line = 1 + next(i for i, text in enumerate(ROUND_TRIP.split("\n")) if "src=middle" in text)
        assert report["inferred"][0]["line"] == line
        assert "inferred" in invoke(*call).stdout


@pytest.mark.parametrize("lnc", ["1", "2"])
def test_our_own_kernel_rests_on_no_inferred_order(lnc):
    call = ["nki_hf.kernels.flash_prefill:flash_prefill", "--shape", "b=1,hq=2,hkv=1,sq=130,skv=200,d=64", "--causal"]
    report = json.loads(invoke(*call, "--lnc", lnc, "--json", "-").stdout)
    assert report["passed"]
    assert report["inferred"] == []


def _ours(name, *words):
    path = Path(registry.__file__).parent / name / "kernel.py"
    return CliRunner().invoke(app, ["verify", f"{path}:{name}", *words])


def test_a_kernel_of_few_rows_is_run_on_those_unless_a_shape_is_given():
    done = _ours("flash_decode", "--json", "-")
    assert done.exit_code == 0, done.stderr
    assert "sq=256,skv=512,d=64: run on b=1,hq=2,hkv=1,sq=1,skv=512,d=64" in done.stderr
    assert len(json.loads(done.stdout)["cases"]) == len(DISTRIBUTIONS)
    asked = _ours("flash_decode", "--shape", "b=1,hq=2,hkv=1,sq=256,skv=512,d=64")
    assert asked.exit_code == 2
    assert "seqlen_q=17 or more is not supported by flash_decode" in asked.stderr


def test_of_gradients_it_says_what_compares_them():
    done = _ours("flash_backward")
    assert done.exit_code == 2
    assert "flash_backward computes gradients" in done.stderr
    assert "attention_gradients" in done.stderr


OURS = f"{Path(certificate.__file__).with_name('kernel.py')}:flash_const_max"


@pytest.mark.parametrize("shape", ["b=1,hq=2,hkv=1,sq=256,skv=512,d=64", "hq=4,hkv=2,sq=300,skv=700,causal"])
def test_tiles_that_fail_the_certificate_are_computed_in_a_second_launch_and_judged(shape):
    """flash_const_max without its loop says which query tiles are not right; the float64 oracle judges all of them after."""
    found = json.loads(invoke(OURS, "--shape", shape, "--chip", "trn2", "--json", "-").stdout)
    assert {case["distribution"]: case["verdict"] for case in found["cases"]} == dict.fromkeys(DISTRIBUTIONS, "pass")
    assert any(text.startswith("outlier_key: ") and "failed the certificate" in text for text in found["warnings"])
    assert not any(text.startswith("normal: ") for text in found["warnings"])


def test_tiles_that_a_certificate_lets_pass_wrongly_are_judged_as_they_are(monkeypatch):
    monkeypatch.setattr(certificate, "SUM_MAX", float("inf"))
    monkeypatch.setattr(certificate, "_finite", lambda env, ledger, good: None)
    shape = "b=1,hq=2,hkv=1,sq=256,skv=512,d=64"
    found = json.loads(invoke(OURS, "--shape", shape, "--chip", "trn2", "--json", "-").stdout)
    assert {case["distribution"]: case["verdict"] for case in found["cases"]}["outlier_key"] == "not finite"
