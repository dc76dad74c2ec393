"""`nki_hf tune`: exhaustive with pruning, what fails, values of constants, kernels of ours."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from nki_hf.chips import CHIPS, get_chip
from nki_hf.cli import app
from nki_hf.kernels.flash_const_max.plan import plan_const_max
from nki_hf.timing.schedule import floor_ns, schedule, schedule_below
from nki_hf.timing.workload import prepare
from nki_hf.tools.judging.named_kernels import named
from nki_hf.tools.searching.options import judge_options
from nki_hf.tools.searching.workers import Workers
from nki_hf.tools.shape import problem_of
from nki_hf.tools.subjects import SUBJECTS, attention_events, events_of
from nki_hf.tools.tuning import study as studies
from nki_hf.tools.tuning.cases import file_cases, own_cases
from nki_hf.tools.tuning.own import part_of, tunable, tuned_of
from nki_hf.tools.tuning.plan_table import replaced
from nki_hf.tools.tuning.search import every, exhaustive
from nki_hf.tools.tuning.space import combinations, key_of, space_of
from nki_hf.tools.tuning.trial import Trials
from tests.support.tuned_kernels import SMALL, TUNED, tuned


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text(TUNED)
    return path


def test_the_fewest_instructions_are_the_fastest_and_are_judged(file, tmp_path):
    (found,) = tuned(str(file), *SMALL, "--const", "extra=0..4,99", "--cache", str(tmp_path / "cache"))
    assert found["best"] == {"extra": 0}
    assert found["band"].startswith("error on measured rows: ")
    times = {row["constants"]["extra"]: row.get("us") for row in found["trials"]}
    assert times[0] < times[1] < times[2] < times[3] == found["start_us"]
    assert found["judged"] == [
        {
            "constants": {"extra": 0},
            "us": times[0],
            "judged_us": times[0],
            "passed": True,
            "sentence": found["judged"][0]["sentence"],
        }
    ]
    ruled_out = [row for row in found["trials"] if row.get("pruned")]
    assert {row["constants"]["extra"] for row in ruled_out} >= {99}
    assert all(row["floor_us"] >= found["us"] for row in ruled_out)


def test_a_slow_disk_costs_no_pruning(file, tmp_path, monkeypatch):
    """What the first trial took is known to the next ones, though keeping it ends only after the last."""
    one, keep, last = Workers._one, studies.Study.keep, threading.Event()

    def answered(self, job, limit):
        answer = one(self, job, limit)
        if "99" in job["constants"]:
            last.set()
        return answer

    def kept(self, key, result):
        if key == key_of({"extra": 0}):
            assert last.wait(60)
        keep(self, key, result)

    monkeypatch.setattr(Workers, "_one", answered)
    monkeypatch.setattr(studies.Study, "keep", kept)
    (found,) = tuned(str(file), *SMALL, "--const", "extra=0,99", "--cache", str(tmp_path / "cache"), "--no-judge")
    assert [row["constants"]["extra"] for row in found["trials"] if row.get("pruned")] == [99]


def test_what_is_fastest_and_wrong_gives_way_to_what_is_right(file, tmp_path):
    file.write_text(TUNED.replace("range(extra)", "range(extra if not wrong else 1)"))
    (found,) = tuned(str(file), *SMALL, "--const", "wrong=0,1", "--const", "extra=2", "--cache", "off")
    assert [(row["constants"]["wrong"], row["passed"]) for row in found["judged"]] == [(1, False), (0, True)]
    assert found["best"] == {"wrong": 0, "extra": 2}
    (found,) = tuned(str(file), *SMALL, "--const", "wrong=1", "--cache", "off", code=1)
    assert found["best"] is None


FAILING = """
    import os
    assert extra != 1, 'no such block'
    while extra == 2:
        pass
    if extra == 3:
        os._exit(0)
    if extra == 4:
        nl.no_such_name
    if extra == 5:
        nisa.memset(dst=nl.ndarray((200, 4), nl.float32, buffer=nl.sbuf), value=0)
