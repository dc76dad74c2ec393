"""`nki_hf loop`: rounds, beam, memory; agents that hang, die or write junk; runs that are killed and go on."""

from __future__ import annotations

import importlib.util
import json
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

from nki_hf.chips.measurements import MEASUREMENTS
from nki_hf.cli import app
from nki_hf.tools.searching.agent import kernel_of
from nki_hf.tools.searching.journal import append, mended, read
from nki_hf.tools.searching.rounds import beam, best_of, pairs, parent_of
from nki_hf.tools.searching.run import Run
from tests.support.search_agents import agent, extra_work

ROOT = Path(__file__).parents[2]
TASK = ["--task", "softmax", "--check", "128", "--at", "128", "--chip", "trn2", "--seed", "5"]


def looped(run, command, *words, code=0):
    done = CliRunner().invoke(app, ["loop", "--run", str(run), "--agent", command, "--processes", "2", *TASK, *words])
    assert done.exit_code == code, (done.stdout, done.stderr)
    return Run(run).rounds()


def scripted():
    path = ROOT / "examples" / "scripted_agent.py"
    spec = importlib.util.spec_from_file_location("scripted_agent", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return path, module


def test_a_fixed_list_of_edits_walks_from_the_naive_kernel_to_v7(tmp_path):
    """Each published step is faster than the one before in the model, and v7's time is the published one within a fifth."""
    path, module = scripted()
    command = shlex.join([sys.executable, str(path)])
    words = ["loop", "--run", str(tmp_path / "run"), "--agent", command, "--rounds", "5", "--task", "attention_unscaled",
             "--layout", "q=ds,k=ds,v=ds", "--check", "512", "--at", "2048", "--chip", "trn1"]  # fmt: skip
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.stdout
    rounds = Run(tmp_path / "run").rounds()
    assert [r["parent"] for r in rounds] == [None, 1, 2, 3, 4]
    times = [r["us"]["trn1@2048"] for r in rounds]
    assert times == sorted(times, reverse=True)
    assert best_of(rounds)["round"] == 5
    assert Run(tmp_path / "run").source(5) == module.steps()[-1][1]
    measured = {m.subject: m.us for m in MEASUREMENTS if (m.size, m.chip) == (2048, "trn1")}
    for us, rung in zip(times, ("v3", "v4", "v5", "v6", "v7"), strict=True):
        assert us == pytest.approx(measured[rung], rel=0.2)


FAULTS = {
    "hangs": ("while True: time.sleep(1)", "ended at its limit of 2 s"),
    "leaves a child": (
        "import subprocess; subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)']); sys.exit(3)",
        "exit code 3",
    ),
    "dies": ("os.kill(os.getpid(), 9)", "the signal 9"),
    "raises": ("raise RuntimeError('no key')", "no key"),
    "writes nothing": ("pass", "wrote nothing"),
    "writes words": ("print('I cannot help with that.')", "no Python"),
    "writes bytes": ("sys.stdout.buffer.write(bytes(range(256)) * 9)", "no Python"),
    "writes without end": ("while True: print('x' * 100_000)", "B of output"),
    "half a block": ("print('```python\\n' + KERNEL[:300])", "no Python"),
    "deep": ("print('x = ' + '(' * 5000)", "no Python"),
    "no kernel": ("print('x = 1')", "no kernel"),
    "wrong kernel": ("say(KERNEL.replace('op0=nl.multiply', 'op0=nl.add'))", "stage values"),
    "kernel that hangs": ("say('while True: pass')", "still running"),
}


def test_a_round_that_goes_wrong_costs_itself_alone(tmp_path):
    lines = "".join(f"if number == {n}:\n    {body}\n    sys.exit(0)\n" for n, (body, _) in enumerate(FAULTS.values(), 1))
    command = agent(tmp_path, lines + "say(KERNEL, 'at last')\n")
    began = time.monotonic()
    rounds = looped(tmp_path / "run", command, "--rounds", str(len(FAULTS) + 1), "--timeout", "2", "--judge-timeout", "2")
    assert time.monotonic() - began < 120
    assert [r["round"] for r in rounds] == list(range(1, len(FAULTS) + 2))
    for item, (name, (_, words)) in zip(rounds, FAULTS.items(), strict=False):
        assert not item["passed"], name
        assert words in item["sentence"], (name, item["sentence"])
    assert rounds[-1]["passed"]
    assert rounds[-1]["note"] == "at last"


def test_the_request_says_what_is_known(tmp_path):
    body = "json.dump(request, open(os.path.join({folder!r}, str(number)), 'w'))\n"
    body += "say(extra_work(9 - number), f'step {{number}}')\n"
    looped(tmp_path / "run", agent(tmp_path, body.format(folder=str(tmp_path))), "--rounds", "3")
    first, _, third = (json.loads((tmp_path / str(n)).read_text()) for n in (1, 2, 3))
    assert (first["parent"], first["best"], first["last"], first["history"], first["memory"]) == (None, None, None, [], [])
    assert "softmax over the last axis" in first["guide"]
    assert third["best"]["round"] == third["parent"]["round"] == 2
    assert third["best"]["source"] == extra_work(7)
    assert [r["round"] for r in third["history"]] == [1, 2]
    assert third["best"]["times"][0]["us"] > third["best"]["times"][0]["least_us"]
    (pair,) = third["memory"]
    assert pair["speedup"] > 1.01
    assert (pair["slow"], pair["fast"], pair["note"]) == (extra_work(8), extra_work(7), "step 2")
    assert len(third["diversity"]["changes"]) > 10
    assert third["diversity"]["changes"] != first["diversity"]["changes"]


def test_gains_of_an_earlier_run_are_remembered_by_another(tmp_path):
    looped(tmp_path / "a", agent(tmp_path, "say(extra_work(9 - number))"), "--rounds", "2")
    body = f"json.dump(request, open({str(tmp_path / 'seen')!r}, 'w'))\nsay(KERNEL)\n"
    looped(tmp_path / "b", agent(tmp_path, body), "--rounds", "1", "--remember", str(tmp_path / "a"))
    (pair,) = json.loads((tmp_path / "seen").read_text())["memory"]
    assert (pair["slow"], pair["fast"]) == (extra_work(8), extra_work(7))


def test_a_beam_of_two_works_on_its_two_best_kernels(tmp_path):
    rounds = looped(tmp_path / "run", agent(tmp_path, "say(extra_work(9 - number))"), "--rounds", "4", "--beam", "2")
    assert [r["generation"] for r in rounds] == [1, 1, 2, 2]
    assert [r["parent"] for r in rounds] == [None, None, 2, 1]  # the faster of generation 1 first


def test_a_kernel_that_was_judged_is_not_judged_again(tmp_path):
    rounds = looped(tmp_path / "run", agent(tmp_path, "say(KERNEL)"), "--rounds", "2")
    assert [r["same_as"] for r in rounds] == [None, 1]
    assert rounds[0]["us"] == rounds[1]["us"]


def test_a_judgement_that_ran_out_of_time_is_made_again(tmp_path):
    """The kernel's file hangs the first time that it is loaded, and is the example afterwards."""
    mark = str(tmp_path / "mark")
    hangs = f"import os, time\nif not os.path.exists({mark!r}):\n    open({mark!r}, 'w').close()\n    time.sleep(60)\n"
    command = agent(tmp_path, f"say({hangs!r} + KERNEL)")
    rounds = looped(tmp_path / "run", command, "--rounds", "3", "--judge-timeout", "3")
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


def test_a_kernel_may_begin_with_a_byte_order_mark():
    for text in ("\ufeffimport nki\n", "```python\n\ufeffimport nki\n```"):
        assert kernel_of(text) == ("import nki\n", "", "")


def test_a_budget_ends_a_run_and_more_time_goes_on(tmp_path):
    command = agent(tmp_path, "time.sleep(0.6); say(extra_work(9 - number))")
    rounds = looped(tmp_path / "run", command, "--rounds", "50", "--budget", "3s")
    assert 1 <= len(rounds) < 10
    more = looped(tmp_path / "run", command, "--rounds", str(len(rounds) + 1), "--budget", "1h")
    assert [r["round"] for r in more] == list(range(1, len(rounds) + 2))
    assert more[: len(rounds)] == rounds


def test_a_run_goes_on_as_it_began(tmp_path):
    command = agent(tmp_path, "say(KERNEL)")
    looped(tmp_path / "run", command, "--rounds", "1")
    for words, name in ((["--beam", "3"], "beam=3"), (["--layout", "x=sd"], "layout"), (["--at", "256"], "at=")):
        done = CliRunner().invoke(app, ["loop", "--run", str(tmp_path / "run"), "--agent", command, *TASK, *words])
        assert done.exit_code == 2
        assert name in done.stderr
        assert "goes on as it began" in done.stderr


def test_options_that_mean_nothing_are_found_out_before_the_agent_runs(tmp_path):
    command = agent(tmp_path, f"open({str(tmp_path / 'ran')!r}, 'w')")
    for words in (["--layout", "nonsense=sd"], ["--check", "0"], ["--rtol", "7"], ["--dtype", "int8"], ["--budget", "soon"]):
        done = CliRunner().invoke(app, ["loop", "--run", str(tmp_path / "run"), "--agent", command, *TASK, *words])
        assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), (words, done.stderr)
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "run" / "run.json").exists()


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
    with pytest.raises(ValueError, match="line 2 is no record"):
        read(path)


