"""`nki_hf judge` at a size that no tile divides: what takes it must be right there, what does not is told so."""

from __future__ import annotations

import pytest

import nki_hf
from nki_hf.tools.judging.record import Record
from tests.support.judged_ragged import RIGHT, WRONG
from tests.support.judged_tasks import RIGHT as WHOLE_TILES


@pytest.fixture
def judged(tmp_path):
    def judge(task: str, text: str, **options):
        file = tmp_path / "kernel.py"
        file.write_text(text)
        record = nki_hf.judge(file, task, seed=5, until="values", chip=("trn2",), **options)
        Record.model_validate(record)
        return record

    return judge


@pytest.mark.parametrize("task", RIGHT)
def test_a_kernel_with_a_last_tile_of_its_own_is_right_there_too(judged, task):
    record = judged(task, RIGHT[task])
    assert record["passed"], record["sentence"]
    assert record["ragged"]["verdict"] == "right"
    assert f"and at {record['ragged']['size']}, which no tile divides." in record["sentence"]


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_in_the_last_tile_alone_is_caught(judged, name):
    task, text, change, words = WRONG[name]
    assert text in RIGHT[task]
    record = judged(task, RIGHT[task].replace(text, change))
    assert not record["passed"]
    assert record["right_at"], record["sentence"]  # the sizes of whole tiles are right
    assert record["ragged"]["verdict"] == "wrong"
    assert words in record["diagnosis"]
    assert record["findings"][0]["kind"] == "ragged"


def test_sizes_that_were_asked_for_are_the_ones_that_count(judged):
    task, text, change, _ = WRONG["last rows written twice"]
    record = judged(task, RIGHT[task].replace(text, change), check=(128,))
    assert record["passed"]
    assert any("is wrong there" in warning for warning in record["warnings"])
    assert "Right at sizes 128 and 256; wrong at 200" in record["sentence"]


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (WHOLE_TILES["softmax"], "refused"),  # its last tile is out of bounds
        (RIGHT["softmax"].replace("range(0, rows, P)", "range(0, rows // P * P, P)"), "not taken"),
        (RIGHT["softmax"].replace("    out =", "    assert rows % P == 0\n    out ="), "refused"),
    ],
)
def test_a_kernel_for_whole_tiles_passes_and_says_so(judged, text, verdict):
    record = judged("softmax", text)
    assert record["passed"], record["sentence"]
    assert record["ragged"]["verdict"] == verdict
    assert record["ragged"]["detail"]
    assert record["right_at"] == [128, 384]


STATED = {
    "an assert says its condition": ("assert rows % P == 0", "refused", "AssertionError: assert rows % P == 0"),
    "an assert with words": ("assert rows % P == 0, 'whole tiles only'", "refused", "AssertionError: whole tiles only"),
    "a raise": ("if rows % P: raise NotImplementedError(f'rows={rows}')", "refused", "NotImplementedError: rows=200"),
    "an index": ("['whole'][rows % P]", "crashed", "IndexError: list index out of range"),
    "a division": ("1 // (rows % P == 0)", "crashed", "ZeroDivisionError"),
    "a key": ("{0: 1}[rows % P]", "crashed", "KeyError: 72"),
    "another library": (
        "import fractions; fractions.Fraction(1, int(rows % P == 0))",
        "crashed",
        "ZeroDivisionError",
    ),
}


@pytest.mark.parametrize("how", STATED)
def test_a_crash_is_told_from_a_limit_that_the_kernel_states(judged, how):
    line, verdict, words = STATED[how]
    record = judged("softmax", RIGHT["softmax"].replace("    out =", f"    {line}\n    out ="))
    assert record["passed"], record["sentence"]
    assert record["ragged"]["verdict"] == verdict
    assert words in record["ragged"]["detail"]
    assert any("the kernel's Python crashes" in warning for warning in record["warnings"]) == (verdict == "crashed")
    assert ("it crashes at 200" in record["sentence"]) == (verdict == "crashed")


IN_TURNS = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def softmax(x):
    rows, width = x.shape
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    core, cores, tiles = nl.program_id(0), nl.num_programs(0), rows // 128

    def body(i):
        tile = nl.ndarray((128, width), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x.ap([[width, 128], [1, width]], scalar_offset=i * 128, indirect_dim=0))
        top = nl.ndarray((128, 1), nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((128, 1), nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=tile, axis=1, negate=True)
        nisa.activation_reduce(dst=tile, op=nl.exp, data=tile, bias=top, reduce_op=nl.add, reduce_res=total)
        nisa.reciprocal(dst=total, data=total)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=out.ap([[width, 128], [1, width]], scalar_offset=i * 128, indirect_dim=0), src=tile)

    nl.fori_loop(tiles * core // cores, tiles * (core + 1) // cores, body)
    return out
"""


@pytest.mark.parametrize("lnc", [1, 2])
def test_rows_that_a_run_time_loop_leaves_out_are_not_taken_and_no_mistake(judged, lnc):
    """Which rows the turns of a loop write is known from the run: a loop over whole tiles leaves the last 72 of 200 alone."""
    record = judged("softmax", IN_TURNS, lnc=lnc)
    assert record["passed"], record["sentence"]
    assert record["ragged"]["verdict"] == "not taken"
    assert record["ragged"]["detail"] == "it writes 64% of an output"
