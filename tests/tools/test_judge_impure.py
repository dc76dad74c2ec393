"""A kernel is a function of its arguments: what it draws, asks of its process, or rewrites fails, whatever came of it."""

import pytest
from judged_kernels import SOFTMAX_OF_ROWS

import nki_hf


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("    import random; random.random()", "draws random numbers"),
        ("    import numpy as np; np.random.rand()", "draws random numbers"),
        (
            "    import os; t = nl.ndarray((1, 1), nl.float32, buffer=nl.sbuf); nisa.memset(dst=t, value=os.getpid() / 2)",
            "another program",
        ),
        ("    import helper", "helper.py was written"),
        (
            "    import os; assert globals().setdefault('PID', os.getpid()) == os.getpid()",
            "raises AssertionError when it is launched again with the same arguments",
        ),
    ],
)
def test_what_is_no_function_of_its_arguments_fails(tmp_path, line, words):
    (tmp_path / "helper.py").write_text("from pathlib import Path\nPath(__file__).write_text('LESS = True')\n")
    file = tmp_path / "kernel.py"
    place = "    out = nl.ndarray("
    file.write_text(SOFTMAX_OF_ROWS.replace(place, f"{line}\n{place}"))
    record = nki_hf.judge(file, "softmax", check=(128,), at=(256,), chip=("trn2",))
    assert (record["passed"], record["stage"]) == (False, "run"), record["sentence"]
    assert words in record["sentence"]
