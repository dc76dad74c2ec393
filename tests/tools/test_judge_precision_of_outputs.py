"""In 16-bit types each output's mean error counts, not that of the first output alone."""

from pathlib import Path

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
