"""The two commands' set-up: built once, repeated when it failed or is out of date, one clear line without a Python."""

import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAKE = """#!/bin/sh
# Stands in for Python: logs what it is asked, makes "environments" that hold itself, installs nothing.
echo "$@" >> {log}
case "$*" in
  "-m venv"*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  *"pip install"*) [ ! -e {fail} ] ;;
esac
"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture
def project(tmp_path):
    """A folder with the real Makefile, the files it watches, and a fake Python."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    fake = tmp_path / "fake-python"
    fake.write_text(FAKE.format(log=tmp_path / "log", fail=tmp_path / "fail"))
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    return tmp_path


def _make(project, target, python="fake-python"):
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    path = f"./{python}" if python == "fake-python" else python
    return subprocess.run(["make", target, f"PYTHON={path}"], cwd=project, capture_output=True, text=True, env=clean)


def _installs(project):
    return [line for line in (project / "log").read_text().splitlines() if "pip install" in line]


def test_the_second_run_installs_nothing_and_its_check_is_quick(project):
    assert _make(project, "ready-hf").returncode == 0
    start = time.perf_counter()
    again = _make(project, "ready-hf")
    assert time.perf_counter() - start < 3
    assert again.returncode == 0, again.stderr
    (install,) = _installs(project)
    assert install.endswith("--constraint constraints.txt --editable .[hf]")
    assert sum("-m venv" in line for line in (project / "log").read_text().splitlines()) == 1


def test_each_extra_is_installed_once(project):
    for extra in ("ready-hf", "ready-test", "ready-hf"):
        assert _make(project, extra).returncode == 0
    assert [line.rpartition(" ")[2] for line in _installs(project)] == [".[hf]", ".[test]"]


def test_a_failed_set_up_is_repeated(project):
    (project / "fail").touch()
    assert _make(project, "ready-hf").returncode != 0
    (project / "fail").unlink()
    assert _make(project, "ready-hf").returncode == 0
    assert len(_installs(project)) == 2


def test_a_changed_pyproject_is_installed_again(project):
    assert _make(project, "ready-hf").returncode == 0
    later = time.time() + 5
    os.utime(project / "pyproject.toml", (later, later))
    assert _make(project, "ready-hf").returncode == 0
    assert len(_installs(project)) == 2


def test_without_a_python_it_says_what_to_do(project):
    done = _make(project, "ready-hf", python="no-such-python")
    assert done.returncode != 0
    assert "No Python >= 3.11 among: no-such-python" in done.stderr
    assert not (project / ".venv").exists()


def test_an_environment_that_is_there_is_used_and_not_made_anew(project):
    """Somebody made it by hand, as README's first lines have it, and has installed things."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", project / ".venv"], check=True)
    own = next((project / ".venv" / "lib").glob("python*")) / "site-packages" / "pip.py"
    own.write_text("# stands in for pip\n")
    done = _make(project, ".venv/.created")
    assert done.returncode == 0, done.stderr
    assert ".venv is here already, and is used" in done.stdout
    assert own.exists()


def test_it_says_what_it_does_and_where(project):
    first = _make(project, "ready-hf").stdout
    assert "set-up: making .venv" in first
    assert "installing this folder (editable) with the extra 'hf' into .venv" in first


def test_make_alone_lists_every_command(project):
    listed = _make(project, "help").stdout
    for command in ("bench", "test", "test-slow", "test-realweights", "lint", "clean"):
        assert f"make {command} " in listed


def test_ci_runs_the_documented_test_command_and_refuses_a_run_without_tests(tmp_path):
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    for said, code in (("3 passed, 1 skipped in 2s", 0), ("4 skipped in 1s", 1), ("no tests ran", 1), ("0 passed", 1)):
        (tmp_path / "Makefile").write_text(f"test:\n\t@echo '{said}'\n")
        assert subprocess.run(["bash", ".ci/run"], cwd=tmp_path, capture_output=True).returncode == code
    (tmp_path / "Makefile").write_text("test:\n\t@echo '3 passed, 1 failed'; exit 1\n")
    assert subprocess.run(["bash", ".ci/run"], cwd=tmp_path, capture_output=True).returncode != 0
