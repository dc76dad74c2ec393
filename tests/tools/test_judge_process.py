"""The judge's process begins while the kernel's records what is only timed: the record is as if it had not."""

import os
import sys

import pytest

import nki_hf
from tests.support.judged_kernels import OPTIONS, RIGHT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
_TWO = len(os.sched_getaffinity(0)) > 1 if hasattr(os, "sched_getaffinity") else False

_SIBLINGS = """
import glob, os, signal, tempfile, time

def siblings():
    server = os.getppid()
    found = open(f"/proc/{server}/task/{server}/children").read().split()
    return [int(word) for word in found if int(word) != os.getpid()]

def awaited():
    end = time.monotonic() + 20
    while not siblings() and time.monotonic() < end:
        time.sleep(0.01)
    return siblings()
"""


def judged(tmp_path, at_timed, text=RIGHT, **options):
    """The record of a kernel whose Python does something when 2,048 rows are launched, after those that are judged."""
    head, _, body = text.partition("    d, s = q.shape\n")
    file = tmp_path / "kernel.py"
    file.write_text(f"{_SIBLINGS}{head}    d, s = q.shape\n    if s == 2048:\n        {at_timed}\n{body}")
    return nki_hf.judge(file, "attention_causal", **{**OPTIONS, "check": (256,), "at": (2048,), "chip": ("trn2",), **options})


@pytest.mark.skipif(not _TWO, reason="begins early where there are two processors")
def test_values_are_judged_while_the_timed_size_is_recorded(tmp_path):
    record = judged(tmp_path, "print('judged beside:', len(awaited()))")
    assert record["passed"], record["sentence"]
    assert record["printed"]["stdout"] == "judged beside: 1\n"
    assert record["seconds"]["kernel"] > 0
    assert [row["size"] for row in record["times"]] == [2048]


def test_what_a_kernel_raises_at_the_timed_size_comes_before_its_wrong_values(tmp_path):
    wrong = RIGHT.replace("d**-0.5", "d**-0.25")
    assert wrong != RIGHT
    assert judged(tmp_path, "pass", wrong)["stage"] == "values"
    record = judged(tmp_path, "awaited(); raise IndexError('beyond')", wrong)
    assert record["stage"] == "run"
    assert "beyond" in record["sentence"]


def test_a_kernel_that_ends_the_judge_does_not_pass(tmp_path):
    record = judged(tmp_path, "[os.kill(process, signal.SIGKILL) for process in awaited()]")
    assert not record["passed"]
    assert "ended by the signal SIGKILL" in record["sentence"]
    assert record["stage"] == ("run" if _TWO else "load")
    assert nki_hf.judge(tmp_path / "kernel.py", "attention_causal", **OPTIONS)["passed"]  # at sizes that it leaves alone


@pytest.mark.parametrize("work", ["os.remove(file)", "open(file, 'w').write('[1]')"], ids=["removed", "another"])
def test_the_part_that_was_handed_over_stays_as_it_was(tmp_path, work):
    """It is damaged, or was read before: in neither case is anything else judged."""
    at_timed = f"[{work} for file in glob.glob(tempfile.gettempdir() + '/nki_hf_judge_*/kernel.part')]"
    record = judged(tmp_path, f"awaited(); {at_timed}")
    assert record["passed"] or "is no tape" in record["sentence"], record["sentence"]
    if _TWO:
        assert record["passed"], record["sentence"]


def test_a_part_that_is_none_is_damaged(tmp_path):
    """The kernel's process replaces what it has handed over before anybody can read it."""
    at_load = "import pathlib\npathlib.Path.replace = lambda self, to: to.write_bytes(b'{}')\n"
    record = judged(tmp_path, "pass", at_load + RIGHT)
    assert not record["passed"]
    assert "is no tape" in record["sentence"]


def test_a_kernel_that_is_no_function_fails_at_its_stage(tmp_path):
    text = RIGHT.replace("import nki\n", "import nki\nLAUNCHES = []\n").replace(
        "    d, s = q.shape\n", "    d, s = q.shape\n    LAUNCHES.append(s)\n    d, s = q.shape\n"
    )
    text = text.replace("d**-0.5", "(d if len(LAUNCHES) < 5 else 1) ** -0.5")
    record = judged(tmp_path, "awaited()", text)
    assert record["stage"] == "run"
    assert "another program" in record["sentence"]


WRONG = RIGHT.replace("operand0=d**-0.5", "operand0=d**-0.25")
FORGED = "{'verdict': 'pass', 'passed': True, 'stage': None, 'sentence': 'pass.', 'findings': [], 'warnings': []}"


