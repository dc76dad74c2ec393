"""What the functions of a user's task give is looked at before a kernel is judged by it: the kernel is not to blame."""

import json

import pytest
from typer.testing import CliRunner

from nki_hf.cli import app
from tests.support.judged_own_tasks import SOFTMAX, judged_by, written


@pytest.fixture
def judged(tmp_path):
    return lambda fields, **options: judged_by(tmp_path, SOFTMAX % fields, until="values", **options)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("lambda size, kind, rng: {}", "gives no x at size 128 on normal inputs: it must give x"),
        ("lambda size, kind, rng: [1]", "gives list at size 128 on normal inputs: it must give arrays by name, x"),
        (
            "lambda size, kind, rng: {'x': np.ones((size, 3))}",
            r"gives x as \[128, 3\] at size 128 .*: arrays says \[128, 1024\]",
        ),
        ("lambda size, kind, rng: {'x': np.ones((size, 1024), complex)}", "gives x as complex128 at size 128"),
        ("lambda size, kind, rng: {'x': np.full((size, 1024), np.nan)}", "gives NaN in x at size 128"),
        ("lambda size, kind, rng: {'x': 0 * np.ones((size, 1024 - (kind == 'wide')))}", ".* at size 128 on wide inputs"),
        ("lambda size, kind, rng: {'x': np.random.rand(size, 1024)}", "gives other arrays for the same generator at size 128"),
        ("lambda size: {}", "raises TypeError at size 128"),
        ("lambda size, kind, rng: inputs(size + size // 256, kind, rng)", r"gives x as \[257, 1024\] at size 256"),
    ],
)
def test_inputs_that_are_none_are_wrong_use(function, said, judged):
    with pytest.raises(ValueError, match="task own_softmax: its inputs " + said):
        judged(f"'inputs': {function}")


@pytest.mark.parametrize("given", ["np.full((size, 1), 0.5)", "np.full((size, 1), -1)", "np.full((size, 1), 1 << 40)"])
def test_integers_must_be_whole_and_fit(given, judged):
    drawn = f"lambda size, kind, rng: {{**inputs(size, kind, rng), 'n': {given}}}"
    named = "lambda size: {**arrays(size), 'n': ((size, 1), 'uint32')}"
    with pytest.raises(ValueError, match="its inputs gives numbers in n at size 128 on normal inputs that are none of uint32"):
        judged(f"'inputs': {drawn}, 'arrays': {named}, 'reference': lambda x, n: x")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("lambda x: x * np.nan", "gives no finite number in out at size 128 on normal inputs"),
        ("lambda x: reference(x) + np.random.rand()", "gives another out for the same arrays at size 128"),
        ("lambda x: (reference(x), x)", r"gives 2 outputs at size 128: outputs says 1 \(out\)"),
        ("lambda x: None", "gives out as object at size 128: it must be real numbers"),
        ("lambda x: x + 1j", "gives out as complex128 at size 128: it must be real numbers"),
        ("lambda x: x.sum()", r"gives out as \[\] at size 128: it must have an axis"),
        ("lambda x, y: x", "raises TypeError at size 128: .* missing 1 required positional argument: 'y'"),
        ("changing", "changes x in place at size 128"),
        ("lambda x: 0 * x", "is zero everywhere at size 128: it judges nothing"),
    ],
)
def test_a_reference_that_is_none_is_wrong_use(function, said, judged):
    with pytest.raises(ValueError, match="task own_softmax: its reference " + said):
        judged(f"'reference': {function}")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("'wrong': {'no maximum': lambda x: 1 / 0}", "wrong 'no maximum' raises ZeroDivisionError at size 128"),
        ("'wrong': {'no maximum': lambda x: None}", "wrong 'no maximum' gives object at size 128: it must be real numbers"),
        (
            "'wrong': {'no maximum': lambda x: x.sum(-1)}",
            r"wrong 'no maximum' gives \[128\] at size 128: reference gives \[128, 1024\]",
        ),
        (
            "'wrong': {'no maximum': lambda x: (x, x)}",
            r"wrong 'no maximum' gives 2 outputs at size 128: outputs says 1 \(out\)",
        ),
        (
            "'outputs': ('out', 'top'), 'reference': lambda x: (reference(x), x.max(-1, keepdims=True)), "
            "'wrong': {'exchanged': lambda x: (x.max(-1, keepdims=True), reference(x))}",
            r"wrong 'exchanged' gives \[128, 1\] at size 128: reference gives \[128, 1024\]",
        ),
        ("'wrong': {'no maximum': changing}", "wrong 'no maximum' changes x in place at size 128"),
        ("'accepted': {'rounded': lambda out, dtype, x: 1 / 0}", "accepted 'rounded' raises ZeroDivisionError at size 128"),
        ("'accepted': {'rounded': lambda out, dtype, x: x}", "accepted 'rounded' gives ndarray at size 128"),
        ("'step': lambda before, x: 1 / 0", "step raises ZeroDivisionError at size 128"),
        ("'step': lambda before, x: before[0]", r"step gives float64 \[1023\] at size 128: it must be \[128, 1023\]"),
        ("'ideal': lambda x: x[1:]", r"ideal gives out as \[127, 1024\] at size 128: reference gives \[128, 1024\]"),
        (
            "'scale': lambda x: np.ones((3, 5, 7))",
            r"scale gives \[3, 5, 7\] for out at size 128: it must be a number for each row, \[128\], or broadcast to them",
        ),
        ("'scale': lambda x: np.abs(x)", r"scale gives \[128, 1024\] for out at size 128: .*, \[128\]"),
        ("'scale': lambda x: np.ones((128, 1))", r"scale gives \[128, 1\] for out at size 128: .*, \[128\]"),
        ("'scale': lambda x: ()", r"scale gives a tuple of 0 at size 128: outputs says 1 \(out\)"),
        ("'scale': lambda x: x.sum(-1) * np.nan", "scale gives NaN for out at size 128"),
        ("'scale': lambda x: 'large'", "scale gives <U5 for out at size 128: it must be real numbers"),
        ("'part': lambda arrays, index: 1 / 0", "part raises ZeroDivisionError at size 256"),
        ("'arrays': lambda size: {('x' if size < 200 else 'y'): ((size, 1024), FLOAT)}", "arrays gives y at size 256: .*, x"),
    ],
)
def test_other_functions_are_tried_as_well(fields, said, judged):
    with pytest.raises(ValueError, match="task own_softmax: its " + said):
        judged(fields)


