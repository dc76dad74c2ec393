"""Results of `nki_hf tune` are kept, and count while all that they follow from is as it was."""

from __future__ import annotations

import shutil

import pytest
from typer.testing import CliRunner

from nki_hf.cli import app
from nki_hf.tools.searching.workers import Workers
from nki_hf.tools.tuning import study as studies
from nki_hf.tools.tuning.study import source_digest, study_of
from tests.support.tuned_kernels import SMALL, TUNED, tuned


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text(TUNED)
    return path


def test_results_are_kept_and_nothing_runs_again(file, tmp_path, monkeypatch):
    words = [str(file), *SMALL, "--const", "extra=0..3", "--cache", str(tmp_path / "cache"), "--no-judge"]
    (first,) = tuned(*words)
    monkeypatch.setattr(Workers, "_one", lambda *_: pytest.fail("a trial runs"))
    (again,) = tuned(*words)
    assert (first["reloaded"], again["reloaded"]) == (0, 4)
    assert {key: first[key] for key in ("best", "us", "start_us")} == {key: again[key] for key in ("best", "us", "start_us")}


def test_another_source_import_chip_size_or_law_is_another_study(file, tmp_path, monkeypatch):
    facts = {"chip": "trn2", "size": 256}
    first = study_of(facts, file, tmp_path).name
    assert study_of(facts, file, None).name == first
    assert len({first, *(study_of({**facts, k: v}, file, None).name for k, v in (("chip", "trn1"), ("size", 512)))}) == 3
    file.write_text(TUNED + "\n# changed\n")
    assert study_of(facts, file, None).name != first
    file.write_text("import steps\nfrom parts import wide\n" + TUNED)
    names = []
    for name, text in (("steps.py", "x = 1"), ("steps.py", "x = 2"), ("parts/__init__.py", ""), ("parts/wide.py", "y = 1")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        names.append(source_digest(file))
    assert len(set(names)) == 4
    same = study_of(facts, file, None).name
    (tmp_path / "other.py").write_text("z = 1")
    assert study_of(facts, file, None).name == same
    monkeypatch.setattr(studies, "laws", lambda: "others")
    assert study_of(facts, file, None).name != same


IMPORTS = {
    "beside another": ("import os, helper", "helper.py"),
    "after a semicolon": ("import sys; import helper", "helper.py"),
    "in a try": ("try: import helper\nexcept ImportError: pass", "helper.py"),
    "over lines": ("from pkg import (\n    sub,\n)", "pkg/sub.py"),
    "a package on the way": ("import pkg.sub", "pkg/__init__.py"),
    "in turn": ("import between", "helper.py"),
    "relative, in turn": ("import pkg.near", "pkg/sub.py"),
    "by a function": ("import importlib\nhelper = importlib.import_module('hel' + 'per')", "helper.py"),
    "data": ("import numpy as np\nWIDTH = np.load('width.npy')", "width.npy"),
    "a text": ("WIDTH = int(open('width.npy').read())", "width.npy"),
}


@pytest.mark.parametrize(("text", "changed"), IMPORTS.values(), ids=IMPORTS)
def test_whatever_a_kernel_imports_or_reads_beside_it_is_in_its_digest(tmp_path, text, changed):
    (tmp_path / "pkg").mkdir()
    for name in ("helper.py", "pkg/sub.py", "pkg/__init__.py", "width.npy"):
        (tmp_path / name).write_text("X = 1\n")
    (tmp_path / "between.py").write_text("def f():\n    import helper\n")
    (tmp_path / "pkg/near.py").write_text("from . import sub\n")
    (tmp_path / "kernel.py").write_text(text + "\n")
    before = source_digest(tmp_path / "kernel.py")
    assert source_digest(tmp_path / "kernel.py") == before
    (tmp_path / changed).write_text("X = 2\n")
    assert source_digest(tmp_path / "kernel.py") != before


def test_a_relative_path_means_the_folder_in_which_the_command_runs(file, tmp_path, monkeypatch):
    file.write_text("COUNT = int(open('count').read())\n" + TUNED.replace("range(extra)", "range(extra + COUNT)"))
    words = [str(file), *SMALL, "--const", "extra=0..1", "--cache", str(tmp_path / "cache"), "--no-judge"]
    times = []
    for name in ("1", "3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "count").write_text(name)
        monkeypatch.chdir(tmp_path / name)
        times.append(tuned(*words)[0])
        assert tuned(*words)[0]["reloaded"] == 2
    assert [found["reloaded"] for found in times] == [0, 0]
    assert times[0]["us"] < times[1]["us"]


def test_a_kernel_is_the_same_whatever_path_is_typed(file, tmp_path, monkeypatch):
    """Also as a copy of another name, unless its source asks where it lies: one study, and one kept result."""
    (tmp_path / "below").mkdir()
    shutil.copy(file, tmp_path / "below" / "again.py")
    monkeypatch.chdir(tmp_path / "below")
    found = []
    for typed in ("../kernel.py", "./../kernel.py", str(file), "again.py", "./again.py"):
        found += tuned(typed, *SMALL, "--const", "extra=0", "--cache", str(tmp_path / "cache"), "--no-judge")
    assert len({row["study"] for row in found}) == 1
    assert [row["reloaded"] for row in found] == [0, 1, 1, 1, 1]


def test_imports_beside_a_copy_are_in_its_digest(file, tmp_path):
    """The same contents give the same digest wherever they lie, other contents of an import another."""
    digests = []
    for name, text in (("one", "X = 1\n"), ("two", "X = 1\n"), ("three", "X = 2\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.py").write_text("import helper\n" + TUNED)
        (tmp_path / name / "helper.py").write_text(text)
        digests.append(source_digest(tmp_path / name / f"{name}.py"))
    assert digests[0] == digests[1] != digests[2]


def test_a_search_that_the_judge_times_otherwise_is_dropped(file, tmp_path, monkeypatch):
    """What native code reads by itself is not noticed, here the environment by `posix`: the judge of the fastest is."""
    head = "import posix\nCOUNT = int(posix.environ.get(b'NKI_HF_TEST_EXTRA', b'0'))\n"
    file.write_text(head + TUNED.replace("range(extra)", "range(extra + COUNT)"))
    words = ["tune", str(file), *SMALL, "--const", "extra=0..1", "--cache", str(tmp_path / "cache")]
    monkeypatch.setenv("NKI_HF_TEST_EXTRA", "3")
    assert CliRunner().invoke(app, [*words, "--no-judge"]).exit_code == 0
    monkeypatch.delenv("NKI_HF_TEST_EXTRA")
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert "the judge times a kernel otherwise" in done.stderr
    assert CliRunner().invoke(app, words).exit_code == 0


def test_a_kernel_of_ours_is_digested_with_its_modules_and_no_other_kernels(tmp_path, monkeypatch):
    package = tmp_path / "nki_hf"
    shutil.copytree(studies._PACKAGE / "kernels", package / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "__init__.py").touch()
    monkeypatch.setattr(studies, "_PACKAGE", package)
    kernel = package / "kernels" / "flash_const_max" / "kernel.py"

    def changes(module):
        path = package / "kernels" / module
        before, text = source_digest(kernel), path.read_text()
        path.write_text(text + "\n# changed\n")
        after = source_digest(kernel)
        path.write_text(text)
        assert source_digest(kernel) == before
        return after != before

    parts = (
        "kernel",
        "pipeline",
        "loads",
        "lse",
        "finish",
        "masks",
        "work",
        "worklist",
        "exact",
        "exact_blocks",
        "certificate",
    )
    assert [name for name in parts if not changes(f"flash_const_max/{name}.py")] == []
    assert not changes("flash_decode/kernel.py")


def test_a_damaged_file_of_results_is_no_obstacle(file, tmp_path):
    """What a killed process left unfinished, or anything else that is no result, is found out again."""
    words = [str(file), *SMALL, "--const", "extra=0..2", "--cache", str(tmp_path / "cache"), "--no-judge"]
    (first,) = tuned(*words)
    (results,) = (tmp_path / "cache").iterdir()
    whole = results.read_bytes()
    results.write_bytes(b'{"study"\n[]\n{}\n\xff\n' + whole[:-20])
    (again,) = tuned(*words)
    assert again["reloaded"] == 2
    assert {key: first[key] for key in ("best", "us", "start_us")} == {key: again[key] for key in ("best", "us", "start_us")}
    (third,) = tuned(*words)
    assert third["reloaded"] == 3
