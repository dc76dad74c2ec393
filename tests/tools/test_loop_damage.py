"""Runs of `nki_hf loop` whose files are damaged: one sentence that names the line, for every verb that reads them."""

from __future__ import annotations

import json
import shutil

import pytest
from typer.testing import CliRunner

from nki_hf.cli import app
from tests.support.search_agents import TASK, agent, looped


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of three rounds, of which the second fails."""
    folder = tmp_path_factory.mktemp("damage")
    command = agent(folder, "print('no kernel') if number == 2 else say(extra_work(4 - number))")
    looped(folder / "run", command, "--rounds", "3")
    return folder, command


NAN, GONE = float("nan"), object()
DAMAGE = {
    "score null": {"score": None}, "score NaN": {"score": NAN}, "score forged": {"score": 0.999}, "score 2": {"score": 2},
    "score of a text": {"score": "1"}, "score infinite": {"score": float("inf")}, "score huge": {"score": 10**400},
    "us a text": {"us": "x"}, "us of a text": {"us": {"trn2@128": "x"}}, "us empty": {"us": {}}, "us null": {"us": None},
    "us of no chip": {"us": {"trn9@128": 1.0}}, "us of no size": {"us": {"trn2": 1.0}}, "us of zero": {"us": {"trn2@128": 0}},
    "us NaN": {"us": {"trn2@128": NAN}}, "us forged": {"us": {"trn2@128": 1.5}},
    "us of another size": {"us": {"trn2@256": 9.0}},
    "sentence missing": {"sentence": GONE}, "note missing": {"note": GONE}, "sha256 a number": {"sha256": 7},
    "sha256 empty": {"sha256": ""}, "generation a text": {"generation": "x"}, "generation of another": {"generation": 9},
    "parent that is none": {"parent": 99}, "parent a text": {"parent": "1"}, "parent itself": {"parent": 3},
    "parent that failed": {"parent": 2}, "passed a text": {"passed": "yes"}, "passed 1": {"passed": 1},
    "passed not": {"passed": False}, "passed not, without times": {"passed": False, "us": {}, "score": 0.0},
    "round a text": {"round": "3"}, "round true": {"round": True}, "round twice": {"round": 1},
    "round missing": {"round": GONE},
    "round below 0": {"round": -1}, "same_as that is none": {"same_as": 8}, "clock NaN": {"clock_s": NAN},
    "seconds a number": {"seconds": 4}, "seconds of texts": {"seconds": {"agent": "x", "judge": 0}},
    "transient null": {"transient": None}, "stage a number": {"stage": 4},
}  # fmt: skip


def _said(words):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2, (words, done.stdout, done.stderr)
    assert len(done.stderr.splitlines()) <= 6
    return " ".join(done.stderr.split())


def _verbs(folder, run, command):
    yield ["rank", str(run)]
    yield ["loop", "--run", str(run), "--rounds", "5"]
    yield ["loop", "--run", str(folder / "other"), "--agent", command, *TASK, "--rounds", "0", "--remember", str(run)]


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_line_is_named(whole, tmp_path, what):
    folder, command = whole
    run = tmp_path / "run"
    shutil.copytree(folder / "run", run)
    path = run / "rounds.jsonl"
    lines = sorted(map(json.loads, path.read_text().splitlines()), key=lambda line: line["round"])
    damaged = {key: value for key, value in {**lines[2], **DAMAGE[what]}.items() if value is not GONE}
    path.write_text("".join(json.dumps(line) + "\n" for line in (*lines[:2], damaged)))
    before = {item.name: item.read_bytes() for item in run.rglob("*") if item.is_file()}
    verbs = list(_verbs(tmp_path, run, command))
    for words in verbs if what in ("score forged", "us of a text") else verbs[:1]:
        assert "damaged: rounds.jsonl line 3: " in _said(words)
    assert {item.name: item.read_bytes() for item in run.rglob("*") if item.is_file()} == before


@pytest.mark.parametrize("text", ["[]", "x", "{", "null", ""])
def test_a_line_that_is_no_record_is_named(whole, tmp_path, text):
    folder, command = whole
    run = tmp_path / "run"
    shutil.copytree(folder / "run", run)
    path = run / "rounds.jsonl"
    path.write_text(f"{text}\n" + path.read_text())
    for words in list(_verbs(tmp_path, run, command))[:2]:
        assert "damaged: rounds.jsonl line 1: " in _said(words)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("run.json", {"beam": "x"}),
        ("run.json", {"beam": 0}),
        ("run.json", {"judge": None}),
        ("run.json", {"task": 4}),
        ("judged/0003.json", {"times": None}),
        ("judged/0003.json", {"times": [{}]}),
        ("judged/0003.json", None),
    ],
)
def test_other_files_of_a_run_that_are_damaged_are_named(whole, tmp_path, name, change):
    folder, command = whole
    run = tmp_path / "run"
    shutil.copytree(folder / "run", run)
    path = run / name
    path.write_text("[" if change is None else json.dumps({**json.loads(path.read_text()), **change}))
    for words in list(_verbs(tmp_path, run, command))[:2]:
        assert "damaged" in _said(words)
