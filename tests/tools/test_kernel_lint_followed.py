"""Constructs that only show when names, shapes, element types, counters and arguments are followed; each with a right one.

The limits are those of the stubs of nki.isa, the architecture guide and field reports of the compiler; see the rules.
"""

import textwrap

import pytest

from nki_hf.tools.kernel_lint import RULES, lint

KERNEL = """import nki
import nki.isa as nisa
import nki.language as nl

{pre}

@nki.jit
def kernel(x, y):
    out = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
    a = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
    b = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x[0:128, 0:512])
    nisa.dma_copy(dst=b, src=y[0:128, 0:512])
    nisa.tensor_copy(dst=a, src=b)
{body}
    nisa.dma_copy(dst=out, src=a)
    return out
"""

SUM = "top = nl.ndarray((128, 1), nl.float32, buffer=nl.sbuf)\n"
HALF = "h = nl.ndarray((128, {0}), nl.float16, buffer=nl.sbuf)\nnisa.memset(dst=h, value=0.0)\n"
PSUM = "ps = nl.ndarray((128, 16), nl.float32, buffer=nl.psum)\nnisa.memset(dst=ps, value=0.0)\n"
FILL = "def fill(shape, kind, where):\n    t = nl.ndarray(shape, kind, buffer=where)\n    nisa.memset(dst=t, value=0.0)"
NEW = "def new(where):\n    return nl.ndarray((128, 512), nl.float32, buffer=where)"
OPERANDS = (
    "k = nl.ndarray((128, 128), nl.bfloat16, buffer=nl.sbuf)\nnisa.memset(dst=k, value=0.0)\n"
    "v = nl.ndarray((128, 512), nl.bfloat16, buffer=nl.sbuf)\nnisa.memset(dst=v, value=0.0)\n"
)
SCALE = "def scale(dst, source):\n    nisa.activation(dst=dst, op=nl.exp, data={0})"
TURN = "def turn(t, rows):\n    if rows % 2 == {0}:\n        nisa.memset(dst=t[rows * 8:rows * 8 + 8, :], value=0.0)"

FOLLOWED = [
    # rule, module and body of what is refused, module and body of what is not
    ("hbm-operand", ("", "nisa.activation(dst=a, op=nl.exp, data=x)"), ("", "nisa.activation(dst=a, op=nl.exp, data=b)")),
    ("hbm-operand", (SCALE.format("source[0:128, :]"), "scale(a, x)"), (SCALE.format("source[0:128, :]"), "scale(a, b)")),
    (
        "hbm-operand",
        ("", "part = y\nnisa.tensor_tensor(dst=a, data1=a, data2=part, op=nl.add)"),
        ("", "part = b\nnisa.tensor_tensor(dst=a, data1=a, data2=part, op=nl.add)"),
    ),
    (
        "reduce-axis",
        ("AXES = (0, 1)", SUM + "axes = AXES\nnisa.tensor_reduce(dst=top, op=nl.add, data=a, axis=axes)"),
        ("AXES = (1,)", SUM + "axes = AXES\nnisa.tensor_reduce(dst=top, op=nl.add, data=a, axis=axes)"),
    ),
    (
        "psum-words",
        ("", PSUM + "half = ps.view(nl.bfloat16)\nnisa.memset(dst=half[:, 1:3], value=0.0)"),
        ("", PSUM + "half = ps.view(nl.bfloat16)\nnisa.memset(dst=half[:, 2:6], value=0.0)"),
    ),
    (
        "psum-words",
        ("", HALF.format(5) + "ps = nl.ndarray(h.shape, h.dtype, buffer=nl.psum)\nnisa.tensor_copy(dst=ps, src=h)"),
        ("", HALF.format(6) + "ps = nl.ndarray(h.shape, h.dtype, buffer=nl.psum)\nnisa.tensor_copy(dst=ps, src=h)"),
    ),
    ("psum-words", (FILL, "fill((128, 3), nl.float16, nl.psum)"), (FILL, "fill((128, 3), nl.float32, nl.psum)")),
    (
        "matmul-place",
        (NEW, OPERANDS + "p = new(nl.psum)\ns = new(nl.sbuf)\nnisa.nc_matmul(dst=s, stationary=k, moving=v)"),
        (NEW, OPERANDS + "p = new(nl.psum)\ns = new(nl.sbuf)\nnisa.nc_matmul(dst=p, stationary=k, moving=v)"),
    ),
    (
        "matmul-dtypes",
        (NEW, OPERANDS + "p = new(nl.psum)\nnisa.nc_matmul(dst=p, stationary=k, moving=a)"),
        (NEW, OPERANDS + "p = new(nl.psum)\nnisa.nc_matmul(dst=p, stationary=k, moving=v)"),
    ),
    (
        "partition-start",
        ("", "i = 0\nwhile i < 128:\n    nisa.memset(dst=a[i:i + 16, :], value=0.0)\n    i += 16"),
        ("", "i = 0\nwhile i < 128:\n    nisa.memset(dst=a[i:i + 32, :], value=0.0)\n    i += 32"),
    ),
    (
        "partition-start",
        ("ROWS = slice(16, 48)", "nisa.tensor_copy(dst=a[ROWS, :], src=b[0:32, :])"),
        ("ROWS = slice(32, 64)", "nisa.tensor_copy(dst=a[ROWS, :], src=b[0:32, :])"),
    ),
    ("partition-start", (TURN.format(1), "turn(a, 5)"), (TURN.format(0), "turn(a, 5)")),
    (
        "gpsimd-psum",
        ("WHO = nisa.engine", PSUM + "who = WHO.gpsimd\nnisa.tensor_copy(dst=a[:, 0:16], src=ps, engine=who)"),
        ("WHO = nisa.engine", PSUM + "who = WHO.vector\nnisa.tensor_copy(dst=a[:, 0:16], src=ps, engine=who)"),
    ),
    (
        "operand-size",
        ("", "nisa.tensor_tensor(dst=a, data1=a, data2=b[0:64, :], op=nl.add)"),
        ("", "nisa.tensor_tensor(dst=a[0:64, :], data1=a[0:64, :], data2=b[0:64, :], op=nl.add)"),
    ),
    (
        "operand-size",
        ("", "nisa.tensor_scalar(dst=a, data=a, op0=nl.add, operand0=b[:, 0:2])"),
        ("", "nisa.tensor_scalar(dst=a, data=a, op0=nl.add, operand0=b[:, 0:1])"),
    ),
    (
        "operand-place",
        ("", PSUM + "nisa.tensor_partition_reduce(dst=ps[0:1, :], op=nl.add, data=b[:, 0:16])"),
        ("", "nisa.tensor_partition_reduce(dst=a[0:1, 0:16], op=nl.add, data=b[:, 0:16])"),
    ),
    ("operand-size", ("", "nisa.max8(dst=b[:, 0:4], src=a)"), ("", "nisa.max8(dst=b[:, 0:8], src=a)")),
    (
        "named-lambda",
        ("even = lambda n: n + n % 2", "nisa.memset(dst=a[:, 0:even(7)], value=0.0)"),
        ("even = lambda n: n + n % 2\n\n\ndef host(n):\n    return even(n)", "nisa.memset(dst=a[:, 0:8], value=0.0)"),
    ),
    (
        "coroutine",
        ("async def clear(t):\n    nisa.memset(dst=t, value=0.0)", "clear(a)"),
        ("async def serve(t):\n    return t", "nisa.memset(dst=a, value=0.0)"),
    ),
]


