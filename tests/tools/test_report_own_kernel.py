"""Pages of a user's kernel, and of two kernels side by side: what they name, and what cannot stand beside."""

import re
from dataclasses import replace

import pytest
from report_pages import DRAWN, OWN, in_browser
from typer.testing import CliRunner

from nki_hf.cli import app
from nki_hf.observers.source_lines import source_files
from nki_hf.tools.modelled import ModelRequest
from nki_hf.tools.pages.report_page import report_page
from nki_hf.tools.report import _beside, side_of


@in_browser
@pytest.mark.parametrize("width", [1280, 800, 390])
@pytest.mark.parametrize("name", ["own", "both"])
def test_a_page_of_a_users_kernel_fits_and_names_its_line_and_the_chips_best(browser, own, name, width):
    for dark in (False, True):
        browser.open(own / f"{name}.html", width=width, dark=dark, ready=DRAWN)
        assert (browser.overflowing(), browser.complaints) == ([], [])
    text = " ".join(browser.text().split())
    line = next(n for n, text in enumerate(OWN.splitlines(), 1) if "nl.add" in text)
    assert f"making the row sum in the instruction that makes exp (line {line}) would save up to" in text
    assert "no kernel can be below on this chip" in text
    assert "of what the chip allows at best." in text
    assert "# <i>no tag</i>" in text  # the source is shown as it is written
    assert ("x as fast" in text) == (name == "both")
    assert str(own) not in (own / f"{name}.html").read_text()  # whose machine it is stays out


def test_a_report_of_a_file_says_that_its_values_were_not_looked_at(own):
    for name in ("own", "both"):
        assert (
            "Whether it computes the task was not looked at here: nki_hf judge does that." in (own / f"{name}.html").read_text()
        )


def test_a_report_of_a_kernel_of_ours_is_named_by_its_whole_problem():
    """Without a shape the call is causal, which half of its operations are: both are said alike."""
    usual, said = ModelRequest(seqlen=1024), ModelRequest(shape="sq=1024,causal")
    assert str(usual) == str(said)
    assert usual.problem == said.problem
    assert str(ModelRequest(kernel="v7", seqlen=1024)) == "v7 1024"


@in_browser
@pytest.mark.parametrize("width", [1280, 390])
def test_a_long_name_leaves_the_figures_in_sight(browser, own, tmp_path, width):
    kernel = tmp_path / f"{'a_name_that_goes_on_' * 5}.py"
    kernel.write_text(OWN)
    side = side_of(ModelRequest(kernel=str(kernel), seqlen=1024, chip="trn2", task="softmax"), window=64)
    (tmp_path / "page.html").write_text(report_page(side))
    browser.open(tmp_path / "page.html", width=width, ready=DRAWN)
    assert (browser.overflowing(), browser.complaints) == ([], [])
    moved = "[...document.querySelectorAll('.wide')].filter(box => box.scrollWidth > box.clientWidth + 1).length"
    assert browser.value(moved) == 0
    lines = "[...document.querySelectorAll('td[data-name=line]')].map(td => td.innerText)"
    assert any(kernel.name in text for text in browser.value(lines))


@in_browser
@pytest.mark.parametrize("width", [1280, 800, 390])
def test_a_line_of_the_source_is_one_line_however_long_it_and_its_figures_are(browser, tmp_path, monkeypatch, width):
    def slow(scheduled):
        return [
            replace(item, lines=tuple(replace(line, path_us=1e6 * line.path_us) for line in item.lines))
            for item in source_files(scheduled)
        ]

    kernel = tmp_path / "kernel.py"
    kernel.write_text(re.sub(r"\bpower\b", "a_name_that_goes_on_" * 6, OWN))
    side = side_of(ModelRequest(kernel=str(kernel), seqlen=1024, chip="trn2", task="softmax"), window=64)
    monkeypatch.setattr("nki_hf.tools.pages.report_source.source_files", slow)
    (tmp_path / "page.html").write_text(report_page(side))
    browser.open(tmp_path / "page.html", width=width, ready=DRAWN)
    assert (browser.overflowing(), browser.complaints) == ([], [])
    spans = "[...document.querySelectorAll('.code [data-line] span')].filter(span => span.offsetWidth)"
    assert browser.value(f"{spans}.length") > 5
    assert browser.value(f"Math.max(...{spans}.map(span => span.offsetHeight))") < 30
    # The figures stay within their column, beside the number of the line.
    beyond = "span.classList.contains('us') && span.scrollWidth > span.clientWidth + 1"
    assert browser.value(f"{spans}.filter(span => {beyond}).length") == 0