"""


def test_trials_that_fail_or_die_cost_themselves(file):
    file.write_text(TUNED.replace("    rows, width = x.shape\n", "    rows, width = x.shape\n" + FAILING))
    (found,) = tuned(str(file), *SMALL, "--const", "extra=1,3,4,5,6", "--cache", "off", "--no-judge")
    failed = [row.get("failed", "") for row in found["trials"]]
    for text, words in zip(failed, ("no such block", "died", "no_such_name", "200", ""), strict=True):
        assert words in text
    assert found["best"] == {"extra": 6}


def test_a_trial_that_hangs_is_ended(file):
    """Alone: how long a trial that is right takes, a short limit must not decide."""
    file.write_text(TUNED.replace("    rows, width = x.shape\n", "    rows, width = x.shape\n" + FAILING))
    (found,) = tuned(str(file), *SMALL, "--const", "extra=2", "--cache", "off", "--timeout", "6", "--no-judge", code=1)
    (row,) = found["trials"]
    assert "ended after 6 s" in row["failed"]


LOOPING = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def softmax(x, {constant}):
    \"\"\"softmax over the rows of x, 128 at a time in a loop of run time whose count is a value.\"\"\"
    rows, width = x.shape
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tiles, written = (each.reshape((rows // 128, 128, width)) for each in (x, out))

    def body(i):
        tile, top, total = (nl.ndarray((128, size), nl.float32, buffer=nl.sbuf) for size in (width, 1, 1))
        nisa.dma_copy(dst=tile, src=tiles.select(0, i))
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=tile, axis=1, negate=True)
        nisa.activation_reduce(dst=tile, op=nl.exp, data=tile, bias=top, reduce_op=nl.add, reduce_res=total)
        nisa.reciprocal(dst=total, data=total)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=written.select(0, i), src=tile)

    count = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=count, value=rows // 128)
    {more}
    turns = nisa.register_alloc()
    nisa.register_load(dst=turns, src=count)
    nl.fori_loop(0, turns, body)
    return out
"""


def test_a_loop_that_turns_by_a_value_is_searched_with_the_turns_that_the_judge_times(tmp_path):
    path = tmp_path / "looping.py"
    path.write_text(LOOPING.format(constant="extra=0", more="for _ in range(extra): nisa.memset(dst=count, value=rows // 128)"))
    (found,) = tuned(
        str(path), "--task", "softmax", "--at", "1024", "--chip", "trn2", "--processes", "1", "--const", "extra=0,40"
    )
    assert found["best"] == {"extra": 0}
    (row,) = found["judged"]
    assert (row["passed"], row["us"]) == (True, row["judged_us"])
    assert row["us"] > 8 * get_chip("trn2").loop_turn_ns / 1e3  # 1,024 rows are 8 turns


def test_a_constant_that_the_kernel_has_not_or_that_is_given_too_is_wrong_use(file):
    for words, said in ((["nonsense=1,2"], "no parameter nonsense"), (["extra=1..2", "--given", "extra=9"], "extra is tuned")):
        done = CliRunner().invoke(app, ["tune", str(file), *SMALL, "--const", *words, "--cache", "off", "--no-judge"])
        assert done.exit_code == 2
        assert said in " ".join(done.stderr.split())


def test_a_tuning_that_gains_nothing_says_so(file):
    words = ["tune", str(file), *SMALL, "--cache", "off", "--no-judge", "--const"]
    done = CliRunner().invoke(app, [*words, "extra=5..6"])  # the kernel's own is 3
    assert "the kernel's own constants stay best" in " ".join(done.stdout.split())
    assert "stay best" not in " ".join(CliRunner().invoke(app, [*words, "extra=1..2"]).stdout.split())


@pytest.mark.parametrize("chip", CHIPS)
def test_no_schedule_is_below_its_floor(chip):
    """The rule that prunes: on every subject that is quick, in both orders."""
    made = get_chip(chip)
    streams = [
        events_of(name, 512 if item.multiple == 512 else item.multiple, made)
        for name, item in SUBJECTS.items()
        if not name.startswith(("matmul", "gemm"))
    ]
    asked = (("hq=2,sq=640,causal", 1), ("hq=4,hkv=2,sq=512", 2), ("hq=8,hkv=1,sq=1,skv=4096", 1))
    streams += [attention_events(problem_of(shape), made, lnc) for shape, lnc in asked if lnc <= made.default_lnc]
    for events in streams:
        for window in (None, 64):
            total = schedule(events, made, window=window).total_ns
            floor = floor_ns(prepare(events, made, reorder=window is not None))
            assert made.kernel_fixed_ns < floor <= total
            assert schedule_below(events, made, floor, window=window) == (floor, None)
            assert schedule_below(events, made, total, window=window)[1].total_ns == total


def test_pruning_loses_nothing(file):
    space = space_of(["extra=5,0..3,60,99"])
    options = judge_options(at="256", chip="trn1,trn2")
    with Workers(1) as workers:
        for case in file_cases(named(str(file), "softmax"), "softmax", options, None):
            whole, pruned = every(case, space, workers, 60), exhaustive(case, space, workers, 60)
            assert whole.ranked[0] == pruned.ranked[0]
            assert len(pruned.ranked) < len(whole.ranked) == 7


