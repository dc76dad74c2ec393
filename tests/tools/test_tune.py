"""`nki_hf tune`: exhaustive with pruning, samplers on shared storage, results that are kept, kernels of ours."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from nki_hf.chips import CHIPS, get_chip
from nki_hf.cli import app
from nki_hf.kernels.flash_const_max.plan import plan_const_max
from nki_hf.timing.schedule import floor_ns, schedule, schedule_below
from nki_hf.timing.workload import prepare
from nki_hf.tools.searching.options import judge_options, named
from nki_hf.tools.searching.workers import Workers
from nki_hf.tools.shape import problem_of
from nki_hf.tools.subjects import SUBJECTS, attention_events, events_of
from nki_hf.tools.tuning import study as studies
from nki_hf.tools.tuning.cases import file_cases, own_cases
from nki_hf.tools.tuning.own import part_of, tunable, tuned_of
from nki_hf.tools.tuning.plan_table import replaced
from nki_hf.tools.tuning.samplers import Sampled
from nki_hf.tools.tuning.search import every, exhaustive
from nki_hf.tools.tuning.space import combinations, key_of, space_of
from nki_hf.tools.tuning.study import source_digest, study_of
from nki_hf.tools.tuning.trial import Trials
from tests.support.search_agents import KERNEL

TUNED = KERNEL.replace("def softmax(x):", "def softmax(x, extra=3, wrong=0):").replace(
    "        nisa.dma_copy(dst=out",
    "        for _ in range(extra):\n"
    "            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply if wrong else nl.add, operand0=0.0)\n"
    "        nisa.dma_copy(dst=out",
)
"""`extra` instructions too many per tile, which with `wrong` make zeros."""
SMALL = ["--task", "softmax", "--at", "256", "--chip", "trn2", "--processes", "1"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text(TUNED)
    return path


def tuned(*words, code=0):
    done = CliRunner().invoke(app, ["tune", *words, "--json"])
    assert done.exit_code == code, (done.stdout, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_fewest_instructions_are_the_fastest_and_are_judged(file, tmp_path):
    (found,) = tuned(str(file), *SMALL, "--const", "extra=0..4,99", "--cache", str(tmp_path / "cache"))
    assert found["best"] == {"extra": 0}
    assert found["band"].startswith("error on measured rows: ")
    times = {row["constants"]["extra"]: row.get("us") for row in found["trials"]}
    assert times[0] < times[1] < times[2] < times[3] == found["start_us"]
    assert found["judged"] == [{"constants": {"extra": 0}, "us": times[0], "judged_us": times[0], "passed": True,
                                "sentence": found["judged"][0]["sentence"]}]  # fmt: skip
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


def test_results_are_kept_and_nothing_runs_again(file, tmp_path, monkeypatch):
    words = [str(file), *SMALL, "--const", "extra=0..3", "--cache", str(tmp_path / "cache"), "--no-judge"]
    (first,) = tuned(*words)
    monkeypatch.setattr(Workers, "_one", lambda *_: pytest.fail("a trial runs"))
    (again,) = tuned(*words)
    assert (first["reloaded"], again["reloaded"]) == (0, 4)
    assert {key: first[key] for key in ("best", "us", "start_us")} == {key: again[key] for key in ("best", "us", "start_us")}


def test_another_source_import_chip_size_or_law_is_another_study(file, tmp_path, monkeypatch):
    facts = {"chip": "trn2", "size": 256}
    first = study_of(facts, file, tmp_path).name
    assert study_of(facts, file, None).name == first
    assert len({first, *(study_of({**facts, k: v}, file, None).name for k, v in (("chip", "trn1"), ("size", 512)))}) == 3
    file.write_text(TUNED + "\n# changed\n")
    assert study_of(facts, file, None).name != first
    file.write_text("import steps\nfrom parts import wide\n" + TUNED)
    names = []
    for name, text in (("steps.py", "x = 1"), ("steps.py", "x = 2"), ("parts/__init__.py", ""), ("parts/wide.py", "y = 1")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        names.append(source_digest(file))
    assert len(set(names)) == 4
    same = study_of(facts, file, None).name
    (tmp_path / "other.py").write_text("z = 1")
    assert study_of(facts, file, None).name == same
    monkeypatch.setattr(studies, "laws", lambda: "others")
    assert study_of(facts, file, None).name != same


IMPORTS = {
    "beside another": ("import os, helper", "helper.py"),
    "after a semicolon": ("import sys; import helper", "helper.py"),
    "in a try": ("try: import helper\nexcept ImportError: pass", "helper.py"),
    "over lines": ("from pkg import (\n    sub,\n)", "pkg/sub.py"),
    "a package on the way": ("import pkg.sub", "pkg/__init__.py"),
    "in turn": ("import between", "helper.py"),
    "relative, in turn": ("import pkg.near", "pkg/sub.py"),
    "by a function": ("import importlib\nhelper = importlib.import_module('hel' + 'per')", "helper.py"),
    "data": ("import numpy as np\nWIDTH = np.load('width.npy')", "width.npy"),
    "a text": ("WIDTH = int(open('width.npy').read())", "width.npy"),
}


@pytest.mark.parametrize(("text", "changed"), IMPORTS.values(), ids=IMPORTS)
def test_whatever_a_kernel_imports_or_reads_beside_it_is_in_its_digest(tmp_path, text, changed):
    (tmp_path / "pkg").mkdir()
    for name in ("helper.py", "pkg/sub.py", "pkg/__init__.py", "width.npy"):
        (tmp_path / name).write_text("X = 1\n")
    (tmp_path / "between.py").write_text("def f():\n    import helper\n")
    (tmp_path / "pkg/near.py").write_text("from . import sub\n")
    (tmp_path / "kernel.py").write_text(text + "\n")
    before = source_digest(tmp_path / "kernel.py")
    assert source_digest(tmp_path / "kernel.py") == before
    (tmp_path / changed).write_text("X = 2\n")
    assert source_digest(tmp_path / "kernel.py") != before


ELSEWHERE = {
    "text": "import pathlib\nCOUNT = int(pathlib.Path({path!r}).read_text())\n",
    "module": "import sys\nsys.path.insert(0, {folder!r})\nfrom helper_elsewhere import COUNT\n",
    "array": "import numpy as np\nCOUNT = int(np.fromfile({path!r}, np.uint8)[0]) - 48\n",
    "while it is traced": "",
}


@pytest.mark.parametrize("how", ELSEWHERE)
def test_a_result_counts_while_the_files_of_other_folders_that_the_kernel_read_are_as_they_were(file, tmp_path, how):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    path = folder / "helper_elsewhere.py"
    text = "open({path!r}, 'rb').read()[-2] - 48" if how == "while it is traced" else "COUNT"
    kernel = file.parent / "folder" / "kernel.py"
    kernel.parent.mkdir()
    body = TUNED.replace("range(extra)", f"range(extra + {text})".format(path=str(path)))
    kernel.write_text(ELSEWHERE[how].format(path=str(path), folder=str(folder)) + body)
    words = [str(kernel), *SMALL, "--const", "extra=0..1", "--cache", str(tmp_path / "cache"), "--no-judge"]

    def changed(count):
        path.write_text(f"COUNT = {count}\n" if how in ("module", "while it is traced") else f"{count}")

    changed(1)
    (first,) = tuned(*words)
    assert tuned(*words)[0]["reloaded"] == 2
    changed(3)
    (second,) = tuned(*words)
    assert second["reloaded"] == 0
    assert second["us"] > first["us"]


LOOKED_FOR = {
    "a file": "try:\n    COUNT = int(open({path!r}).read())\nexcept OSError:\n    COUNT = 0\n",
    "a folder": "import os\nCOUNT = len(os.listdir({folder!r}))\n",
}


@pytest.mark.parametrize("how", LOOKED_FOR)
def test_a_result_counts_while_what_the_kernel_looked_for_in_vain_is_not_there(file, tmp_path, how):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    head = LOOKED_FOR[how].format(path=str(folder / "count"), folder=str(folder))
    file.write_text(head + TUNED.replace("range(extra)", "range(extra + COUNT)"))
    words = [str(file), *SMALL, "--const", "extra=0..1", "--cache", str(tmp_path / "cache"), "--no-judge"]
    (first,) = tuned(*words)
    assert tuned(*words)[0]["reloaded"] == 2
    (folder / "count").write_text("1")
    (second,) = tuned(*words)
    assert second["reloaded"] == 0
    assert second["us"] > first["us"]


def test_a_search_that_the_judge_times_otherwise_is_dropped(file, tmp_path, monkeypatch):
    """What a kernel takes from the environment is in no digest: the judge of the fastest notices."""
    head = "import os\nCOUNT = int(os.environ.get('NKI_HF_TEST_EXTRA', '0'))\n"
    file.write_text(head + TUNED.replace("range(extra)", "range(extra + COUNT)"))
    words = ["tune", str(file), *SMALL, "--const", "extra=0..1", "--cache", str(tmp_path / "cache")]
    assert CliRunner().invoke(app, words).exit_code == 0  # the judge's server runs without the variable
    shutil.rmtree(tmp_path / "cache")
    monkeypatch.setenv("NKI_HF_TEST_EXTRA", "3")
    assert CliRunner().invoke(app, [*words, "--no-judge"]).exit_code == 0
    monkeypatch.delenv("NKI_HF_TEST_EXTRA")
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert "the judge times a kernel otherwise" in done.stderr
    assert CliRunner().invoke(app, words).exit_code == 0


def test_a_kernel_of_ours_is_digested_with_its_modules_and_no_other_kernels(tmp_path, monkeypatch):
    package = tmp_path / "nki_hf"
    shutil.copytree(studies._PACKAGE / "kernels", package / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "__init__.py").touch()
    monkeypatch.setattr(studies, "_PACKAGE", package)
    kernel = package / "kernels" / "flash_const_max" / "kernel.py"

    def changes(module):
        path = package / "kernels" / module
        before, text = source_digest(kernel), path.read_text()
        path.write_text(text + "\n# changed\n")
        after = source_digest(kernel)
        path.write_text(text)
        assert source_digest(kernel) == before
        return after != before

    parts = (
        "kernel",
        "pipeline",
        "loads",
        "lse",
        "finish",
        "masks",
        "work",
        "worklist",
        "exact",
        "exact_blocks",
        "certificate",
    )
    assert [name for name in parts if not changes(f"flash_const_max/{name}.py")] == []
    assert not changes("flash_decode/kernel.py")


def test_a_damaged_file_of_results_is_no_obstacle(file, tmp_path):
    """What a killed process left unfinished, or anything else that is no result, is found out again."""
    words = [str(file), *SMALL, "--const", "extra=0..2", "--cache", str(tmp_path / "cache"), "--no-judge"]
    (first,) = tuned(*words)
    (results,) = (tmp_path / "cache").iterdir()
    whole = results.read_bytes()
    results.write_bytes(b'{"study"\n[]\n{}\n\xff\n' + whole[:-20])
    (again,) = tuned(*words)
    assert again["reloaded"] == 2
    assert {key: first[key] for key in ("best", "us", "start_us")} == {key: again[key] for key in ("best", "us", "start_us")}
    (third,) = tuned(*words)
    assert third["reloaded"] == 3


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


def test_trials_that_fail_hang_or_die_cost_themselves(file):
    file.write_text(TUNED.replace("    rows, width = x.shape\n", "    rows, width = x.shape\n" + FAILING))
    (found,) = tuned(str(file), *SMALL, "--const", "extra=1..6", "--cache", "off", "--timeout", "6", "--no-judge")
    failed = [row.get("failed", "") for row in found["trials"]]
    for text, words in zip(failed, ("no such block", "ended after 6 s", "died", "no_such_name", "200", ""), strict=True):
        assert words in text
    assert found["best"] == {"extra": 6}


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
    streams = [events_of(name, 512 if item.multiple == 512 else item.multiple, made) for name, item in SUBJECTS.items()
               if not name.startswith(("matmul", "gemm"))]  # fmt: skip
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
    """The time of all of them, scheduled, is that of some times their number within 8 %: neighbours overlap at their ends."""
    chip = get_chip("trn2")
    problem = problem_of(shape)
    part, factor = part_of(problem, 1, units)
    assert (part.batch, part.num_heads_kv * factor) == (1, problem.batch * problem.num_heads_kv)
    assert part.group_size == problem.group_size
    job = {"kernel": "flash_const_max", "shape": shape, "chip": "trn2", "lnc": 1, "window": None, "best_us": None}
    some, whole = (Trials().run({**job, "constants": "{}", "units": value})["us"] for value in (units, None))
    assert chip.kernel_fixed_ns / 1e3 < whole <= some
    assert some == pytest.approx(whole, rel=0.08)
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


# ---- samplers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["study.log", "sqlite:///{folder}/study.db"])
def test_two_processes_share_a_study(file, tmp_path, address):
    """A second command joins the first: together they have the trials that were asked for, and both know all results."""
    pytest.importorskip("optuna", reason="the extra `tune`")
    storage = address.format(folder=tmp_path) if "://" in address else str(tmp_path / address)
    words = [sys.executable, "-m", "nki_hf", "tune", str(file), *SMALL, "--const", "extra=0..11", "--cache", "off",
             "--no-judge", "--sampler", "tpe", "--trials", "10", "--storage", storage, "--json"]  # fmt: skip
    started = [subprocess.Popen([*words, "--seed", str(seed)], stdout=subprocess.PIPE, text=True) for seed in (1, 2)]
    found = [json.loads(process.communicate()[0]) for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert found[0]["study"] == found[1]["study"]
    (late,) = tuned(*words[4:-1])
    assert 10 <= len(late["trials"]) <= 12
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
        second.told(optuna.trial.Trial(second._study, trial._trial_id), float(number))
        first.told(trial, None if number else 9.0)
        assert first.results()[key_of(constants)] == number
    assert len(first.results()) == 3


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
        study.told(trial, 1.0)
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
            study.told(trial, float(sum(float(value) for value in constants.values())))
        return before, study.results()

    first = results("rep=1..4")[1]
    assert first == {key_of({"rep": value}): float(value) for value in range(1, 5)}
    for const in (["rep=4,3,2,1"], ["rep=5..8"], ["rep=1..9"], ["rep=1..2"], ["rep=1.0,2,3,4"], ["bad=0..3"]):
        before, after = results(*const)
        assert before == {}
        assert after == {key_of(found): float(sum(found.values())) for found in combinations(space_of(const))}
    assert results("rep=1..4") == (first, first)


def test_without_optuna_the_extra_is_named(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    done = CliRunner().invoke(app, ["tune", str(file), *SMALL, "--const", "extra=0,1", "--cache", "off", "--sampler", "tpe"])
    assert done.exit_code == 2
    assert done.stderr == 'nki_hf tune --sampler needs the optuna package: pip install "nki_hf[tune]"\n'
    assert tuned(str(file), *SMALL, "--const", "extra=0,1", "--cache", "off", "--no-judge")[0]["best"] == {"extra": 0}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sampler", "guess"], "sampler='guess'"),
        (["--storage", "x.log"], "--sampler"),
        (["--sampler", "tpe", "--storage", "."], "storage="),
        (["--sampler", "tpe", "--storage", "nosuch://x"], "storage="),
        (["--shape", "sq=512"], "--shape"),
        (["--trials", "0"], "trials=0"),
        (["--layout", "y=sd"], "layout"),
        (["--at", "0"], "at=0"),
    ],
)
def test_options_that_mean_nothing(file, words, said):
    done = CliRunner().invoke(app, ["tune", str(file), *SMALL, "--const", "extra=0,1", "--cache", "off", "--no-judge", *words])
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), (done.stdout, done.stderr)
    assert said in done.stderr
