"""What a kernel's Python keeps between launches fails, wherever it is kept and from whichever launch on it shows."""

import pytest
from judged_kernels import SOFTMAX_OF_ROWS

import nki_hf
from nki_hf.tools.judging.relaunched import changed_when_repeated, order

PLACES = {
    "a counter of the module": "import itertools\nCOUNT = itertools.count()\n\n\ndef launches():\n    return next(COUNT)\n",
    "a list of the module": "SEEN = []\n\n\ndef launches():\n    SEEN.append(0)\n    return len(SEEN) - 1\n",
    "an attribute of a function": "def launches():\n    launches.done += 1\n    return launches.done\n\n\nlaunches.done = -1\n",
    "a default argument": "def launches(seen=[]):\n    seen.append(0)\n    return len(seen) - 1\n",
    "a closure": (
        "def counter():\n    done = -1\n\n    def more():\n        nonlocal done\n        done += 1\n        return done\n\n"
        "    return more\n\n\nlaunches = counter()\n"
    ),
    "a class": "class Launches:\n    done = -1\n\n\ndef launches():\n    Launches.done += 1\n    return Launches.done\n",
    "a cache of results": (
        "import functools\n\n\n@functools.lru_cache\ndef kept(number):\n    return number\n\n\n"
        "def launches():\n    return kept(kept.cache_info().currsize)\n"
    ),
    "a module beside the file": "from beside import launches\n",
}
BESIDE = PLACES["a list of the module"]
FULL = "range(0, x.shape[0], 128)"


def judge(tmp_path, place, fewer):
    """The record of a kernel that knows how often it was launched, and which rows it then computes."""
    (tmp_path / "beside.py").write_text(BESIDE)
    file = tmp_path / "kernel.py"
    assert FULL in SOFTMAX_OF_ROWS
    file.write_text(PLACES[place] + SOFTMAX_OF_ROWS.replace(FULL, f"range(0, {fewer}, 128)"))
    return nki_hf.judge(file, "softmax", check=(128,), at=(512,), chip=("trn2",), seed=7)


@pytest.mark.parametrize("threshold", range(1, 7))
def test_a_count_of_launches_fails_from_any_launch_on(tmp_path, threshold):
    record = judge(tmp_path, "a counter of the module", f"x.shape[0] if launches() < {threshold} else 128")
    assert not record["passed"], record["sentence"]
    if threshold > 2:  # before, the sizes that are judged are wrong in themselves
        assert record["stage"] == "run"
        assert "gives another program when it is launched again with the same arguments" in record["sentence"]


@pytest.mark.parametrize("place", list(PLACES))
def test_state_fails_wherever_it_is_kept(tmp_path, place):
    record = judge(tmp_path, place, "x.shape[0] if launches() < 4 else 128")
    assert (record["passed"], record["stage"]) == (False, "run"), record["sentence"]
    assert "what an earlier launch left" in record["sentence"]


@pytest.mark.parametrize("fewer", ["x.shape[0] if launches() % 2 else 128", "128 if launches() % 2 else x.shape[0]"])
def test_a_kernel_that_takes_turns_fails(tmp_path, fewer):
    assert not judge(tmp_path, "a closure", fewer)["passed"]


def test_results_that_are_kept_and_change_nothing_pass(tmp_path):
    record = judge(tmp_path, "a cache of results", "x.shape[0] + 0 * kept(x.shape[0])")
    assert record["passed"], record["sentence"]


def test_the_largest_of_the_judged_sizes_is_launched_again_and_timed_ones_are_not():
    traces = [{"size": 128, "repeated": True}, {"size": 384, "repeated": True}, {"size": 4096, "repeated": False}]
    assert order(traces) == [1, 0, 1, 1]
    assert order(traces[2:]) == [0]  # of a tool that only times, there is no other
    assert order([]) == []


def test_long_launches_are_not_done_more_than_once(monkeypatch):
    clock = iter([0.0, 0.0, 5.0])
    monkeypatch.setattr("nki_hf.tools.judging.relaunched.time.process_time", lambda: next(clock))
    launched = []
    tape = {"tensors": [], "cores": {}, "places": [], "forms": []}
    traces = [{"size": 8192, "repeated": True}, {"size": 4096, "repeated": True}]

    def launch(trace):
        launched.append(trace["size"])
        return {"tape": tape}

    assert changed_when_repeated(traces, [{"tape": tape}] * 2, launch) is None
    assert launched == [4096]
