"""The documentation site: it builds strictly, every link leads somewhere, pages and pictures are what commands make."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

import nki_hf
from nki_hf.cli import app
from tools import docs_pictures, docs_site, tutorial
from tools.page_block import block_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
CONFIG = (ROOT / "mkdocs.yml").read_text()
PUBLIC = {*nki_hf.__all__, *nki_hf.flash_attn.__all__} - {"__version__", "flash_attn"}
"""Names that users call; `flash_attn` is a module of some."""
NEEDS_DOCS = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("mkdocs", "material", "mkdocstrings")),
    reason='needs the extra `docs`: pip install "nki_hf[docs]"',
)


@NEEDS_DOCS
@pytest.mark.slow
def test_make_docs_builds_the_site_strictly(tmp_path):
    """With the environment that runs this test in place of the one that make would install."""
    stamp = f"{sys.prefix}/.ready-docs"
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "docs", f"VENV={sys.prefix}", "-o", stamp, "-o", f"{sys.prefix}/.created"]
    if shutil.which("make") is None:
        pytest.skip("`make docs` is what is tested, and there is no make here")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=clean)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pages, 0 broken links" in done.stdout
    site = ROOT / "out" / "site"
    for page in PAGES:
        assert (site / page.with_suffix(".html").name).exists(), page
    reference = (site / "reference.html").read_text()
    for name in PUBLIC:
        assert f".{name}" in reference, name
    text = (site / "tutorial.html").read_text()
    for step in tutorial.STEPS:
        assert f"pages/{step.stem}.html" in text
    assert not re.search(r'(?:src|srcset)="https?:', text)


@NEEDS_DOCS
@pytest.mark.slow
def test_a_link_that_leads_nowhere_fails_the_build(tmp_path, monkeypatch):
    for name in ("mkdocs.yml", "nki_hf", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(DOCS, tmp_path / "docs")
    (tmp_path / "docs" / "index.md").write_text("# Start\n\n[nowhere](timing.md#no-such-heading)\n")
    monkeypatch.setattr(docs_site, "ROOT", tmp_path)
    monkeypatch.setattr(docs_site, "write_pages", lambda folder: [_page(folder, step.stem, "") for step in tutorial.STEPS])
    assert docs_site.build(tmp_path / "site") != 0


def _page(folder, name, body):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.html").write_text(body)


def test_broken_links_are_found_and_good_ones_are_not(tmp_path):
    _page(
        tmp_path,
        "a",
        '<a href="b.html#here"></a><a href="#top"></a><p id="top"><a href="https://x.example/"></a>'
        '<img src="data:image/png;base64,x"><a href="folder"></a>',
    )
    _page(tmp_path, "b", '<p id="here"></p>')
    _page(tmp_path / "folder", "index", '<a href="../a.html"></a>')
    assert docs_site.broken_links(tmp_path) == []
    _page(tmp_path, "c", '<a href="b.html#gone"></a><img src="x.png"><source srcset="y.png 2x"><a href="d.html"></a>')
    assert docs_site.broken_links(tmp_path) == [("c.html", target) for target in ("b.html#gone", "x.png", "y.png", "d.html")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_is_in_the_navigation_and_its_pictures_exist(page):
    assert re.search(rf": {page.name}$", CONFIG, flags=re.MULTILINE)
    text = page.read_text()
    for target in re.findall(r'(?:src|srcset)="([^"]+)"', text):
        assert (DOCS / target).exists(), target
    for target in re.findall(r"\]\(([^)#:\s]+\.(?:md|png))(?:#[^)]*)?\)", text):
        assert (DOCS / target).exists(), target


def test_the_reference_has_every_public_name():
    text = (DOCS / "reference.md").read_text()
    for name in PUBLIC:
        assert re.search(rf"^::: nki_hf\..*\.{name}$", text, flags=re.MULTILINE), name
    for module, _, name in (line.removeprefix("::: ").rpartition(".") for line in text.splitlines() if line.startswith(":::")):
        assert hasattr(importlib.import_module(module), name), (module, name)


def test_every_picture_is_made_by_a_command():
    made = {
        "scaling": ("scaling.png", "scaling_dark.png"),
        "utilisation": ("utilisation.png", "utilisation_dark.png"),
        "timelines": ("flash_prefill_trn2.png", "v11_trn1.png"),
        "report": ("report.png", "report_dark.png"),
        "journeys": ("journey_ladder.svg", "journey_agent.svg", "journey_autocomp.svg"),
    }
    assert set(made) == set(docs_pictures.PICTURES)
    assert {name for names in made.values() for name in names} == {path.name for path in (DOCS / "images").iterdir()}


@pytest.mark.parametrize("name", ["scaling.png", "scaling_dark.png"])
def test_the_picture_of_lengths_shows_what_the_table_of_utilisation_says(name):
    """TFLOP/s of 4 seqlen**2 128 operations over the peak of a core, 91.8 or 78.6 TFLOP/s."""
    with Image.open(DOCS / "images" / name) as picture:
        shown = {(line, seqlen): us for line, seqlen, us in json.loads(picture.info["Description"])}
    rows = re.findall(
        r"^\| (flash_\w+) (\d+)K \| (trn\d), 1 core \|  \| ([0-9.]+)% \(sim\) ",
        (DOCS / "utilisation.md").read_text(),
        flags=re.MULTILINE,
    )
    assert len(rows) == 6
    for kernel, thousands, chip, share in rows:
        keys = 1024 * int(thousands)
        tflops = 4 * keys**2 * 128 / shown[f"{kernel} on {chip}, one head", keys] / 1e6
        assert 100 * tflops / {"trn1": 91.8, "trn2": 78.6, "trn3": 78.6}[chip] == pytest.approx(float(share), abs=0.2)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_verb_and_flag_of_a_command_in_a_page_exists(page):
    verbs = {command.name or command.callback.__module__.rpartition(".")[2] for command in app.registered_commands}
    for verb in re.findall(r"^ {4}nki_hf ([a-z]+)", page.read_text(), flags=re.MULTILINE):
        assert verb in verbs, verb
    flags = (ROOT / "examples" / "qwen3_bench.py").read_text().replace("_", "-")
    for words in re.findall(r'ARGS="([^"]*)"', page.read_text()):
        for flag in re.findall(r"--([a-z-]+)", words):
            assert f"{flag}: Annotated" in flags or f'"--{flag}"' in flags, flag


def test_each_extra_is_named_in_the_readme():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = (ROOT / "README.md").read_text().partition("| extra | for |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([a-z-]+)`", " ".join(re.findall(r"^\| ([^|]*) \|", table, flags=re.MULTILINE)))) == set(extras)


def test_the_readme_begins_with_one_picture_and_three_commands():
    text = (ROOT / "README.md").read_text()
    top = text[: text.index("\n```\n", text.index("```console"))]
    assert top.count("<img ") == 1
    assert len([line for line in top.splitlines() if line.startswith("$ ")]) == 3
    assert not re.search(r"^[A-Z][a-z].*", top, flags=re.MULTILINE)  # no sentence before


# ---- the tutorial ---------------------------------------------------------------------------------------------------


def test_the_tutorial_has_a_row_and_a_section_for_every_step():
    text, table = tutorial.PAGE.read_text(), block_of(tutorial.PAGE, "tutorial")
    assert len(tutorial.STEPS) == 4
    for number, step in enumerate(tutorial.STEPS, 1):
        assert f"| `{step.name}` |" in table
        assert f"## Step {number}" in text
    times = [[int(cell) for cell in re.findall(r"\| (\d+) ", line)] for line in table.splitlines()[2:]]
    assert times == sorted(times, reverse=True)  # each step is faster, on both chips


@pytest.mark.parametrize("step", tutorial.STEPS, ids=lambda path: path.stem)
def test_no_version_of_nki_refuses_a_step(step):
    done = CliRunner().invoke(app, ["lint", str(step)])
    assert done.exit_code == 0, done.stdout


@pytest.mark.slow
def test_every_step_passes_and_the_page_says_what_the_judge_says():
    steps = [tutorial.judged(path) for path in tutorial.STEPS]
    for name, body in tutorial.blocks(steps).items():
        assert body.strip("\n") == block_of(tutorial.PAGE, name)
    assert len(re.findall(r"^ {4}up to .* us: line", tutorial.PAGE.read_text(), flags=re.MULTILINE)) == 4


@pytest.mark.slow
def test_a_report_page_is_made_of_every_step(tmp_path):
    pages = tutorial.write_pages(tmp_path)
    for page, step in zip(pages, tutorial.STEPS, strict=True):
        text = page.read_text()
        assert step.name in text
        assert "simulated" in text
