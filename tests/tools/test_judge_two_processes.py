"""A copy of a process of the judge has its limits, ends with it, and runs nothing of a kernel's."""

import os
import sys
import time

import pytest

import nki_hf
from nki_hf.sim.beside import in_two, two_processes
from nki_hf.tools.judging import limited_process
from tests.support.judged_kernels import OPTIONS, RIGHT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="copies are made on Linux alone")


@pytest.fixture(autouse=True)
def two_processors(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})


def ended(tmp_path, body, seconds):
    """How a process of the judge's ends that runs `body`, and what the server makes of it."""
    process = limited_process.started(body, tmp_path, "times", seconds, 8 << 30)
    how = limited_process.ended(process, seconds)
    return how, limited_process.answer_of(tmp_path, "times", how)


def test_a_copy_ends_with_the_process_whose_time_is_over(tmp_path):
    note = tmp_path / "copy"

    def endless() -> bytes:
        note.write_text(str(os.getpid()))
        while True:
            time.sleep(1)

    def body() -> bytes:
        with two_processes():
            return in_two(lambda: b"done", endless)[1]

    how, answer = ended(tmp_path, body, 1.0)
    assert how == {"timeout": 1.0}
    assert answer["error"]["kind"] == "timeout"
    copy = int(note.read_text())
    for _ in range(200):
        state = f"/proc/{copy}/stat"
        if not os.path.exists(state) or open(state).read().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.01)
    pytest.fail("the copy still runs")


def test_a_copy_has_the_limit_of_memory(tmp_path):
    def body() -> bytes:
        with two_processes():
            return in_two(lambda: b"done", lambda: bytes(9 << 30))[1]

    assert ended(tmp_path, body, 30.0)[1]["error"]["kind"] == "memory"


def test_a_kernel_is_not_heard_when_the_judge_forks(tmp_path):
    hooks = """
import os, sys
for hook in ("before", "after_in_child", "after_in_parent"):
    os.register_at_fork(**{hook: lambda: os._exit(0)})
sys.modules["nki_hf.sim.beside"].in_two = lambda mine, other, worth=True: (mine(), b"")
"""
    record = {}
    for name, text in (("plain", RIGHT), ("hooks", hooks + RIGHT)):
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        found = nki_hf.judge(path, "attention_causal", **{**OPTIONS, "at": (4096,), "chip": ("trn2",)})
        assert found["passed"], found["sentence"]
        record[name] = [found["times"][0][key] for key in ("us", "floors_us", "counters", "instructions")]
    assert record["plain"][-1] >= 4_000  # from which a copy is made
    assert record["plain"][:-1] == record["hooks"][:-1]
