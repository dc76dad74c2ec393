"""Roundings that published kernels have are judged by what an ideal kernel with them gives, and are a warning; others fail."""

import pytest

import nki_hf
from nki_hf.tasks import load_task
from nki_hf.tools.judging.record import Record
from tests.support.judged_kernels import OPTIONS, RIGHT
from tests.support.judged_tasks import RIGHT as TASKS

Q, K = "    nisa.dma_copy(dst=qs, src=q)\n", "    nisa.dma_copy(dst=ks, src=k)\n"
SCALE = "operand0=d**-0.5)"


def scaled(name, power):
    return f"    nisa.tensor_scalar(dst={name}, data={name}, op0=nl.multiply, operand0=d**-{power})\n"


UNSCALED = RIGHT.replace(SCALE, "operand0=1.0)")
SCALED_Q = UNSCALED.replace(Q, Q + scaled("qs", 0.5))
INEXACT = {
    "and accumulators in bfloat16": SCALED_Q.replace(
        "acc = nl.ndarray((T, d), dtype=nl.float32", "acc = nl.ndarray((T, d), dtype=nl.bfloat16"
    ),
    "and row sums in bfloat16": SCALED_Q.replace(
        "sums = nl.ndarray((T, 1), dtype=nl.float32", "sums = nl.ndarray((T, 1), dtype=nl.bfloat16"
    ).replace("total = nl.ndarray((T, 1), dtype=nl.float32", "total = nl.ndarray((T, 1), dtype=nl.bfloat16"),
    "and scores in bfloat16": SCALED_Q.replace(
        "scores = nl.ndarray((T, T), dtype=nl.float32", "scores = nl.ndarray((T, T), dtype=nl.bfloat16"
    ),
    "and the scale once more": RIGHT.replace(Q, Q + scaled("qs", 0.5)),
    "of k alone": UNSCALED.replace(K, K + scaled("ks", 0.5)),
    "of both by the root": UNSCALED.replace(Q, Q + scaled("qs", 0.25)).replace(K, K + scaled("ks", 0.25)),
}
LAYER = TASKS["layernorm"]
MEAN_SQUARE = "operand0=1.0 / width)\n        lost = tile(128, 1)\n        product(lost, mean, mean)\n"
ONE_PASS = LAYER.replace("product(square, centred, centred)", "product(square, t, t)").replace(
    "operand0=1.0 / width, op1=nl.add, operand1=eps)",
    MEAN_SQUARE + "        nisa.tensor_tensor(dst=variance, data1=variance, data2=lost, op=nl.subtract)\n"
    "        nisa.tensor_scalar(dst=variance, data=variance, op0=nl.add, operand0=eps)",
)


@pytest.fixture
def judged(tmp_path):
    def run(text, task, **words):
        assert text not in (RIGHT, LAYER)
        file = tmp_path / "kernel.py"
        file.write_text(text)
        record = nki_hf.judge(file, task, until="values", **words)
        Record.model_validate(record)
        return record

    return run


def _precision(record):
    return [words for words in record["warnings"] if words.startswith("precision: ")]


@pytest.mark.parametrize("seed", [7, 8])
def test_queries_that_are_scaled_and_rounded_again_pass_with_a_warning(judged, seed):
    record = judged(SCALED_Q, "attention_causal", **{**OPTIONS, "seed": seed})
    assert record["passed"], record["sentence"]
    said = _precision(record)
    assert said
    assert all("q is multiplied by the scale and rounded to 16 bits again" in words for words in said)


@pytest.mark.parametrize("how", INEXACT)
def test_no_other_rounding_passes_with_it(judged, how):
    record = judged(INEXACT[how], "attention_causal", **OPTIONS)
    assert not record["passed"], (record["sentence"], _precision(record))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("of k alone", "the keys are rounded to bfloat16 once more after they are scaled"),
        ("of both by the root", "queries and keys are rounded to bfloat16 once more after each is scaled by the root"),
    ],
)
@pytest.mark.parametrize("task", ["attention_causal"])
def test_other_operands_that_are_scaled_and_rounded_are_named(judged, how, said, task):
    """Not as rows that are off by factors of their own: those explain nothing of an error that is rounding."""
    record = judged(INEXACT[how], task, **OPTIONS)
    assert said in record["sentence"], record["sentence"]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_variance_of_one_pass_passes_with_a_warning(judged, seed):
    record = judged(ONE_PASS, "layernorm", seed=seed)
    assert record["passed"], record["sentence"]
    assert any("a mean of squares less a squared mean" in words for words in _precision(record))


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("square = tile(128, width)", "square = nl.ndarray((128, width), nl.bfloat16, buffer=nl.sbuf)"),
        ("operand0=eps)", "operand0=2 * eps)"),
        ("product(lost, mean, mean)", "nisa.memset(dst=lost, value=0.0)"),
    ],
    ids=["squares in bfloat16", "eps twice", "the mean stays in"],
)
def test_a_variance_of_one_pass_that_is_wrong_besides_fails(judged, text, change):
    assert text in ONE_PASS
    assert not judged(ONE_PASS.replace(text, change), "layernorm", seed=1)["passed"]


@pytest.mark.parametrize("task", ["attention", "attention_backward", "attention_gqa", "attention_decode"])
def test_the_rounding_belongs_to_every_task_whose_scores_are_scaled(task):
    assert load_task(task).accepted
    assert not load_task("attention_unscaled").accepted
