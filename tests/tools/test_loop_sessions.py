"""`nki_hf loop`: runs that go on, their options, budget and folder; sessions that are killed."""

from __future__ import annotations

import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nki_hf.cli import app
from nki_hf.tools.searching.clock import Clock
from nki_hf.tools.searching.journal import append, mended, read
from nki_hf.tools.searching.rounds import best_of
from nki_hf.tools.searching.run import Run
from tests.support.search_agents import TASK, agent, looped


def test_a_judgement_that_ran_out_of_time_is_made_again(tmp_path):
    """The kernel's file hangs the first time that it is loaded, and is the example afterwards."""
    mark = str(tmp_path / "mark")
    hangs = f"import os, time\nif not os.path.exists({mark!r}):\n    open({mark!r}, 'w').close()\n    time.sleep(60)\n"
    command = agent(tmp_path, f"say({hangs!r} + KERNEL)")
    looped(tmp_path / "run", command, "--rounds", "1", "--judge-timeout", "3", code=1)
    rounds = looped(tmp_path / "run", command, "--rounds", "3", "--judge-timeout", "60")
    assert "still running after 3 s" in rounds[0]["sentence"]
    assert [r["same_as"] for r in rounds] == [None, None, 2]
    assert [r["passed"] for r in rounds] == [False, True, True]


def test_a_task_file_that_changed_does_not_go_on(tmp_path):
    task, helper = tmp_path / "own_task.py", tmp_path / "own_factor.py"
    helper.write_text("FACTOR = 1\n")
    task.write_text(
        "import os, sys\nsys.path.insert(0, os.path.dirname(__file__))\n"
        "import own_factor\nfrom nki_hf.tasks import load_task\nTASK = load_task('softmax')\n"
    )
    words = ["loop", "--run", str(tmp_path / "run"), "--agent", agent(tmp_path, "say(KERNEL)"), *TASK, "--rounds", "1"]
    words[words.index("softmax")] = str(task)
    assert CliRunner().invoke(app, words).exit_code == 0
    assert CliRunner().invoke(app, words).exit_code == 0
    helper.write_text("FACTOR = 2\n")
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert f"task={task} is not what it was" in " ".join(done.stderr.split())


def test_options_given_to_a_run_hold_or_are_refused(tmp_path):
    run, command = tmp_path / "run", agent(tmp_path, "say(KERNEL)")
    words = ["--beam", "2", "--order", "16", "--timeout", "50", "--judge-timeout", "50"]
    looped(run, command, "--rounds", "1", *words)
    for more in (["--beam", "1"], ["--seed", "6"], ["--order", "64"], ["--remember", str(run)], ["--rtol", "0.5"]):
        done = CliRunner().invoke(app, ["loop", "--run", str(run), "--rounds", "1", *more])
        assert done.exit_code == 2, more
        assert f"{more[0][2:]}=" in done.stderr
        assert "goes on as it began" in done.stderr
    for more in ([], ["--timeout", "600", "--judge-timeout", "60"], []):
        assert CliRunner().invoke(app, ["loop", "--run", str(run), "--rounds", "1", *more]).exit_code == 0
    settings = Run(run).settings
    assert (settings["timeout"], settings["judge"]["timeout"], settings["beam"]) == (600, 60, 2)


def test_a_run_damaged_by_hand_is_refused_and_its_ranking_has_its_own_options(tmp_path):
    run, command = tmp_path / "run", agent(tmp_path, "say(extra_work(number))")
    looped(run, command, "--rounds", "1")

    def said(*words):
        done = CliRunner().invoke(app, [*words])
        assert done.exit_code == 2, done.stdout
        return " ".join(done.stderr.split())

    for words in (["--chip", "trn1"], ["--at", "256"], ["--task", "rmsnorm"], ["--lnc", "1"]):
        assert words[0][2:] in said("rank", str(run), *words)
    assert CliRunner().invoke(app, ["rank", str(run), "--task", "softmax"]).exit_code == 0
    path = Run(run).kernel(1)
    source = path.read_text()
    path.write_text(source + "# by hand\n")
    assert "is not what was judged" in said("loop", "--run", str(run))
    assert "is not what was judged" in said("rank", str(run))
    path.unlink()
    assert "is missing" in said("loop", "--run", str(run))
    path.write_text(source)
    assert CliRunner().invoke(app, ["loop", "--run", str(run), "--rounds", "1"]).exit_code == 0
    (run / "rounds.jsonl").unlink()
    assert "no rounds.jsonl" in said("loop", "--run", str(run))


def test_a_budget_ends_a_run_and_more_time_goes_on(tmp_path):
    command = agent(tmp_path, "time.sleep(0.6); say(extra_work(9 - number))")
    rounds = looped(tmp_path / "run", command, "--rounds", "50", "--budget", "3s")
    assert 1 <= len(rounds) < 10
    more = looped(tmp_path / "run", command, "--rounds", str(len(rounds) + 1), "--budget", "1h")
    assert [r["round"] for r in more] == list(range(1, len(rounds) + 2))
    assert more[: len(rounds)] == rounds


