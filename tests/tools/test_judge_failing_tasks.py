"""A task whose own functions raise is wrong use: the kernel is not to blame."""

import pytest

from tests.support.judged_own_tasks import SOFTMAX, judged_by
from tests.support.judged_tasks import RIGHT


def test_a_task_of_ones_own_judges(tmp_path):
    assert judged_by(tmp_path, SOFTMAX % "")["passed"]


def test_a_kernel_cannot_say_so(tmp_path):
    """An exception of its own by the name of that kind is the kernel's."""
    kernel = RIGHT["softmax"] + "\n\nraise type('task fails', (Exception,), {})('no')\n"
    record = judged_by(tmp_path, SOFTMAX % "", kernel)
    assert (record["passed"], record["stage"]) == (False, "load")


@pytest.mark.parametrize(
    ("function", "value", "error"),
    [
        ("reference", "lambda x: x.summ()", "AttributeError"),
        ("inputs", "lambda size, kind, rng: {'x': rng.normally((size, 1024))}", "AttributeError"),
        ("scale", "lambda **arrays: 1 / 0", "ZeroDivisionError"),
        ("ideal", "lambda **arrays: 1 / 0", "ZeroDivisionError"),
    ],
)
def test_what_its_functions_raise_is_wrong_use(function, value, error, tmp_path):
    with pytest.raises(ValueError, match=f"task own_softmax: its {function} raises {error} at size 128"):
        judged_by(tmp_path, SOFTMAX % f"'{function}': {value}")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("outputs", "()", r"outputs=\(\) must be a tuple of one or more"),
        ("check", "()", r"check=\(\) must be a tuple of one or more"),
        ("flops", "lambda size: 1 / 0", "its flops raises ZeroDivisionError at size 128"),
        ("flops", "lambda size: -1", "its flops gives -1 at size 128: it must be 0 or more"),
        ("arrays", "lambda size: 1 / 0", "its arrays raises ZeroDivisionError at size 128"),
        ("constants", "lambda size: 1 / 0", "its constants raises ZeroDivisionError at size 128"),
        ("constants", "lambda size: [1]", r"its constants gives \[1\] at size 128: it must be values by name"),
        ("flops", "lambda size: None", "its flops gives None at size 128: it must be 0 or more"),
        ("flops", "lambda size: float('nan')", "its flops gives nan at size 128: it must be 0 or more"),
        ("check", "(0,)", r"check=\(0,\) must be a tuple of one or more sizes"),
        ("at", "(True,)", r"at=\(True,\) must be a tuple of one or more sizes"),
        ("at", "[128.0]", r"at=\[128.0\] must be a tuple of one or more sizes"),
        ("ragged", "-3", "ragged=-3 must be a size"),
        ("distributions", "5", "distributions=5 must be a tuple of names"),
        ("distributions", "'small'", "distributions='small' must be a tuple of names"),
        ("outputs", "('out', 'out')", r"outputs=\('out', 'out'\) must be a tuple of one or more names"),
        ("dtype", "'bf16'", "dtype='bf16' must be bfloat16 or float16 or float32"),
        ("out_dtypes", "('float', 'float')", r"out_dtypes=\('float', 'float'\) has 2 element types: it must be one for each"),
        ("out_dtypes", "('fp32',)", r"out_dtypes=\('fp32',\) must be element types by name"),
        ("least_rtol", "0", "least_rtol=0 must be a number above 0"),
        ("axes", "{'x': 'nkd'}", r"axes has x='nkd': it must be a letter for each axis of \[128, 1024\]"),
        ("axes", "{'y': 'nk'}", "axes has 'y': it must be one of x, out"),
        ("in_place", "('out',)", "in_place has 'out': it must be one of x"),
        ("mask", "{'causal': True}", r"mask=\{'causal': True\} must be whole numbers by ahead and window"),
        ("wrong", "{'no sum': 1}", r"wrong=\{'no sum': 1\} must be functions by words"),
        ("reference", "None", "reference=None must be a function"),
        (
            "distributions",
            "('small',), 'inputs': None",
            r"distributions=\('small',\) are names that inputs knows, and there is no inputs",
        ),
        ("part", "1", "part=1 must be a function or None"),
        ("arrays", "lambda size: {}", r"its arrays gives \{\} at size 128: it must be a shape and an element type"),
        ("arrays", "lambda size: {'x': (size, 4)}", r"its arrays gives x=\(128, 4\) at size 128: it must be a shape"),
        ("arrays", "lambda size: {'x': ((size, 0), 'float')}", r"its arrays gives x=\(\(128, 0\), 'float'\) at size 128"),
        ("arrays", "lambda size: {'x': ((size, 4), 'fp8')}", r"its arrays gives x=\(\(128, 4\), 'fp8'\) at size 128"),
    ],
)
def test_a_task_that_judges_nothing_or_raises_is_wrong_use(field, value, said, tmp_path):
    with pytest.raises(ValueError, match="task own_softmax: " + said):
        judged_by(tmp_path, SOFTMAX % f"'{field}': {value}")
