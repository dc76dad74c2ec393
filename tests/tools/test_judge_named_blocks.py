"""Causes in attention that blocks bring along: a mask that forgets where its block begins, products with another left side."""

from pathlib import Path

import pytest

import nki_hf

TEXT = (Path(nki_hf.__file__).parent / "tasks" / "kernels" / "attention.py").read_text()
_MASK = TEXT[TEXT.index("        nisa.affine_select(\n") : TEXT.index("    if window:")]
_BY_BLOCKS = _MASK.replace("scores", "scores[:, c : min(seen, c + BANK)]").replace(
    "[[-1, seen]]", "[[-1, min(BANK, seen - c)]]"
)
FORGETS = "        for c in range(0, seen, BANK):\n" + "".join(f"    {line}\n" for line in _BY_BLOCKS.splitlines())


@pytest.mark.parametrize(
    ("name", "task", "place", "wrong", "given", "words"),
    [
        (
            "baseline",
            "attention_causal",
            _MASK,
            FORGETS,
            {"check": (1024,), "constants": {"causal": True}},
            "the mask forgets where a block of 512 keys begins, and a row sees up to the end of its 128",
        ),
        (
            "backward_baseline",
            "attention_backward",
            "(dk, dscores, q_rows)",
            "(dk, narrow, q_rows)",
            {},
            "dk takes P in place of the scaled dS",
        ),
    ],
)
def test_the_cause_is_named(tmp_path, name, task, place, wrong, given, words):
    assert TEXT.count(place) == 1
    file = tmp_path / "kernel.py"
    file.write_text(TEXT.replace(place, wrong))
    record = nki_hf.judge(file, task, name=name, at=(256,), chip=("trn2",), **given)
    assert record["stage"] == "values", record["sentence"]
    assert words in record["diagnosis"], record["diagnosis"]