BUSY = {
    "the agent": ("time.sleep(600)", "the command was ended at its limit of"),
    "the kernel": ("say('import time; time.sleep(600)')", "still running after"),
}


@pytest.mark.parametrize("who", BUSY)
def test_the_end_of_the_budget_ends_the_round_that_runs(tmp_path, who):
    """It is a time limit like the others: the round is a line that says so, and another session has the next one."""
    body, words = BUSY[who]
    began = time.monotonic()
    (cut,) = looped(tmp_path / "run", agent(tmp_path, body), "--rounds", "3", "--budget", "10s", "--processes", "1", code=1)
    assert time.monotonic() - began < 60
    assert words in cut["sentence"]
    assert "the end of the budget" in cut["sentence"]
    _, second = looped(tmp_path / "run", agent(tmp_path, "say(KERNEL)"), "--rounds", "2", "--budget", "1h")
    assert second["passed"]


def test_a_budget_counts_sessions_that_were_killed_before_a_round_ended(tmp_path):
    run = Run(tmp_path / "run")
    body = f"open({str(tmp_path / 'runs')!r}, 'w').close()\ntime.sleep(600)\n"
    words = ["loop", "--run", str(run.folder), "--agent", agent(tmp_path, body), "--budget", "1h", *TASK]
    process = subprocess.Popen([sys.executable, "-m", "nki_hf", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not (tmp_path / "runs").exists():
            assert process.poll() is None
            time.sleep(0.02)
        before = Clock(run.clock, 0.0)()
        time.sleep(2.5)
    finally:
        process.kill()
        process.wait()
    assert run.rounds() == []
    spent = Clock(run.clock, 0.0)()
    assert spent >= before + 1
    done = CliRunner().invoke(app, ["loop", "--run", str(run.folder), "--budget", "1s"])
    assert "the budget of 1 s is used up" in done.stdout
    assert run.rounds() == []


def test_a_clock_that_cannot_be_read_has_the_time_of_the_rounds(tmp_path):
    path = tmp_path / "clock"
    for text in ("", "x", "nan", "-5", "inf"):
        path.write_text(text)
        assert 3 <= Clock(path, 3.0)() < 4
    with Clock(path, 3.0):
        pass
    assert 3 <= Clock(path, 0.0)() < 5


def test_rounds_and_budget_of_a_run_hold_until_others_are_given_which_is_said(tmp_path):
    run, command = tmp_path / "run", agent(tmp_path, "say(KERNEL)")
    looped(run, command, "--rounds", "2", "--budget", "1h")
    assert (Run(run).settings["rounds"], Run(run).settings["budget"]) == (2, "1h")
    done = CliRunner().invoke(app, ["loop", "--run", str(run)])
    assert (len(Run(run).rounds()), done.stderr) == (2, "")
    done = CliRunner().invoke(app, ["loop", "--run", str(run), "--rounds", "3", "--budget", ""])
    assert "rounds=3 from now on; it was 2." in done.stderr
    assert "budget=no limit from now on; it was 1h." in done.stderr
    assert len(Run(run).rounds()) == 3
    done = CliRunner().invoke(app, ["loop", "--run", str(run)])
    assert "3 rounds are done" in done.stdout


@pytest.mark.parametrize("names", [["notes.txt"], ["kernels/mine.py"], ["rounds.jsonl"], [".git/config"], ["lock/x"]])
def test_a_folder_of_something_else_is_no_run(tmp_path, names):
    run = tmp_path / "run"
    for name in names:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("mine")
    before = sorted(run.rglob("*"))
    done = CliRunner().invoke(app, ["loop", "--run", str(run), "--agent", agent(tmp_path, "say(KERNEL)"), *TASK])
    assert done.exit_code == 2
    assert f"run={run} is the folder of something else" in " ".join(done.stderr.split())
    assert names[0].partition("/")[0] in done.stderr
    assert sorted(run.rglob("*")) == before


def test_what_a_killed_beginning_left_is_no_obstacle_and_commands_are_quoted(tmp_path):
    """The last line is a command that a shell takes, whatever the folder is called."""
    run = tmp_path / "mein Lauf; ü 'x'"
    for name in ("kernels", "judged"):
        (run / name).mkdir(parents=True)
    for name in ("lock", "clock", ".writing-0123abcd"):
        (run / name).touch()
    words = ["loop", "--run", str(run), "--agent", agent(tmp_path, "say(KERNEL)"), "--rounds", "1", *TASK]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.endswith(" shows the whole run")]
    assert shlex.split(line)[:3] == ["nki_hf", "rank", str(run)]
    done = CliRunner().invoke(app, ["rank", str(run), "--chip", "trn1"])
    command = " ".join(done.stderr.split()).partition("anew: ")[2].rstrip(".")
    assert shlex.split(command) == ["nki_hf", "rank", str(run / "kernels"), "--task", "softmax"]


def test_a_run_goes_on_as_it_began(tmp_path):
    command = agent(tmp_path, "say(KERNEL)")
    looped(tmp_path / "run", command, "--rounds", "1")
    for words, name in ((["--beam", "3"], "beam=3"), (["--layout", "x=sd"], "layout"), (["--at", "256"], "at=")):
        done = CliRunner().invoke(app, ["loop", "--run", str(tmp_path / "run"), "--agent", command, *TASK, *words])
        assert done.exit_code == 2
        assert name in done.stderr
        assert "goes on as it began" in done.stderr


def test_two_loops_do_not_share_a_folder(tmp_path):
    run = Run(tmp_path / "run")
    with run.held():
        done = CliRunner().invoke(app, ["loop", "--run", str(run.folder), "--agent", agent(tmp_path, "say(KERNEL)"), *TASK])
    assert done.exit_code == 2
    assert "in use by another process" in done.stderr


def test_a_line_that_was_not_finished_is_cut_off_and_other_damage_is_said(tmp_path):
    path = tmp_path / "rounds.jsonl"
    for number in range(3):
        append(path, {"round": number})
    whole = path.read_bytes()
    for cut in range(1, len(whole)):
        path.write_bytes(whole[:cut])
        assert read(path) == [{"round": n} for n in range(whole[:cut].count(b"\n"))]
        assert mended(path) == read(path)
        append(path, {"round": "next"})
        assert read(path)[-1] == {"round": "next"}
    path.write_bytes(whole.replace(b"1}", b"1", 1))
    with pytest.raises(ValueError, match="line 2: no record"):
        read(path)


def test_a_round_with_two_lines_is_damage(tmp_path):
    looped(tmp_path / "run", agent(tmp_path, "say(KERNEL)"), "--rounds", "1")
    path = tmp_path / "run" / "rounds.jsonl"
    path.write_bytes(2 * path.read_bytes())
    with pytest.raises(ValueError, match="line 2: round 1 has two lines"):
        Run(tmp_path / "run").rounds()


# ---- killed -----------------------------------------------------------------------------------------------------------

BODY = """
with open(os.path.join({folder!r}, "asked"), "a") as file:
    file.write(f"{{number}}\\n")
if number % 5 == 3:
    sys.exit(1)
say(extra_work(abs({best} - number)), f"step {{number}}")
"""


def _killed(tmp_path, rounds, kills, seed):
    """A run that is killed `kills` times, and one that is not, are the same but for their clocks."""
    command = agent(tmp_path, BODY.format(folder=str(tmp_path), best=rounds - 3))
    words = ["--agent", command, "--rounds", str(rounds), "--beam", "2", "--processes", "2", *TASK]
    moments = random.Random(seed)
    left = kills
    while True:
        process = subprocess.Popen(
            [sys.executable, "-m", "nki_hf", "loop", "--run", str(tmp_path / "killed"), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines = tmp_path / "killed" / "rounds.jsonl"
        before = len(lines.read_bytes()) if lines.exists() else 0
        if left:
            if left % 3:  # a moment after a round that this session ended; else any moment from its start on
                while process.poll() is None and (not lines.exists() or len(lines.read_bytes()) == before):
                    time.sleep(0.005)
            time.sleep(moments.uniform(0, 0.6 if left % 3 else 4.0))
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
            left -= 1
            continue
        out, _ = process.communicate()
        assert process.returncode == 0, out
        break
    looped(tmp_path / "whole", command, "--rounds", str(rounds), "--beam", "2")
    found = [
        [{k: v for k, v in r.items() if k not in ("seconds", "clock_s")} for r in Run(tmp_path / name).rounds()]
        for name in ("killed", "whole")
    ]
    assert [r["round"] for r in found[0]] == list(range(1, rounds + 1))
    assert found[0] == found[1]
    assert (
        best_of(found[0])["round"]
        == best_of(found[1])["round"]
        == max(n for n in range(1, rounds) if n % 5 != 3 and n <= rounds - 3)
    )
    for number in range(1, rounds + 1):
        assert Run(tmp_path / "killed").source(number) == Run(tmp_path / "whole").source(number)
    assert not list((tmp_path / "killed").rglob("*.part"))


def test_a_run_that_is_killed_goes_on_to_the_same_end(tmp_path):
    _killed(tmp_path, rounds=8, kills=2, seed=0)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_that_is_killed_at_thirty_moments_goes_on_to_the_same_end(tmp_path):
    _killed(tmp_path, rounds=40, kills=30, seed=1)


def test_what_a_killed_loop_had_started_ends(tmp_path):
    body = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    process = subprocess.Popen(
        [sys.executable, "-m", "nki_hf", "loop", "--run", str(tmp_path / "run"), "--agent", agent(tmp_path, body), *TASK],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    number = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 20
    while time.monotonic() < end and _lives(number):
        time.sleep(0.05)
    assert not _lives(number)


def _lives(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
