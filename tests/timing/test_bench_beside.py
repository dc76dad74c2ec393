"""`nki_hf bench` of long calls: a process per chip, with the figures of one process."""

import json

import pytest
from typer.testing import CliRunner

from nki_hf.cli import app
from nki_hf.tools.bench_rows import run
from nki_hf.tools.searching.workers import Workers
from nki_hf.tools.shape import problem_of

SHAPE = "hq=4,hkv=2,sq=256,causal"


@pytest.fixture(autouse=True)
def beside(monkeypatch):
    monkeypatch.setattr("nki_hf.tools.bench._LONG", 0)
    monkeypatch.setattr("nki_hf.tools.bench.processes_of", lambda number: 2)


@pytest.mark.parametrize(("order", "window"), [("64", 64), ("program", None)])
def test_a_process_per_chip_gives_the_figures_of_one_process(order, window, monkeypatch):
    jobs = []
    served = Workers.run
    monkeypatch.setattr(Workers, "run", lambda self, asked, *more: served(self, jobs.extend(asked) or jobs, *more))
    done = CliRunner().invoke(app, ["bench", "--shape", SHAPE, "--order", order, "--json"])
    assert done.exit_code == 0, done.output
    assert [job["chip"] for job in jobs] == ["trn1", "trn2", "trn3"]
    assert json.loads(done.stdout) == json.loads(json.dumps(run(problem_of(SHAPE), window=window)))


def test_a_chip_whose_process_dies_is_named(monkeypatch):
    monkeypatch.setattr("nki_hf.tools.bench._LIMIT_S", 0.05)
    done = CliRunner().invoke(app, ["bench", "--shape", SHAPE])
    assert done.exit_code != 0
    assert "has no row: its process was ended after 0.05 s" in f"{done.output}{done.exception}"
