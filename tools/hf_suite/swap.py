"""A pytest plug-in that runs every model of somebody else's tests under attn_implementation="nki".

    PYTHONPATH=tools/hf_suite pytest -p swap --swap nki --swap-record FILE ...

Swapping is by name: where Transformers would settle on "sdpa", or on its default, it settles on "nki". Tests stay as they
are. The terminal summary counts the attention calls that went through a kernel and those that fell back, so that a swap
that took no effect is seen.
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

_results: dict[str, str] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of this plug-in."""
    group = parser.getgroup("swap")
    group.addoption("--swap", choices=("nki", "none"), default="nki", help="none: the tests as they are")
    group.addoption("--swap-record", type=Path, help="write outcome per test and calls to this JSON file")


def pytest_configure(config: pytest.Config) -> None:
    """Swap, before any test is collected."""
    _add_tester_defaults(Path.cwd() / "checkout_testing_utils.py")
    if config.getoption("--swap") == "nki":
        _swap_by_name()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the worst outcome of a test's phases."""
    if (report.when == "call" or report.outcome != "passed") and _results.get(report.nodeid) != "failed":
        _results[report.nodeid] = report.outcome


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say how many attention calls took which way, and write the record."""
    calls = _calls() if config.getoption("--swap") == "nki" else {"kernel": 0, "fallback": 0, "reasons": {}}
    terminalreporter.section("attention calls")
    terminalreporter.write_line(f"through a kernel: {calls['kernel']}, fallen back: {calls['fallback']}")
    for reason, count in calls["reasons"].items():
        terminalreporter.write_line(f"  {count} x {reason}")
    record = config.getoption("--swap-record")
    if record:
        record.write_text(json.dumps({"tests": _results, "calls": calls}, indent=1))


def _swap_by_name() -> None:
    from transformers import PreTrainedModel

    import nki_hf  # noqa: F401  (registers "nki")

    original = PreTrainedModel.get_correct_attn_implementation

    def swapped(self: Any, requested_attention: str | None, *args: Any, **kwargs: Any) -> str:
        settled = original(self, requested_attention, *args, **kwargs)
        return "nki" if settled == "sdpa" or requested_attention is None else settled

    PreTrainedModel.get_correct_attn_implementation = swapped


def _calls() -> dict[str, Any]:
    from nki_hf.adapters import ledger

    kernel, reasons = 0, Counter[str]()
    for row in ledger.rows():
        if row.first.fallback:
            reasons["; ".join(f"{reason.field} {reason.limit}" for reason in row.first.rejected)] += row.calls
        else:
            kernel += row.calls
    return {"kernel": kernel, "fallback": reasons.total(), "reasons": dict(reasons.most_common())}


def _add_tester_defaults(source: Path) -> None:
    """Give the installed test module the upper-case constants that only the checkout's has."""
    if not source.exists():
        return
    from transformers import testing_utils

    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name.lstrip("_").isupper() and not hasattr(testing_utils, name):
                try:
                    setattr(testing_utils, name, ast.literal_eval(node.value))
                except ValueError:
                    continue  # computed: no tester needs it
