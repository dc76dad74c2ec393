"""The runner of Transformers' own suites, on a small repository that stands for theirs."""

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.hf_suite import prepare, run, table

SUITE = "tests/models/tiny/test_modeling_tiny.py"

ODD_ENDS = """
import os, pathlib, pytest

def test_counted():
    with open("runs", "a") as file:
        file.write("x")

def test_ends_the_process():
    if not pathlib.Path("second").exists():
        os._exit(7)

@pytest.fixture
def broken_teardown():
    yield
    raise OSError("no room")

def test_teardown(broken_teardown): pass

@pytest.mark.skip(reason="no such device")
def test_skipped(): pass

def test_warnings_are_seen():
    import warnings
    with warnings.catch_warnings(record=True) as seen:
        warnings.warn("old name", FutureWarning)
    assert seen

def test_slow():
    import time
    time.sleep(20)
"""

MODELS = """
import torch
from transformers import LlamaConfig, LlamaModel

def model(**options):
    sizes = dict(vocab_size=32, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    return LlamaModel(LlamaConfig(**sizes, **options)).eval()

def test_forward():
    model()(torch.arange(8)[None])

def test_weights():
    assert model(attn_implementation="eager")(torch.arange(8)[None], output_attentions=True).attentions[0].shape[-1] == 8

def test_weights_of_the_default():
    assert model()(torch.arange(8)[None], output_attentions=True).attentions[0].shape[-1] == 8

def test_name():
    assert model().config._attn_implementation == "sdpa", "another name"

def test_fails_anyway():
    raise ValueError("as ever")
"""


RANDOM = """
import unittest, torch

class Drawn(unittest.TestCase):
    def test_near_the_middle(self):
        torch.testing.assert_close(torch.rand(1), torch.tensor([0.5]), atol=0.25, rtol=0.0)
"""


