"""Cross entropy of rows of logits with one label each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from nki_hf.tasks.row_parts import WIDTH, drawn_scores, kept, narrow, other_rows, shifted_exp
from nki_hf.tasks.task import FLOAT, Task

__all__ = ["TASKS"]

Array = np.ndarray[Any, Any]


def _cross_entropy(logits: Array, labels: Array) -> Array:
    return _lse(logits) - _picked(logits, labels)


def _lse(logits: Array) -> Array:
    top = logits.max(-1, keepdims=True)
    return np.asarray(np.log(np.exp(logits - top).sum(-1, keepdims=True)) + top)


def _picked(logits: Array, labels: Array) -> Array:
    return np.take_along_axis(logits, labels.astype(np.int64), -1)


def _restarted(logits: Array, labels: Array, n: int) -> Array:
    """The sum of the logits at the label in each block of `n` columns; 0 where the label is no column of a block."""
    blocks = logits.reshape(len(logits), -1, n).sum(1)
    return np.where(labels < n, _picked(blocks, np.minimum(labels, n - 1)), 0)


def _labelled(size: int, distribution: str, rng: np.random.Generator) -> Mapping[str, Array]:
    """Logits, and labels among which are the first and the last column."""
    labels = rng.integers(0, WIDTH, (size, 1))
    labels[rng.permutation(size)[:2], 0] = (0, WIDTH - 1)[: min(size, 2)]
    return {"logits": drawn_scores(size, distribution, rng), "labels": labels}


def _coarse(logits: Array, labels: Array, also: bool) -> Array:
    """The logits of all columns whose rounded numbers are the label, rounded too or not, added up."""
    columns = np.arange(logits.shape[-1]).astype(ml_dtypes.bfloat16).astype(np.int64)
    wanted = labels.astype(ml_dtypes.bfloat16).astype(np.int64) if also else labels
    return np.asarray((logits * (columns == wanted)).sum(-1, keepdims=True))


def _masked(logits: Array, labels: Array, compare: Callable[..., Array], shifted: bool) -> Array:
    """What a mask over the columns sums, of the logits or of the logits less their maximum, which is added to the sum."""
    top = logits.max(-1, keepdims=True) if shifted else 0.0
    return np.asarray(((logits - top) * compare(np.arange(WIDTH), labels)).sum(-1, keepdims=True) + top)


def _at(logits: Array, columns: Array, shifted: bool) -> Array:
    """The logit of a column; beyond the first and the last 0, or what 0 is once the maximum has been added."""
    beyond = logits.max(-1, keepdims=True) if shifted else 0.0
    there = (columns >= 0) & (columns < WIDTH)
    return np.where(there, _picked(logits, np.clip(columns, 0, WIDTH - 1)), beyond)


_ENTROPY_WRONG: dict[str, Callable[..., Any]] = {
    "the label's logit is not subtracted": lambda logits, labels: _lse(logits),
    "the logsumexp is missing": lambda logits, labels: -_picked(logits, labels),
    "the label's probability is subtracted, not its logit (exp is applied in place)": lambda logits, labels: (
        _lse(logits) - _picked(shifted_exp(logits), labels)
    ),
    "the label's logit is taken after the maximum was subtracted": lambda logits, labels: (
        _cross_entropy(logits, labels) + logits.max(-1, keepdims=True)
    ),
    "the largest logit is subtracted, not the label's": lambda logits, labels: _lse(logits) - logits.max(-1, keepdims=True),
    "the label's logit is added, not subtracted": lambda logits, labels: _lse(logits) + _picked(logits, labels),
    "the label's logit is subtracted twice": lambda logits, labels: _lse(logits) - 2 * _picked(logits, labels),
    "the label itself is subtracted, not its logit": lambda logits, labels: _lse(logits) - labels,
    "the maximum is added twice": lambda logits, labels: _cross_entropy(logits, labels) + logits.max(-1, keepdims=True),
    "the maximum stands in place of the logsumexp": lambda logits, labels: (
        logits.max(-1, keepdims=True) - _picked(logits, labels)
    ),
    "the exponentials are averaged, not summed": lambda logits, labels: (
        _cross_entropy(logits, labels) - np.log(logits.shape[-1])
    ),
    "the sums still hold those of earlier tiles of 128 rows (not cleared)": lambda logits, labels: (
        np.log(kept(shifted_exp(logits).sum(-1, keepdims=True))) + logits.max(-1, keepdims=True) - _picked(logits, labels)
    ),
    **{
        f"the {what} of the {words}": lambda logits, labels, which=which, of=of: (
            (other_rows(_lse(logits), which) if of == "lse" else _lse(logits))
            - (other_rows(_picked(logits, labels), which) if of == "picked" else _picked(logits, labels))
        )
        for words, which in (("first tile of 128 rows", "first"), ("tile of 128 rows before", "before"))
        for what, of in (("logsumexp is that", "lse"), ("label's logit is that", "picked"))
    },
    **{
        f"the logsumexp is that of the last {n} columns only": (
            lambda logits, labels, n=n: _lse(logits[:, -n:]) - _picked(logits, labels)
        )
        for n in (128, 256, 512)
    },
    "the loss is exponentiated (perplexity)": lambda logits, labels: np.exp(_cross_entropy(logits, labels)),
    "the sign is wrong": lambda logits, labels: -_cross_entropy(logits, labels),
    "the maximum is not added back": lambda logits, labels: _cross_entropy(logits, labels) - logits.max(-1, keepdims=True),
    "the logarithm is missing": lambda logits, labels: (
        np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True)
        + logits.max(-1, keepdims=True)
        - _picked(logits, labels)
    ),
    **{
        f"the logit {where} the label's is taken{words}": (
            lambda logits, labels, by=by, shifted=shifted: _lse(logits) - _at(logits, labels + by, shifted)
        )
        for words, shifted in (("", False), (" (of the logits less their maximum)", True))
        for where, by in (("after", 1), ("before", -1))
    },
    **{
        f"the numbers of the columns {also}are rounded to bfloat16 before they are compared (exact to 256)": (
            lambda logits, labels, also=also: _lse(logits) - _coarse(logits, labels, bool(also))
        )
        for also in ("", "and the labels ")
    },
    **{
        f"the labels are rounded to bfloat16 (exact to 256){words}": (
            lambda logits, labels, shifted=shifted: (
                _lse(logits) - _at(logits, narrow(labels.astype(np.float64)).astype(np.int64), shifted)
            )
        )
        for words, shifted in (("", False), (", and the logits less their maximum are summed", True))
    },
    **{
        f"the numbers of the columns {also}are rounded to bfloat16 before they are compared with the label (exact to 256), and "
        "the logits less their maximum are summed": (
            lambda logits, labels, also=also: (
                np.log(shifted_exp(logits).sum(-1, keepdims=True))
                - _coarse(logits - logits.max(-1, keepdims=True), labels, bool(also))
            )
        )
        for also in ("", "and the labels ")
    },
    **{
        f"the logits {which} are summed{words}: {name} stands in place of equal": (
            lambda logits, labels, name=name, shifted=shifted: (
                _lse(logits) - _masked(logits, labels, getattr(np, name), shifted)
            )
        )
        for words, shifted in (("", False), (" (less their maximum)", True))
        for which, name in (
            ("from the label's on", "greater_equal"),
            ("behind the label's", "greater"),
            ("up to the label's", "less_equal"),
            ("before the label's", "less"),
            ("but for the label's", "not_equal"),
        )
    },
    **{
        f"the label is found in the {which} {n} columns only": (
            lambda logits, labels, first=first, last=last: (
                _lse(logits) - np.where((labels >= first) & (labels < last), _picked(logits, labels), 0)
            )
        )
        for n in (128, 256, 512)
        for which, first, last in (("first", 0, n), ("last", WIDTH - n, WIDTH))
    },
    "the masked logits' maximum is taken, not their sum (0 where the label's logit is below)": lambda logits, labels: (
        _lse(logits) - np.maximum(_picked(logits, labels), 0)
    ),
    "the logarithm has base 2 instead of e": lambda logits, labels: (
        np.log2(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
        + logits.max(-1, keepdims=True)
        - _picked(logits, labels)
    ),
    **{
        f"the columns are numbered anew every {n}: labels beyond are not found": (
            lambda logits, labels, n=n: _lse(logits) - _restarted(logits, labels, n)
        )
        for n in (128, 256, 512)
    },
    "the losses are averaged": lambda logits, labels: 0 * labels + _cross_entropy(logits, labels).mean(),
    "the probability is given, not its logarithm": lambda logits, labels: np.exp(-_cross_entropy(logits, labels)),
    **{
        f"the logsumexp is that of the first {n} columns only": (
            lambda logits, labels, n=n: _lse(logits[:, :n]) - _picked(logits, labels)
        )
        for n in (128, 256, 512)
    },
}


TASKS = {
    task.name: task
    for task in (
        Task(
            name="cross_entropy",
            about="logsumexp(logits) - logits[label] per row, logits [size, 1024], labels int32 [size, 1], out [size, 1]",
            arrays=lambda n: {"logits": ((n, WIDTH), FLOAT), "labels": ((n, 1), "int32")},
            reference=_cross_entropy,
            flops=lambda n: 4 * n * WIDTH,
            check=(128, 384),
            ragged=200,
            at=(2048,),
            dtype="float32",
            inputs=_labelled,
            distributions=("late_maximum", "uneven_rows"),
            wrong=_ENTROPY_WRONG,
        ),
    )
}