@in_browser
def test_a_kernel_without_an_instruction_says_so(browser, tmp_path):
    kernel = tmp_path / "empty.py"
    body = [line for line in OWN.splitlines() if not line.startswith("    ") or ("out" in line and "nisa" not in line)]
    kernel.write_text("\n".join(body))
    side = side_of(ModelRequest(kernel=str(kernel), seqlen=1024, chip="trn2", task="softmax"), window=64)
    assert (side.facts["instructions"], len(side.scheduled.events)) == (0, 0)
    (tmp_path / "page.html").write_text(report_page(side))
    for width in (1280, 390):
        browser.open(tmp_path / "page.html", width=width, ready=DRAWN)
        assert (browser.overflowing(), browser.complaints) == ([], [])
    text = browser.text()
    assert "the kernel runs no instruction" in text
    assert "of what the chip allows" not in text
    assert browser.value("document.querySelectorAll('tbody:empty').length") == 0
    assert browser.value("document.querySelector('canvas').clientHeight") > 40  # room for the word launch


@in_browser
def test_files_of_one_name_are_told_apart_by_their_folders(browser, tmp_path):
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "kernel.py").write_text(OWN)
    new, old = tmp_path / "new" / "kernel.py", tmp_path / "old" / "kernel.py"
    page_file = tmp_path / "page.html"
    words = ["report", str(new), "--task", "softmax", "--at", "1024", "--against", str(old), "-o", str(page_file)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "times as fast as old/kernel.py" in " ".join(done.output.split())
    browser.open(page_file, width=800, ready=DRAWN)
    assert browser.value("document.querySelector('h1').innerText").startswith("new/kernel.py 1024 against old/kernel.py 1024")
    headings = browser.value("[...document.querySelectorAll('h2,h3,summary b')].map(item => item.innerText)")
    assert len(headings) == len(set(headings))
    assert str(tmp_path) not in page_file.read_text()
    assert "nki_hf report new/kernel.py" in browser.text()
    assert "--against old/kernel.py" in browser.text()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--shape", "sq=128", "--against", "nix"), "against='nix' is not known"),
        (
            ("--shape", "sq=100", "--against", "v7"),
            "against=v7 has no size 100: it takes multiples of 512; give such a --shape.",
        ),
        (("--kernel", "v7", "--seqlen", "512", "--against", "gemm_bf16"), "multiples of 1024; give such a --seqlen."),
        (("KERNEL", "--task", "softmax", "--at", "64", "--against", "v7"), "against=v7 has no size 64"),
        (
            ("KERNEL", "--task", "softmax", "--at", "512", "--against", "v7"),
            "against=v7 computes something else: it is attention, task softmax is softmax.",
        ),
        (
            ("KERNEL", "--task", "matmul", "--at", "512", "--against", "flash_prefill"),
            "against=flash_prefill computes something else",
        ),
        (("--shape", "sq=1024", "--against", "gemm_bf16"), "it is matmul, flash_prefill is attention"),
    ],
)
def test_what_cannot_stand_beside_is_one_sentence(own, words, why):
    kernel = str(own / "kernel.py")
    done = CliRunner().invoke(app, ["report", *(kernel if word == "KERNEL" else word for word in words)])
    assert done.exit_code == 2
    assert why in done.stderr


@pytest.mark.parametrize(("shape", "alike"), [("sq=512", True), ("sq=512,causal", False)])
def test_two_kernels_that_are_asked_for_different_work_are_said_to_be(shape, alike, tmp_path):
    """v7 attends to all keys: 4 * 512 * 512 * 128 operations; a causal problem has 4 * 128 * 512 * 513 / 2."""
    done = CliRunner().invoke(app, ["report", "--shape", shape, "--against", "v7", "-o", str(tmp_path / "page.html")])
    assert done.exit_code == 0
    said = "is asked for 0.0672 billion operations, v7 512 for 0.134"
    for text in (" ".join(done.stdout.split()), (tmp_path / "page.html").read_text()):
        assert ("They do not do the same work" not in text) == alike
        assert (said not in text) == alike


@pytest.mark.parametrize(("task", "causal"), [("attention", False), ("attention_causal", True)])
def test_a_kernel_of_ours_beside_a_file_gets_the_tasks_mask(task, causal):
    asked = ModelRequest(kernel="kernel.py", task=task, seqlen=512)
    beside = _beside(asked, "flash_prefill")
    assert (beside.problem.mask.causal, beside.problem.seqlen_q, beside.problem.seqlen_kv) == (causal, 512, 512)


def test_a_file_to_stand_beside_needs_a_task(own):
    done = CliRunner().invoke(app, ["report", "--kernel", "v7", "--against", str(own / "fused.py")])
    assert done.exit_code == 2
    assert "is compared on a task" in done.stderr


# ---- what the page holds --------------------------------------------------------------------------------------------
