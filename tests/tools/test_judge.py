"""`nki_hf judge`: right kernels pass, planted mistakes are caught and named, and nothing that a file does escapes."""

from __future__ import annotations

import io
import json
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from typer.testing import CliRunner

import nki_hf
from nki_hf.cli import app
from nki_hf.kernels import reference
from nki_hf.problem import Mask, Problem
from nki_hf.tasks import load_task, task_names
from nki_hf.tools.judging.output import show
from nki_hf.tools.judging.record import Record, schema
from nki_hf.tools.judging.stage_names import SCHEMA_VERSION, STAGES
from nki_hf.tools.screen import Screen
from tests.support.judged_kernels import CHEATS, OPTIONS, RIGHT, TIMED, WRONG, planted

HANGING = [name for name in CHEATS if "hangs" in name]


@pytest.fixture
def judged(tmp_path):
    def judge(text: str, task: str = "attention_causal", **options):
        file = tmp_path / "kernel.py"
        file.write_text(text)
        record = nki_hf.judge(file, task, **{**OPTIONS, **options})
        Record.model_validate(record)
        return record

    return judge


def said(record) -> str:
    return " | ".join([record["sentence"], record["diagnosis"], *(item["message"] for item in record["findings"])])


def test_the_right_kernel_passes_with_times_and_is_plain_data(judged):
    record = judged(RIGHT)
    assert record["verdict"] == "pass", said(record)
    assert pickle.loads(pickle.dumps(record)) == record == json.loads(json.dumps(record))
    assert record["times"][0]["us"] > record["times"][0]["least_us"] > 0
    assert {case["distribution"] for case in record["cases"]} >= {"normal", "wide", "outlier_key", "late_maximum"}
    assert {case["size"] for case in record["cases"]} == {256, 512}
    ratios = [case["error_ratio"] for case in record["cases"] if case["error_ratio"]]
    assert all(0.9 < ratio < 1.1 for ratio in ratios)  # it rounds what an ideal kernel rounds


@pytest.mark.parametrize("name", WRONG)
def test_each_planted_mistake_is_caught_and_named(judged, name):
    change = WRONG[name]
    record = judged(planted(change))
    assert not record["passed"], said(record)
    assert record["score"] == 0
    assert change[2] in said(record)


@pytest.mark.parametrize("name", CHEATS)
def test_nothing_that_a_file_does_escapes(judged, name):
    change = CHEATS[name]
    record = judged(planted(change), **({"timeout": 1.5} if name in HANGING else {}))
    assert record["passed"] == (change[2] is None), said(record)
    assert (change[2] or "") in said(record)


@pytest.mark.parametrize("name", TIMED)
def test_a_kernel_that_does_less_where_only_times_are_judged_fails(judged, name):
    record = judged(planted(TIMED[name]), at=(1024,))
    assert record["verdict"] == "failed at stage times", said(record)
    assert TIMED[name][2] in said(record)


def test_names_that_count_over_launches_make_no_other_program(judged):
    text = "import itertools\nCOUNT = itertools.count()\n" + RIGHT.replace(
        "done = nl.ndarray((T, d), dtype=q.dtype,", "done = nl.ndarray((T, d), dtype=q.dtype, name=f'done{next(COUNT)}',"
    )
    assert judged(text, until="values")["passed"]


def test_two_cores_that_write_the_same_rows_are_a_race(judged):
    record = judged(RIGHT.replace("tiles = s // T", "tiles = s // T\n    core = nl.program_id(0)"), lnc=2)
    assert record["verdict"] == "failed at stage races"
    assert "core 1" in said(record)
    assert "Divide them by nl.program_id(0)" in record["sentence"]


TWICE = RIGHT.replace("tiles = s // T", "tiles = s // T\n    core = nl.program_id(0)")


def test_both_cores_may_write_the_same_values_if_that_is_said(judged):
    record = judged(TWICE, lnc=2, same_writes=True)
    assert record["passed"], said(record)
    assert any("both cores write the same values at line" in warning for warning in record["warnings"])


