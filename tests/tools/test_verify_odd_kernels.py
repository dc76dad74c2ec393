"""Kernels and references of odd kinds: what they raise, how many outputs they return, of which type; and wrong use of them."""

import json

import pytest
from verify_call import invoke

ODD = """
from nki_hf.lang import nisa, nki, nl
import numpy as np


def copied(x, dtype=None):
    out = nl.ndarray(x.shape, dtype or x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=x)
    return out


@nki.jit
def one(x):
    return copied(x)


@nki.jit
def three(x):
    return copied(x), copied(x), nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)


@nki.jit
def nothing(x):
    copied(x)


@nki.jit
def widened(x):
    return copied(x, nl.float32)


@nki.jit
def value_error(x):
    raise ValueError("the kernel says no")


@nki.jit
def runtime_error(x):
    raise RuntimeError("the kernel gives up")


@nki.jit
def beyond(x):
    row = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=row, value=500)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out[0:1], src=x.ap(pattern=[[64, 1], [1, 64]], scalar_offset=row, indirect_dim=0))
    return out


@nki.jit
def needs_more(x, factor):
    return copied(x)


def same(x):
    return x


def twice(x):
    return x, x


def thrice(x):
    return x, x, x


def other_names(y):
    return y


def fails(x):
    raise ValueError("the reference says no")
"""


@pytest.fixture
def odd(tmp_path):
    file = tmp_path / "odd.py"
    file.write_text(ODD)
    return file


def odd_call(odd, kernel, reference, *more, dtype="float32"):
    return invoke(f"{odd}:{kernel}", "--arg", f"x=128x64:{dtype}", "--reference", f"{odd}:{reference}", *more)


@pytest.mark.parametrize("kernel", ["value_error", "runtime_error"])
def test_what_the_kernel_raises_is_a_finding_with_its_line(odd, kernel):
    result = odd_call(odd, kernel, "same", "--json", "-")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert {case["verdict"] for case in report["cases"]} == {"error"}
    (fault,) = report["faults"]
    text = "raise ValueError" if kernel == "value_error" else "raise RuntimeError"
    line = 1 + next(i for i, item in enumerate(ODD.split("\n")) if text in item)
    assert (fault["kind"], fault["file"], fault["line"]) == ("error", str(odd), line)
    assert f"({odd}:{line})" in report["cases"][0]["detail"]


@pytest.mark.parametrize(
    ("kernel", "reference", "verdict"),
    [
        ("one", "same", "pass"),
        ("one", "twice", "outputs"),
        ("three", "same", "outputs"),
        ("three", "twice", "outputs"),
        ("nothing", "same", "outputs"),
        ("three", "thrice", "never written"),
    ],
)
def test_as_many_outputs_as_the_reference_has(odd, kernel, reference, verdict):
    report = json.loads(odd_call(odd, kernel, reference, "--json", "-").stdout)
    assert report["cases"][0]["verdict"] == verdict
    assert report["passed"] == (verdict == "pass")


@pytest.mark.parametrize(("more", "verdict"), [((), "dtype"), (("--out-dtype", "float32"), "pass")])
def test_an_output_has_the_type_of_the_first_array_unless_another_is_named(odd, more, verdict):
    report = json.loads(odd_call(odd, "widened", "same", "--json", "-", *more, dtype="bfloat16").stdout)
    assert {case["verdict"] for case in report["cases"]} == {verdict}


def test_json_holds_no_nan_after_a_run_time_index_out_of_bounds(odd):
    def refuse(name):
        raise AssertionError(name)

    report = json.loads(odd_call(odd, "beyond", "same", "--json", "-").stdout, parse_constant=refuse)
    assert report["faults"][0]["details"]["index"] == 500


@pytest.mark.parametrize(
    ("kernel", "reference", "more", "words"),
    [
        ("needs_more", "same", (), "missing a required argument: 'factor'"),
        ("one", "other_names", (), "the reference cannot be"),
        ("one", "fails", (), "the reference raised ValueError: the reference says no"),
        ("one", "same", ("--lnc", "0"), "1 or 2"),
        ("one", "same", ("--lnc", "3"), "1 or 2"),
        ("one", "same", ("--lnc", "-1"), "1 or 2"),
        ("one", "same", ("--rtol", "-1"), "positive"),
        ("one", "same", ("--json", "/no/such/folder/x.json"), "cannot be written"),
        ("one", "same", ("--out-dtype", "int99"), "int99"),
    ],
)
def test_wrong_use_of_kernel_reference_or_option_ends_with_one_sentence(odd, kernel, reference, more, words):
    result = odd_call(odd, kernel, reference, *more)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(("text", "words"), [("def f(:\n", "SyntaxError"), ("import no_such_module\n", "no_such_module")])
def test_a_file_that_cannot_be_imported_is_named_with_the_line(tmp_path, text, words):
    file = tmp_path / "broken.py"
    file.write_text(text)
    result = invoke(f"{file}:f")
    assert result.exit_code == 2
    assert words in result.stderr
    assert f"{file}:1" in result.stderr