def _rules(tmp_path, pre, body):
    (tmp_path / "kernel.py").write_text(KERNEL.format(pre=pre, body=textwrap.indent(body, "    ")))
    rows = lint(tmp_path / "kernel.py")
    return {found.rule for row in rows for group in row.findings.values() for found in group if RULES[found.rule].refused}


@pytest.mark.parametrize(("rule", "bad", "good"), FOLLOWED)
def test_what_is_followed_is_found(rule, bad, good, tmp_path):
    assert rule in _rules(tmp_path, *bad)


@pytest.mark.parametrize(("rule", "bad", "good"), FOLLOWED)
def test_its_right_neighbour_is_not(rule, bad, good, tmp_path):
    assert _rules(tmp_path, *good) == set()


RIGHT = [
    ("def load(dst, t):\n    s = dst\n    t = s\n    nisa.activation(dst=dst, op=nl.exp, data=t)", "load(a, x)"),
    ("def pick(dst, s):\n    if s.buffer == nl.sbuf:\n        nisa.tensor_copy(dst=dst, src=s)", "pick(a, x)"),
    (
        "def put(ps, s):\n    if s.dtype == nl.bfloat16:\n        nisa.memset(dst=ps[:, 0:3], value=0.0)",
        "ps = nl.ndarray((128, 8), nl.bfloat16, buffer=nl.psum)\nput(ps, b)",
    ),
    (
        "",
        "i = 0\nwhile i < 128:\n    if i == 0:\n        break\n    nisa.memset(dst=a[i + 8:i + 16, :], value=0.0)\n    i += 8",
    ),
    ("", "ps = nl.ndarray((128, 8), nl.bfloat16, buffer=nl.psum)\nh = ps[:, 1:5]\nnisa.memset(dst=h[:, 1:3], value=0.0)"),
]


@pytest.mark.parametrize(("pre", "body"), RIGHT)
def test_what_is_not_known_is_not_refused(pre, body, tmp_path):
    assert _rules(tmp_path, pre, body) == set()


def test_an_async_kernel_is_kernel_code(tmp_path):
    (tmp_path / "kernel.py").write_text(KERNEL.format(pre="", body="").replace("def kernel", "async def kernel"))
    assert {found.rule for row in lint(tmp_path / "kernel.py") for found in row.findings["0.6"]} == {"coroutine"}


def test_dictionaries_of_two_kernels_may_have_one_key(tmp_path):
    """`acc` lies in PSUM in one kernel and in SBUF in the other: a matrix product may write the first alone."""
    body = OPERANDS + "w = {{'acc': nl.ndarray((128, 512), nl.float32, buffer=nl.{0})}}\n"
    body += "nisa.nc_matmul(dst=w['acc'], stationary=k, moving=v)"
    for name, where in (("one", "psum"), ("two", "sbuf")):
        text = KERNEL.format(pre="", body=textwrap.indent(body.format(where), "    "))
        (tmp_path / f"{name}.py").write_text(text)
    rows = {row.file: row for row in lint(tmp_path)}
    assert {found.rule for found in rows["two.py"].findings["0.7"]} == {"matmul-place"}
    assert rows["one.py"].clean


@pytest.mark.parametrize("asked", ["import ops\n", "import ops as ops\n"])
def test_helpers_are_reached_through_their_package(asked, tmp_path):
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "__init__.py").write_text("from . import steps\n")
    helper = "import nki.isa as nisa\n\n\ndef clear(t):\n    raise ValueError\n"
    (tmp_path / "ops" / "steps.py").write_text(helper)
    (tmp_path / "kernel.py").write_text(asked + KERNEL.format(pre="", body="    ops.steps.clear(a)"))
    rows = {row.file: row for row in lint(tmp_path / "kernel.py")}
    assert {found.rule for found in rows["ops/steps.py"].findings["0.6"]} == {"raise"}
