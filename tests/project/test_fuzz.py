"""Random problems and random kernels: a sample of fixed seeds and the sweeps of many.

Also how the search is called, what it keeps, and how the model of a kernel rounds.
"""

import dataclasses

import numpy as np
import pytest
from fuzz_seeds import nothing_wrong

from tools.fuzz import serving_problems
from tools.fuzz.attention_problems import PLAIN, draw_problem
from tools.fuzz.kernel_model import rounded
from tools.fuzz.search import KINDS, main, search


@pytest.mark.parametrize("first", [0, 10, 20])
def test_random_problems(first):
    nothing_wrong("attention", first, 10)


@pytest.mark.parametrize("first", [0, 5])
def test_random_problems_whose_bias_has_a_gradient(first):
    nothing_wrong("biases", first, 5)


def test_random_bands():
    nothing_wrong("bands", 4, 4)


@pytest.mark.parametrize(
    ("kind", "first", "count"), [("forms", 0, 15), ("packs", 0, 4), ("decodes", 0, 4), ("ways", 0, 4), ("extras", 0, 12)]
)
def test_random_problems_of_other_forms(kind, first, count):
    nothing_wrong(kind, first, count)


@pytest.mark.parametrize("first", [0, 20])
def test_random_kernels(first):
    nothing_wrong("kernels", first, 20)


@pytest.mark.parametrize("first", [0, 220])
def test_random_kernels_of_more_instructions(first):
    nothing_wrong("wide", first, 20)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3000, 100))
def test_many_random_problems(first):
    nothing_wrong("attention", first, 100)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(10000, 12000, 100))
def test_many_random_problems_whose_bias_has_a_gradient(first):
    nothing_wrong("biases", first, 100)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 400, 50))
def test_many_random_bands(first):
    nothing_wrong("bands", first, 50)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "first"),
    [
        *(("forms", first) for first in range(0, 2000, 100)),
        *(("packs", first) for first in range(0, 400, 50)),
        *(("decodes", first) for first in range(0, 400, 50)),
        *(("ways", first) for first in range(0, 200, 25)),
        *(("extras", first) for first in range(0, 2000, 100)),
    ],
)
def test_many_random_problems_of_other_forms(kind, first):
    nothing_wrong(kind, first, {"forms": 100, "extras": 100, "ways": 25}.get(kind, 50))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 5000, 250))
def test_many_random_kernels_of_more_instructions(first):
    nothing_wrong("wide", first, 250)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 6000, 250))
def test_many_random_kernels(first):
    nothing_wrong("kernels", first, 250)


@pytest.mark.parametrize(
    "words",
    [
        ["--minutes", "nan"],
        ["--minutes", "junk"],
        ["--count", "0"],
        ["--first", "-5"],
        ["--folder", "Makefile"],
        ["--only", "junk"],
    ],
)
def test_a_search_of_nothing_is_refused(words, capsys):
    with pytest.raises(SystemExit) as end:
        main([*words, "--count", "1"] if words[0] != "--count" else words)
    assert end.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_the_model_rounds_to_nearest_even_and_saturates():
    values = np.array([0.5, 1.5, -2.5, 300, -1, np.nan, np.inf])
    assert rounded(values, np.uint8).tolist() == [0, 2, 0, 255, 0, 0, 255]
    assert rounded(values, np.int8).tolist() == [0, 2, -2, 127, -1, 0, 127]


def test_a_failure_that_does_not_happen_again_is_kept_as_it_was(tmp_path, monkeypatch):
    answers = iter(["out errs by 1"])
    kind = dataclasses.replace(KINDS["attention"], check=lambda case: next(answers, ""))
    monkeypatch.setitem(KINDS, "attention", kind)
    found = search(["attention"], 5, tmp_path, count=2, say=lambda line: None)
    assert (found.tried["attention"], len(found.files)) == (2, 1)
    text = found.files[0].read_text()
    assert text.startswith('"""Not each time: out errs by 1.')
    case = {}
    exec(text[text.index("CASE = ") : text.index("why = ")], {"inf": float("inf"), "nan": float("nan")}, case)
    assert {**PLAIN, **case["CASE"]} == draw_problem(5)


SERVED = pytest.mark.skipif(bool(serving_problems.unusable()), reason=serving_problems.unusable() or "-")


@SERVED
@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 48, 8))
def test_many_random_requests_to_continuous_batching(first):
    nothing_wrong("serving", first, 8)
