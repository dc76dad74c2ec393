"""A diagnosis has an end, and says what it did not reach."""

from types import SimpleNamespace

import numpy as np
import pytest

from nki_hf.tasks import FLOAT, Task
from nki_hf.tools.judging import budget
from nki_hf.tools.judging.budget import INPUTS, RESULTS, TASK, Budget
from nki_hf.tools.judging.diagnosis import named
from nki_hf.tools.judging.values import Checked, Run, drawn, judged_on

TASK_OF_HALVES = Task(
    name="halves",
    about="",
    arrays=lambda n: {"x": ((n, 32), FLOAT), "y": ((n, 32), FLOAT)},
    reference=lambda x, y: x + np.tanh(y),
    flops=lambda n: n,
    check=(64,),
    at=(64,),
    dtype="float32",
    wrong={"y is missing": lambda x, y: x},
)


def _checks(output):
    run = Run(task=TASK_OF_HALVES, size=64, dtype="float32")
    arrays = drawn(run, "normal", 3)
    outcome = judged_on(run, "normal", arrays, [output(**arrays)])
    return [Checked(size=64, outcomes=[outcome], depends_on_memory=False, count="", result=None)]


def test_what_was_not_tried_is_said(monkeypatch):
    checks = _checks(lambda x, y: np.random.default_rng(0).standard_normal(x.shape).astype(np.float32))
    enough = Budget()
    assert not named(TASK_OF_HALVES, checks, enough)
    assert not enough.untried
    monkeypatch.setattr(budget, "_ENDS", {**dict.fromkeys(budget._ENDS, 0.0), TASK: 60.0})
    short = Budget()
    assert not named(TASK_OF_HALVES, checks, short)
    assert INPUTS in short.untried
    assert TASK not in short.untried


def test_a_cause_that_is_found_in_time_is_said():
    assert "if y is missing" in named(TASK_OF_HALVES, _checks(lambda x, y: x), Budget())


@pytest.mark.parametrize(("turns", "times"), [(0.2, 1.0), (1.0, 1.0), (2.5, 2.5), (100.0, 4.0)])
def test_a_slow_processor_has_more_time(monkeypatch, turns, times):
    """A loop that takes so many times as long as on a fast one gives so many times the seconds, within bounds."""
    now = [0.0]
    monkeypatch.setattr(budget, "_loop", lambda: turns * budget._FAST_SECONDS)
    monkeypatch.setattr(budget, "time", SimpleNamespace(thread_time=lambda: now[0]))
    budget.slowness.cache_clear()
    try:
        found = Budget()
        now[0] = 0.99 * times * 4.0
        assert not found.over(RESULTS)
        now[0] = 1.01 * times * 4.0
        assert found.over(RESULTS)
        assert f"its {4 * times:.2g} s of CPU time" in found.untried
    finally:
        budget.slowness.cache_clear()
