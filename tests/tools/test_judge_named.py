"""Kernels of the package by name, options in the forms that a caller has, and folders that a killed server leaves."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

import nki_hf
from nki_hf.cli import app
from nki_hf.tools.judging import server

QUICK = {"check": (512,), "at": (512,), "chip": "trn2"}


@pytest.mark.parametrize(
    ("name", "task"),
    [("v7", "attention_unscaled"), ("sd_fused_exp", "attention_diffusion"), ("flash_decode", "attention_decode")],
)
def test_python_takes_the_names_that_the_command_line_takes(name, task):
    record = nki_hf.judge(name, task, **QUICK)
    assert record["passed"], record["sentence"]
    for verb in ("verify", "lint", "bench", "report"):
        size = ["--check", "512"] if verb == "verify" else [] if verb == "lint" else ["--at", "512"]
        done = CliRunner().invoke(app, [verb, name, "--task", task, *size])
        assert done.exit_code == 0, (verb, done.output)


def test_a_rung_that_is_judged_by_another_task_says_which(tmp_path):
    record = nki_hf.judge("v7", "attention", **QUICK)
    assert not record["passed"]
    assert record["sentence"].endswith("v7 is judged by --task attention_unscaled, whose function it computes.")
    assert "attention_unscaled" in " ".join(CliRunner().invoke(app, ["judge", "--help"]).stdout.split())


@pytest.mark.parametrize("name", ["v99", "no_such_module.kernels:k", ""])
def test_a_name_that_is_none_says_what_there_is(name):
    with pytest.raises(ValueError, match=r"is not a kernel: it is FILE\.py, FILE\.py:NAME or one of v3, v4"):
        nki_hf.judge(name, "attention")


def test_options_are_taken_as_the_command_line_takes_them():
    record = nki_hf.judge("v7", "attention_unscaled", check=512, at="512", chip="trn1,trn2")
    assert record["passed"], record["sentence"]
    assert [(row["size"], row["chip"]) for row in record["times"]] == [(512, "trn1"), (512, "trn2")]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"check": (128.0,)}, "size=128.0 is not a size: it is a whole number"),
        ({"check": "abc"}, "check='abc' is no list of sizes"),
        ({"at": 1.5}, "at=1.5 is no list of sizes"),
        ({"lnc": "2"}, "lnc='2' is no number"),
        ({"timeout": "x"}, "timeout='x' is no number"),
        ({"seed": 1.5}, "seed=1.5 is no seed"),
    ],
)
def test_options_of_a_wrong_type_are_wrong_use(option, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        nki_hf.judge("v7", "attention_unscaled", **option)


def test_a_task_that_is_an_object_is_wrong_use():
    with pytest.raises(ValueError, match="a Task of your own stands in a file"):
        nki_hf.judge("v7", object())


def test_a_parent_of_another_task_is_a_warning(tmp_path):
    """Its arrays do not fit: the kernel that is judged is right all the same."""
    file = tmp_path / "kernel.py"
    text = "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n\n\n@nki.jit\ndef t(x):\n"
    text += "    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)\n    for r in range(0, x.shape[0], 128):\n"
    text += "        nl.store(out[r : r + 128], nl.softmax(nl.load(x[r : r + 128])))\n    return out\n"
    file.write_text(text)
    record = nki_hf.judge(file, "softmax", check=(128,), at=(256,), chip="trn2", against="v7")
    assert record["passed"], record["sentence"]
    assert any(words.startswith("--against ") and "did not run" in words for words in record["warnings"])


def test_folders_of_dead_servers_are_removed(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    mine = server._prefix()
    gone = tmp_path / f"{mine.replace(f'_{os.getpid()}_', f'_{dead.pid}_')}abc"
    kept = [tmp_path / f"{mine}abc", tmp_path / "nki_hf_judge_x", tmp_path / f"nki_hf_judge_f00_{dead.pid}_abc"]
    for folder in (gone, *kept):
        folder.mkdir()
        (folder / "kernel").write_text("")
    server.clear_left_folders()
    assert not gone.exists()
    assert all(Path(folder).is_dir() for folder in kept)
