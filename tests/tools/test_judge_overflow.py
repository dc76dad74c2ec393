"""Memory that overflows: a fault where memory is judged, and said where a size is only timed, with the spills of a compiler."""

import json

import pytest
from judged_kernels import SOFTMAX_OF_ROWS
from typer.testing import CliRunner

import nki_hf
from nki_hf.cli import app
from nki_hf.tools.judging.overflows import overflow_warnings, spoken

LINE = "    out = nl.ndarray("
KEPT = """    kept = [nl.ndarray((128, 25 * x.shape[0]), nl.uint8, buffer=nl.sbuf) for _ in range(20)]
    for tile in kept:
        nisa.memset(dst=tile, value=0)
    for tile in kept:
        nisa.tensor_copy(dst=tile, src=tile)
"""
CLAUSE = "; at size 512 memory overflows and is spilled. Right at sizes 128 and 256"


@pytest.fixture
def kernel(tmp_path):
    """A softmax that keeps tiles which grow with the size: 250 KiB per partition at 512 rows, half of it at 256."""
    file = tmp_path / "kernel.py"
    file.write_text(SOFTMAX_OF_ROWS.replace(LINE, KEPT + LINE))
    return file


def test_an_overflow_at_a_timed_size_passes_and_is_said(kernel):
    record = nki_hf.judge(kernel, "softmax", check=(128,), at=(256, 512), chip=("trn2", "trn1"), seed=7)
    assert record["passed"], record["sentence"]
    assert CLAUSE in record["sentence"]
    said = [words for words in record["warnings"] if "memory overflows" in words]
    assert [words.partition(" memory")[0] for words in said] == ["at size 512 on trn2", "at size 512 on trn1"]
    assert all("SBUF overflow" in words and "--check 512" in words for words in said)
    assert {row["size"] for row in record["times"] if row["spills"]} == {512}


def test_the_same_overflow_fails_where_memory_is_judged(kernel):
    record = nki_hf.judge(kernel, "softmax", check=(256, 512), at=(128,), chip=("trn2",), seed=7)
    assert (record["passed"], record["stage"]) == (False, "memory")
    assert "SBUF overflow" in record["sentence"]


def test_what_fits_has_no_word_of_memory(kernel):
    record = nki_hf.judge(kernel, "softmax", check=(128,), at=(256,), chip=("trn2",), seed=7)
    assert record["passed"]
    assert "overflow" not in record["sentence"] + str(record["warnings"])


def test_bench_says_it_too(kernel):
    asked = ["bench", str(kernel), "--task", "softmax", "--at", "512", "--chip", "trn2"]
    found = CliRunner().invoke(app, asked)
    assert found.exit_code == 0, found.output
    assert "memory overflows" in " ".join(found.output.split())
    rows = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert "SBUF overflow" in rows[0]["spills"]


def test_sizes_are_named_once_and_values_only_where_they_were_judged():
    rows = [
        {"size": size, "chip": chip, "spills": spills, "values": values, "sentence": "~ 1 us."}
        for size, chip, spills, values in (
            (512, "trn2", "", "judged"),
            (1024, "trn2", "SBUF overflow.", "part"),
            (1024, "trn1", "SBUF overflow.", "not judged"),
            (4096, "trn2", "PSUM overflow.", "not judged"),
        )
    ]
    assert spoken(rows) == "~ 1 us; at sizes 1,024 and 4,096 memory overflows and is spilled."
    assert spoken(rows[:1]) == "~ 1 us."
    assert ["as if memory were large enough" in words for words in overflow_warnings(rows)] == [True, False, False]
