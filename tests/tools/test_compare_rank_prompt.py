"""`nki_hf compare`, `rank` and `prompt`."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from typer.testing import CliRunner

import nki_hf
from nki_hf.chips.measurements import MEASUREMENTS, error_band
from nki_hf.cli import app
from nki_hf.sim import isa, language
from nki_hf.tasks import load_task, task_names
from nki_hf.tools.error_bands import task_band
from nki_hf.tools.searching.facts import source_diff
from nki_hf.tools.searching.guide import EXAMPLE
from nki_hf.tools.searching.picture import ladder_lines
from tests.support.search_agents import KERNEL, extra_work

SMALL = ["--task", "softmax", "--check", "128", "--at", "128", "--chip", "trn2"]


def said(*words, code=0):
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, (done.stdout, done.stderr)
    return done.stdout


def test_compare_says_which_is_faster_and_where_the_time_goes():
    words = ["--task", "attention_unscaled", "--check", "512", "--at", "512,1024", "--chip", "trn1,trn2", "--json"]
    found = json.loads(said("compare", "v4", "v7", *words))
    assert [(row["chip"], row["size"]) for row in found["rows"]] == [
        ("trn1", 512),
        ("trn2", 512),
        ("trn1", 1024),
        ("trn2", 1024),
    ]
    measured = {(m.subject, m.size): m.us for m in MEASUREMENTS if m.chip == "trn1"}
    for row in found["rows"]:
        assert row["speedup"] == row["a_us"] / row["b_us"] > 1
        assert row["band"] == error_band("attention", row["chip"])
        assert sum(step["us"] for step in row["a_path"]) <= row["a_us"] * 1.0001
        assert all(0 <= engine[side] <= 1 for engine in row["engines"] for side in "ab")
        if row["chip"] == "trn1":
            published = measured["v4", row["size"]] / measured["v7", row["size"]]
            assert row["speedup"] == pytest.approx(published, rel=0.25)
    assert "-    v_keys = transposed_values(load(v), nl.float32)" in found["diff"]


def test_compare_of_a_kernel_that_fails_says_so_and_ends_with_1(tmp_path):
    (tmp_path / "a.py").write_text(KERNEL)
    (tmp_path / "b.py").write_text(KERNEL.replace("op0=nl.multiply", "op0=nl.add"))
    found = json.loads(said("compare", str(tmp_path / "a.py"), str(tmp_path / "b.py"), *SMALL, "--json", code=1))
    assert (found["a"]["passed"], found["b"]["passed"], found["rows"]) == (True, False, [])
    text = said("compare", str(tmp_path / "a.py"), str(tmp_path / "b.py"), *SMALL, code=1)
    assert "failed at stage values" in text
    assert text.rstrip().endswith("FAIL")
    assert "+        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=total)" in text


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_compare_fits_the_screen_whatever_the_kernels_are_called(tmp_path, monkeypatch, columns):
    """But for the names, which are copied whole. Paths stand beside each other where there is room."""
    monkeypatch.setenv("COLUMNS", str(columns))
    files = [tmp_path / f"a_softmax_kernel_with_a_name_that_is_longer_than_a_narrow_screen_number_{n}.py" for n in (1, 2)]
    long = "# 234567890" * 30
    files[0].write_text(long + "\n" + extra_work(4))
    files[1].write_text(KERNEL)
    text = said("compare", *map(str, files), *SMALL)
    diff = text[: text.index("A = ")].splitlines()
    assert [line for line in diff[2:] if len(line) > columns] == []
    first = itertools.takewhile(lambda line: line.startswith("-"), diff[3:])
    removed = "".join(line[1:].strip() for line in first)
    assert removed.replace(" ", "") == long.replace(" ", "")  # whole, over several lines
    shown = text[text.index("A = ") :].splitlines()
    assert [line for line in shown if len(line) > columns and not line.startswith(("A = ", "B = "))] == []
    row = next(line.split() for line in shown if line.startswith("dma dma_copy"))
    assert row[2].isdigit()  # the line, without the name of the kernel's own file
    assert (len(row) > 4) == (columns > 60)


def test_a_diff_is_nothing_for_the_same_source():
    assert source_diff("a\nb\n", "a\nb\n") == ""
    assert "-b\n+c" in source_diff("a\nb\n", "a\nc\n")


def test_rank_sorts_by_score_and_puts_what_fails_last(tmp_path):
    files = {
        "a.py": extra_work(4),
        "b.py": KERNEL,
        "d.py": extra_work(1),
        "e.py": "x = (",
        "note.txt": "",
        "f.py": KERNEL.replace("op0=nl.multiply", "op0=nl.add"),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    told = json.loads(said("rank", str(tmp_path), *SMALL, "--seed", "1", "--json"))
    (task,) = [SMALL[place + 1] for place, word in enumerate(SMALL) if word == "--task"]
    assert told["bands"] == {"trn2": task_band(load_task(task), "trn2")}
    found = told["kernels"]
    assert [row["name"] for row in found] == ["b.py", "d.py", "a.py", "e.py", "f.py"]
    assert [row["passed"] for row in found] == [True, True, True, False, False]
    times = [row["us"]["trn2@128"] for row in found[:3]]
    assert times == sorted(times)
    lines = " ".join(said("rank", str(tmp_path), *SMALL, "--seed", "1").split())
    wrong = found[4]["sentence"]  # of values: it names what the output is, to its end
    assert wrong.startswith("failed at stage values: ")
    assert f"f.py: {wrong}" in lines


def test_rank_leaves_out_the_task_and_modules_that_kernels_share(tmp_path):
    scale = "        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=total)\n"
    with_steps = KERNEL.replace(scale, "        scaled(tile, total)\n").replace(
        "import nki\n", "import nki\nfrom steps import scaled\n"
    )
    assert with_steps.count("scaled") == 2
    files = {
        "a.py": with_steps,
        "alone.py": "def scaled(tile, total):\n    pass\n",  # meant to be a kernel: nothing imports it
        "b.py": "import a\n" + KERNEL,  # a kernel that is imported is one as ever
        "names.py": "SCALE = 'multiply'\n",
        "steps.py": "import names\nimport nki.isa as nisa\nimport nki.language as nl\n\n\ndef scaled(tile, total):\n" + scale,
        "task.py": "from nki_hf.tasks import load_task\nTASK = load_task('softmax')\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    words = ["rank", str(tmp_path), "--task", str(tmp_path / "task.py"), *SMALL[2:], "--seed", "1"]
    told = json.loads(said(*words, "--json"))
    assert sorted((row["name"], row["passed"]) for row in told["kernels"]) == [
        ("a.py", True),
        ("alone.py", False),
        ("b.py", True),
    ]
    assert told["not_ranked"] == ["names.py", "steps.py", "task.py"]
    text = " ".join(said(*words).split())
    assert "not ranked, the task or modules without a kernel: names.py, steps.py, task.py" in text


def test_rank_ends_a_kernel_that_hangs(tmp_path):
    """Alone in its folder: how long a kernel that is right takes, a short limit must not decide."""
    (tmp_path / "c.py").write_text("while True: pass")
    (found,) = json.loads(said("rank", str(tmp_path), *SMALL, "--timeout", "4", "--json", code=1))["kernels"]
    assert not found["passed"]
    assert "still running after 4 s" in found["sentence"]


@pytest.mark.parametrize(("kind", "magic"), [("png", b"\x89PNG\r\n"), ("svg", b"<?xml")])
def test_rank_draws_the_journey(tmp_path, kind, magic):
    pytest.importorskip("matplotlib", reason="the extra `plot`")
    (tmp_path / "a.py").write_text(extra_work(1))
    (tmp_path / "b.py").write_text("x = (")
    picture = tmp_path / f"out.{kind}"
    said("rank", str(tmp_path), *SMALL, "--picture", str(picture))
    assert picture.read_bytes().startswith(magic)


def test_rank_of_nothing_is_wrong_use(tmp_path):
    for words in ([str(tmp_path)], [str(tmp_path / "no")]):
        done = CliRunner().invoke(app, ["rank", *words, *SMALL])
        assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)


def test_the_ladder_is_drawn_where_it_computes_the_task():
    lines = ladder_lines("attention_unscaled", 4096, "trn1")
    assert list(lines) == ["v3", "v4", "v5", "v6", "v7", "v8", "v11"]
    assert lines["v11"] < lines["v7"] < lines["v3"]
    assert ladder_lines("softmax", 4096, "trn1") == ladder_lines("attention", 4000, "trn1") == {}


@pytest.mark.parametrize("task", task_names())
def test_the_prompt_of_every_task_says_its_arrays_outputs_and_sizes(task):
    text = said("prompt", "--task", task, "--chip", "trn1,trn3")
    found = load_task(task)
    for name, (shape, _) in found.arrays(found.check[0]).items():
        assert f"* {name} {list(shape)}" in text
    for name in found.outputs:
        assert re.search(rf"Outputs: .*\b{name}\b", text)
    assert "trn1: 128 partitions" in text
    assert "trn3: 128 partitions" in text


def test_a_layout_in_the_prompt_is_that_of_the_kernel():
    assert "* q [128, 512] bfloat16 (axes ds)" in said("prompt", "--task", "attention", "--layout", "q=ds")


def test_every_name_that_the_prompt_offers_exists():
    text = said("prompt", "--task", "softmax")
    names = re.findall(r"^\* (nisa|nl)\.([\w.]+)\(", text, re.MULTILINE)
    assert len(names) > 100
    for module, name in names:
        place = isa if module == "nisa" else language
        for part in name.split("."):
            if part in (
                "NkiTensor",
                "NkiScalar",
                "VirtualRegister",
                "NkiGrid",
                "NkiTileGrid",
                "NkiBlockGrid",
                "NkiInstruction",
            ):
                break
            place = getattr(place, part)


def test_the_example_of_the_prompt_passes_and_is_in_it():
    assert EXAMPLE.read_text() in said("prompt", "--task", "softmax")
    record = nki_hf.judge(EXAMPLE, "softmax", check=(128,), at=(256,), chip=("trn1", "trn2", "trn3"))
    assert record["passed"], record["sentence"]


VERBS = {
    "judge": ["{file}"],
    "compare": ["{file}", "{file}"],
    "rank": ["{folder}"],
    "tune": ["{file}", "--const", "extra=0,1"],
    "loop": ["--run", "{folder}/run", "--agent", "cat {file}"],
    "bench": ["{file}"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_cores_that_a_chip_has_not_are_wrong_use_of_every_verb(tmp_path, verb):
    """trn1 has no logical cores of two; no chip has more than two."""
    (tmp_path / "a.py").write_text(KERNEL)
    words = [verb, *(word.format(file=tmp_path / "a.py", folder=tmp_path) for word in VERBS[verb]), "--task", "softmax"]
    for lnc, chips, why in (
        ("3", "trn2", "trn2: it is 1 or 2"),
        ("0", "trn2", "trn2: it is 1 or 2"),
        ("2", "trn1", "trn1: it is 1"),
    ):
        done = CliRunner().invoke(app, [*words, "--lnc", lnc, "--chip", chips])
        assert done.exit_code == 2, (done.stdout, done.stderr)
        assert f"lnc={lnc} is not possible on {why}." in " ".join(done.stderr.split())
