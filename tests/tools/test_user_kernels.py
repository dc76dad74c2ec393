"""report, trace, bench, verify and lint on a kernel file with a task: they show what judge shows, and fail in its words."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from nki_hf.cli import app
from nki_hf.tools.judging.judgement import judge
from nki_hf.tools.judging.record import Record
from tests.support.judged_kernels import RIGHT, WRONG, planted

TASK = ["--task", "attention_causal", "--layout", "q=ds,k=ds"]


@pytest.fixture
def right(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text(RIGHT)
    return str(file)


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_report_and_trace_give_the_time_that_judge_gives(right, tmp_path):
    record = judge(right, "attention_causal", layout="q=ds,k=ds", check=(256,), at=(256,), chip=("trn2",))
    us = record["times"][0]["us"]
    done = run("report", f"{right}:attention", *TASK, "--at", 256, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["total_us"] == pytest.approx(us)
    assert told["band"] == f"error on measured rows: {record['times'][0]['band']}"
    drawn = run("trace", "--kernel", right, *TASK, "--at", 256, "-o", tmp_path / "t.svg")
    assert drawn.exit_code == 0, drawn.output
    assert f"{us:,.1f}" in drawn.stdout
    assert "attention, trn2: " in drawn.stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import neuronxcc.nki as nki\n", "before NKI 0.3"),
        ("def f(x):\n    return x\n", "no kernel: it has functions f"),
        ("import sys\nsys.exit(0)\n", "sys.exit(0)"),
        ("import nki, nki.isa as nisa\n@nki.jit\ndef k(x):\n    nisa.tensor_copi(dst=x, src=x)\n", "nisa.tensor_copy"),
    ],
)
@pytest.mark.parametrize("verb", ["report", "trace", "bench"])
def test_a_file_that_fails_is_one_sentence_and_exit_code_1(tmp_path, verb, text, words):
    file = tmp_path / "kernel.py"
    file.write_text(text)
    done = run(verb, file, "--task", "softmax")
    assert done.exit_code == 1
    assert words in done.stderr
    assert "failed at stage" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", ["report", "trace"])
@pytest.mark.parametrize("words", [["FILE"], ["--task", "softmax"], ["--at", "256"], ["FILE", *TASK, "--shape", "sq=128"]])
def test_options_that_do_not_go_together_are_wrong_use(right, verb, words):
    done = run(verb, *[right if word == "FILE" else word for word in words])
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("verb", ["verify", "lint"])
def test_verify_and_lint_on_a_task_give_the_record(right, verb):
    done = run(verb, right, *TASK, "--json", *(["-", "--check", 256, "--chip", "trn1"] if verb == "verify" else []))
    record = json.loads(done.stdout)
    Record.model_validate(record)
    assert (done.exit_code, record["verdict"], record["times"]) == (0, "pass", [])
    assert bool(record["cases"]) == (verb == "verify")


def test_verify_on_a_task_names_the_mistake(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text(planted(WRONG["scale missing"]))
    done = run("verify", file, *TASK, "--check", 256)
    assert done.exit_code == 1
    assert "the scale is missing" in done.stdout


def test_lint_on_a_task_finds_what_only_a_run_shows(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text(RIGHT.replace("def attention(q, k, v):", "def attention(q, k, v, tile):"))
    done = run("lint", file, *TASK)
    assert done.exit_code == 1
    assert "also needs tile" in done.stdout


def test_bench_gives_a_row_per_size_and_chip(right):
    done = run("bench", right, *TASK, "--at", "256,512", "--json")
    rows = json.loads(done.stdout)
    assert [(row["size"], row["chip"]) for row in rows] == [(n, c) for n in (256, 512) for c in ("trn1", "trn2", "trn3")]
    record = judge(right, "attention_causal", layout="q=ds,k=ds", check=(256,), at=(512,), chip=("trn1",))
    assert rows[3]["us"] == record["times"][0]["us"]
    table = run("bench", right, *TASK, "--at", "256", "--chip", "trn1").stdout
    assert "simulated, not measured" in table
    assert "error on measured rows: attention, trn1" in table


@pytest.mark.parametrize("words", [["--reference", "x.py:f"], ["--arg", "a=1x1"], ["--causal"], ["--shape", "sq=128"]])
def test_verify_on_a_task_refuses_what_describes_other_kernels(right, words):
    done = run("verify", right, *TASK, *words)
    assert done.exit_code == 2
    assert words[0] in done.stderr
