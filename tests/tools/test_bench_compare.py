"""Two runs side by side: exact intervals, verdicts, and what is refused."""

import importlib.util
import json
import math
import os
import random
from pathlib import Path

import bench_results
import pytest
from typer.testing import CliRunner

from nki_hf.tools.model_bench.compare import compared, differences
from nki_hf.tools.model_bench.options import WrongUse
from nki_hf.tools.model_bench.rank_interval import critical_u, ratio_of
from nki_hf.tools.model_bench.record import BenchResult

SCRIPT = Path(__file__).parents[2] / "examples" / "qwen3_bench.py"


@pytest.mark.parametrize(
    ("m", "n", "u"),
    [(3, 3, None), (4, 4, 0), (5, 3, 0), (5, 5, 2), (8, 3, 2), (6, 9, 10), (8, 8, 13), (10, 10, 23), (20, 20, 127)],
)
def test_critical_values_are_those_of_the_printed_tables(m, n, u):
    """Two-sided, 5 %: tables of the Mann-Whitney test in textbooks of statistics."""
    assert critical_u(m, n) == u
    assert critical_u(n, m) == u


def test_many_calls_go_over_into_the_normal_law_without_a_step():
    exact, normal = critical_u(50, 50), critical_u(51, 51)
    # the rule of thumb under the tables: n m / 2 - 1.96 sqrt(n m (n + m + 1) / 12)
    assert exact == pytest.approx(965.7, abs=1)
    assert normal == pytest.approx(1007.7, abs=1)


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.0, "no difference"), (1.02, "no difference"), (0.5, "faster"), (2.0, "slower")]
)
def test_verdicts(factor, verdict):
    old = (1.0, 1.05, 1.1, 1.2, 1.3)
    found = ratio_of(old, [factor * t for t in old])
    assert found.value == pytest.approx(factor)
    assert found.low <= factor <= found.high
    assert found.verdict == verdict


def test_three_calls_are_too_few_to_tell():
    assert ratio_of((1, 1, 1), (9, 9, 9)).verdict == "too few calls to tell"


def test_equal_laws_are_told_apart_at_most_once_in_twenty():
    draw = random.Random(0)
    told = sum(
        ratio_of(*([draw.lognormvariate(0, 0.3) for _ in range(5)] for _ in range(2))).verdict != "no difference"
        for _ in range(2000)
    )
    assert 20 < told < 100  # the exact level for 5 and 5 is 2 x 4 / 252 = 3.2 %: 63 of 2,000


def test_order_of_the_runs_turns_the_ratio_over():
    a, b = (1.0, 1.1, 1.3, 1.35), (1.5, 1.9, 2.0, 2.2)
    there, back = ratio_of(a, b), ratio_of(b, a)
    assert there.value == pytest.approx(1 / back.value)
    assert there.low == pytest.approx(1 / back.high)


def _runs(factor=1.0, us=1000.0, **changes):
    times = (1.0, 1.05, 1.1, 1.2, 1.3)
    old = bench_results.result([bench_results.row("eager", times), bench_results.row("nki", times)])
    new = bench_results.result(
        [bench_results.row("nki", [factor * t for t in times]), bench_results.row("sdpa", times)], us=us, **changes
    )
    return old, new


def test_what_both_have_is_compared():
    lines = {line.what: line for line in compared(*_runs(0.5, us=1020.0))}
    assert set(lines) == {"nki", "trn2 x 2", "trn3 x 2"}
    assert lines["nki"].verdict == "faster"
    assert lines["trn2 x 2"].verdict == "no difference"  # 2 %: a window's order alone moves a time that much
    assert {line.verdict for line in compared(*_runs(us=1100.0)) if line.simulated} == {"slower"}


@pytest.mark.parametrize("name", ["model", "input"])
def test_other_work_is_not_compared(name):
    old, new = _runs(header={**bench_results.HEADER, name: "another"})
    with pytest.raises(WrongUse, match=f"the runs differ in {name}"):
        compared(old, new)


