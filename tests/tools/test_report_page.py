"""The page of `nki_hf report` in a real browser: what it says, draws, and never does."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from headless import Browser, chromium
from typer.testing import CliRunner

from nki_hf.chips import get_chip
from nki_hf.cli import app
from nki_hf.observers.instruction_kinds import WORDS, word_of
from nki_hf.observers.lanes import FULL, binned, lanes
from nki_hf.observers.source_lines import source_files
from nki_hf.observers.timing import critical_path, engine_times
from nki_hf.timing.schedule import schedule
from nki_hf.tools.modelled import ModelRequest
from nki_hf.tools.pages.report_page import report_page
from nki_hf.tools.pages.shell import page
from nki_hf.tools.pages.timeline_data import timeline_data
from nki_hf.tools.report import _beside, side_of
from nki_hf.tools.subjects import events_of

TRN1 = get_chip("trn1")
DRAWN = 'document.documentElement.dataset.drawn === "yes"'
in_browser = pytest.mark.skipif(chromium() is None, reason="no Chromium is installed")


def _side(kernel, seqlen, chip="trn1"):
    return side_of(ModelRequest(kernel=kernel, seqlen=seqlen, chip=chip), window=64)


@pytest.fixture(scope="module")
def side():
    return _side("v7", 2048)


@pytest.fixture(scope="module")
def made(side, tmp_path_factory):
    """Pages by name."""
    folder = tmp_path_factory.mktemp("pages")
    texts = {
        "one": report_page(side, notes=("Made by a test",)),
        "two": report_page(side, _side("v11", 1024)),
        "spilled": report_page(_side("v3", 1024)),
        "cores": report_page(side_of(ModelRequest(kernel="flash_prefill", seqlen=512, chip="trn2", lnc=2), window=64)),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text)
    return folder


@pytest.fixture(scope="module")
def browser():
    with Browser() as found:
        yield found


def _box(browser):
    """Left, top, width and height of the first timeline's lanes."""
    found = "(b => [b.left, b.top, b.width, b.height])(document.querySelector('.pad').getBoundingClientRect())"
    return browser.value(found)


# ---- in a browser ---------------------------------------------------------------------------------------------------


@in_browser
@pytest.mark.parametrize("name", ["one", "two", "spilled", "cores"])
@pytest.mark.parametrize("width", [1280, 800, 390])
def test_nothing_overflows_and_nothing_is_complained_of(browser, made, name, width):
    for dark in (False, True):
        browser.open(made / f"{name}.html", width=width, dark=dark, ready=DRAWN)
        assert browser.overflowing() == []
        assert browser.complaints == []  # errors, warnings, and anything that was asked of the network


@in_browser
def test_a_page_that_overflows_or_asks_for_something_is_found(browser, tmp_path):
    """The two tests of the page that could pass by seeing nothing."""
    (tmp_path / "wide.html").write_text("<p style='width:2000px'>x</p><script>console.error('ouch'); nothing()</script>")
    browser.open(tmp_path / "wide.html", width=390)
    assert browser.overflowing()
    assert len([item for item in browser.complaints if "ouch" in item or "nothing" in item]) == 2
    (tmp_path / "asks.html").write_text('<img src="http://127.0.0.1:9/x.png">')
    browser.open(tmp_path / "asks.html", width=390)
    assert any("asks for http://127.0.0.1:9/x.png" in item for item in browser.complaints)


@in_browser
def test_engine_line_and_action_stand_in_the_first_sentence_of_the_text(browser, made, side):
    browser.open(made / "one.html", width=800, ready=DRAWN)
    verdict = next(line for line in browser.text().splitlines() if "simulated on" in line)
    found = re.search(
        r"([\d,.]+) µs simulated on trn1: (\w+) is the limit, (\d+)% active; \w+ at line (\d+) costs ([\d,.]+) of", verdict
    )
    total, engine, share, line, cost = found.groups()
    # the same from the schedule: the engine that is active longest, and the line of it that the critical path holds longest
    busiest = max(engine_times(side.scheduled), key=lambda row: row.active_ns)
    step = next(item for item in critical_path(side.scheduled) if item.engine == busiest.engine)
    assert (total, engine, share) == (
        f"{side.scheduled.total_ns / 1e3:,.1f}", busiest.engine, f"{100 * busiest.active_ns / side.scheduled.total_ns:.0f}"
    )  # fmt: skip
    assert (int(line), cost) == (step.line, f"{step.ns / 1e3:,.1f}")
    assert re.search(r"; [a-z]+ing .+ \(line \d+\) would save up to [\d,.]+ µs", verdict)
    hint = side.reasons["hints"][0]
    assert f":{hint['line']} {hint['text'][:40]}" in " ".join(browser.text().split())


