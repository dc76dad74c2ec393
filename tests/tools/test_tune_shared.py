"""Samplers of `nki_hf tune`: studies in a storage that processes share."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import pytest
from typer.testing import CliRunner

from nki_hf.cli import app
from nki_hf.tools.tuning import samplers
from nki_hf.tools.tuning.address import masked
from nki_hf.tools.tuning.samplers import Sampled
from nki_hf.tools.tuning.space import combinations, key_of, space_of
from tests.support.tuned_kernels import SMALL, TUNED, tuned


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text(TUNED)
    return path


@pytest.mark.parametrize("address", ["study.log", "sqlite:///{folder}/study.db"])
def test_two_processes_share_a_study(file, tmp_path, address):
    """The same command twice: together they have the trials that were asked for, none twice, and both know all results."""
    pytest.importorskip("optuna", reason="the extra `tune`")
    storage = address.format(folder=tmp_path) if "://" in address else str(tmp_path / address)
    words = [sys.executable, "-m", "nki_hf", "tune", str(file), *SMALL, "--const", "extra=0..11", "--cache", "off",
             "--no-judge", "--sampler", "tpe", "--trials", "10", "--storage", storage, "--json"]  # fmt: skip
    started = [subprocess.Popen([*words, "--seed", "1"], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    found = [json.loads(process.communicate()[0]) for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert found[0]["study"] == found[1]["study"]
    (late,) = tuned(*words[4:-1])
    assert late["shared"] == len(late["trials"]) == sum(len(row["trials"]) - row["shared"] for row in found)
    assert 10 <= len(late["trials"]) <= 11
    times = {row["constants"]["extra"]: row["us"] for row in late["trials"]}
    assert [times[n] for n in sorted(times)] == sorted(times.values())  # each more instructions, whoever ran it
    for row in found:
        assert {t["constants"]["extra"]: t["us"] for t in row["trials"]}.items() <= times.items()
        assert len(row["trials"]) >= 9


def test_a_trial_that_another_process_ended_first_keeps_its_result(tmp_path):
    """SQLite locks no rows, so that one queued trial may run in two processes."""
    optuna = pytest.importorskip("optuna", reason="the extra `tune`")
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    first, second = (Sampled({"a": [1, 2, 3]}, "random", storage, "one", 3, seed) for seed in (1, 2))
    for number, (trial, constants) in enumerate(first.asked()):
        second.told(optuna.trial.Trial(second._study, trial._trial_id), {"us": float(number)})
        first.told(trial, {"failed": "late"} if number else {"us": 9.0})
        assert first.results()[key_of(constants)] == {"us": number}
    assert len(first.results()) == 3


def test_processes_with_the_same_seed_share_the_work(tmp_path):
    """Three that draw at the same time: no combination runs twice, and together they have what was asked for."""
    pytest.importorskip("optuna", reason="the extra `tune`")
    space, storage, ran = space_of(["a=0..9", "b=0..9"]), str(tmp_path / "s.log"), []

    def work():
        study = Sampled(space, "random", storage, "one", 24, 7)
        for trial, constants in study.asked():
            ran.append(key_of(constants))
            time.sleep(0.01)
            study.told(trial, {"us": 1.0})

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(set(ran)) == len(ran)
    assert 24 <= len(ran) <= 26
    assert len(Sampled(space, "random", storage, "one", 24, 7).results()) == len(ran)


def test_one_process_with_a_seed_draws_the_same_again(tmp_path):
    pytest.importorskip("optuna", reason="the extra `tune`")
    space, found = space_of(["a=0..9", "b=0..9"]), []
    for _ in range(2):
        study = Sampled(space, "random", "", "one", 12, 7)
        for trial, constants in study.asked():
            found.append(constants)
            study.told(trial, {"us": 1.0})
    assert found[:12] == found[12:]


def test_what_a_killed_process_had_under_way_is_tried_again(tmp_path, monkeypatch):
    pytest.importorskip("optuna", reason="the extra `tune`")
    monkeypatch.setattr(samplers, "_SPARE", 0.0)
    space, storage = space_of(["a=0..3"]), str(tmp_path / "s.log")
    _, killed = next(Sampled(space, "random", storage, "one", 4, 1, 0.5).asked())
    study = Sampled(space, "random", storage, "one", 4, 1, 0.5)
    for trial, _ in study.asked():
        study.told(trial, {"us": 1.0})
    assert set(study.results()) == {key_of(row) for row in combinations(space)} >= {key_of(killed)}


def test_a_failure_is_known_to_the_other_processes(tmp_path):
    pytest.importorskip("optuna", reason="the extra `tune`")
    storage = str(tmp_path / "s.log")
    for words in ({"failed": "too large"}, {"us": 2.0}):
        study = Sampled(space_of(["a=0..1"]), "random", storage, "one", 1 if "failed" in words else 2, 1)
        for trial, _ in study.asked():
            study.told(trial, words)
    assert sorted(map(repr, study.results().values())) == ["{'failed': 'too large'}", "{'us': 2.0}"]


PASSWORDS = [
    "mysql://user:{}@host/db",
    "postgresql://user:{}@host:1/db",
    "mysql+nosuchdriver://user:{}@host/db?charset=utf8",
    "nosuch://host/db?user=u&password={}",
    "postgresql://:{}@host/db",
]


@pytest.mark.parametrize("secret", ["geheim", "ge/h@im", "ge%2Fheim", "ge:heim"])
@pytest.mark.parametrize("address", PASSWORDS)
def test_a_password_in_an_address_is_in_no_message(file, address, secret):
    pytest.importorskip("optuna", reason="the extra `tune`")
    words = ["tune", str(file), *SMALL, "--const", "extra=0", "--cache", "off", "--no-judge", "--sampler", "tpe", "--storage"]
    done = CliRunner().invoke(app, [*words, address.format(secret)])
    assert done.exit_code == 2
    assert "host/db" in done.stderr or "host:1/db" in done.stderr
    assert "***" in done.stderr
    assert not [part for part in (secret, "geheim", "h@im", "heim") if part in done.stdout + done.stderr]


@pytest.mark.parametrize("secret", ["e", "a", "1", "or"])
def test_a_short_password_garbles_no_word(secret):
    """It is masked where it is one: in the address, and in quotes."""
    address = f"mysql://user:{secret}@host/db"
    said = f"cannot reach {address}: no 1 server or database, password '{secret}'"
    assert masked(said, address) == "cannot reach mysql://user:***@host/db: no 1 server or database, password '***'"


def test_what_is_no_password_stays():
    for text in ("sqlite:///C:/studies/a@b.db", "sqlite:////tmp/study.db", "/tmp/a:b@c.log", "redis://host:6379/0"):
        assert masked(text, text) == text
    assert masked("cannot open mysql://me:abc@host/db: abc is wrong", "mysql://me:abc@host/db") == (
        "cannot open mysql://me:***@host/db: *** is wrong"
    )


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_sampler_that_may_try_all_finds_the_best(file, sampler):
    pytest.importorskip("optuna", reason="the extra `tune`")
    words = ["--cache", "off", "--no-judge", "--sampler", sampler, "--trials", "50", "--seed", "3"]
    (found,) = tuned(str(file), *SMALL, "--const", "extra=0..5", *words)
    assert found["best"] == {"extra": 0}
    assert len(found["trials"]) == 6


def test_values_that_python_calls_equal_are_values_of_their_own(tmp_path):
    space = space_of(["rep=1,1.0,True,1"])
    assert [repr(value) for value in space["rep"]] == ["1", "1.0", "True"]
    pytest.importorskip("optuna")
    study = Sampled(space, "random", "", "one", 9, 0)
    for trial, _ in study.asked():
        study.told(trial, {"us": 1.0})
    assert len(study.results()) == 3


def test_a_storage_gives_no_result_of_another_space(tmp_path):
    """optuna keeps places in the list of values: those of another list, order or type mean other constants."""
    pytest.importorskip("optuna")
    storage = str(tmp_path / "s.log")

    def results(*const):
        space = space_of(const)
        study = Sampled(space, "random", storage, "one", 9, 0)
        before = study.results()
        for trial, constants in study.asked():
            study.told(trial, {"us": float(sum(float(value) for value in constants.values()))})
        return before, study.results()

    first = results("rep=1..4")[1]
    assert first == {key_of({"rep": value}): {"us": float(value)} for value in range(1, 5)}
    for const in (["rep=4,3,2,1"], ["rep=5..8"], ["rep=1..9"], ["rep=1..2"], ["rep=1.0,2,3,4"], ["bad=0..3"]):
        before, after = results(*const)
        assert before == {}
        assert after == {key_of(found): {"us": float(sum(found.values()))} for found in combinations(space_of(const))}
    assert results("rep=1..4") == (first, first)


def test_without_optuna_the_extra_is_named(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    done = CliRunner().invoke(app, ["tune", str(file), *SMALL, "--const", "extra=0,1", "--cache", "off", "--sampler", "tpe"])
    assert done.exit_code == 2
    assert done.stderr == 'nki_hf tune --sampler needs the optuna package: pip install "nki_hf[tune]"\n'
    assert tuned(str(file), *SMALL, "--const", "extra=0,1", "--cache", "off", "--no-judge")[0]["best"] == {"extra": 0}
