"""What is true in a kernel's Python: tensors exist, their values do not; only results of comparisons have a truth."""

from __future__ import annotations

import numpy as np
import pytest

from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl

ZERO, ONE, MIXED = (np.array([[value, 1]], np.float32) for value in (0, 1, 0))
QUESTIONS = {
    "if": lambda t: True if t else False,
    "not": lambda t: not (not t),
    "bool": lambda t: bool(t),
    "and": lambda t: (t and "yes") == "yes",
    "or": lambda t: (t or "no") is t,
    "while": lambda t: _while(t),
    "any": lambda t: any([None, t]),
    "filter": lambda t: [item for item in (None, t) if item] == [t],
    "none": lambda t: t != None and (t == None) is False,  # noqa: E711
}


def _while(t):
    while t:
        return True
    return False


@pytest.mark.parametrize("options", [{}, {"values": False}, {"record": True}])
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_tensor_is_true_whatever_it_holds(question, options):
    """Values do not exist while a kernel is built: `if bias:` asks whether a bias was passed."""
    answers = []

    def kernel(x):
        tile = nl.load(x)
        psum = nl.ndarray((1, 2), nl.float32, buffer=nl.psum)
        unwritten = nl.ndarray((1, 2), nl.float32)
        for t in (x, tile, tile[:, 0:1], nl.copy(tile), nl.zeros((1, 1), nl.int32), psum, unwritten, x.reshape((2, 1))):
            answers.append(QUESTIONS[question](t))
        return x

    for array in (ZERO, ONE, MIXED):
        result = launch(kernel, (array,), options=SimOptions(**options))
        assert (result.program is not None) == ("record" in options)  # no value steered it
    assert answers == [True] * len(answers)
    assert answers


def test_a_branch_on_an_optional_tensor_computes_the_same_with_and_without_zeros(rng):
    """A public MLP kernel asks for its expert index so, which may be 0."""
    data = rng.standard_normal((4, 8)).astype(np.float32)

    def kernel(x, index=None):
        tile = nl.load(x)
        if index:
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, tile)
        return out

    np.testing.assert_array_equal(launch(kernel, (data,)).outputs[0], data)
    for index in (0, 1, 7):
        have = launch(kernel, (data, np.array([[index]], np.int32))).outputs[0]
        np.testing.assert_array_equal(have, 2 * data)


COMPARED = {
    "equal": lambda a, b: nl.equal(a, b),
    "not_equal": lambda a, b: nl.not_equal(a, b),
    "less": lambda a, b: nl.less(a, b),
    "greater_equal": lambda a, b: nl.greater_equal(a, b),
    "logical_and": lambda a, b: nl.logical_and(a, b),
    "logical_not": lambda a, b: nl.logical_not(a),
    "all": lambda a, b: nl.all(nl.equal(a, b), 1),
    "part": lambda a, b: nl.equal(a, b)[:, 0:1],
}
EXPECTED = {
    "equal": lambda a, b: (a == b).all(),
    "not_equal": lambda a, b: (a != b).all(),
    "less": lambda a, b: (a < b).all(),
    "greater_equal": lambda a, b: (a >= b).all(),
    "logical_and": lambda a, b: ((a != 0) & (b != 0)).all(),
    "logical_not": lambda a, b: (a == 0).all(),
    "all": lambda a, b: (a == b).all(),
    "part": lambda a, b: (a == b)[:, 0].all(),
}


@pytest.mark.parametrize("name", COMPARED)
def test_the_result_of_a_comparison_is_true_if_all_its_elements_are(name):
    seen = []

    def kernel(x, y):
        seen.append(bool(COMPARED[name](nl.load(x), nl.load(y))))

    pairs = [(a, b) for a in (ZERO, ONE) for b in (ZERO, ONE, 2 * ONE)]
    for pair in pairs:
        launch(kernel, pair)
    assert seen == [bool(EXPECTED[name](a, b)) for a, b in pairs]


def test_a_comparison_has_no_truth_on_shapes_alone_and_makes_a_launch_not_replayable():
    def kernel(x):
        assert nl.equal(nl.load(x), nl.load(x))
        return x

    with pytest.raises(KernelFault, match="shapes only"):
        launch(kernel, (ONE,), options=SimOptions(values=False))
    result = launch(kernel, (ONE,), options=SimOptions(record=True))
    assert result.program is None
    assert "truth value" in result.run.why_not_replayable


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda t: len(t), r"t\.shape\[0\]"),
        (lambda t: 1.0 in t, "nl.equal"),
        (lambda t: 0 == t, "nl.equal"),
        (lambda t: 0 < t < 1, "nl.less|nl.greater"),
        (lambda t: t == t[:, 0:1] == t, "nl.equal"),
        (lambda t: t in [t[:, 0:1]], "nl.equal"),
    ],
)
def test_questions_about_values_are_faults_with_the_line(use, words):
    def kernel(x):
        use(nl.load(x))

    with pytest.raises(KernelFault, match=words) as caught:
        launch(kernel, (ONE,))
    assert caught.value.record.file == __file__


def test_iteration_over_a_tensor_is_a_type_error():
    def kernel(x):
        for _ in x:
            pass

    with pytest.raises(TypeError, match="not iterable"):
        launch(kernel, (ONE,))


@pytest.mark.parametrize("make", [lambda x: nisa.register_alloc(0), lambda x: _loaded(x), lambda x: nisa.scalar_load(x)])
@pytest.mark.parametrize("use", [lambda r: r == 0, lambda r: r != 0, lambda r: r < 1, lambda r: 0 >= r, lambda r: 1 <= r <= 3])
def test_registers_and_scalars_are_not_compared(make, use):
    """A register that equals nothing would skip a branch without a word."""

    def kernel(x):
        use(make(x))

    with pytest.raises(KernelFault, match=r"compared.*tensor_scalar"):
        launch(kernel, (np.array([[0]], np.int32),))


def _loaded(x):
    register = nisa.register_alloc()
    nisa.register_load(register, x)
    return register


def test_a_register_is_itself_and_not_none():
    def kernel():
        first, second = nisa.register_alloc(1), nisa.register_alloc(1)
        assert first == first
        assert (first == None) is False  # noqa: E711
        assert first in [None, first]
        assert len({first, second}) == 2

    launch(kernel, ())


def test_a_scalar_has_no_truth():
    with pytest.raises(KernelFault, match="not known while the kernel is built"):
        launch(lambda x: bool(nisa.scalar_load(x)), (np.array([[0]], np.int32),))