@in_browser
def test_the_picture_follows_the_page_into_the_dark_and_back(browser, made):
    browser.open(made / "one.html", width=800, ready=DRAWN)
    ground = "getComputedStyle(document.body).backgroundColor"
    pixels = "document.querySelector('canvas').toDataURL()"
    before, picture = browser.value(ground), browser.value(pixels)
    press = "document.getElementById('theme').click(); new Promise(done => setTimeout(done, 100))"
    browser.value(press)
    assert browser.value(ground) != before
    assert browser.value(pixels) != picture
    browser.value(press)
    assert (browser.value(ground), browser.value(pixels)) == (before, picture)


@in_browser
def test_buttons_keys_and_wheel_zoom_and_pan_within_the_kernel(browser, made):
    browser.open(made / "one.html", width=1280, ready=DRAWN)

    def shown():
        browser.value("new Promise(done => setTimeout(done, 60))")
        return browser.value("document.getElementById('range').textContent")

    def press(name):
        browser.value(f"document.querySelector('[data-do={name}]').click()")
        return shown()

    everything = shown()
    closer = press("closer")
    assert closer != everything
    assert press("right") not in (everything, closer)
    assert press("one") != everything
    assert press("all") == everything
    assert press("wider") == everything  # nothing lies outside
    x, y = browser.value(
        "(() => { const b = document.querySelector('.pad').getBoundingClientRect(); return [b.left + 300, b.top + 60]; })()"
    )
    browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-400, modifiers=2)
    assert shown() != everything


@in_browser
def test_the_range_has_the_digits_that_tell_its_ends_apart(browser, made):
    browser.open(made / "one.html", width=1280, ready=DRAWN)
    for _ in range(13):
        browser.value("document.querySelector('[data-do=closer]').click()")
        browser.value("new Promise(done => setTimeout(done, 40))")
        begin, end = re.match(
            r"([\d,.]+) to ([\d,.]+) ", browser.value("document.getElementById('range').textContent")
        ).groups()
        assert float(end.replace(",", "")) > float(begin.replace(",", ""))


@in_browser
def test_what_the_tip_says_lies_under_the_pointer_after_a_zoom(browser, made):
    """Keys move the picture below a pointer that stays: the tip names what is there now, or goes."""
    browser.open(made / "one.html", width=1280, ready=DRAWN)
    left, top, wide, high = _box(browser)
    tip = "(t => t.hidden ? '' : t.innerText)(document.querySelector('.tip'))"
    browser.mouse("mouseMoved", left + 0.6 * wide, top + high - 10)
    before = browser.value(tip)
    assert before
    browser.value("document.querySelector('[data-do=closer]').click(); new Promise(done => setTimeout(done, 100))")
    browser.value("document.querySelector('[data-do=right]').click(); new Promise(done => setTimeout(done, 100))")
    after = browser.value(tip)
    browser.mouse("mouseMoved", left + 0.6 * wide + 1, top + high - 10)
    browser.mouse("mouseMoved", left + 0.6 * wide, top + high - 10)
    assert after == browser.value(tip) != before


