"""Python 3.12 and 3.13: the package as a newcomer installs it, with the newest versions that it allows, and part of the suite.

`pytest -m slow tests/project/test_other_pythons.py` runs it; an interpreter is found on the PATH or among pyenv's.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.12", "3.13")
TOOLS = ("pytest", "pytest-timeout", "hypothesis", "allpairspy", "syrupy", "packaging", "hatchling", "editables")
"""What the part of the suite and the build need, of the extra `test`."""
SUITE = (
    "tests/sim/test_isa_elementwise.py",
    "tests/sim/test_isa_matmul.py",
    "tests/sim/test_isa_reductions.py",
    "tests/sim/test_lang_loops.py",
    "tests/sim/test_lang_objects.py",
    "tests/sim/test_lang_refusals.py",
    "tests/sim/test_sim_launch.py",
    "tests/sim/test_sim_as_nki.py",
    "tests/kernels/test_flash_prefill.py",
    "tests/kernels/test_ladder.py",
    "tests/tools/test_judge.py",
    "tests/tools/test_kernel_lint_rules.py",
    "tests/project/test_fuzz.py::test_random_kernels",
    "tests/project/test_fuzz.py::test_random_problems",
    "tests/project/test_fuzz.py::test_random_bands",
    "tests/project/test_fuzz_kernels.py::test_random_kernels_of_the_rest_of_the_language",
    "tests/project/test_fuzz_tapes.py::test_random_kernels_of_two_cores_and_of_tapes",
)
"""The simulator's instructions and language, kernels, judge, lint, and the random kinds at the seeds of the default run."""
MODELS = ("imported first", "qwen3: left padding", "qwen3: generate, dynamic cache", "qwen3: training step", "gpt_oss: right")
"""Cases of tools/version_smoke.py: attention through Transformers, each against eager."""


def interpreter(version, path=None, pyenv=None):
    """An interpreter of that version that can make environments, or None; a shim of pyenv that points nowhere is none."""
    pyenv = Path(pyenv or os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = shutil.which(f"python{version}", path=path)
    numbers = lambda folder: [int(part) for part in folder.name.split(".") if part.isdigit()]  # noqa: E731
    folders = sorted((pyenv / "versions").glob(f"{version}.*"), key=numbers, reverse=True)
    for candidate in [*([found] if found else []), *(folder / "bin" / f"python{version}" for folder in folders)]:
        code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([candidate, "-c", code], capture_output=True, text=True)
        if done.returncode == 0 and done.stdout.strip() == version:
            return str(candidate)
    return None


def wanted():
    """Requirements of others: the tools, and the torch of our own runs."""
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["test"]
    tools = [each for each in extra if Requirement(each).name in TOOLS]
    assert len(tools) == len(TOOLS), tools
    return [*tools, *(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))]


def test_an_interpreter_is_one_that_answers_with_its_version(tmp_path):
    def put(folder, text):
        folder.mkdir(parents=True)
        (folder / "python3.12").write_text(f"#!/bin/sh\n{text}\n")
        (folder / "python3.12").chmod(0o755)

    put(tmp_path / "shims", "echo command not found >&2; exit 127")
    assert interpreter("3.12", path=str(tmp_path / "shims"), pyenv=tmp_path) is None
    put(tmp_path / "versions" / "3.12.9" / "bin", "echo 3.11")
    assert interpreter("3.12", path=str(tmp_path / "shims"), pyenv=tmp_path) is None
    put(tmp_path / "versions" / "3.12.10" / "bin", "echo 3.12")
    chosen = interpreter("3.12", path=str(tmp_path / "shims"), pyenv=tmp_path)
    assert chosen == str(tmp_path / "versions" / "3.12.10" / "bin" / "python3.12")
    assert sys.executable  # the search of the real one is that of the slow test below


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_part_of_the_suite_passes_on(version, tmp_path):
    found = interpreter(version)
    if found is None:
        pytest.skip(f"no python{version} on the PATH or among pyenv's versions")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "NKI_HF"))}
    clean |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    python = tmp_path / "venv" / "bin" / "python"

    def run(*words, cwd=ROOT, timeout=900):
        command = [str(word) for word in words]
        return subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, timeout=timeout)

    def passes(*words, **options):
        done = run(*words, **options)
        assert done.returncode == 0, f"{' '.join(map(str, words[1:]))}\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    passes(found, "-m", "venv", tmp_path / "venv")
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    others = run(*pip, *wanted())
    if others.returncode:
        pytest.skip(f"pip cannot install the tools and torch here: {others.stderr.strip().splitlines()[-1]}")
    # From here on nothing is skipped: what cannot be installed now is what our own metadata ask for.
    passes(*pip, "--no-build-isolation", "--constraint", ROOT / "constraints.txt", f"{ROOT}[hf]")
    where = passes(python, "-c", "import nki_hf, sys; print(nki_hf.__file__, *sys.version_info[:2])", cwd=tmp_path).split()
    assert Path(where[0]).is_relative_to(tmp_path)  # the installed one, not this checkout
    assert ".".join(where[1:]) == version
    for command in (["chip", "trn2"], ["bench", "--shape", "sq=128,skv=128", "--chip", "trn2"]):
        here = subprocess.run([sys.executable, "-m", "nki_hf", *command], env=clean, capture_output=True, text=True)
        assert passes(python, "-m", "nki_hf", *command, cwd=tmp_path) == here.stdout
    suite = passes(python, "-m", "pytest", *SUITE, "-m", "not slow", "-q", "-p", "no:cacheprovider", "--timeout", "300")
    print(f"Python {version}: {suite.strip().splitlines()[-1]}")
    models = passes(python, "tools/version_smoke.py", *MODELS)
    assert f"python {version}." in models
    assert sum(line.split()[-2] == "ok" for line in models.splitlines()[1:]) == len(MODELS) + 1, models
    print(models)