def test_an_answer_that_a_kernel_writes_for_the_server_is_not_read(tmp_path):
    """Pipes of another process can be opened under /proc; the next round gets its own record as well."""
    forger = f"""
import os
from nki_hf.tools.judging import plain
for number in os.listdir(f"/proc/{{os.getppid()}}/fd"):
    try:
        if os.readlink(f"/proc/{{os.getppid()}}/fd/{{number}}").startswith("pipe:"):
            plain.send(open(f"/proc/{{os.getppid()}}/fd/{{number}}", "wb"), {FORGED})
    except OSError:
        pass
"""
    record = judged(tmp_path, "pass", forger + WRONG)
    assert (record["passed"], record["stage"]) == (False, "values")
    assert judged(tmp_path, "pass", RIGHT)["task"] == "attention_causal"


@pytest.mark.skipif(not _TWO, reason="begins early where there are two processors")
def test_a_record_that_a_kernel_rewrites_beside_the_judge_is_damaged(tmp_path):
    """It waits until the judge's process has written its record to a file without a name, and changes that."""
    rewriter = """
import json

def rewritten():
    server = os.getppid()
    end = time.monotonic() + 30
    while time.monotonic() < end:
        for number in os.listdir(f"/proc/{server}/fd"):
            at = f"/proc/{server}/fd/{number}"
            try:
                if "(deleted)" not in os.readlink(at):
                    continue
                data = open(at, "rb").read()
                begin = data.index(b'{"schema_version"')
                record = json.loads(data[begin:])
                record.update(verdict="pass", passed=True, stage=None, sentence="pass.", findings=[], diagnosis="")
                open(at, "wb").write(data[:begin] + json.dumps(record).encode())
                return print("rewritten")
            except (OSError, ValueError):
                pass
        time.sleep(0.02)

"""
    record = judged(tmp_path, "rewritten()", rewriter + WRONG)
    assert record["printed"]["stdout"] == "rewritten\n"
    assert not record["passed"]
    assert "another process has changed it" in record["sentence"]


TASK = """
import numpy as np
from nki_hf.tasks import FLOAT, Task

TASK = Task(name="relu", about="", arrays=lambda n: {"x": ((n, 64), FLOAT)}, reference=lambda x: np.maximum(x, 0.0),
            flops=lambda n: 64 * n, check=(128, 256), at=(1024,), dtype="float32")
"""
RELU = """
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def relu(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for first in range(0, x.shape[0], 128):
        tile = nl.ndarray((128, x.shape[1]), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[first : first + 128, :])
        nisa.tensor_scalar(dst=tile, data=tile, OPERATION)
        nisa.dma_copy(dst=out[first : first + 128, :], src=tile)
    return out
"""


@pytest.mark.parametrize("name", ["", ":TASK"])
@pytest.mark.parametrize("back", [False, True], ids=["", "and back"])
def test_a_kernel_that_writes_the_task_is_not_judged_by_it(back, name, tmp_path):
    task, kernel = tmp_path / "task.py", tmp_path / "kernel.py"
    task.write_text(TASK)
    kernel.write_text(RELU.replace("OPERATION", "op0=nl.maximum, operand0=0.0"))
    assert nki_hf.judge(kernel, task, chip=("trn2",))["passed"]
    writer = f"""
import os
at = {str(task)!r}
kept = open(at).read()
open(at, "w").write(kept.replace("np.maximum(x, 0.0)", "x * 2.0"))
"""
    text = RELU.replace("OPERATION", "op0=nl.multiply, operand0=2.0")
    if back:
        text = text.replace("    out = nl", "    if x.shape[0] == 1024:\n        open(at, 'w').write(kept)\n    out = nl")
    kernel.write_text(writer + text)
    record = nki_hf.judge(kernel, f"{task}{name}", chip=("trn2",))
    assert (record["passed"], record["stage"]) == (False, "run"), record["sentence"]
    assert "task.py, the task's file, is written while the kernel runs" in record["sentence"]


def test_relative_paths_begin_in_the_folder_of_the_caller(tmp_path, monkeypatch):
    """The server was started in another one."""
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "task.py").write_text(TASK)
        (folder / "kernel.py").write_text(RELU.replace("OPERATION", "op0=nl.maximum, operand0=0.0"))
        monkeypatch.chdir(folder)
        for task in ("task.py", "task.py:TASK"):
            record = nki_hf.judge("kernel.py", task, chip=("trn2",), against="kernel.py")
            assert record["passed"], record["sentence"]
