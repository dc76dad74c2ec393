"""Diagnosis by kinds of mistakes that any task has: inputs read wrongly, functions of the right value, wrong parts."""

import numpy as np
import pytest

from nki_hf.sim.dtypes import as_dtype
from nki_hf.tasks import FLOAT, Task
from nki_hf.tasks.attention import TASKS
from nki_hf.tools.judging.diagnosis import named
from nki_hf.tools.judging.relations import factor_words
from nki_hf.tools.judging.values import Checked, Outcome
from nki_hf.tools.verify_judge import judge


def weighted(x, y, weight):
    return np.tanh(x) * weight + y * y * y


def product(a, b):
    return a @ b


WEIGHTED = Task(
    name="weighted",
    about="",
    arrays=lambda n: {"x": ((n, 32), FLOAT), "y": ((n, 32), FLOAT), "weight": ((1, 32), FLOAT)},
    reference=weighted,
    flops=lambda n: n,
    check=(384,),
    at=(384,),
    dtype="float32",
    wrong={"y is not cubed": lambda x, y, weight: np.tanh(x) * weight + y},
)
PRODUCT = Task(
    name="product",
    about="",
    arrays=lambda n: {"a": ((n, 384), FLOAT), "b": ((384, 64), FLOAT)},
    reference=product,
    flops=lambda n: n,
    check=(256,),
    at=(256,),
    dtype="float32",
)


SUMS = Task(
    name="sums",
    about="",
    arrays=lambda n: {"x": ((n, 32), FLOAT)},
    reference=lambda x: (x * x * x).sum(-1, keepdims=True),
    flops=lambda n: n,
    check=(256,),
    at=(256,),
    dtype="float32",
)
GATED = Task(
    name="gated",
    about="",
    arrays=lambda n: {"x": ((4, n, 32), FLOAT), "y": ((4, n, 32), FLOAT)},
    reference=lambda x, y: np.tanh(x) * y,
    flops=lambda n: n,
    check=(256,),
    at=(256,),
    dtype="float32",
    wrong={
        "each head has the gate of the next": lambda x, y: np.tanh(x[[1, 2, 3, 0]]) * y,
        "x is not gated": lambda x, y: x * y,
    },
)
STEP = Task(
    name="step",
    about="",
    arrays=lambda n: {"x": ((n, 32), FLOAT)},
    reference=lambda x: (x + 1e-4 * np.sin(x), np.sin(x)),
    flops=lambda n: n,
    check=(256,),
    at=(256,),
    dtype="float32",
    outputs=("stepped", "slope"),
    wrong={"the slope is that of the cosine": lambda x: (x - 1e-4 * np.cos(x), np.cos(x))},
)


def told(task, mistake, *scales):
    """What is said of a kernel that computes `mistake`, on normal inputs of each scale."""
    size, outcomes = task.check[0], []
    for number, scale in enumerate(scales or (1.0,)):
        rng = np.random.default_rng(number)
        arrays = {
            name: (scale * rng.standard_normal(shape)).astype(np.float32) for name, (shape, _) in task.arrays(size).items()
        }
        exact = {name: array.astype(np.float64) for name, array in arrays.items()}
        references, outputs = (
            [np.asarray(item) for item in (found if isinstance(found, tuple) else (found,))]
            for found in (task.reference(**exact), mistake(**exact))
        )
        outputs = [output.astype(np.float32) for output in outputs]
        judgements = [
            judge(output, reference, tolerance=2e-5, dtype=as_dtype("float32").dtype)
            for output, reference in zip(outputs, references, strict=True)
        ]
        outcomes.append(
            Outcome(
                distribution=f"times {scale}",
                arrays=arrays,
                outputs=outputs,
                references=references,
                judgements=judgements,
                precisions=[],
            )
        )
    return named(task, [Checked(size=size, outcomes=outcomes, depends_on_memory=False, count="", result=None)])