@pytest.fixture
def checkout(tmp_path):
    """A repository with the folders of transformers' and one suite, committed."""
    root = tmp_path / "checkout"
    files = {
        "conftest.py": "",
        "pyproject.toml": "",
        "utils/keep.py": "",
        "tests/__init__.py": "",
        "tests/test_common.py": "old",
        "tests/models/__init__.py": "",
        "tests/models/tiny/__init__.py": "",
        SUITE: ODD_ENDS,
        "src/transformers/testing_utils.py": "_TESTER_DEFAULTS = {}\n",
    }
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    for arguments in (["init", "-q"], ["add", "."], ["-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "."]):
        subprocess.run(["git", "-C", str(root), *arguments], check=True)
    return root


@pytest.fixture
def folder(checkout, tmp_path, monkeypatch):
    """The repository, prepared; the suites start without the other plug-ins that are installed here, which take a second."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p pytest_timeout")
    prepare.prepare(checkout, tmp_path / "prepared", None)
    return tmp_path / "prepared"


def sdist(path, names):
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            member = tarfile.TarInfo(f"transformers-9.9.9/{name}")
            member.size = 3
            tar.addfile(member, io.BytesIO(b"new"))
    return path


def said(monkeypatch, capsys, module, *arguments):
    """Exit code and standard error of a command line."""
    monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
    code = module.main()
    return code, capsys.readouterr().err


def test_a_folder_holds_the_tests_of_head_with_those_of_the_release_laid_over(checkout, tmp_path):
    (checkout / "tests" / "test_common.py").write_text("not committed")
    names = ["tests/test_common.py", "tests/models/tiny/test_modeling_tiny.py"]
    folder = tmp_path / "prepared"
    prepare.prepare(checkout, folder, sdist(tmp_path / "t-9.9.9.tar.gz", names))
    assert (folder / "tests" / "test_common.py").read_text() == "new"
    assert (folder / SUITE).read_text() == ODD_ENDS
    assert (folder / "COMMIT").read_text().split()[1] == "t-9.9.9.tar.gz"


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nowhere", "is not a folder"),
        ("no_git", "not a git repository"),
        ("empty", "single revision"),
        ("other", "'conftest.py'"),
    ],
)
def test_what_is_no_checkout_is_refused_in_one_line(place, message, tmp_path, monkeypatch, capsys):
    for name in ("no_git", "empty", "other"):
        (tmp_path / name).mkdir()
    for name in ("empty", "other"):
        subprocess.run(["git", "-C", str(tmp_path / name), "init", "-q"], check=True)
    commit = ["-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", ".", "--allow-empty"]
    subprocess.run(["git", "-C", str(tmp_path / "other"), *commit], check=True)
    code, error = said(monkeypatch, capsys, prepare, tmp_path / place, tmp_path / "prepared")
    assert code == 2
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "prepared").exists()


def test_what_is_no_source_distribution_is_refused_in_one_line(checkout, tmp_path, monkeypatch, capsys):
    (tmp_path / "text").write_text("text")
    for source in (tmp_path / "missing", tmp_path / "text", sdist(tmp_path / "wheel.tar.gz", ["src/a.py"])):
        code, error = said(monkeypatch, capsys, prepare, checkout, tmp_path / "prepared", "--sdist", source)
        assert code == 2
        assert str(source) in error
        assert error.count("\n") == 1
    assert not (tmp_path / "prepared").exists()


def test_a_wrong_folder_or_suite_is_refused_in_one_line(folder, tmp_path, monkeypatch, capsys):
    code, error = said(monkeypatch, capsys, run, tmp_path, "tiny")
    assert code == 2
    assert "is not a folder of prepare.py" in error
    assert error.count("\n") == 1
    code, error = said(monkeypatch, capsys, run, folder, "tinny")
    assert code == 2
    assert "suite 'tinny'" in error
    assert "Near: tiny" in error
    assert error.count("\n") == 1
    assert not (folder / "records").exists()


def test_records_of_another_run_are_not_mixed_in(folder, tmp_path):
    record = run.begin(folder, tmp_path, "whole", "tiny")
    assert run.begin(folder, tmp_path, "whole", "tiny") == record
    with pytest.raises(run.Refused, match=r"another keyword: '', now 'sdpa'. Run with --again"):
        run.begin(folder, tmp_path, "whole", "tiny", "sdpa", again=False)
    run.begin(folder, tmp_path, "whole", "tiny", "sdpa", again=True)


def test_an_interrupted_suite_goes_on_where_it_stopped(folder, tmp_path):
    record = run.begin(folder, tmp_path, "none")
    limits = ["--timeout=2", "-o", "timeout_method=signal"]
    problem = run.run(folder, record, "none", [*limits, SUITE], 600)
    assert "status 7 after 1 passed, 0 failed, 0 skipped" in problem
    assert not run.finished(record)
    (folder / "second").touch()
    assert run.run(folder, record, "none", [*limits, SUITE], 600) == ""
    assert run.finished(record)
    assert (folder / "runs").read_text() == "x"
    ends = {row["test"].partition("::")[2]: (row["outcome"], row["why"]) for row in run.rows(record)}
    assert ends == {
        "test_counted": ("passed", ""),
        "test_ends_the_process": ("passed", ""),
        "test_teardown": ("failed", "OSError: no room"),
        "test_warnings_are_seen": ("passed", ""),
        "test_skipped": ("skipped", "no such device"),
        "test_slow": ("failed", "Failed: Timeout (>2.0s) from pytest-timeout."),
    }


def test_a_suite_that_cannot_be_collected_or_takes_too_long_says_so(folder, tmp_path):
    record = run.begin(folder, tmp_path, "none")
    assert "stopped after 1 s" in run.run(folder, record, "none", [SUITE, "-k", "slow"], 1)
    (folder / SUITE).write_text("import not_installed_here")
    assert "(ModuleNotFoundError: No module named 'not_installed_here')" in run.run(folder, record, "none", [SUITE], 600)


def test_the_swap_counts_kernel_calls_and_fallbacks_by_test(folder, tmp_path, monkeypatch):
    (folder / SUITE).write_text(MODELS)
    monkeypatch.setenv("NKI_HF_BACKEND", "torch_reference")
    record = run.begin(folder, tmp_path, "whole", "tiny")
    assert run.run(folder, record, "nki", [SUITE], 600) == ""
    assert {row["test"].partition("::")[2]: (row["kernel"], sum(row["fallbacks"].values())) for row in run.rows(record)} == {
        "test_forward": (1, 0),
        "test_weights": (0, 0),
        "test_weights_of_the_default": (0, 1),
        "test_name": (0, 0),
        "test_fails_anyway": (0, 0),
    }


@pytest.mark.slow  # four processes that import transformers
def test_what_fails_runs_again_without_nki_hf_and_under_the_name_sdpa(folder, monkeypatch, capsys):
    (folder / SUITE).write_text(MODELS)
    monkeypatch.setenv("NKI_HF_BACKEND", "torch_reference")
    code, error = said(monkeypatch, capsys, run, folder, "tiny")
    assert (code, error) == (0, "")
    (suite,) = table.load(folder / "records")
    assert suite.ended
    assert suite.head["backend"] == "torch_reference"
    assert [row["test"].partition("::")[2] for row in suite.changed("failed")] == ["test_name"]
    assert [row["why"] for row in suite.unchanged_failures()] == ["ValueError: as ever"]
    assert (suite.for_the_name(), suite.not_repeated()) == (1, 0)
    before = {path: path.read_bytes() for path in (folder / "records").glob("*.jsonl")}
    assert said(monkeypatch, capsys, run, folder, "tiny")[0] == 0  # nothing left to do
    assert before == {path: path.read_bytes() for path in (folder / "records").glob("*.jsonl")}


def test_draws_count_failures_and_measure_how_near_they_come(folder):
    (folder / SUITE).write_text(RANDOM)
    (folder / "tests" / "test_modeling_common.py").write_text("import random\nglobal_rng = random.Random()\n")
    tools = Path(run.__file__).parent
    script = f"""import sys; sys.path[:0] = [{str(tools)!r}, {str(folder)!r}]
import draws, json
from tests.models.tiny.test_modeling_tiny import Drawn
print(json.dumps(draws.draw(Drawn, "test_near_the_middle", 40)))"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=folder)
    failures, ratios = json.loads(done.stdout.splitlines()[-1])
    drawn = [torch.rand(1, generator=torch.Generator().manual_seed(seed)).double() for seed in range(40)]
    expected = [float((value - 0.5).abs() / 0.25) for value in drawn]
    assert ratios == pytest.approx(expected)
    assert failures == sum(ratio > 1 for ratio in expected) > 0


def test_draws_of_a_test_that_is_not_there_are_refused_in_one_line(folder):
    script = Path(run.__file__).parent / "draws.py"
    done = subprocess.run([sys.executable, script, folder, f"{SUITE}::one_name"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"{SUITE}::one_name is not path::class::name" in done.stderr
    assert done.stderr.count("\n") == 1


def written(folder, name, *tests, ended=True, **head):
    """A record with these tests: (name, outcome, fallbacks)."""
    rows = [
        {"suite": "tiny", "keyword": "", "tests": "0123456789ab", "laid_over": "", "nki_hf": "t", "versions": {"torch": "1"}}
    ]
    rows[0] |= head
    for test, outcome, fallbacks in tests:
        why = "" if outcome == "passed" else f"Error: {test}"
        rows.append({"test": f"a.py::T::{test}", "outcome": outcome, "why": why, "seconds": 30, "kernel": 2} | fallbacks)
    lines = [json.dumps(row) for row in rows] + ['{"end": true}'] * ended
    (folder / name).write_text("\n".join(lines) + "\n")


def test_the_page_counts_and_explains_what_changes(tmp_path):
    none = {"fallbacks": {}}
    tests = [("test_a", "passed", {"fallbacks": {"dropout": 3}}), ("test_name", "failed", none), ("test_old", "failed", none)]
    tests += [("test_less", "skipped", none), ("test_odd", "failed", none), ("test_never", "skipped", none)]
    written(tmp_path, "tiny-simulator.jsonl", *tests, backend="simulator")
    plain = [("test_name", "passed", none), ("test_old", "failed", none), ("test_less", "passed", none)]
    plain += [("test_odd", "passed", none), ("test_never", "skipped", none)]
    written(tmp_path, "none.jsonl", *plain, suite="", backend="none")
    others = {"suite": "", "backend": "simulator"}
    written(tmp_path, "as_sdpa-simulator.jsonl", ("test_name", "passed", none), ("test_odd", "passed", none), **others)
    written(tmp_path, "again-simulator.jsonl", ("test_name", "failed", none), ("test_odd", "passed", none), **others)
    written(tmp_path, "half-simulator.jsonl", ("test_a", "passed", none), ended=False, suite="half", backend="simulator")
    new = [{"test": "test_name", "why": "The name."}, {"test": "test_*", "message": "*less*", "why": "Less."}]
    without = [{"test": "test_old", "why": "Old."}]
    text, missing = table.page(table.load(tmp_path), {"text": {"start": "Start."}, "new": new, "without": without})
    assert "| tiny | 1 | 2 | 1 | 2 | 1 | 1 | 1 | 12 | 3 |" in text
    assert "| half (not run to its end: 1 tests) | 1 | 0 |" in text
    assert "The name." in text
    assert "Less." in text
    assert "Old." in text
    assert missing == ["simulator a.py::T::test_odd: Error: test_odd"]
    assert "**Not explained:** `Error: test_odd`" in text
    assert "| dropout | 3 | tiny 3 | `test_a` |" in text
    assert "| Error: test_less | 1 |" in text


def test_the_command_uses_the_kept_explanations(tmp_path, monkeypatch, capsys):
    none, name = {"fallbacks": {}}, "test_sdpa_can_dispatch_composite_models"
    for back_end, outcome in (("simulator", "failed"), ("none", "passed")):
        file = "none.jsonl" if back_end == "none" else "tiny-simulator.jsonl"
        why = {"why": "AssertionError: False is not true"}
        written(tmp_path, file, (name, outcome, none | why), backend=back_end, suite="tiny" * (back_end != "none"))
    page = tmp_path / "page.md"
    assert said(monkeypatch, capsys, table, tmp_path, "--write", page) == (0, "")
    assert f"* tiny: `{name}`" in page.read_text()
    written(tmp_path, "tiny-simulator.jsonl", (name, "failed", none), backend="simulator")  # another message
    code, error = said(monkeypatch, capsys, table, tmp_path, "--write", page)
    assert code == 1
    assert error == f"not explained: simulator a.py::T::{name}: Error: {name}\n"


def test_a_page_without_records_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    code, error = said(monkeypatch, capsys, table, tmp_path)
    assert code == 2
    assert str(tmp_path) in error
    assert error.count("\n") == 1