def test_other_values_at_the_same_place_are_a_race_whatever_is_said(judged):
    """Core 1 comes last in the simulator and is right; on the machine core 0 may."""
    text = TWICE.replace(
        "        inverse = nl.", "        if core == 0: nisa.memset(dst=acc, value=0.0)\n        inverse = nl."
    )
    record = judged(text, lnc=2, same_writes=True)
    assert record["verdict"] == "failed at stage races"


def test_parameters_without_names_are_told_to_be_named(judged):
    record = judged("import nki\n\n\n@nki.jit\ndef kernel(*args, **more):\n    return args[0]\n")
    assert record["stage"] == "run"
    assert "name each array as a parameter, not by *args and **more" in record["sentence"]


THREADED = """
import threading

plain = NAME


@nki.jit
def threaded(q, k, v):
    out = nl.ndarray(q.shape, q.dtype, buffer=nl.shared_hbm)
    worker = threading.Thread(target=plain, args=(q, k, v))
    worker.start()
    worker.join()
    return out
"""


def test_a_thread_of_the_kernel_that_fails_is_told(judged):
    name = RIGHT.split("@nki.jit\ndef ", 1)[1].split("(", 1)[0]
    record = judged(RIGHT.replace("@nki.jit\n", "", 1) + THREADED.replace("NAME", name))
    assert record["stage"] == "run", record["sentence"]
    assert "a thread that the kernel started failed" in record["sentence"]


CACHE = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def cached(x, cache, seen):
    d, size = cache.shape
    out = nl.ndarray((d, size), x.dtype, buffer=nl.shared_hbm)
    row = nl.ndarray((d, 1), x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=row, src=x)
    core, half = nl.program_id(0), size // 2
    first = core * half
    old = nl.ndarray((d, half), x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=old, src=cache[:, first : first + half])
    mask = nl.ndarray((d, half), x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=mask, src=seen[:, first : first + half])
    nisa.tensor_tensor(dst=old, data1=old, data2=mask, op=nl.multiply)
    nisa.dma_copy(dst=out[:, first : first + half], src=old)
    if core == 0:
        nisa.dma_copy(dst=cache[:, size - 1 : size], src=row)
    return out, cache
"""

CACHE_TASK = """
import numpy as np
from nki_hf.tasks import FLOAT, Task


def inputs(size, distribution, rng):
    seen = np.ones((128, size))
    seen[:, size - 1] = SEEN
    return {"x": rng.standard_normal((128, 1)), "cache": rng.standard_normal((128, size)), "seen": seen}


def reference(x, cache, seen):
    new = cache.copy()
    new[:, -1:] = x
    return cache * seen, new


