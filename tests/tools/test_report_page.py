"""What the page of `nki_hf report` holds: every instruction, its time, its line, and nothing that loads."""

import json
import re

import numpy as np
import pytest
from report_pages import side_by_name

from nki_hf.chips import get_chip
from nki_hf.observers.instruction_kinds import WORDS, word_of
from nki_hf.observers.lanes import FULL, binned, lanes
from nki_hf.observers.source_lines import source_files
from nki_hf.observers.timing import critical_path, engine_times
from nki_hf.timing.schedule import schedule
from nki_hf.tools.pages.report_page import report_page
from nki_hf.tools.pages.shell import page
from nki_hf.tools.pages.timeline_data import timeline_data
from nki_hf.tools.subjects import events_of

TRN1 = get_chip("trn1")


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


def test_both_kernels_stand_side_byside_by_name(made):
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
    assert set(lanes(side_by_name("v7", 2048).scheduled).columns.iteration.tolist()) == set(range(16))


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
    side = side_by_name("flash_const_max", 16384, "trn2")
    assert len(report_page(side)) < 3 * 2**20
