"""The cause that is named of a kernel that is no function of its arguments is the true one: what its file changed, first."""

import pytest
from judged_kernels import SOFTMAX_OF_ROWS

import nki_hf

LINE = "    out = nl.ndarray("


def judge(tmp_path, head, line=""):
    file = tmp_path / "kernel.py"
    file.write_text(f"{head}\n" + SOFTMAX_OF_ROWS.replace(LINE, f"{line}{LINE}"))
    return nki_hf.judge(file, "softmax", check=(128,), until="values", chip=("trn2",))


PATCH = "import nki_hf.tools.judging.values as judge\njudge.checked = lambda *a: []"


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (f"{PATCH}\nimport random; random.random()", "changes nki_hf.tools.judging.values.checked"),
        ("import numpy as np\nnp.allclose = lambda *a: True\nimport random; random.random()", "changes numpy.allclose"),
        ("import random\nrandom.random()", "random numbers are drawn while the kernel's file is loaded"),
    ],
)
def test_what_a_file_changes_is_named_before_what_follows(tmp_path, head, words):
    record = judge(tmp_path, head)
    assert record["stage"] == "run"
    assert words in record["sentence"]


def test_a_changed_module_is_named_where_the_programs_differ(tmp_path):
    record = judge(tmp_path, f"{PATCH}\nimport itertools\nCOUNT = itertools.count()", "    if next(COUNT) > 2: x = x[:128]\n")
    assert record["stage"] == "run"
    assert "changes nki_hf.tools.judging.values.checked" in record["sentence"]
    assert "gives another program" in record["sentence"]


def test_a_changed_module_alone_reaches_nothing_that_is_judged(tmp_path):
    assert judge(tmp_path, PATCH)["passed"]
