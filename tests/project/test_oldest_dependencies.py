"""The core with the oldest versions that pyproject.toml allows: commands say what they say with the newest, and the NumPy model
judges kernels."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

KERNELS = """
from tools.fuzz.kernel_check import check_program, without_refused
from tools.fuzz.kernel_programs import draw_program
for seed in range(60):
    program, _ = without_refused(draw_program(seed))
    assert program is None or not check_program(program), (seed, check_program(program))
"""


def oldest():
    """The core's dependencies at their floors; a dependency without a floor fails here."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    pairs = [each.split(">=") for each in wanted]
    assert all(len(pair) == 2 for pair in pairs), wanted
    return [f"{name}=={floor}" for name, floor in pairs]


def test_every_dependency_of_the_core_has_a_floor():
    assert any(each.startswith("numpy==2.0") for each in oldest())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_core_runs_with_the_oldest_versions_it_allows(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    quiet = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    installed = subprocess.run([python, *quiet, *oldest()], capture_output=True, text=True)
    if installed.returncode:
        pytest.skip(f"pip cannot install them here: {installed.stderr.strip().splitlines()[-1]}")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    for words in (
        "chip trn2",
        "lint nki_hf/ladder",
        "lint nki_hf/kernels/flash_decode",
        "bench --shape sq=128,skv=128 --chip trn2",
        "report --shape sq=128,skv=128",
    ):
        run = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True, "timeout": 300, "check": False}
        here, done = (subprocess.run([each, "-m", "nki_hf", *words.split()], **run) for each in (sys.executable, python))
        assert (done.returncode, done.stdout) == (here.returncode, here.stdout), (words, done.stderr)
    done = subprocess.run([python, "-c", KERNELS], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
