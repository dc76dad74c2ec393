"""Sentences of the judge name the file of a line that stands in a module beside the kernel."""

import pytest

import nki_hf
from nki_hf.tools.judging.line_words import line_words
from nki_hf.tools.judging.output import show
from nki_hf.tools.judging.timetable import command
from nki_hf.tools.screen import Screen

KERNEL = '''import nki
import nki.isa as nisa
import nki.language as nl
from parts import divided, exps


@nki.jit
def softmax(x):
    """softmax over the last axis of x [rows, width], rows a multiple of 128."""
    rows, width = x.shape
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for start in range(0, rows, 128):
        tile = nl.ndarray((128, width), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[start : start + 128, :])
        total = exps(tile)
        divided(tile, total, rows)
        nisa.dma_copy(dst=out[start : start + 128, :], src=tile)
    return out
'''
PARTS = """import nki.isa as nisa
import nki.language as nl


def exps(tile):
    top = nl.ndarray((128, 1), nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=top, op=nl.maximum, data=tile, axis=1, negate=True)
    total = nl.ndarray((128, 1), nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=tile, op=nl.exp, data=tile, bias=top)
    nisa.tensor_reduce(dst=total, op=nl.add, data=tile, axis=1)
    return total


def divided(tile, total, rows):
    nisa.reciprocal(dst=total, data=total)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=total)
"""
DIVISION = "nisa.reciprocal(dst=total, data=total)"
WRONG = {
    "activation at parts.py:16 is the first to write NaN": "nisa.activation(dst=total, op=nl.log, data=total, bias=-1e6)",
    "uses activation op=sqrt float32 -> float32 (parts.py:17), which": (
        "if rows > 512:\n        nisa.activation(dst=total, op=nl.sqrt, data=total)"
    ),
    "has operand0=0.5 in tensor_scalar (parts.py:16), which it has at no size": (
        "nisa.tensor_scalar(dst=total, data=total, op0=nl.multiply, operand0=0.5 if rows > 512 else 1.0)"
    ),
}


def _written(folder, *change):
    assert not change or change[0] in PARTS
    (folder / "kernel.py").write_text(KERNEL)
    (folder / "parts.py").write_text(PARTS.replace(*change) if change else PARTS)
    return folder / "kernel.py"


def _judged(kernel, **options):
    return nki_hf.judge(kernel, "softmax", check=(256, 512), at=(2048,), chip=("trn2",), **options)


def test_a_pass_names_the_file_of_the_line_to_change(tmp_path, capsys):
    kernel = _written(tmp_path)
    record = _judged(kernel)
    assert record["passed"], record["sentence"]
    summed = "parts.py:10"
    assert f"tensor_reduce at {summed} costs" in record["sentence"]
    assert f"making the row sum in the instruction that makes exp ({summed}) would save" in record["sentence"]
    show(record, Screen())
    assert f" us: {summed}: the row sum reads what exp wrote" in capsys.readouterr().out
    command(str(kernel), "softmax", (2048,), ("trn2",), lnc=1, layout="", constants={}, window=64, as_json=False)
    assert f"vector, {summed}" in capsys.readouterr().out


@pytest.mark.parametrize("said", WRONG)
def test_a_failure_names_the_file_of_its_line(said, tmp_path):
    record = _judged(_written(tmp_path, DIVISION, f"{DIVISION}\n    {WRONG[said]}"))
    assert not record["passed"]
    assert said in record["sentence"]


def test_the_first_difference_names_both_files(tmp_path):
    (tmp_path / "right").mkdir()
    right = _written(tmp_path / "right")
    record = _judged(_written(tmp_path, "operand0=total", "operand0=2.0"), against=str(right))
    assert "writes at parts.py:16 (parent: parts.py:16): " in record["first_difference"]["text"]


def test_what_lint_says_of_a_module_beside_has_its_file(tmp_path):
    record = _judged(_written(tmp_path, DIVISION, f"global total_of_all\n    {DIVISION}"), until="lint")
    assert "lint: changing-global: global total_of_all (parts.py:15), NKI 0.3" in record["warnings"][0]
    assert record["findings"][0]["file"] == str(tmp_path / "parts.py")


def test_a_line_of_the_kernels_own_file_is_a_line(tmp_path, monkeypatch):
    kernel = tmp_path / "kernel.py"
    kernel.touch()
    (tmp_path / "link.py").symlink_to(kernel)
    monkeypatch.chdir(tmp_path)
    assert line_words("kernel.py", str(kernel), 3) == line_words("link.py", str(kernel), 3) == "line 3"
    assert line_words("kernel.py", str(tmp_path / "shared" / "tiles.py"), 3) == "shared/tiles.py:3"
    assert line_words("kernel.py", "/elsewhere/of/tiles.py", 3) == "of/tiles.py:3"