def test_a_round_with_two_lines_is_damage(tmp_path):
    for _ in range(2):
        append(tmp_path / "rounds.jsonl", {"round": 1})
    with pytest.raises(ValueError, match="two lines"):
        Run(tmp_path).rounds()


@pytest.mark.parametrize(
    ("text", "source", "note"),
    [
        ("x = 1", "x = 1\n", ""),
        ("why\n```python\nimport nki\n```\nend", "import nki\n", "why end"),
        ("```\nx = 0\n```\n```python\nimport nki\n```\n```py\ny = 1\n```", "import nki\n", None),
        ("```json\n{}\n```\n```python\nx = 2\n```", "x = 2\n", None),
    ],
)
def test_the_kernel_is_found_in_what_an_agent_writes(text, source, note):
    kernel, said, wrong = kernel_of(text)
    assert (kernel, wrong) == (source, "")
    assert note is None or said == note


def _round(number, generation, parent, score, passed=True):
    return {"round": number, "generation": generation, "parent": parent, "score": score, "passed": passed,
            "us": {"trn2@1": 1 / score} if passed else {}, "sha256": str(number), "note": ""}  # fmt: skip


def test_beam_parents_and_pairs():
    rounds = [_round(1, 1, None, 0.1), _round(2, 1, None, 0.3), _round(3, 1, None, 0.2), _round(4, 1, None, 0.3),
              _round(5, 2, 2, 0.4), _round(6, 2, 3, 0.1, False)]  # fmt: skip
    assert [r["round"] for r in beam(rounds, 3)] == [5, 2, 3]  # 4 says the same as 2
    assert parent_of(rounds[:4], 5, 2, 2)["round"] == 2
    assert [parent_of(rounds, n, 2, 2)["round"] for n in (5, 6, 7, 8, 9, 10, 11, 12)] == [2, 2, 3, 3, 5, 5, 2, 2]
    assert parent_of(rounds, 1, 2, 2) is None
    assert [(a["round"], b["round"]) for a, b in pairs(rounds)] == [(2, 5)]


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
            [sys.executable, "-m", "nki_hf", "loop", "--run", str(tmp_path / "killed"), *words], stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
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
    found = [[{k: v for k, v in r.items() if k not in ("seconds", "clock_s")} for r in Run(tmp_path / name).rounds()]
             for name in ("killed", "whole")]  # fmt: skip
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
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
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