def test_our_kernel_is_tuned_for_a_shape_beside_its_rule(tmp_path):
    words = [
        "flash_const_max",
        "--shape",
        "hq=2,sq=1024,causal",
        "--const",
        "group=1..3",
        "--const",
        "lag=2,4",
        "--cache",
        "off",
    ]
    found = tuned(*words)
    assert [row["case"] for row in found] == ["trn1, 1 core", "trn2, 2 cores", "trn3, 2 cores"]
    for row in found:
        assert row["us"] == min(trial["us"] for trial in row["trials"] if "us" in trial)
        chip = get_chip(row["case"][:4])
        problem = problem_of("hq=2,sq=1024,causal")
        plan = plan_const_max(problem, chip, chip.default_lnc)
        rule = {"group": plan.group, "lag": plan.lag}
        known = [trial.get("us") for trial in row["trials"] if trial["constants"] == rule]
        assert not known or known[0] in (None, row["start_us"])


@pytest.mark.parametrize(("shape", "units"), [("hq=4,sq=4096,causal", 1), ("b=2,hq=16,hkv=8,sq=768", 8)])
def test_some_units_stand_for_all_that_are_alike(shape, units):
    """The time of all of them, scheduled, is that of some times their number within 10 %: 10 us of their ends overlap."""
    chip = get_chip("trn2")
    problem = problem_of(shape)
    part, factor = part_of(problem, 1, units)
    assert (part.batch, part.num_heads_kv * factor) == (1, problem.batch * problem.num_heads_kv)
    assert part.group_size == problem.group_size
    job = {"kernel": "flash_const_max", "shape": shape, "chip": "trn2", "lnc": 1, "window": None, "best_us": None}
    some, whole = (Trials().run({**job, "constants": "{}", "units": value})["us"] for value in (units, None))
    assert chip.kernel_fixed_ns / 1e3 < whole <= some
    assert some == pytest.approx(whole, rel=0.1)
    assert part_of(replace(problem, batch=1, num_heads_kv=1, num_heads_q=1), 2, 1)[1] == 1


def test_the_plan_table_is_made_of_cases_that_the_kernel_takes():
    for kernel in tunable():
        tuned = tuned_of(kernel)
        assert tuned.cases.keys() == tuned.spaces.keys()
        for kind, shapes in tuned.cases.items():
            for shape in shapes:
                for case in own_cases(kernel, shape, list(CHIPS), 1, None, space_of(tuned.spaces[kind]), None):
                    assert case.job["units"] is None
    text = "a\n# begin table\nold\n# end table\nb\n"
    assert replaced(text, "new") == "a\n# begin table\nnew\n# end table\nb\n"


@pytest.mark.parametrize(
    ("texts", "space"),
    [
        (["a=1,2", "b=x"], {"a": [1, 2], "b": ["x"]}),
        (["a=1..3"], {"a": [1, 2, 3]}),
        (["a=2..9:3,100"], {"a": [2, 5, 8, 100]}),
        (["a=-1..0,0,None,True,1.5"], {"a": [-1, 0, None, True, 1.5]}),
    ],
)
def test_values_of_constants(texts, space):
    found = space_of(texts)
    assert found == space
    assert [key_of(row) for row in combinations(found)] == list(dict.fromkeys(key_of(row) for row in combinations(found)))


@pytest.mark.parametrize(
    "texts", [["a"], ["a="], ["=1"], ["a=3..1"], ["a=1..3:0"], ["a=1", "a=2"], ["a=1..999", "b=1..999"], ["a=,"], ["a=[1]"]]
)
def test_values_that_mean_nothing_are_wrong_use(texts):
    with pytest.raises(ValueError, match=r"^const"):
        space_of(texts)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sampler", "guess"], "sampler='guess'"),
        (["--storage", "x.log"], "--sampler"),
        (["--sampler", "tpe", "--storage", "."], "storage="),
        (["--sampler", "tpe", "--storage", "nosuch://x"], "storage="),
        (["--shape", "sq=512"], "--shape"),
        (["--trials", "0"], "trials=0"),
        (["--seed", "-2"], "seed=-2"),
        (["--sampler", "tpe", "--seed", "1000000000000"], "seed=1000000000000"),
        (["--layout", "y=sd"], "layout"),
        (["--at", "0"], "at=0"),
        (["--lnc", "3"], "lnc=3 is not possible on trn2: it is 1 or 2."),
        (["--lnc", "0"], "lnc=0 is not possible on trn2: it is 1 or 2."),
        (["--chip", "trn1", "--lnc", "2"], "lnc=2 is not possible on trn1: it is 1."),
        (["--const", "wrong=1..1000000"], "1..1000000 is 1,000,000 values, at most 100,000"),
        (["--const", "1..1000000"], "'1..1000000' is not a constant with values"),
    ],
)
def test_options_that_mean_nothing(file, words, said):
    done = CliRunner().invoke(app, ["tune", str(file), *SMALL, "--const", "extra=0,1", "--cache", "off", "--no-judge", *words])
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), (done.stdout, done.stderr)
    assert said in done.stderr
