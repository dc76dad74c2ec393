"""`nki_hf loop`: rounds, beam, memory; agents that hang, die or write junk."""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nki_hf.chips.measurements import MEASUREMENTS
from nki_hf.cli import app
from nki_hf.tools.searching.agent import kernel_of
from nki_hf.tools.searching.rounds import beam, best_of, pairs, parent_of
from nki_hf.tools.searching.run import Run
from tests.support.search_agents import TASK, agent, extra_work, looped

ROOT = Path(__file__).parents[2]


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
    "kernel that hangs": ("say('while True: pass')", "still running"),
    "wrong kernel": ("say(KERNEL.replace('op0=nl.multiply', 'op0=nl.add'))", "stage values"),
}


def test_a_round_that_goes_wrong_costs_itself_alone(tmp_path):
    lines = "".join(f"if number == {n}:\n    {body}\n    sys.exit(0)\n" for n, (body, _) in enumerate(FAULTS.values(), 1))
    command = agent(tmp_path, lines + "say(KERNEL, 'at last')\n")
    began = time.monotonic()
    limits = ["--timeout", "2", "--judge-timeout", "2"]
    looped(tmp_path / "run", command, "--rounds", str(len(FAULTS) - 1), *limits, code=1)
    assert time.monotonic() - began < 120
    # These two are judged to their end, which a short limit must not decide.
    rounds = looped(tmp_path / "run", command, "--rounds", str(len(FAULTS) + 1), "--timeout", "60", "--judge-timeout", "60")
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


def test_a_kernel_may_begin_with_a_byte_order_mark():
    for text in ("\ufeffimport nki\n", "```python\n\ufeffimport nki\n```"):
        assert kernel_of(text) == ("import nki\n", "", "")


@pytest.mark.parametrize("command", ["", " ", "no_such_program --x", "'"])
def test_an_agent_that_is_no_command_is_named(tmp_path, command):
    done = CliRunner().invoke(app, ["loop", "--run", str(tmp_path / "run"), "--agent", command, *TASK])
    assert done.exit_code == 2
    assert f"agent={command!r} is no command" in done.stderr


def test_options_that_mean_nothing_are_found_out_before_the_agent_runs(tmp_path):
    command = agent(tmp_path, f"open({str(tmp_path / 'ran')!r}, 'w')")
    for words in (["--layout", "nonsense=sd"], ["--check", "0"], ["--rtol", "7"], ["--dtype", "int8"], ["--budget", "soon"]):
        done = CliRunner().invoke(app, ["loop", "--run", str(tmp_path / "run"), "--agent", command, *TASK, *words])
        assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), (words, done.stderr)
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "run" / "run.json").exists()


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
    return {
        "round": number,
        "generation": generation,
        "parent": parent,
        "score": score,
        "passed": passed,
        "us": {"trn2@1": 1 / score} if passed else {},
        "sha256": str(number),
        "note": "",
    }


def test_beam_parents_and_pairs():
    rounds = [
        _round(1, 1, None, 0.1),
        _round(2, 1, None, 0.3),
        _round(3, 1, None, 0.2),
        _round(4, 1, None, 0.3),
        _round(5, 2, 2, 0.4),
        _round(6, 2, 3, 0.1, False),
    ]
    assert [r["round"] for r in beam(rounds, 3)] == [5, 2, 3]  # 4 says the same as 2
    assert parent_of(rounds[:4], 5, 2, 2)["round"] == 2
    assert [parent_of(rounds, n, 2, 2)["round"] for n in (5, 6, 7, 8, 9, 10, 11, 12)] == [2, 2, 3, 3, 5, 5, 2, 2]
    assert parent_of(rounds, 1, 2, 2) is None
    assert [(a["round"], b["round"]) for a, b in pairs(rounds)] == [(2, 5)]