TASK = Task(
    name="cached", about="", reference=reference, inputs=inputs, flops=lambda n: n, check=(256, 512), at=(512,),
    arrays=lambda n: {"x": ((128, 1), FLOAT), "cache": ((128, n), FLOAT), "seen": ((128, n), FLOAT)},
    outputs=("out", "new"), in_place=("cache",), dtype="float32",
)
"""


@pytest.mark.parametrize("seen", [0, 1])
def test_a_race_for_a_row_of_a_cache_that_no_output_shows_is_told_and_no_fault_if_that_is_said(tmp_path, seen):
    """Core 0 writes the last column of the cache, which core 1 may read before or after: it is masked out, or it is not."""
    task = tmp_path / "task.py"
    task.write_text(CACHE_TASK.replace("SEEN", str(seen)))
    kernel = tmp_path / "kernel.py"
    kernel.write_text(CACHE)
    options = {"lnc": 2, "until": "values", "chip": ("trn2",), "seed": 1}
    assert nki_hf.judge(kernel, str(task), **options)["verdict"] == "failed at stage races"
    record = nki_hf.judge(kernel, str(task), same_writes=True, **options)
    assert record["passed"] == (not seen), said(record)
    if seen:
        assert record["verdict"] == "failed at stage races"
    else:
        assert any("what is read there changes no output" in warning for warning in record["warnings"])


def test_what_a_kernel_hides_in_its_own_process_changes_no_time(judged):
    honest, hiding = judged(RIGHT), judged(planted(CHEATS["hides instructions"]))
    assert hiding["times"][0]["us"] == honest["times"][0]["us"]
    assert hiding["times"][0]["counters"] == honest["times"][0]["counters"]


def test_a_judgement_that_is_interrupted_leaves_no_answer_to_the_next(judged):
    def interrupt(*_):
        raise KeyboardInterrupt

    judged(RIGHT, until="lint")  # the server runs
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        with pytest.raises(KeyboardInterrupt):
            judged(planted(CHEATS["hangs"]), timeout=2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert judged(RIGHT, until="values")["passed"]


def test_output_of_the_file_goes_into_fields(judged):
    record = judged("print('hello { json')\n" + RIGHT)
    assert record["printed"]["stdout"] == "hello { json\n"
    assert judged(planted(CHEATS["floods"]))["printed"]["stdout_bytes"] > 1_000_000


def test_processes_that_a_file_leaves_behind_are_ended(judged, tmp_path):
    mark = tmp_path / "alive"
    forked = "import os, time, pathlib\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(0.7)\n"
    judged(RIGHT + forked + f"    pathlib.Path({str(mark)!r}).write_text('x')\n    os._exit(0)\n")
    time.sleep(1.2)
    assert not mark.exists()


def test_a_kernel_that_reads_values_in_its_python_says_that_it_cannot_be_replayed(judged):
    text = RIGHT.replace(
        "tiles = s // T",
        "r = nisa.register_alloc()\n    nisa.register_load(r, q[0:1, 0:1])\n    tiles = s // T if int(r) else 1",
    )
    record = judged(text)
    assert record["verdict"] == "failed at stage values"
    assert "cannot be replayed" in said(record)


def test_a_loop_of_run_time_is_replayed(judged):
    text = RIGHT.replace(
        "    for i in range(tiles):\n",
        "    def one(i):\n        pass\n    nl.fori_loop(0, 3, one)\n    for i in range(tiles):\n",
    )
    record = judged(text)
    assert record["passed"]
    loops = [step for row in record["times"] for step in row["path"] if step["opcode"].startswith("loop_")]
    assert {step["line"] for step in loops} == {_line(text, "nl.fori_loop")}


def test_a_kernel_that_does_otherwise_for_large_sizes_and_is_right_passes_with_a_word(judged):
    text = RIGHT.replace(
        "nisa.reciprocal(dst=inverse, data=total)",
        "nisa.reciprocal(dst=inverse, data=total) if s <= 512 else nisa.activation(dst=inverse, op=nl.reciprocal, data=total)",
    )
    record = judged(text, at=(1024,))
    assert record["passed"], said(record)
    assert any("values were judged there as well" in warning for warning in record["warnings"])


def test_seed_repeats_a_judgement_and_no_seed_draws_a_new_one(judged):
    def errors(**options):
        return [case["row_error"] for case in judged(RIGHT, **options)["cases"]]

    assert errors(seed=3) == errors(seed=3) != errors(seed=None)


def test_against_gives_the_speedup(judged, tmp_path):
    other = tmp_path / "other.py"
    other.write_text(RIGHT)
    record = judged(RIGHT, against=str(other))
    assert record["times"][0]["speedup"] == pytest.approx(1.0)
    assert record["against"]["verdict"] == "right"


@pytest.mark.parametrize("name", ["scale twice", "SBUF overflows"])
def test_no_speedup_is_credited_over_a_parent_that_fails_the_task(judged, tmp_path, name):
    other = tmp_path / "other.py"
    other.write_text(planted(WRONG[name]))
    record = judged(RIGHT, against=str(other))
    assert record["passed"], said(record)
    assert record["against"]["verdict"] == "fails"
    assert record["against"]["detail"]
    assert [(row["against_us"], row["speedup"]) for row in record["times"]] == [(None, None)]
    assert any("fails the task attention_causal itself" in words for words in record["warnings"])


def _line(text: str, words: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if words in line)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("scale missing", "operand0=1.0"),
        ("strict mask", "nisa.affine_select("),
        ("P not transposed", "stationary=probs,"),
        ("correction forgotten in acc", "dst=acc, data=acc"),
        ("accumulators in bf16", "dst=acc, data=acc, op0=nl.multiply, operand0=correction"),
    ],
)
def test_the_first_tile_that_differs_from_the_parent_is_named(judged, tmp_path, name, words):
    parent, text = tmp_path / "parent.py", planted(WRONG[name])
    parent.write_text(RIGHT)
    record = judged(text, against=str(parent), until="values")
    found = record["first_difference"]
    assert found["line"] == found["parent_line"] == _line(text, words), found
    assert "first tile that differs" in said(record)


def test_an_instruction_that_is_left_out_is_where_the_kernels_part(judged, tmp_path):
    parent = tmp_path / "parent.py"
    parent.write_text(RIGHT)
    record = judged(planted(WRONG["accumulator never written"]), against=str(parent), until="values")
    assert record["first_difference"]["parent_line"] == _line(RIGHT, "nisa.memset(dst=acc")


def test_a_parent_that_is_wrong_itself_shows_nothing(judged, tmp_path):
    parent = tmp_path / "parent.py"
    parent.write_text(planted(WRONG["scale twice"]))
    record = judged(planted(WRONG["scale missing"]), against=str(parent), until="values")
    assert record["first_difference"] is None
    assert any("wrong itself" in item for item in record["warnings"])


def test_one_json_and_the_exit_code(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text("print('noise')\n" + planted(CHEATS["exits"]))
    command = [sys.executable, "-m", "nki_hf", "judge", str(file), "--task", "attention_causal", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["verdict"] == "failed at stage load"
    wrong = subprocess.run([*command[:5], "--task", "nothing"], capture_output=True, text=True, timeout=120, check=False)
    assert wrong.returncode == 2
    assert "is one of" in wrong.stderr


def test_the_lines_of_a_record_that_passed(judged):
    stream = io.StringIO()
    screen = Screen(stream)
    screen.width = 200
    show(judged(RIGHT), screen)
    lines = stream.getvalue().splitlines()
    assert "us simulated on trn2 at size 256" in lines[0]
    assert lines[-1] == "PASS"


def test_a_task_of_ones_own(judged, tmp_path):
    task = tmp_path / "mine.py"
    task.write_text(
        "from nki_hf.tasks import FLOAT, Task\n"
        "TASK = Task(name='double', about='2 * x', arrays=lambda n: {'x': ((128, n), FLOAT)}, reference=lambda x: 2 * x,\n"
        "            flops=lambda n: n, check=(64, 128), at=(64,), dtype='float32')\n"
    )
    kernel = (
        "import nki, nki.isa as nisa, nki.language as nl\n@nki.jit\ndef double(x):\n"
        "    t = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)\n    nisa.dma_copy(dst=t, src=x)\n"
        "    nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0={})\n"
        "    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)\n    nisa.dma_copy(dst=out, src=t)\n    return out\n"
    )
    own = {"layout": "", "check": (), "at": ()}
    assert judged(kernel.format("2.0"), str(task), **own)["passed"]
    assert "times the reference everywhere" in said(judged(kernel.format("3.0"), str(task), **own))


def test_the_schema_is_the_documented_version():
    assert SCHEMA_VERSION == 1
    assert tuple(schema()["$defs"]["Finding"]["properties"]["stage"]["enum"]) == STAGES
    required = {"verdict", "passed", "stage", "sentence", "score", "findings", "cases", "times", "printed", "seed"}
    assert required <= set(schema()["properties"])


@pytest.mark.parametrize("name", task_names())
def test_references_of_tasks_take_every_distribution_and_give_finite_outputs(name):
    from nki_hf.tools.judging.values import Run, drawn

    task = load_task(name)
    run = Run(task=task, size=task.check[0], dtype=task.dtype)
    for distribution in ("normal", "wide", "negative", "equal", "outlier_key"):
        arrays = {key: np.asarray(array, np.float64) for key, array in drawn(run, distribution, 0).items()}
        outputs = task.reference(**arrays, **task.constants(run.size))
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        assert len(outputs) == len(task.outputs)
        assert all(np.isfinite(item).all() for item in outputs)


@pytest.mark.parametrize("causal", [False, True])
def test_the_reference_of_attention_is_the_oracle(causal, rng):
    q, k, v = (rng.standard_normal((256, 128)) for _ in range(3))
    problem = Problem(
        batch=1,
        num_heads_q=1,
        num_heads_kv=1,
        seqlen_q=256,
        seqlen_kv=256,
        head_dim=128,
        head_dim_v=128,
        dtype="float32",
        mask=Mask(ahead=1) if causal else Mask(),
    )
    want = reference.attention(problem, q[None, None], k[None, None], v[None, None])[0][0, 0]
    got = load_task("attention_causal" if causal else "attention").reference(q=q, k=k, v=v)
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(
    ("module", "name", "task"),
    [
        ("flash_prefill", "flash_prefill", "attention_causal"),
        ("flash_const_max", "flash_const_max_loop", "attention_causal"),  # whose loop of run time mends what outliers break
        ("flash_decode", "flash_decode", "attention_decode"),
    ],
)
def test_kernels_of_the_package_pass_as_their_bindings_call_them(module, name, task):
    import importlib.util

    file = importlib.util.find_spec(f"nki_hf.kernels.{module}.kernel").origin
    record = nki_hf.judge(file, task, name=name, check=(256,), until="values", seed=2, timeout=120)
    assert record["passed"], said(record)


def test_the_loop_of_run_time_that_mends_rows_is_replayed_beyond_one_block_of_keys():
    """From 1,024 keys on the body of the loop visits several blocks, whose tiles must not add up."""
    words = ["--task", "attention", "--check", "512,1024", "--at", "512", "--chip", "trn2", "--json", "-"]
    record = json.loads(CliRunner().invoke(app, ["judge", "flash_const_max", *words]).stdout)
    assert record["passed"], said(record)
    assert record["kernel"] == "flash_const_max_loop"
    assert {case["size"] for case in record["cases"] if case["distribution"] == "late_maximum"} == {512, 1024}


def test_a_kernel_of_ours_is_judged_by_its_name():
    words = ["--task", "attention_unscaled", "--check", "512", "--at", "512", "--chip", "trn1"]
    assert CliRunner().invoke(app, ["judge", "v7", *words]).exit_code == 0
    done = CliRunner().invoke(app, ["judge", "v99", *words])
    assert done.exit_code == 2
    assert "kernel='v99' is not a kernel" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("window", "words"),
    [(0, "there is no window"), (255, "one key too short"), (257, "one key too long"), (512, "twice as long")],
)
def test_mistakes_of_a_sliding_window_are_named(window, words):
    file = f"{nki_hf.__path__[0]}/tasks/kernels/attention.py:baseline"
    constants = {"causal": True, "window": window}
    record = nki_hf.judge(file, "attention_window", constants=constants, check=(768,), until="values", seed=4)
    assert words in record["diagnosis"]


def test_the_sliding_window_is_that_of_transformers():
    """Its mask function says which keys a row sees."""
    masking_utils = pytest.importorskip("transformers.masking_utils")
    torch = pytest.importorskip("torch")
    task, rows = load_task("attention_window"), torch.arange(600)
    seen = masking_utils.sliding_window_causal_mask_function(256)(None, None, rows[:, None], rows[None]).numpy()
    found = task.reference(q=np.zeros((600, 128)), k=np.zeros((600, 128)), v=np.eye(600))  # equal weights of what is seen
    assert ((found > 0) == seen).all()