@pytest.mark.parametrize(
    "fields",
    [
        "'scale': lambda x: np.abs(x).sum(-1)",
        "'scale': lambda x: 1",
        "'wrong': {'no maximum': lambda x: (reference(x),)}",
        "'wrong': {'transposed': lambda x: reference(x).T}",
        "'outputs': ('out', 'top'), 'reference': lambda x: (reference(x), x.max(-1, keepdims=True)), "
        "'wrong': {'the smallest': lambda x: x.min(-1, keepdims=True), 'a copy': lambda x: x, 'first': lambda x: (x,)}",
    ],
)
def test_what_fits_an_output_is_right(fields, judged):
    """Of the last one the kernel fails, which gives one output alone."""
    assert judged(fields)["passed"] == ("'outputs'" not in fields)


def test_a_size_that_arrays_cannot_take_is_wrong_use(judged):
    named = "lambda size: {'x': ((size, 1024 // (size - 384)), FLOAT)} if size == 384 else arrays(size)"
    with pytest.raises(ValueError, match="task own_softmax: its arrays raises ZeroDivisionError at size 384"):
        judged(f"'arrays': {named}", check=(128, 384))


def test_whole_numbers_may_come_in_any_type(judged):
    given = "lambda size, kind, rng: {'x': np.rint(4 * rng.standard_normal((size, 1024))).astype(np.int8)}"
    assert judged(f"'inputs': {given}")["passed"]


def test_wrong_use_prints_no_record(tmp_path):
    """The reason is on standard error, and nothing of the task's file on standard output."""
    kernel, task = written(tmp_path, "print('a line')\n" + SOFTMAX % "'reference': lambda x: x * np.nan")
    done = CliRunner().invoke(app, ["judge", str(kernel), "--task", task, "--json", "-"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "its reference gives no finite number" in done.stderr


def test_what_a_file_prints_is_no_part_of_the_record(tmp_path):
    text = "print('a line')\n" + SOFTMAX % "'reference': lambda x: (print('a line'), reference(x))[1]"
    kernel, task = written(tmp_path, text)
    assert json.loads(CliRunner().invoke(app, ["judge", str(kernel), "--task", task, "--json", "-"]).stdout)["passed"]


@pytest.mark.parametrize("rows", ["reference(x)[:-1]", "reference(x).T"])
def test_an_output_of_another_shape_is_judged_by_that_of_the_reference(rows, judged):
    record = judged(f"'reference': lambda x: {rows}")
    shape = "[127, 1024]" if "1" in rows else "[1024, 128]"
    assert (record["passed"], record["stage"]) == (False, "values")
    assert f"the output is [128, 1024] and the reference {shape}" in record["findings"][0]["message"]
    assert record["sentence"].endswith("The shape of an output is the one that the task's reference gives.")
