"""Schedules and what-ifs of two processes are those of one."""

import dataclasses
import os
import sys

import numpy as np
import pytest
from test_schedule_anomalies import events_of_kernel

from nki_hf.chips import get_chip
from nki_hf.observers import gains
from nki_hf.sim.beside import two_processes
from nki_hf.timing import banks
from nki_hf.timing.schedule import schedule


@pytest.fixture
def forks(monkeypatch):
    """How often a copy was made."""
    if sys.platform != "linux":
        pytest.skip("copies are made on Linux alone")
    made, fork = [], os.fork

    def counted():
        process = fork()
        made.append(process)
        return process

    monkeypatch.setattr(os, "fork", counted)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(banks, "WORTH_A_PROCESS", 0)
    monkeypatch.setattr(gains, "WORTH_A_PROCESS", 0)
    return made


@pytest.mark.parametrize(("name", "chip"), [("v5", "trn2"), ("v7", "trn1"), ("v8", "trn3"), ("flash_prefill", "trn2")])
def test_schedules_and_gains_of_two_processes_are_those_of_one(forks, name, chip):
    chip = get_chip(chip)
    events = events_of_kernel(name, 1024, chip)
    alone = schedule(events, chip)
    saved = gains.gains(alone)
    assert not forks
    with two_processes():
        found = schedule(events, chip)
        assert gains.gains(found) == saved
        assert list(gains.gains(found)) == list(saved)
        assert gains.gains(found, "scalar", "tensor") == {
            name: saved[name] for name in ("tensor", "scalar", "sync") if name in saved
        }
    assert forks
    for field in dataclasses.fields(found):
        mine, theirs = getattr(found, field.name), getattr(alone, field.name)
        if isinstance(mine, np.ndarray):
            assert mine.dtype == theirs.dtype
            assert np.array_equal(mine, theirs), field.name
        elif field.name not in ("work", "chip"):
            assert mine == theirs, field.name
