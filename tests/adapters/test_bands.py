"""The band of a causal or windowed mask: as bounds, among keys, in chunks; and its formula stands in one place."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_forms import shown

import nki_hf
from nki_hf.adapters.keys import Keys
from nki_hf.problem import Band, chunk_begin


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("ahead", [None, 1, 4])
@pytest.mark.parametrize("q_offset", [-3, 0, 2])
def test_a_band_as_bounds_is_the_band(window, ahead, q_offset):
    keys = Keys(q_offset=q_offset, window=window, ahead=ahead)
    lo, hi = keys.bounds(6, 8, torch.device("cpu"))
    row, key = torch.arange(6)[:, None] + q_offset, torch.arange(8)
    band = torch.ones(6, 8, dtype=torch.bool)
    if window is not None:
        band &= key > row - window
    if ahead is not None:
        band &= key < row + ahead
    assert torch.equal(shown(keys, 6, 8).expand_as(band[None, None]), band[None, None])
    assert torch.equal(shown(Keys().within_band(keys, 6, 8, torch.device("cpu")), 6, 8), band[None, None])
    assert torch.equal(shown(Keys(lo=lo, hi=hi), 6, 8)[0, 0], band)


@pytest.mark.parametrize("one", [(0, None, None), (0, 3, None), (0, 4, 2), (-2, None, 1)])
@pytest.mark.parametrize("other", [(0, 2, 4), (0, None, 1), (-2, 2, None), (3, None, 1)])
def test_one_band_within_another_is_what_both_show_and_stays_a_band_at_one_offset(one, other):
    names = ("q_offset", "window", "ahead")
    within = Keys(**dict(zip(names, one, strict=True))).within_band(
        Band(**dict(zip(names, other, strict=True))), 6, 8, torch.device("cpu")
    )
    row, key = torch.arange(6)[:, None], torch.arange(8)
    both = torch.ones(6, 8, dtype=torch.bool)
    for q_offset, window, ahead in (one, other):
        both &= key > row + q_offset - (window or 100)
        both &= key < row + q_offset + (ahead or 100)
    assert torch.equal(shown(within, 6, 8).expand_as(both[None, None]), both[None, None])
    assert (within.lo is None) == (one[1:] == (None, None) or one[0] == other[0])


OWN_FORMULA = {
    "adapters/paged.py",  # says a window in FlashAttention's words
    "tasks/attention_backward.py",
    "tasks/key_mistakes.py",
    "tasks/attention_reference.py",  # independent references
}


def _edges_computed(tree):
    """Sums and differences with a window or `ahead`: the edges of a band, which `problem.Band` computes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            names = [getattr(side, "attr", getattr(side, "id", "")) for side in (node.left, node.right)]
            if {"window", "ahead", "sliding_window"} & set(names):
                yield ast.unparse(node)


def test_the_formula_of_visibility_stands_in_one_place():
    package = Path(nki_hf.__file__).parent
    found = {}
    for path in sorted(package.rglob("*.py")):
        where = path.relative_to(package)
        kernels = where.parts[0] in ("kernels", "ladder") or where.parts[:2] == ("tasks", "kernels")
        if not kernels and where.parts[0] not in ("timing", "observers"):  # their window is of instructions
            found[str(where)] = list(_edges_computed(ast.parse(path.read_text())))
    assert {where for where, lines in found.items() if lines} == OWN_FORMULA | {"problem.py"}
    assert list(_edges_computed(ast.parse("seen = key > row - self.window"))) == ["row - self.window"]


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.none() | st.integers(1, 6), st.none() | st.integers(1, 6), st.integers(0, 5), st.integers(0, 9), st.integers(1, 4))
def test_a_band_among_keys_and_chunks_is_that_of_its_rows_one_by_one(window, ahead, begin, keys, chunk):
    band, end = Band(window=window, ahead=ahead), begin + keys
    for make in (np.arange, torch.arange):
        rows = make(12)
        lo, hi = band.cut(rows, rows * 0 + begin, rows * 0 + end)
        own = chunk_begin(rows, rows * 0 + begin, chunk)
        for row in range(12):
            seen = [
                key
                for key in range(begin, end)
                if (window is None or key > row - window) and (ahead is None or key < row + ahead)
            ]
            assert list(range(int(lo[row]), int(hi[row]))) == seen
            assert int(own[row]) == max(range(begin, max(row, begin) + 1, chunk))
