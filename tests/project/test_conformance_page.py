"""The page of conformance: rows of outcomes, what is kept when a suite is written again, and its counts."""

import re
from pathlib import Path

import pytest

from tools.conformance import library_cases, report
from tools.conformance.case import Outcome


def test_the_page_gets_a_suites_block_and_keeps_the_rest(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- begin x -->\nold\n<!-- end x -->\nafter\n")
    outcomes = [Outcome("k", "a|b", "passed", "error 0.25 of the tolerance"), Outcome("k", "c|d", "failed", "why")]
    report.update("x", outcomes, "run it", page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("<!-- end x -->\nafter\n")
    assert "old" not in text
    assert "1 passed, 1 failed, 0 refused, 0 not run. Command: `run it`" in text
    assert "| k | 1 | 1 | 0 | 0 | 0.25 |" in text
    assert "| k | 1 | c\\|d | failed | why |" in text
    assert "a\\|b" not in text
    with pytest.raises(ValueError, match="no block"):
        report.update("y", outcomes, "run it", page)


OUTCOMES = [
    Outcome("k", "t: a|b", "passed", ""),
    Outcome("l", "t: c", "failed", "why | how"),
    Outcome("l", "t: d", "not run", "inputs of 12 elements"),
    Outcome("l", "t: e", "not run", "inputs of 34,567 elements"),
    Outcome("l", "u: e", "not run", "inputs of 12 elements"),
    Outcome("l", "t: f", "passed", "error 0.50 of the tolerance"),
]


def test_cases_of_one_test_with_one_reason_share_a_row():
    rows = report.tallies(OUTCOMES)["l"].rows
    assert rows == (
        ("1", "t: c", "failed", "why | how"),
        ("2", "t: d", "not run", "inputs of 12 elements"),
        ("1", "u: e", "not run", "inputs of 12 elements"),
    )


def test_what_the_page_holds_can_be_read_back_and_a_kernel_be_run_again(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- begin x --><!-- end x -->\n")
    report.update("x", OUTCOMES, "run it", page)
    found, command = report.recorded("x", page)
    assert (found, command) == (report.tallies(OUTCOMES), "run it")
    again = [Outcome("m", "t", "passed", "error 0.10 of the tolerance"), Outcome("k", "t: a", "refused", "no")]
    report.update("x", again, "run part", page, order=["m", "l", "k"])
    found, command = report.recorded("x", page)
    assert list(found) == ["m", "l", "k"]
    assert found == {**report.tallies(OUTCOMES), **report.tallies(again)}
    assert command == "run it"


def test_the_documented_page_has_a_block_for_every_suite():
    text = report.PAGE.read_text()
    for suite in SUITES:
        assert f"<!-- begin {suite} -->" in text


SUITES = ("nki-library", "autocomp", "docstrings", "guides", "tutorials", "attention-ladder")


@pytest.mark.parametrize("suite", SUITES)
def test_the_counts_and_the_table_of_a_suite_are_those_of_its_rows(suite):
    text = report.PAGE.read_text(encoding="utf-8")
    block = text.partition(f"<!-- begin {suite} -->\n")[2].partition(f"\n<!-- end {suite} -->")[0]
    found, command = report.recorded(suite)
    assert block == report.render(found, command)
    assert sum(sum(part.counts) for part in found.values()) >= 15
    assert (Path(report.PAGE).parents[1] / command.split()[1]).is_file()
    for part in found.values():
        for verdict, count in zip(report.VERDICTS[1:], part.counts[1:], strict=True):
            rows = [row for row in part.rows if row[2] == verdict]
            assert sum(int(row[0]) for row in rows) == count
            assert all(row[3] for row in rows)
        assert float(part.largest or 0) <= 1.0


def test_the_page_has_every_test_module_of_the_library():
    assert list(report.recorded("nki-library")[0]) == list(library_cases.MODULES)


def test_every_block_of_the_page_is_known():
    assert tuple(re.findall(r"<!-- begin (\S+) -->", report.PAGE.read_text(encoding="utf-8"))) == SUITES
