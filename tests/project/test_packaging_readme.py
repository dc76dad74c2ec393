"""The README is true: its Python runs, its commands and paths exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from nki_hf.cli import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


def test_the_python_blocks_run_one_after_the_other(tmp_path):
    blocks = _blocks("python")
    assert blocks
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + "\n".join(blocks)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "flash_prefill" in done.stdout  # explain() names the kernel
    assert "is not supported by" in done.stdout  # the refusal says its reason
    assert "0 of them ran torch" in done.stdout


def test_the_first_example_has_at_most_eight_lines():
    assert len([line for line in _blocks("python")[0].splitlines() if line.strip()]) <= 8


def test_every_make_target_it_names_exists():
    rules = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"\bmake ([a-z][a-z-]*)", README))
    assert {"bench", "test"} <= named
    for target in named:
        assert re.search(rf"^{target}:", rules, flags=re.MULTILINE), target


def test_every_verb_it_names_is_one_of_the_program():
    named = set(re.findall(r"^\| `nki_hf ([a-z]+)` \|", README, flags=re.MULTILINE))
    assert len(named) > 5
    assert named <= {command.name for command in app.registered_commands}


def test_every_path_of_the_layout_exists():
    (layout,) = _blocks("text")
    folder = ROOT
    for line in layout.splitlines():
        path = line.split()[0]
        base = ROOT if not line.startswith(" ") else folder
        assert (base / path).exists(), path
        folder = base / path if not line.startswith(" ") else folder


def test_every_link_points_at_a_file():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_every_page_of_the_docs_is_linked(page):
    assert f"](docs/{page})" in README


@pytest.mark.parametrize(
    "flag", sorted({flag for words in re.findall(r'ARGS="([^"]*)"', README) for flag in re.findall(r"--[a-z-]+", words)})
)
def test_every_flag_it_names_is_one_of_the_benchmark(flag):
    assert f'"{flag}"' in _flags() or f"{flag[2:].replace('-', '_')}: Annotated" in _flags()


def _flags():
    return (ROOT / "examples" / "qwen3_bench.py").read_text()
