"""Constants on the command line: a name that the kernel has not, or what is no value, is wrong use of every verb."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

import nki_hf
from nki_hf.cli import app
from nki_hf.tools.option_values import constant_of
from tests.support.search_agents import KERNEL
from tests.support.tuned_kernels import SMALL, TUNED, tuned

SIZES = ["--task", "softmax", "--check", "128", "--at", "128", "--chip", "trn2"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text(TUNED)
    (tmp_path / "plain.py").write_text(KERNEL)
    return path


def _wrong(*words):
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 2, (done.stdout, done.stderr)
    assert done.stdout == ""
    return " ".join(done.stderr.split())


def test_a_constant_that_the_kernel_has_not_is_wrong_use(file):
    assert "no parameter nope: its constants are extra, wrong." in _wrong("judge", str(file), *SIZES, "--const", "nope=3")
    words = ["tune", str(file), *SMALL, "--const", "extra=0", "--cache", "off", "--given", "nope=4"]
    assert "no parameter nope: its constants are extra, wrong." in _wrong(*words)
    plain = str(file.with_name("plain.py"))
    assert "no parameter nope: its constants are none." in _wrong("judge", plain, *SIZES, "--const", "nope=3")
    assert "nope" in _wrong("compare", str(file), plain, *SIZES, "--const", "nope=3")
    with pytest.raises(ValueError, match="no parameter nope"):
        nki_hf.judge(file, "softmax", check=(128,), at=(128,), chip=("trn2",), constants={"nope": 3})


def test_a_constant_that_takes_an_array_is_wrong_use(file):
    assert "x takes an array of the task" in _wrong("judge", str(file), *SIZES, "--const", "x=3")


def test_a_kernel_of_ours_that_its_plan_runs_takes_no_constant():
    said = _wrong("judge", "flash_const_max", "--task", "attention", "--chip", "trn2", "--const", "group=1")
    assert "run by its plan" in said


def test_compare_gives_a_constant_to_the_kernel_that_has_it(file):
    done = CliRunner().invoke(app, ["compare", str(file), str(file.with_name("plain.py")), *SIZES, "--const", "extra=0"])
    assert done.exit_code == 0, done.stderr
    assert "1.00 times as fast" in done.stdout  # without its extra instructions it is the plain kernel


VALUES = {
    "3": 3,
    "1.5": 1.5,
    "True": True,
    "bfloat16": "bfloat16",
    "(1, 2)": (1, 2),
    "'a,b'": "a,b",
    "'1..3'": "1..3",
    "[1]": [1],
}


@pytest.mark.parametrize("text", VALUES)
def test_a_constant_is_one_value(text):
    assert constant_of(f"name={text}") == ("name", VALUES[text])


@pytest.mark.parametrize("text", ["1,2", "1,", "a,b", "1..3", "1..", "..3", "1..2:1", "1.5..2"])
def test_several_values_are_no_constant_of_one_kernel(file, text):
    assert "is not one value" in _wrong("judge", str(file), *SIZES, "--const", f"extra={text}")


@pytest.mark.parametrize("text", ["1..", "..3", "1..1000000000000", "1...3", "1..3..5", "a..b", "1..3.5", "1..3:", "2,1.."])
def test_a_range_that_does_not_read_is_no_text(file, text):
    assert "is no range" in _wrong("tune", str(file), *SMALL, "--cache", "off", "--const", f"extra={text}")


def test_a_text_with_dots_may_be_quoted(file):
    (found,) = tuned(str(file), *SMALL, "--cache", "off", "--no-judge", "--const", "wrong='1..',0", "--given", "extra=0")
    assert [row["constants"]["wrong"] for row in found["trials"]] == ["1..", 0]


def test_options_that_nothing_uses_are_refused(file):
    for words in (["--trials", "5"], ["--seed", "5"]):
        assert "give --sampler" in _wrong("tune", str(file), *SMALL, "--cache", "off", "--const", "extra=0", *words)
    own = ["tune", "flash_const_max", "--shape", "hq=1,sq=512", "--chip", "trn2", "--cache", "off", "--const", "group=1"]
    for words in (["--given", "lag=4"], ["--at", "512"], ["--check", "512"], ["--dtype", "float32"], ["--layout", "q=ds"]):
        assert f"{words[0][2:]}: of a file" in _wrong(*own, *words)


def test_a_kernel_that_is_none_of_ours_is_answered_with_ours():
    said = _wrong("tune", "flash_nope", "--shape", "hq=1,sq=512", "--const", "group=1")
    assert "kernel='flash_nope'" in said
    assert "flash_const_max" in said


def test_a_fastest_that_fails_at_the_checked_size_says_how_to_set_sizes(file):
    """The kernel is wrong at 384 rows, which the task checks; it is right at 128 and 256."""
    file.write_text(TUNED.replace("op0=nl.multiply if wrong", "op0=nl.multiply if x.shape[0] > 256"))
    words = ["tune", str(file), *SMALL, "--cache", "off", "--const", "extra=1"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert "--check gives other sizes" in " ".join(done.stderr.split())
    done = CliRunner().invoke(app, [*words, "--check", "128"])
    assert done.exit_code == 0, done.stderr
