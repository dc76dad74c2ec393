"""A pytest plug-in that writes what every test did to a file of JSON lines, one as each test ends.

    pytest -p record --record FILE ...

A run that was interrupted is continued by the same command: tests that FILE already holds are left out. The last line says
that all tests were run. Attention calls are counted for each test, so that a swap that took no effect is seen.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option of this plug-in."""
    parser.getgroup("record").addoption("--record", type=Path, help="write a JSON line for each test to this file")


def pytest_configure(config: pytest.Config) -> None:
    """Record, if a file is named."""
    if config.getoption("--record"):
        config.pluginmanager.register(Recorder(config.getoption("--record")))


class Recorder:
    """Appends to the record as tests end.

    A test has the worst outcome of its phases (setup, call, teardown) and of its subtests, and the first line of why.
    """

    def __init__(self, path: Path) -> None:
        lines = path.read_text().splitlines() if path.exists() else []
        self._done = {row["test"] for row in map(json.loads, lines) if "test" in row}
        self._path = path
        self._outcome: tuple[str, str] | None = None
        self._start = 0.0
        self._before = (0, Counter[str]())

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what was run."""
        done = [item for item in items if item.nodeid in self._done]
        if done:
            config.hook.pytest_deselected(items=done)
            items[:] = [item for item in items if item.nodeid not in self._done]

    def pytest_runtest_logstart(self) -> None:
        """A test begins."""
        self._outcome, self._start, self._before = None, time.monotonic(), calls()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the worst outcome."""
        worse = self._outcome is None or (report.outcome != "passed" and self._outcome[0] != "failed")
        if worse and (report.when == "call" or report.outcome != "passed"):
            self._outcome = (report.outcome, _why(report))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """A test has ended: write it."""
        outcome, why = self._outcome or ("failed", "neither passed nor failed")
        kernel, fallbacks = calls()
        self._write(
            test=nodeid,
            outcome=outcome,
            why=why,
            seconds=round(time.monotonic() - self._start, 3),
            kernel=kernel - self._before[0],
            fallbacks=dict(fallbacks - self._before[1]),
        )

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Say that all tests were run, if they were."""
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or (self._done and not session.testscollected):
            self._write(end=True)

    def _write(self, **row: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def calls() -> tuple[int, Counter[str]]:
    """Attention calls of this process until now: how many through a kernel, and how many fell back by reason."""
    ledger = sys.modules.get("nki_hf.adapters.call_log")  # not there when the tests run as they are
    kernel, fallbacks = 0, Counter[str]()
    for row in ledger.rows() if ledger else ():
        if row.first.fallback:
            fallbacks["; ".join(f"{reason.field} {reason.limit}" for reason in row.first.rejected)] += row.calls
        else:
            kernel += row.calls
    return kernel, fallbacks


def _why(report: pytest.TestReport) -> str:
    if report.outcome == "passed":
        return ""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")[:300]
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr or "")
    return (text.strip().splitlines() or [""])[0][:300]
