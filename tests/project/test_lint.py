"""Lint, types and the import-layer contract, as tests."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

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


MORE, WIDTH = 10, 128
"""Lines that the formatter must add to a statement that is not formatted, or a line that it makes too long: tables of data."""
KEPT = sorted(path for path in ROOT.rglob("*.py") if ".venv" not in path.parts and "# fmt: skip" in path.read_text())


def _formatted(text: str, path: Path) -> list[str]:
    command = [sys.executable, "-m", "ruff", "format", "--no-cache", "--stdin-filename", str(path), "-"]
    return subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("path", KEPT, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_formatter_is_left_out_where_it_would_tear_a_table_apart_and_nowhere_else(path):
    text = path.read_text()
    for found in re.finditer(r"  # fmt: skip *$", text, re.MULTILINE):
        line = text.count("\n", 0, found.start()) + 1
        formatted = _formatted(text[: found.start()] + text[found.end() :], path)
        more, longest = len(formatted) - text.count("\n"), max(len(item) for item in formatted)
        assert more > MORE or longest > WIDTH, f"line {line}: formatted it is only {more} lines longer; remove the comment."
