"""The picture of `nki_hf report` in a real browser: it fits, zooms, names what is under the pointer, and never complains."""

import re

import numpy as np
import pytest
from report_pages import DRAWN, in_browser

from nki_hf.observers.timing import critical_path, engine_times
from nki_hf.tools.pages.report_page import report_page
from nki_hf.tools.pages.timeline_data import timeline_data


def _box(browser):
    """Left, top, width and height of the first timeline's lanes."""
    found = "(b => [b.left, b.top, b.width, b.height])(document.querySelector('.pad').getBoundingClientRect())"
    return browser.value(found)


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
        r"([\d,.]+) µs simulated on trn1: (\w+) is the limit, (\d+)% active; \w+ at \S+:(\d+) costs ([\d,.]+) of", verdict
    )
    total, engine, share, line, cost = found.groups()
    # the same from the schedule: the engine that is active longest, and the line of it that the critical path holds longest
    busiest = max(engine_times(side.scheduled), key=lambda row: row.active_ns)
    step = next(item for item in critical_path(side.scheduled) if item.engine == busiest.engine)
    assert (total, engine, share) == (
        f"{side.scheduled.total_ns / 1e3:,.1f}",
        busiest.engine,
        f"{100 * busiest.active_ns / side.scheduled.total_ns:.0f}",
    )
    assert (int(line), cost) == (step.line, f"{step.ns / 1e3:,.1f}")
    assert re.search(r"; [a-z]+ing .+ \(\S+:\d+\) would save up to [\d,.]+ µs", verdict)
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
