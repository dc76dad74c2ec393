"""Diagnosis by a task's own reference with one operation done otherwise: functions, sums, masks, numbers, products, loops."""

import os

import ml_dtypes
import numpy as np
import pytest

from nki_hf.tasks import FLOAT, Task, load_task
from nki_hf.tools.judging import fitted, traced
from nki_hf.tools.judging.findings import KernelFailed
from nki_hf.tools.judging.programs import recorded
from nki_hf.tools.judging.request import no_file
from nki_hf.tools.judging.values import Run, drawn
from tests.tools.test_judge_diagnosis import told


def task_of(reference, shapes, size=256):
    return Task(
        name="own",
        about="",
        arrays=lambda n: {name: (shape, FLOAT) for name, shape in shapes.items()},
        reference=reference,
        flops=lambda n: n,
        check=(size,),
        at=(size,),
        dtype="float32",
    )


def softmax(x):
    power = np.exp(x - x.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)


def lse(x):
    return np.log(np.exp(x).sum(-1, keepdims=True)) * x


def rms(x):
    return x / np.sqrt((x**2).mean(-1, keepdims=True))


def cubic(x):
    return x**3 - 2 * x + 1


def spread(x):
    return (x - x.min(-1, keepdims=True)) / (x.max(-1, keepdims=True) - x.min(-1, keepdims=True))


def gate(x):
    return 1 / (1 + np.exp(-(x + 0.5)))


def capped(x):
    return 3 * np.tanh(x / 3)


def two_products(x, y):
    inner = x * y
    return np.exp(x) @ np.tanh(y) + 0 * inner


def gelu(x):
    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))


def banded(x, y, width=96, ahead=0):
    rows, columns = np.arange(256)[:, None], np.arange(256)
    seen = columns <= rows + ahead if ahead else columns <= rows
    return np.where(seen & (columns > rows - width), x, 0) @ y


def groups(x):
    parts = x.reshape(-1, 4, 64)
    return (parts / np.sqrt((parts**2).mean(-1, keepdims=True) + 1e-6)).reshape(x.shape)


def three_taps(x, y):
    return sum(y[:, j : j + 1] * np.roll(x, j, -1) for j in range(3))


def product(x, y):
    return np.tanh(x @ y)


def states(x):
    out, state = np.empty_like(x), np.zeros(len(x), x.dtype)
    for t in range(x.shape[1]):
        state = 0.9 * state + np.tanh(x[:, t])
        out[:, t] = state
    return out


def unlike(x, y):
    out = np.array(x)
    out[:, 256:] = x[:, 128:256]
    return np.tanh(out @ y)


def bent(x, y):
    scores = x @ y
    return scores * (1 + 0.01 * scores)


def moment(x, y):
    return 0.1 * (x * x) + 0.9 * y


def narrow(x):
    return x.astype(ml_dtypes.bfloat16).astype(x.dtype)


