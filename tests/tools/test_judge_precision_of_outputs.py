"""In 16-bit types each output's mean error counts, not that of the first output alone."""

from pathlib import Path

import pytest
from judged_kernels import RIGHT

import nki_hf


def test_sums_of_a_later_output_in_bfloat16_fail(tmp_path):
    text = (Path(nki_hf.__file__).parent / "tasks" / "kernels" / "attention.py").read_text()
    right = "dk, dv = sbuf((P, tiles, d)), sbuf((P, tiles, d))"
    assert text.count(right) == 1
    file = tmp_path / "kernel.py"
    file.write_text(text.replace(right, "dk, dv = sbuf((P, tiles, d)), sbuf((P, tiles, d), nl.bfloat16)"))
    given = {"name": "backward_baseline", "check": (256, 1024), "at": (256,), "chip": ("trn2",)}
    record = nki_hf.judge(file, "attention_backward", **given)
    assert (record["passed"], record["stage"]) == (False, "values"), record["sentence"]
    assert record["findings"][0]["message"].startswith("dv at size 1024"), record["findings"]
    assert "16-bit" in record["sentence"]


STORED = "nisa.dma_copy(dst=out[i * T : (i + 1) * T, :], src=done)"
SCALED = "nisa.tensor_scalar(dst={part}, data={part}, op0=nl.multiply, operand0={factor})"


def _sentence(folder, text, **given):
    file = folder / "kernel.py"
    file.write_text(text)
    given = {"layout": "q=ds,k=ds,v=sd", "check": (256, 512), "until": "values", "chip": ("trn2",), **given}
    record = nki_hf.judge(file, "attention_causal", **given)
    assert (record["passed"], record["stage"]) == (False, "values"), record["sentence"]
    return record["sentence"]


@pytest.mark.parametrize(
    ("part", "factor"),
    [
        ("done", "1.03 if i == 1 else 1.0"),  # one tile: half of the rows at the first size
        ("done", "1.015 if i == 2 else 1.0"),
        ("done[0:1, :]", "1.04 if i == 1 else 1.0"),
        ("done[:, 7:8]", "1.2"),
    ],
)
def test_one_wrong_place_is_no_sum_in_a_narrow_type(tmp_path, part, factor):
    assert RIGHT.count(STORED) == 1
    sentence = _sentence(tmp_path, RIGHT.replace(STORED, f"{SCALED.format(part=part, factor=factor)}\n        {STORED}"))
    assert "bit type" not in sentence, sentence


@pytest.mark.parametrize(
    ("tile", "said"),
    [
        ("total = nl.ndarray((T, 1), dtype=nl.float32", "row sums or divisors in a 16-bit type"),
        ("acc = nl.ndarray((T, d), dtype=nl.float32", "sums or accumulators in a 16-bit type"),
        ("probs_t = nl.ndarray((T, T), dtype=nl.bfloat16", "values or probabilities in an 8-bit type"),
    ],
)
def test_a_narrow_type_is_named_where_most_rows_are_inexact(tmp_path, tile, said):
    """At 256 only the second of two tiles adds up two blocks of keys."""
    assert RIGHT.count(tile) == 1
    narrow = tile.replace("float32", "bfloat16") if "float32" in tile else tile.replace("bfloat16", "float8_e4m3")
    sentence = _sentence(tmp_path, RIGHT.replace(tile, narrow))
    assert said in sentence, sentence