@in_browser
def test_two_fingers_zoom_and_one_pans_sideways(browser, made):
    browser.open(made / "one.html", width=390, ready=DRAWN)
    browser.ask("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
    try:
        browser.open(made / "one.html", width=390, ready=DRAWN)  # whether there are fingers is asked as the page begins
        browser.value("document.querySelector('.pad').scrollIntoView()")
        left, top, wide, high = _box(browser)
        x, y = left + wide / 2, top + high / 2

        def touch(*steps):
            for number, points in enumerate((*steps, ()) if steps else ()):
                kind = "touchEnd" if not points else "touchMove" if number else "touchStart"
                found = [{"x": px, "y": py, "id": n} for n, (px, py) in enumerate(points)]
                browser.ask("Input.dispatchTouchEvent", type=kind, touchPoints=found)
            browser.value("new Promise(done => setTimeout(done, 100))")
            words = browser.value("document.getElementById('range').textContent")
            return [float(part.replace(",", "")) for part in re.findall(r"[\d,.]+", words)]

        begin, end = touch()
        closer = touch(*[((x - d, y), (x + d, y)) for d in range(20, 110, 10)])
        assert closer[1] - closer[0] < 0.5 * (end - begin)
        moved = touch(*[((x + d, y),) for d in range(0, 100, 10)])
        assert moved[0] < closer[0]
        assert moved[1] - moved[0] == pytest.approx(closer[1] - closer[0], rel=0.05)
    finally:
        browser.ask("Emulation.setTouchEmulationEnabled", enabled=False)


@in_browser
def test_what_is_under_the_pointer_is_named_with_its_line(browser, made, side):
    browser.open(made / "one.html", width=1280, ready=DRAWN)
    browser.value("document.querySelector('[data-do=one]').click()")
    browser.value("new Promise(done => setTimeout(done, 100))")
    left, top, wide, high = _box(browser)
    said = set()
    for y in np.arange(top + 30, top + high, 16):
        for x in np.linspace(left + 5, left + wide - 5, 12):
            browser.mouse("mouseMoved", float(x), float(y))
            said.add(browser.value("document.querySelector('.tip').hidden ? '' : document.querySelector('.tip').innerText"))
    text = "\n".join(said)
    assert {name for name in ("nc_matmul", "activation", "tensor_reduce") if f"{name}, steps.py:" in text}
    assert "waits for another engine's result" in text or "for another engine's result" in text
    assert "on the critical path" in text
    assert "B a partition" in text


@in_browser
def test_a_line_of_the_source_shows_its_instructions(browser, made):
    browser.open(made / "one.html", width=1280, ready=DRAWN)
    before = browser.value("document.querySelector('canvas').toDataURL()")
    browser.value("document.querySelector('.source [data-line]').click(); new Promise(done => setTimeout(done, 100))")
    assert browser.value("document.querySelector('canvas').toDataURL()") != before


OWN = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def rows(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(x.shape[0] // 128):
        tile = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[i * 128 : (i + 1) * 128, :])
        power = nl.ndarray((128, x.shape[1]), dtype=nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total, op=nl.maximum, data=tile, axis=1)
        nisa.activation(dst=power, op=nl.exp, data=tile)
        nisa.tensor_reduce(dst=total, op=nl.add, data=power, axis=1)  # <i>no tag</i>
        nisa.tensor_scalar(dst=power, data=power, op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=power)
    return out
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Pages of a user's kernel: alone, and against another file of the task, from the command itself."""
    folder = tmp_path_factory.mktemp("own")
    kernel, fused = folder / "kernel.py", folder / "fused.py"
    kernel.write_text(OWN)
    both = "nisa.activation_reduce(dst=power, op=nl.exp, data=tile, reduce_op=nl.add, reduce_res=total)"
    fused.write_text("\n".join(
        line.split("nisa.")[0] + both if "nisa.activation(" in line else line
        for line in OWN.splitlines() if "nl.add" not in line
    ))  # fmt: skip
    words = ("--task", "softmax", "--at", "4096", "--chip", "trn2")
    for name, more in (("own", ()), ("both", ("--against", f"{fused}:rows"))):
        done = CliRunner().invoke(app, ["report", str(kernel), *words, *more, "-o", str(folder / f"{name}.html")])
        assert done.exit_code == 0, done.output
    return folder


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
    monkeypatch.setattr("nki_hf.tools.pages.report_page.source_files", slow)
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


def test_names_cannot_leave_their_place(side):
    text = page("<script>x</script>", "", data={"a": "</script><script>alert(1)</script>\u2028"})
    assert "<script>x" not in text
    assert text.count("</script>") == 2  # of the theme, and of the data
    held = re.search(r'id="data">(.*?)</script>', text)[1]
    assert json.loads(held) == {"a": "</script><script>alert(1)</script>\u2028"}


def test_the_page_loads_nothing(made):
    text = (made / "one.html").read_text()
    assert not re.findall(r"<[^>]*\s(?:src|href)\s*=", text)
    assert "default-src 'none'" in text


def test_both_kernels_stand_side_by_side(made):
    text = (made / "two.html").read_text()
    assert text.count('class="timeline"') == 2
    assert "x as fast" in text
    assert text.count("Source of ") == 2


def test_the_lanes_hold_every_instruction_once_and_their_time(side):
    found, scheduled = lanes(side.scheduled), side.scheduled
    columns = found.columns
    assert len(columns.lane) == len(scheduled.events)
    for number, lane in enumerate(found.lanes):
        if lane.engine != "dma":
            mine = columns.length[columns.lane == number].sum() * found.tick_ns
            row = next(row for row in engine_times(scheduled) if (row.core, row.engine) == (lane.core, lane.engine))
            assert mine == pytest.approx(row.active_ns, rel=0.01)
    ends = (columns.start + columns.length)[:-1]
    same = columns.lane[1:] == columns.lane[:-1]
    engines = np.array([lane.engine != "dma" for lane in found.lanes])[columns.lane[1:]]
    assert (ends[same & engines] <= columns.start[1:][same & engines] + 1).all()  # nothing on an engine at once; 1: rounding


def test_the_path_of_the_picture_is_the_critical_path(side):
    marked = lanes(side.scheduled).columns.path.sum()
    assert marked == sum(step.count for step in critical_path(side.scheduled) if step.engine != "launch")


def test_there_is_an_iteration_per_tile_of_the_output():
    """v7 stores 16 tiles of 128 queries at 2,048 keys, one after the other."""
    assert set(lanes(_side("v7", 2048).scheduled).columns.iteration.tolist()) == set(range(16))


@pytest.mark.parametrize("bins", [64, 1000])
def test_bins_hold_all_of_the_time_that_they_stand_for(side, bins):
    """Columns of pixels never leave a short instruction out: what a lane is active is what its bins are, to their rounding."""
    exact = lanes(side.scheduled)
    found = binned(exact, side.scheduled.total_ns, bins)
    kinds = np.array([WORDS.index(word) for _, word, _, _ in exact.kinds])[exact.columns.kind]
    for lane in range(len(exact.lanes)):
        for word in range(len(WORDS)):
            before = (exact.columns.lane == lane) & (kinds == word)
            after = (found.columns.lane == lane) & (found.columns.kind == word)
            taken = (found.columns.length[after] * found.columns.use[after]).sum() / FULL
            wanted = exact.columns.length[before].sum()
            assert before.any() == after.any()
            assert wanted <= taken + 1e-6
            assert taken <= wanted + found.columns.length[:1].sum() * after.sum() / FULL + 1


def test_a_stream_too_long_for_the_page_is_binned_and_says_so(side):
    whole, short = timeline_data(side.scheduled, "x"), timeline_data(side.scheduled, "x", largest=100)
    assert (whole["exact"], short["exact"]) == (True, False)
    assert whole["count"] == len(side.scheduled.events)
    assert {kind[0] for kind in short["kinds"]} == set(WORDS)


@in_browser
def test_a_binned_page_draws_itself(browser, side, tmp_path, monkeypatch):
    monkeypatch.setattr("nki_hf.tools.pages.timeline_data._LARGEST", 100)
    monkeypatch.setattr(timeline_data, "__kwdefaults__", {"largest": 100})
    (tmp_path / "bins.html").write_text(report_page(side))
    browser.open(tmp_path / "bins.html", width=800, ready=DRAWN)
    assert browser.complaints == []
    picture = "const c = document.querySelector('canvas'), d = c.getContext('2d').getImageData(120, 60, c.width - 120, 40).data"
    inked = f"(() => {{ {picture}; return d.filter((v, i) => i % 4 === 3 && v).length; }})()"
    assert browser.value(inked) > 1000


def test_a_copy_is_told_from_an_exponential():
    words = {(event.opcode, event.attrs.get("op")): word_of(event) for event in events_of("v7", 512, TRN1)}
    assert words["activation_reduce", "exp"] == "activation"
    assert words["activation", "copy"] == "copy"
    assert {word for (name, _), word in words.items() if name == "dma_copy"} <= {"load", "store"}
    assert set(words.values()) <= set(WORDS) - {"other"}


def test_the_lines_of_the_source_add_up_to_the_latency(side):
    """All of the critical path but the launch lies on lines of the source."""
    files = source_files(side.scheduled)
    launch = float(TRN1.kernel_fixed_ns) / 1e3
    assert sum(item.path_us for item in files) == pytest.approx(side.scheduled.total_ns / 1e3 - launch, rel=1e-6)
    lines = {line.number: line for item in files if item.file.endswith("steps.py") for line in item.lines}
    assert sum(line.instructions for item in files for line in item.lines) == len(side.scheduled.events)
    assert "nisa." in lines[max(lines, key=lambda n: lines[n].path_us)].text


@pytest.mark.slow
def test_a_page_of_16k_keys_is_small(tmp_path):
    events = events_of("v7", 16384, TRN1)
    text = json.dumps(timeline_data(schedule(events, TRN1), "v7"))
    assert len(text) < 2_000_000
    side = _side("flash_const_max", 16384, "trn2")
    assert len(report_page(side)) < 3 * 2**20