def moved(array, by):
    """Blocks of 128 rows, each in place of the one `by` before, the last ones repeated."""
    index = np.clip(np.arange(len(array)) // 128 + by, 0, len(array) // 128 - 1) * 128 + np.arange(len(array)) % 128
    return array[index]


def columns(array, part, value):
    out = array.copy()
    out[:, part] = value[:, part]
    return out


@pytest.mark.parametrize(
    ("task", "mistake", "words"),
    [
        (WEIGHTED, lambda x, y, weight: weighted(x, y, 1 + 0 * weight), "weight is taken as ones"),
        (WEIGHTED, lambda x, y, weight: weighted(x, 0 * y, weight), "y is taken as zeros"),
        (WEIGHTED, lambda x, y, weight: weighted(-x, y, weight), "x is taken with the other sign"),
        (WEIGHTED, lambda x, y, weight: weighted(y, x, weight), "x and y are exchanged"),
        (WEIGHTED, lambda x, y, weight: weighted(x, x, weight), "x is read in place of y"),
        (
            WEIGHTED,
            lambda x, y, weight: weighted(x, y[np.maximum(np.arange(384) - 1, 0)], weight),
            "each row of y is the one before",
        ),
        (WEIGHTED, lambda x, y, weight: weighted(x, np.repeat(y[:1], 384, 0), weight), "every row of y is row 0"),
        (WEIGHTED, lambda x, y, weight: weighted(x, moved(y, 1), weight), "each block of 128 rows of y is the one after"),
        (
            WEIGHTED,
            lambda x, y, weight: weighted(x, np.tile(y[:128], (3, 1)), weight),
            "every block of 128 rows of y is the first",
        ),
        (
            WEIGHTED,
            lambda x, y, weight: weighted(x, y, np.roll(weight, 16, -1)),
            "the halves of weight's columns are exchanged",
        ),
        (WEIGHTED, lambda x, y, weight: weighted(x, y, weight * weight), "weight is squared"),
        (PRODUCT, lambda a, b: a[:, :256] @ b[:256], "the last 128 columns of a are missing"),
        (PRODUCT, lambda a, b: a @ b + a[:, :128] @ b[:128], "the first 128 columns of a count twice"),
        (PRODUCT, lambda a, b: np.roll(a, -128, 1) @ b, "each block of 128 columns of a is the one after, the last the first"),
        (
            PRODUCT,
            lambda a, b: a @ b[np.r_[128:256, 0:128, 256:384]],
            "blocks 0 and 1 of 128 columns of a are exchanged",  # the same as rows of b
        ),
        (WEIGHTED, lambda x, y, weight: np.maximum(weighted(x, y, weight), 0), "relu of it"),
        (WEIGHTED, lambda x, y, weight: weighted(x, y, weight) ** 2, "its square"),
        (WEIGHTED, lambda x, y, weight: weighted(x, y, weight) + x, "+1 times x"),
        (WEIGHTED, lambda x, y, weight: weighted(x, y, weight) - 3, "-3 everywhere"),
        (WEIGHTED, lambda x, y, weight: weighted(x, y, weight) * weight, "weight is multiplied once too often"),
        (WEIGHTED, lambda x, y, weight: weighted(x, y, weight) * 32**-0.5, "(= 32 ** -0.5)"),
        (WEIGHTED, lambda x, y, weight: np.cumsum(weighted(x, y, weight), -1), "the cumulative sum of the right values"),
        (
            PRODUCT,
            lambda a, b: (a @ b).reshape(4, 64, 64).transpose(0, 2, 1).reshape(256, 64),
            "blocks of 64 x 64, each of which is transposed",
        ),
        # the mistake is in a part alone
        (
            WEIGHTED,
            lambda x, y, weight: columns(weighted(x, y, weight), slice(24, 32), weighted(x, 0 * y, weight)),
            "in columns 24 to 31 y is taken as zeros",
        ),
        (
            WEIGHTED,
            lambda x, y, weight: columns(weighted(x, y, weight), slice(0, 8), weighted(x, np.cbrt(y), weight)),
            "in columns 0 to 7 y is not cubed",
        ),
    ],
)
def test_a_mistake_of_a_kind_that_any_task_has_is_named(task, mistake, words):
    assert words in told(task, mistake)


def test_a_mistake_that_shows_on_some_inputs_only_is_named():
    """At |x| = 1e-4, tanh(x) is x: a kernel that leaves tanh out is right there."""
    task = Task(
        name="small",
        about="",
        arrays=lambda n: {"x": ((n, 256), FLOAT)},
        reference=lambda x: 1 * np.tanh(x),
        flops=lambda n: n,
        check=(128,),
        at=(128,),
        dtype="float32",
        wrong={"tanh is missing": lambda x: x},
    )
    assert "tanh is missing" in told(task, lambda x: x, 1e-4, 1.0)


def test_an_output_that_no_input_reaches_is_told_so():
    fixed = np.random.default_rng(99).standard_normal((384, 32))
    assert "the same whatever the inputs are" in told(WEIGHTED, lambda **_: fixed, 1.0, 2.0)
    assert "the same whatever" not in told(WEIGHTED, lambda x, y, weight: fixed * x, 1.0, 2.0)
    for nothing in (0.0, np.nan):  # which have words of their own
        assert "the same whatever" not in told(WEIGHTED, lambda nothing=nothing, **_: nothing * fixed, 1.0, 2.0)


def test_one_number_per_row_is_not_explained_by_a_factor_of_each_row():
    """Any column is the right one times a factor of each row."""
    rng = np.random.default_rng(3)
    assert "a factor of its own" not in told(SUMS, lambda x: rng.standard_normal((256, 1)))
    assert "a factor of its own" in told(WEIGHTED, lambda x, y, weight: weighted(x, y, weight) * rng.uniform(1, 2, (384, 1)))


def test_the_cause_is_looked_for_in_every_wrong_output():
    """The first output hardly shows what is wrong: it follows from the second."""
    found = told(STEP, lambda x: (x + 1e-4 * np.cos(x), np.cos(x)))
    assert found == "slope equals what comes out if the slope is that of the cosine"


def attention_of(scores):
    """Rows of softmax(scores) in float64; -inf is hidden."""
    power = np.exp(scores - scores.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)


ROWS, KEYS = np.arange(384)[:, None], np.arange(384)
OWN = KEYS // 128 == ROWS // 128


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (
            "only the last two blocks of 128 keys that a row may see",
            lambda s: np.where(KEYS // 128 >= ROWS // 128 - 1, s, -np.inf),
        ),
        ("a row sees its last 128 keys only", lambda s: np.where(KEYS > ROWS - 128, s, -np.inf)),
        ("the scores are capped by 20 * tanh(scores / 20)", lambda s: 20 * np.tanh(s / 20)),
    ],
)
def test_what_attention_forgets_has_the_words_of_its_formula(words, changed):
    """Each wrong reference against the same mistake written out here."""
    task = TASKS["attention_causal"]
    rng = np.random.default_rng(0)
    q, k, v = (3 * rng.standard_normal((384, 128)) for _ in range(3))
    (name,) = [name for name in task.wrong if words in name]
    scores = changed(q @ k.T * 128**-0.5)
    want = attention_of(np.where(KEYS <= ROWS, scores, -np.inf)) @ v
    np.testing.assert_allclose(task.wrong[name](q=q, k=k, v=v), want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("words", "scores"),
    [
        ("the mask is transposed within a row's own 128 keys", lambda s: np.where(OWN, KEYS >= ROWS, KEYS < ROWS)),
        ("hidden scores of a row's own 128 keys are -5 instead", lambda s: np.where(OWN & (KEYS > ROWS), -5.0, s)),
        ("every block of 128 keys of K that a row sees is the row's own", lambda s: s[ROWS, ROWS // 128 * 128 + KEYS % 128]),
    ],
)
def test_what_attention_sees_too_much_has_the_words_of_its_formula(words, scores):
    task = TASKS["attention_causal"]
    rng = np.random.default_rng(0)
    q, k, v = (3 * rng.standard_normal((384, 128)) for _ in range(3))
    (name,) = [name for name in task.wrong if words in name]
    right = q @ k.T * 128**-0.5
    found = scores(right)
    seen = KEYS <= ROWS
    if found.dtype == bool:
        found, seen = right, found
    elif "hidden scores" in words:
        seen = seen | OWN
    want = attention_of(np.where(seen, found, -np.inf)) @ v
    np.testing.assert_allclose(task.wrong[name](q=q, k=k, v=v), want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (2**0.5, "2 ** 0.5"),
        (1 / 384, "1 / 384"),
        (384**0.5, "384 ** 0.5"),
        (np.log(2), "ln 2"),
        (-1, "the sign"),
        (1.2345, ""),
        (383 / 384, "(384 - 1) / 384"),
        (0.9979, ""),
    ],
)
def test_a_factor_is_named_by_the_length_that_it_comes_from(factor, words):
    found = factor_words(factor, (384, 1024))
    assert words in found
    assert bool(found) == bool(words)


def stray(right, found, heads, row):
    """`found` in some heads, the right output in the others, and two rows of head 3 that are zero."""
    out = right.copy()
    out[heads] = found[heads]
    out[3, row : row + 2] = 0
    return out


@pytest.mark.parametrize(("heads", "row"), [([1], 64), ([1, 2], 200), ([0, 2], 0)])
def test_a_few_wrong_rows_of_another_head_are_said_beside_a_mistake_that_explains_the_rest(heads, row):
    shifted = told(GATED, lambda x, y: stray(np.tanh(x) * y, np.tanh(x[[1, 2, 3, 0]]) * y, heads, row))
    assert f"in heads {heads} each head has the gate of the next, but for 2 wrong rows, the first [3, {row}]" in shifted
    noise = np.random.default_rng(7).standard_normal((4, 256, 32))
    unknown = told(GATED, lambda x, y: stray(np.tanh(x) * y, noise, heads, row))
    assert f"is wrong in heads {heads} of [4, 256, 32], and in 2 rows of heads [3]" in unknown


def test_a_mistake_that_explains_all_wrong_rows_needs_no_more_words():
    assert told(GATED, lambda x, y: np.tanh(x[[1, 2, 3, 0]]) * y).endswith("each head has the gate of the next")
    assert told(GATED, lambda x, y: x * y).endswith("x is not gated")
