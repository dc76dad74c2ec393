"""Every command that takes a user's task tries it first, in a process of its own: what is wrong with it is one sentence."""

import pytest
from typer.testing import CliRunner

from nki_hf.cli import app
from nki_hf.tools.judging import tried_task
from tests.support.judged_tasks import RIGHT

TASK = """
import os
import sys
import time

from nki_hf.tasks import FLOAT, Task

%s
TASK = Task(
    name="own",
    about="twice",
    arrays=lambda size: {"x": ((size, 8), FLOAT)},
    reference=%s,
    flops=lambda size: 8 * size,
    check=(128, 256),
    at=(256,),
)
"""
COMMANDS = {
    "bench": ["{kernel}"],
    "compare": ["{kernel}", "{kernel}"],
    "judge": ["{kernel}"],
    "lint": ["{kernel}"],
    "loop": ["--run", "{folder}/run", "--agent", "true"],
    "prompt": [],
    "rank": ["{folder}"],
    "report": ["{kernel}"],
    "trace": ["{kernel}", "-o", "{folder}/out.pftrace"],
    "tune": ["{kernel}", "--const", "block=1,2"],
}
LIMITS = {name: ["--timeout", "2"] for name in ("compare", "judge", "rank", "tune")} | {"loop": ["--judge-timeout", "2"]}
UNLIMITED = ("bench", "lint")
"""What has no option for it, and runs what `judge` and `report` do."""


def refused(folder, name, text, *more):
    (folder / "task.py").write_text(text)
    (folder / "kernel.py").write_text(RIGHT["softmax"])
    words = [word.format(folder=folder, kernel=folder / "kernel.py") for word in COMMANDS[name]]
    done = CliRunner().invoke(app, [name, *words, "--task", str(folder / "task.py"), *more])
    assert done.exit_code == 2, (done.stdout, done.stderr)
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    ("first", "reference", "said"),
    [
        ("raise RuntimeError('no such file')", "None", "cannot be imported: RuntimeError: no such file."),
        ("", "lambda x: 1 / 0", "task own: its reference raises ZeroDivisionError at size 128"),
        ("", "lambda x: sys.exit(3)", "task own: its reference raises SystemExit at size 128: 3"),
        ("", "lambda x: os._exit(3)", "task own: its reference at size 128 ended the process itself, with exit code 3"),
        ("os._exit(0)", "None", "its file, while it was imported, ended the process itself, with exit code 0"),
    ],
)
def test_a_task_that_raises_or_exits_is_wrong_use(name, first, reference, said, tmp_path):
    assert said in refused(tmp_path, name, TASK % (first, reference))


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in UNLIMITED])
def test_a_task_that_hangs_is_wrong_use(name, tmp_path, monkeypatch):
    monkeypatch.setattr(tried_task, "_SECONDS", 2.0)
    said = refused(tmp_path, name, TASK % ("time.sleep(1e6)", "None"), *LIMITS.get(name, ()))
    assert "its file, while it was imported, was still running after 2 s" in said