def half_apart(x):
    """Rows that begin 128 elements behind each other, in each tile of 128 rows of 256 elements."""
    flat = x.reshape(-1)
    return np.stack([flat[row // 128 * 128 * 256 + row % 128 * 128 :][:256] for row in range(256)])


ROWS = {"x": (64, 256)}
TWO = {"x": (256, 256), "y": (256, 64)}
CASES = {
    "another base": (softmax, ROWS, lambda x: softmax(x * np.log(2)), ("np.exp(x - x.max(-1, keepdims=True))", "exp2")),
    "another base of a logarithm": (lse, ROWS, lambda x: np.log2(np.exp(x).sum(-1, keepdims=True)) * x, ("1.443", "ln 2")),
    "a maximum for a sum": (lse, ROWS, lambda x: x.max(-1, keepdims=True) * x, (".sum(-1, keepdims=True)`", "is the maximum")),
    "a mean for a sum": (
        lse, ROWS, lambda x: np.log(np.exp(x).mean(-1, keepdims=True)) * x, (".sum(-1, keepdims=True)`", "is the mean"),
    ),
    "a part of the row": (
        lse, ROWS, lambda x: np.log(np.exp(x[:, :-37]).sum(-1, keepdims=True)) * x, ("covers the first 219 of 256 only",),
    ),
    "another row's sum": (
        lse, ROWS, lambda x: np.log(np.roll(np.exp(x).sum(-1, keepdims=True), 1, 0)) * x, ("is that of the row 1 before",),
    ),
    "other axes": (
        groups, ROWS, lambda x: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6), ("mean(-1", "runs over the last two axes"),
    ),
    "a part of a mean": (
        rms, ROWS, lambda x: x / np.sqrt((x[:, :-59] ** 2).sum(-1, keepdims=True) / 256),
        ("sums the first 197 only and divides by 256",),
    ),
    "another exponent": (cubic, ROWS, lambda x: x**2 - 2 * x + 1, ("has exponent 2 in place of 3",)),
    "an addend": (rms, ROWS, lambda x: x / (np.sqrt((x**2).mean(-1, keepdims=True)) + 0.7), ("0.7 added to its result",)),
    "a number in two places": (capped, ROWS, lambda x: 2 * np.tanh(x / 2), ("every 3 of the reference is 2",)),
    "another result in a product": (
        two_products, {"x": (64, 64), "y": (64, 64)}, lambda x, y: np.exp(x) @ (x * y),
        ("`np.exp(x) @ np.tanh(y)`", "`x * y` in place of its second operand"),
    ),
    "the same expression twice": (
        spread, ROWS, lambda x: x / x.max(-1, keepdims=True), ("every `x.min(-1, keepdims=True)`", "is 0"),
    ),
    "another function for a sigmoid": (gate, ROWS, lambda x: np.tanh(x + 0.5), ("is tanh where it is a sigmoid",)),
    "a number for a sum": (
        lse, ROWS, lambda x: np.log(256) * x, (".sum(-1, keepdims=True)`", "is the number of its elements"),
    ),
    "no cube": (gelu, ROWS, lambda x: 0.5 * x * (1 + np.tanh(0.7978845608 * x)), ("0.044715 * x**3", "0 in place of 0.044715")),
    "another number": (
        gelu, ROWS, lambda x: 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.0447 * x**3 * 3))), ("0.1341 in place of 0.04471",),
    ),
    "a factor within": (
        gelu, ROWS, lambda x: 0.5 * x * (1 + np.tanh(0.85 * (x + 0.044715 * x**3))), ("0.85 in place of 0.79788",),
    ),
    "keys beyond the diagonal": (
        banded, TWO,
        lambda x, y: banded(x, y, ahead=5),
        ("`columns <= rows`", "is off by 5"),
    ),
    "another window": (banded, TWO, lambda x, y: banded(x, y, 73), ("`columns > rows - width`", "is off by 23")),
    "a tap for another": (
        three_taps, {"x": (256, 256), "y": (256, 3)},
        lambda x, y: three_taps(x, np.stack([y[:, 0], y[:, 1], y[:, 1]], -1)), ("`y[:, j : j + 1]`", "in turn 2"),
    ),
    "a tile for another": (
        product, {"x": (64, 384), "y": (384, 64)}, unlike, ("`x @ y`", "128 to 255 of its first operand again in"),
    ),
    "a clamp from above": (
        bent, TWO, lambda x, y: (s := np.minimum(x @ y, 20)) * (1 + 0.01 * s), ("`x @ y`", "is clamped to at most 20"),
    ),
    "a clamp on both sides": (
        bent, TWO, lambda x, y: (s := np.clip(x @ y, -12, 12)) * (1 + 0.01 * s), ("`x @ y`", "is clamped to -12 to 12"),
    ),
    "a clamp from below": (
        bent, TWO, lambda x, y: (s := np.maximum(x @ y, -30)) * (1 + 0.01 * s), ("`x @ y`", "is clamped to at least -30"),
    ),
    "a rounded result": (
        rms, ROWS, lambda x: x / np.sqrt(narrow(x**2).mean(-1, keepdims=True)), ("x**2", "rounded to bfloat16"),
    ),
    "results that are rounded one after the other": (
        moment, {"x": (64, 256), "y": (64, 256)}, lambda x, y: narrow(0.1 * narrow(x * x)) + 0.9 * y,
        ("`x * x` and `0.1 * (x * x)` of the reference are rounded",),
    ),
    "half a row's stride": (
        product, {"x": (256, 256), "y": (256, 64)}, lambda x, y: np.tanh(half_apart(x) @ y),
        ("the rows of x are taken half a row apart (128 elements, not 256) in each tile of 128 rows",),
    ),
    "a step of a loop": (
        states, ROWS, lambda x: np.stack([(0.9 ** np.arange(t, -1, -1) * x[:, : t + 1]).sum(-1) for t in range(256)], -1),
        ("np.tanh(x[:, t])", "has no tanh"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_operation_of_the_reference_that_is_done_otherwise_is_named(name):
    reference, shapes, mistake, words = CASES[name]
    found = told(task_of(reference, shapes), mistake)
    assert all(item in found for item in words), found


def test_what_is_no_mistake_of_the_reference_gets_no_cause():
    rng = np.random.default_rng(5)
    found = told(task_of(gelu, ROWS), lambda x: gelu(x) + rng.standard_normal(x.shape))
    assert "of the reference" not in found


@pytest.mark.parametrize(
    "name", ["softmax", "attention_window", "attention_backward", "cross_entropy", "conv1d", "nkibench_mamba"]
)
def test_a_traced_reference_gives_the_same_bits_and_leaves_numpy_as_it_was(name):
    task = load_task(name)
    size = task.check[0]
    arrays = drawn(Run(task=task, size=size, dtype=task.dtype), "normal", 1)
    given = {key: item if item.dtype.kind in "iu" else item.astype(np.float64) for key, item in arrays.items()}
    given |= dict(task.constants(size))
    wanted, found = task.reference(**given), traced.run(task.reference, given, {})
    for one, other in zip(
        wanted if isinstance(wanted, tuple) else (wanted,), found if isinstance(found, tuple) else (found,), strict=True
    ):
        assert type(other) is np.ndarray
        assert np.array_equal(one, other)
    assert traced.sites(task.reference, given)
    assert task.reference.__globals__.get("np", np) is np


def test_a_site_is_one_place_in_the_code_however_often_it_is_reached():
    """An interpreter that specialises code on the way must not make two places of one."""
    found = traced.sites(states, {"x": np.ones((4, 64))})
    assert [site.text for site in found if site.method == "index"] == ["x[:, t]"]


def test_numbers_are_found_from_a_guess_beside_them():
    assert fitted.number(lambda c: abs(c - 1.702), [0.5, 1.0, 4.0], 10.0) == pytest.approx(1.702, abs=2e-3)
    assert fitted.number(lambda c: 9.0, [1.0], 9.0) is None
    assert fitted.count(lambda n: abs(n - 219), 255, 300.0) == 219
    assert fitted.count(lambda n: abs(n + 40), 255, 300.0, signed=True) == -40
    assert fitted.count(lambda n: 1.0, 0, 1.0) is None


def test_what_is_there_but_no_file_fails_and_what_is_not_there_is_wrong_use(tmp_path):
    folder, pipe, loop, gone = (tmp_path / name for name in ("folder.py", "pipe.py", "loop.py", "gone.py"))
    folder.mkdir()
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    for path, words in ((folder, "a folder"), (pipe, "a pipe"), (loop, "a link that leads to no file")):
        error = no_file(str(path))
        assert error is not None
        assert words in error["message"]
        with pytest.raises(KernelFailed, match=words):
            recorded(str(path), "softmax", (), ())
    assert no_file(__file__) is None
    with pytest.raises(ValueError, match="not a file"):
        no_file(str(gone))
