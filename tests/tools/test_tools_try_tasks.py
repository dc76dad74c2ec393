"""Every command that takes a user's task tries it first, in a process of its own: what is wrong with it is one sentence."""

import pytest
from typer.testing import CliRunner

from nki_hf.cli import app
from nki_hf.tools.judging import tried_task
from tests.support.judged_own_tasks import TWICE, written

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
    kernel, task = written(folder, text)
    words = [word.format(folder=folder, kernel=kernel) for word in COMMANDS[name]]
    done = CliRunner().invoke(app, [name, *words, "--task", task, *more])
    assert done.exit_code == 2, (done.stdout, done.stderr)
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise RuntimeError('no such file')", "cannot be imported: RuntimeError: no such file."),
        (TWICE % "'reference': lambda x: 1 / 0", "task own: its reference raises ZeroDivisionError at size 128"),
        (TWICE % "'reference': lambda x: sys.exit(3)", "task own: its reference raises SystemExit at size 128: 3"),
        (TWICE % "'reference': lambda x: os._exit(3)", "its reference at size 128 ended the process itself, with exit code 3"),
        ("import os; os._exit(0)", "its file, while it was imported, ended the process itself, with exit code 0"),
    ],
)
def test_a_task_that_raises_or_exits_is_wrong_use(name, text, said, tmp_path):
    assert said in refused(tmp_path, name, text)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in UNLIMITED])
def test_a_task_that_hangs_is_wrong_use(name, tmp_path, monkeypatch):
    monkeypatch.setattr(tried_task, "_SECONDS", 2.0)
    said = refused(tmp_path, name, "while True: pass", *LIMITS.get(name, ()))
    assert "its file, while it was imported, was still running after 2 s" in said
