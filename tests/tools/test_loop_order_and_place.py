"""`nki_hf loop`: the same run whichever round ends first, from whichever folder; a refused command changes nothing."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from nki_hf.cli import app
from nki_hf.tools.searching.run import Run
from tests.support.search_agents import KERNEL, TASK, agent, looped

REQUESTED = """
with open(os.path.join({folder!r}, str(number)), "w") as file:
    json.dump(request, file)
time.sleep({delays}.get(number, 0))
say(extra_work({extra}[number]), f"step {{number}}")
"""
# rounds 1 and 2 give the same kernel, so that which of them a later round is called the same as depends on their order too
EXTRA = {1: 4, 2: 4, 3: 2, 4: 4, 5: 1, 6: 2}


def _plain(rounds):
    return [{k: v for k, v in item.items() if k not in ("seconds", "clock_s")} for item in rounds]


def test_which_round_of_a_generation_ends_first_changes_nothing(tmp_path):
    """Later rounds are asked the same, and the run is the same: `history` by round, `last` the highest of earlier rounds."""
    asked, runs = [], []
    for name, delays in (("up", {2: 1.5, 3: 3}), ("down", {1: 3, 2: 1.5})):
        folder = tmp_path / name
        folder.mkdir()
        command = agent(folder, REQUESTED.format(folder=str(folder), delays=delays, extra=EXTRA))
        words = ["--rounds", "6", "--tries", "3", "--processes", "3"]
        runs.append(_plain(looped(folder / "run", command, *words)))
        asked.append([json.loads((folder / str(n)).read_text()) for n in range(1, 7)])
    assert runs[0] == runs[1]
    assert asked[0] == asked[1]
    fourth = asked[0][3]
    assert [row["round"] for row in fourth["history"]] == [1, 2, 3]
    assert fourth["last"]["round"] == fourth["best"]["round"] == 3
    assert [row["same_as"] for row in runs[0]] == [None, None, None, 1, None, 3]


def test_a_killed_run_goes_on_as_one_that_was_not(tmp_path):
    """Killed while round 1 runs and rounds 2 and 3 have ended: the later rounds hear what they would have heard."""
    found = []
    for name, delay in (("whole", 0), ("killed", 600)):
        folder = tmp_path / name
        folder.mkdir()
        command = agent(folder, REQUESTED.format(folder=str(folder), delays={1: delay}, extra=EXTRA))
        words = ["--run", str(folder / "run"), "--rounds", "6", "--tries", "3", "--processes", "3", *TASK]
        if delay:
            started = subprocess.Popen(
                [sys.executable, "-m", "nki_hf", "loop", "--agent", command, *words],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                while not (folder / "run" / "rounds.jsonl").exists() or len(Run(folder / "run").rounds()) < 2:
                    assert started.poll() is None
                    time.sleep(0.05)
            finally:
                started.send_signal(signal.SIGKILL)
                started.wait()
            command = agent(folder, REQUESTED.format(folder=str(folder), delays={}, extra=EXTRA))
        done = CliRunner().invoke(app, ["loop", "--agent", command, *words])
        assert done.exit_code == 0, done.stderr
        requests = [json.loads((folder / str(n)).read_text()) for n in range(1, 7)]
        found.append((_plain(Run(folder / "run").rounds()), requests))
    assert found[0] == found[1]


def test_a_refused_command_leaves_the_run_as_it_was(tmp_path):
    run = tmp_path / "run"
    looped(run, agent(tmp_path, "say(KERNEL)"), "--rounds", "1")
    Run(run).kernel(1).write_text(KERNEL + "# by hand\n")
    before = {path.name: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    done = CliRunner().invoke(app, ["loop", "--run", str(run), "--rounds", "14", "--timeout", "9", "--budget", "2h"])
    assert done.exit_code == 2
    assert "is not what was judged" in " ".join(done.stderr.split())
    assert "from now on" not in done.stderr
    assert {path.name: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


OWN_TASK = "from nki_hf.tasks import load_task\nTASK = load_task('softmax')\n"


@pytest.fixture
def own_run(tmp_path, monkeypatch):
    """A run that was begun in the folder `here` with a task's file and an agent that are named from there."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (here / "own_task.py").write_text(OWN_TASK)
    agent(here, "say(KERNEL)")
    words = ["own_task.py" if word == "softmax" else word for word in TASK]
    monkeypatch.chdir(here)
    begun = ["loop", "--run", "../run", "--agent", f"{sys.executable} -S agent.py", *words, "--rounds", "1"]
    assert CliRunner().invoke(app, begun).exit_code == 0
    monkeypatch.chdir(there)
    return here, there


@pytest.mark.parametrize("task", [[], ["--task", "../here/own_task.py"], ["--task", "again.py"]])
def test_a_run_goes_on_from_another_folder(own_run, task):
    """Its task and agent are found from everywhere, and a task's file counts by its contents."""
    here, _ = own_run
    shutil.copy(here / "own_task.py", "again.py")
    done = CliRunner().invoke(app, ["loop", "--run", "../run", *task, "--rounds", "2"])
    assert done.exit_code == 0, done.stderr
    assert [row["passed"] for row in Run(here.parent / "run").rounds()] == [True, True]


def test_a_run_whose_task_is_gone_says_so_and_takes_the_same_file_elsewhere(own_run):
    here, _ = own_run
    (here / "own_task.py").rename(here / "moved.py")
    done = CliRunner().invoke(app, ["loop", "--run", "../run"])
    assert done.exit_code == 2
    assert "the file is gone" in " ".join(done.stderr.split())
    done = CliRunner().invoke(app, ["loop", "--run", "../run", "--task", "../here/moved.py"])
    assert done.exit_code == 0, done.stderr
    (here / "moved.py").write_text(OWN_TASK + "# another\n")
    assert CliRunner().invoke(app, ["loop", "--run", "../run", "--task", "../here/moved.py"]).exit_code == 2


def test_a_run_is_ranked_without_its_task(own_run):
    """Its rounds have been judged: the table does not need the file, and the error band is said to be missing."""
    here, _ = own_run
    (here / "own_task.py").unlink()
    done = CliRunner().invoke(app, ["rank", "../run"])
    assert done.exit_code == 0, done.stderr
    assert "round 1" in done.stdout
    assert "the error band of these times is not known" in done.stdout