def test_other_machines_are_named():
    old, new = _runs(header={**bench_results.HEADER, "machine": "b"})
    assert ("machine", "a machine", "b") in differences(old, new)
    assert differences(old, old) == []


def test_an_attention_that_one_run_lacks_is_named():
    old, new = _runs()
    found = {name: (before, after) for name, before, after in differences(old, new)}
    assert found == {
        "eager, not compared": ("timed", "not in this run"),
        "sdpa, not compared": ("not in this run", "timed"),
    }
    skipped = bench_results.result(
        [bench_results.row("nki", [1.0] * 5), bench_results.row("eager", [1.0], timing=None, skipped="no memory")]
    )
    assert ("eager, not compared", "timed", "no memory") in differences(old, skipped)


def _timed(body, calls):
    body["rows"][0]["timing"]["iterations_s"] = calls


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda body: _timed(body, [0.0] * 5), "eager: timing: 0.0 s is no time of a call"),
        (lambda body: _timed(body, [-1.0] * 5), "-1.0 s is no time of a call"),
        (lambda body: _timed(body, [math.nan] * 5), "nan s is no time of a call"),
        (lambda body: _timed(body, [math.inf] * 5), "inf s is no time of a call"),
        (lambda body: _timed(body, []), "no call was timed"),
        (lambda body: _timed(body, [2.0] * 5), "mean_s=1.13 is not that of its calls, 2"),
        (lambda body: body["rows"][0]["timing"].update(median_s=9.0), "median_s=9 is not that of its calls, 1.1"),
        (lambda body: body["rows"].append(body["rows"][0]), "eager is there twice"),
        (lambda body: body["modelled"][0]["rows"][0].pop("nki_us_simulated"), "nki_us_simulated=None is no time"),
        (lambda body: body["modelled"][0]["rows"][0].update(nki_us_simulated=0), "nki_us_simulated=0 is no time"),
        (lambda body: body["modelled"][0]["rows"][0].pop("kernel"), "kernel=None"),
        (lambda body: body["modelled"][0]["rows"].append({}), "is no time"),
    ],
)
def test_a_damaged_result_gets_no_verdict(app, tmp_path, damage, why):
    old, _ = _runs()
    for name in ("good.json", "bad.json"):
        old.write(tmp_path / name)
    body = json.loads((tmp_path / "bad.json").read_text())
    damage(body)
    (tmp_path / "bad.json").write_text(json.dumps(body))
    done = CliRunner().invoke(app, ["--compare", str(tmp_path / "good.json"), str(tmp_path / "bad.json")])
    assert done.exit_code == 2
    assert why in done.output
    assert "no difference" not in done.output


@pytest.fixture(scope="module")
def app():
    spec = importlib.util.spec_from_file_location("qwen3_bench_compare", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.app


def test_the_command_prints_and_leaves_a_page(app, tmp_path):
    for name, result in zip(("old", "new"), _runs(2.0), strict=True):
        result.write(tmp_path / f"{name}.json")
    done = CliRunner().invoke(app, ["--compare", str(tmp_path / "old.json"), str(tmp_path / "new.json")])
    assert done.exit_code == 0, done.output
    line = next(line for line in done.output.splitlines() if line.startswith("nki "))
    assert line.split()[-1] == "slower"
    assert "no difference" in done.output
    assert "What differs from run to run" in done.output
    assert "slower" in (tmp_path / "new_against_old.html").read_text()


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b"\xff", b"[" * 10_000, b'{"command": 5}', b"null"])
def test_a_file_that_is_no_result_is_one_sentence(app, tmp_path, body):
    (tmp_path / "r.json").write_bytes(body)
    done = CliRunner().invoke(app, ["--compare", str(tmp_path / "r.json"), str(tmp_path / "absent.json")])
    assert done.exit_code == 2
    assert "is no result of this benchmark" in done.output
    assert len(done.output.strip().splitlines()) == 1
    os.mkfifo(tmp_path / "pipe")
    for name in ("absent.json", "pipe"):
        with pytest.raises(ValueError, match="cannot be read"):
            BenchResult.read(tmp_path / name)
