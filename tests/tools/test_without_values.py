"""bench, report and trace fail for what a program shows without values, as judge does; values are left to it."""

import json

import pytest
from judged_kernels import RIGHT, SOFTMAX_OF_ROWS, WRONG, planted
from typer.testing import CliRunner

import nki_hf
from nki_hf.cli import app

OUT = "    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)\n"
LAST = "        nisa.dma_copy(dst=out[start : start + 128, :], src=tile)\n"
FAULTS = {
    "an input is written": (SOFTMAX_OF_ROWS.replace(LAST, LAST + LAST.replace("out[", "x[")), "writes the input x"),
    "an input is written at the timed size alone": (
        SOFTMAX_OF_ROWS.replace(LAST, LAST + "        if x.shape[0] > 256:\n    " + LAST.replace("out[", "x[")),
        "at size 384: dma_copy writes the input x",
    ),
    "a limit is broken": (
        SOFTMAX_OF_ROWS.replace("range(0, x.shape[0], 128)", "range(0, x.shape[0] + 1, 128)"),
        "must stay within",
    ),
    "addresses overlap": (
        SOFTMAX_OF_ROWS.replace(
            OUT,
            OUT + "    a = nl.ndarray((128, 8), nl.float32, buffer=nl.sbuf, address=(0, 0))\n"
            "    b = nl.ndarray((128, 8), nl.float32, buffer=nl.sbuf, address=(0, 16))\n    nisa.memset(dst=a, value=0.0)\n"
            "    nisa.memset(dst=b, value=0.0)\n    nisa.tensor_copy(dst=b, src=a)\n",
        ),
        "memory",
    ),
}


def run(verb, file, tmp_path, *more):
    size = {"bench": ["--chip", "trn2", "--at", "384"], "report": ["--at", "384"]}
    asked = size.get(verb, ["--at", "384", "-o", str(tmp_path / "t.svg")])
    return CliRunner().invoke(app, [verb, str(file), *asked, *(more or ("--task", "softmax"))])


@pytest.mark.parametrize("name", list(FAULTS))
def test_what_fails_without_values_fails_in_every_tool(tmp_path, name):
    text, words = FAULTS[name]
    file = tmp_path / "kernel.py"
    file.write_text(text)
    record = nki_hf.judge(file, "softmax", check=(128,), at=(384,), chip=("trn2",), seed=7)
    assert not record["passed"]
    for verb in ("bench", "report", "trace"):
        done = run(verb, file, tmp_path)
        assert done.exit_code == 1, (verb, done.output)
        assert f"failed at stage {record['stage']}" in done.stderr
    assert words in record["sentence"] + done.stderr


def test_cores_that_race_fail_in_bench(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text(SOFTMAX_OF_ROWS)  # both cores write all of the output
    done = run("bench", file, tmp_path, "--task", "softmax", "--lnc", "2")
    assert done.exit_code == 1, done.output
    assert "failed at stage races" in done.stderr


def test_wrong_values_are_timed_and_verify_says_so(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text(planted(WRONG["scale missing"]))
    task = ("--task", "attention_causal", "--layout", "q=ds,k=ds")
    for verb in ("bench", "report", "trace"):
        done = run(verb, file, tmp_path, *task)
        assert done.exit_code == 0, done.output
        assert "nki_hf judge does that" in " ".join(done.output.split())
    done = CliRunner().invoke(app, ["verify", str(file), *task, "--check", "128"])
    assert done.exit_code == 1
    assert "failed at stage values" in done.output


def test_a_right_kernel_has_the_same_time_everywhere(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text(RIGHT)
    task = ("--task", "attention_causal", "--layout", "q=ds,k=ds")
    rows = json.loads(run("bench", file, tmp_path, *task, "--json").stdout)
    assert json.loads(run("report", file, tmp_path, *task, "--json").stdout)["total_us"] == pytest.approx(rows[0]["us"])
