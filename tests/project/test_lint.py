"""Lint, types and the import-layer contract, as tests."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff_finds_nothing():
    _run(sys.executable, "-m", "ruff", "check", "--no-cache", ".")


def test_mypy_finds_nothing():
    _run(sys.executable, "-m", "mypy")


def test_imports_keep_to_the_layers():
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    _run(sys.executable, "-c", code, "--no-cache")


def test_ruff_format_changes_nothing():
    _run(sys.executable, "-m", "ruff", "format", "--check", "--no-cache", ".")
