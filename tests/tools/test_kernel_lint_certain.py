"""What lint takes a size for where a name means another thing elsewhere: nothing that is not so; and what it is sure of.

Each pair of a right kernel and a wrong one differs by what makes it wrong alone.
"""

import textwrap

import pytest

from nki_hf.tools.kernel_lint import Finding, lint_source

HELPER = """import nki
import nki.isa as nisa
import nki.language as nl
{pre}

def head(q, out):
    s, d = q.shape
    t = nl.ndarray((d, 128), nl.float32, buffer=nl.sbuf)
    nisa.dma_transpose(dst=t, src=q[0:128, :])
    nisa.dma_copy(dst=out, src=t)

@nki.jit
def kernel(q, k, n, eps):
    heads, s, d = q.shape
    out = nl.ndarray(q.shape, q.dtype, buffer=nl.shared_hbm)
{body}
    return out
"""

RIGHT = {
    "a condition on an axis of the whole": "if s == 2048:\n    pass\nfor h in range(heads):\n    head(q[h], out[h])",
    "an assertion on an axis of the whole": "assert s == 2048\nhead(q[0], out[0])",
    "parts of parts": "r = k.reshape((4, 2048, d))\nassert k.shape[0] == 2048\nhead(r[0], out[0])",
    "two views of one tensor": "a = q.reshape((s, d))\nif q.shape[0] == 2048:\n    pass\nhead(a, out[0])",
    "another argument": "if k.shape[1] == 2048:\n    pass\nhead(q[0], out[0])",
    "two slices of a shape": (
        "a = q.shape[0:2]\nb = q.shape[1:3]\nassert a[1] == 2048\nt = nl.ndarray((b[1], 4), nl.float32, buffer=nl.sbuf)"
    ),
    "items that an index picks": (
        "sizes = n.sizes\na, b = sizes.pop(), sizes.pop()\nassert a == 2048\nt = nl.ndarray((b, 4), nl.float32, buffer=nl.sbuf)"
    ),
    "a count after each of two loops": (
        "def count(x):\n    c = 0\n    for i in range(x):\n        c += 1\n    return c\n"
        "a, b = count(n), count(s)\nassert a == 2048\nt = nl.ndarray((b, 4), nl.float32, buffer=nl.sbuf)"
    ),
    "a fraction between 0 and 1": (
        "assert eps < 1\nrows = 128 if eps > 0 else 256\nt = nl.ndarray((rows, 4), nl.float32, buffer=nl.sbuf)"
    ),
    "axes that a part leaves open": (
        "part = q[0:1]\nrows = 128 if len(part.shape) > 1 else 256\nt = nl.ndarray((rows, 4), nl.float32, buffer=nl.sbuf)"
    ),
    "an axis counted from the end by a reshape": "a = q.reshape((-1, d))\nt = nl.ndarray((a.shape[0], 4), nl.float32)",
    "what comes after an ellipsis": (
        "a = q[..., 0:2048]\nrows = 256 if q.shape[0] == 1 else 128\nt = nl.ndarray((rows, 4), nl.float32, buffer=nl.sbuf)"
    ),
}
"""Kernels that are right, or may be: lint is not sure of anything in them."""

WRONG = {
    "the same axis of the whole": "assert s == 2048\nt = nl.ndarray((q.shape[1], 4), nl.float32, buffer=nl.sbuf)",
    "the same axis of the same part": (
        "a = q[0]\nassert a.shape[1] == 2048\nt = nl.ndarray((q[0].shape[1], 4), nl.float32, buffer=nl.sbuf)"
    ),
    "the axis of the part that a helper unpacks": "assert q[0].shape[1] == 2048\nhead(q[0], out[0])",
    "a number": "t = nl.ndarray((2048, 4), nl.float32, buffer=nl.sbuf)",
    "after a condition that has nothing to do with it": "if s == 512:\n    pass\nt = nl.ndarray((256, 4), nl.float32)",
    "on both sides of a condition": (
        "if s == 512:\n    w = 4\nelse:\n    w = 8\nt = nl.ndarray((256, 16), nl.float32, buffer=nl.sbuf)"
    ),
}


def sure(body: str, pre: str = "") -> list[Finding]:
    source = HELPER.format(pre=pre, body=textwrap.indent(body, "    "))
    return [found for found in lint_source(source) if found.sure and found.rule in ("tile-size", "matmul-size", "operand-size")]


@pytest.mark.parametrize("what", RIGHT)
def test_a_size_is_not_taken_from_what_another_name_means(what: str) -> None:
    assert sure(RIGHT[what]) == []


@pytest.mark.parametrize("what", WRONG)
def test_a_size_that_is_certain_is_refused(what: str) -> None:
    assert [found.rule for found in sure(WRONG[what])] == ["tile-size"]


def test_what_two_conditions_leave_open_is_not_sure() -> None:
    body = "rows = 128\nif s % 512 == 0:\n    rows = 256\nif s // 512 * 512 != s:\n    t = nl.ndarray((rows, 4), nl.float32)"
    source = HELPER.format(pre="", body=textwrap.indent(body, "    "))
    found = [each for each in lint_source(source) if each.rule == "tile-size"]
    assert [each.sure for each in found] == [False]
