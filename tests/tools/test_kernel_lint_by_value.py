"""Other kinds of values and ways than test_kernel_lint_reached has: tuples with names, members of an Enum, counted places,
tiles of a container, Python that the parser does not evaluate; and sources that would take Python for ever.

Limits as the stubs of nki.isa, the architecture guide and the public parser have them; see the rules.
"""

import textwrap
import time

import pytest
from test_kernel_lint_reached import FORMS, KERNEL

from nki_hf.tools.kernel_lint import RULES, lint, lint_source

KINDS = [
    # rule, module code, what is refused, what is not
    (
        "psum-words",
        "from typing import NamedTuple\nclass P(NamedTuple):\n    rows: int\n    cols: int\n",
        "p = nl.ndarray((128, 16), nl.bfloat16, buffer=nl.psum)\nq = P(4, 3)\nr, c = q\nnisa.memset(dst=p[:, 0:c], value=0.0)",
        "p = nl.ndarray((128, 16), nl.bfloat16, buffer=nl.psum)\nq = P(4, 4)\nr, c = q\nnisa.memset(dst=p[:, 0:c], value=0.0)",
    ),
    (
        "engine-choice",
        "from enum import Enum\nclass W(Enum):\n    A = 1\n    B = 2\n",
        "e = nisa.engine.vector\nw = W.B\nif w == W.B:\n    e = nisa.engine.scalar\n"
        "nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.add, engine=e)",
        "e = nisa.engine.vector\nw = W.A\nif w == W.B:\n    e = nisa.engine.scalar\n"
        "nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.add, engine=e)",
    ),
    (
        "partition-start",
        "",
        "for i in range(4):\n    for j in range(2):\n        s = i * 32 + j * 16\n"
        "        nisa.memset(dst=a[s:s + 16, :], value=0.0)",
        "for i in range(4):\n    for j in range(2):\n        s = i * 32\n        nisa.memset(dst=a[s:s + 16, :], value=0.0)",
    ),
    (
        "partition-start",
        "",
        "i = 0\nwhile True:\n    nisa.memset(dst=a[i:i + 8, :], value=0.0)\n    i += 8\n    if i >= 64:\n        break",
        "i = 0\nwhile True:\n    nisa.memset(dst=a[i:i + 32, :], value=0.0)\n    i += 32\n    if i >= 64:\n        break",
    ),
    (
        "matmul-place",
        "def make(kind):\n    if kind == 'acc':\n"
        "        return nl.ndarray((128, 512), nl.float32, buffer=nl.psum)\n"
        "    return nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)\n",
        "t = make('tmp')\nnisa.nc_matmul(dst=t, stationary=h[:, 0:128], moving=h)",
        "t = make('acc')\nnisa.nc_matmul(dst=t, stationary=h[:, 0:128], moving=h)",
    ),
    (
        "matmul-dtypes",
        "def cast(t, dtype=nl.bfloat16):\n    c = nl.ndarray(t.shape, dtype, buffer=nl.sbuf)\n"
        "    nisa.tensor_copy(dst=c, src=t)\n    return c\n",
        "w = cast(a, a.dtype)\nnisa.nc_matmul(dst=ps, stationary=h[:, 0:128], moving=w)",
        "w = cast(a)\nnisa.nc_matmul(dst=ps, stationary=h[:, 0:128], moving=w)",
    ),
    (
        "operand-size",
        "",
        "parts = [a[:, 0:64], b[:, 0:64], b[:, 64:96]]\n"
        "nisa.tensor_tensor(dst=parts[0], data1=parts[1], data2=parts[-1], op=nl.add)",
        "parts = [a[:, 0:64], b[:, 0:64], b[:, 64:128]]\n"
        "nisa.tensor_tensor(dst=parts[0], data1=parts[1], data2=parts[-1], op=nl.add)",
    ),
    (
        "hbm-operand",
        "class Ctx:\n    def __init__(self, src):\n        self.src = src\n    def go(self, dst):\n"
        "        nisa.tensor_copy(dst=dst, src=self.src[0:128, 0:512])\n",
        "Ctx(x).go(a)",
        "Ctx(b).go(a)",
    ),
    (
        "hbm-operand",
        "",
        "t = nl.ndarray((128, 512), nl.float32, buffer=nl.private_hbm)\nnisa.dma_copy(dst=t, src=a)\n"
        "for s in (b, t):\n    nisa.activation(dst=a, op=nl.exp, data=s)",
        "t = nl.ndarray((128, 512), nl.float32, buffer=nl.private_hbm)\nnisa.dma_copy(dst=t, src=a)\n"
        "for s in (b, a):\n    nisa.activation(dst=a, op=nl.exp, data=s)",
    ),
    (
        "unknown-argument",
        "",
        "kw = {'dst': a, 'value': 0.0}\nkw['colour'] = 3\nnisa.memset(**kw)",
        "kw = {'dst': a, 'value': 0.0}\nnisa.memset(**kw)",
    ),
    (
        "missing-argument",
        "",
        "fill = functools.partial(nisa.memset, value=0.0)\nfill()",
        "fill = functools.partial(nisa.memset, value=0.0)\nfill(dst=a)",
    ),
    (
        "removed-argument",
        "",
        "kw = dict(mask=None)\nnisa.dma_copy(dst=a, src=x[0:128, 0:512], **kw)",
        "kw = dict()\nnisa.dma_copy(dst=a, src=x[0:128, 0:512], **kw)",
    ),
    (
        "builtin",
        "TABLE = {'s': sorted, 'l': len}\n",
        "n = TABLE['s']((2, 1))",
        "n = TABLE['l']((2, 1))",
    ),
    (
        "string-operator",
        "CFG = {'name': 'a%d'}\n",
        "n = CFG['name'] % 3",
        "n = CFG['name'] + 'b'",
    ),
    (
        "string-item",
        "def name():\n    return 'abc'\n",
        "c = name()[0]",
        "c = name()",
    ),
    (
        "dict-key",
        "KEYS = (1, 'a')\n",
        "d = {'a': 1}\nd[KEYS[0]] = 2",
        "d = {'a': 1}\nd[KEYS[1]] = 2",
    ),
    (
        "dictionary-loop",
        "def table():\n    return {'a': 1}\n",
        "for k in table():\n    pass",
        "for k in table().keys():\n    pass",
    ),
    (
        "slice-target",
        "",
        "c = [1, 2]\nlast = -1\nc[last] = 3",
        "c = [1, 2]\nlast = 1\nc[last] = 3",
    ),
    (
        "tile-assignment",
        "",
        "ts = [a, b]\nts[1][0:4, 0:4] = 1.0",
        "ts = [a, b]\nts[1] = a",
    ),
    (
        "wide-integer",
        "N = 65536\n",
        "n = N * N",
        "n = N * 4",
    ),
    (
        "container-method",
        "def new():\n    return []\n",
        "c = new()\nc.insert(0, 1)",
        "c = new()\nc.append(1)",
    ),
    (
        "reduce-axis",
        "AX = {'rows': 0, 'cols': 1}\n",
        "nisa.tensor_reduce(dst=a[:, 0:1], op=nl.add, data=b, axis=(AX['rows'],))",
        "nisa.tensor_reduce(dst=a[:, 0:1], op=nl.add, data=b, axis=(AX['cols'],))",
    ),
    (
        "tile-size",
        "",
        "k = 4\nnl.ndarray((32 * k + 1, 8), nl.float32, buffer=nl.sbuf)",
        "k = 4\nnl.ndarray((32 * k, 8), nl.float32, buffer=nl.sbuf)",
    ),
    (
        "range-fill",
        "def low():\n    return -1e9\n",
        "nisa.range_select(dst=a, on_true_tile=b, comp_op0=nl.greater, comp_op1=nl.less, bound0=a[:, 0:1], "
        "bound1=a[:, 0:1], on_false_value=low())",
        "nisa.tensor_copy(dst=a, src=b)",
    ),
    (
        "psum-address",
        "BANK = 2048\n",
        "nl.ndarray((128, 4), nl.float32, buffer=nl.psum, address=(0, BANK // 2))",
        "nl.ndarray((128, 4), nl.float32, buffer=nl.psum, address=(0, BANK * 2))",
    ),
    (
        "output-buffer",
        "def pick(o, t):\n    return t\n",
        "return pick(out, a)",
        "return pick(a, out)",
    ),
    (
        "view-method",
        "def part(t):\n    return t\n",
        "v = part(a).permute((1, 0))",
        "v = part(a).reshape((128, 512))",
    ),
    (
        "psum-words",
        "def each(n, f):\n    for i in range(n):\n        f(i)\n",
        "p = nl.ndarray((128, 16), nl.bfloat16, buffer=nl.psum)\ndef put(i):\n"
        "    nisa.memset(dst=p[:, i * 3:i * 3 + 2], value=0.0)\neach(3, put)",
        "p = nl.ndarray((128, 16), nl.bfloat16, buffer=nl.psum)\ndef put(i):\n"
        "    nisa.memset(dst=p[:, i * 4:i * 4 + 2], value=0.0)\neach(3, put)",
    ),
    (
        "psum-words",
        "",
        "p = nl.ndarray((128, 16), nl.bfloat16, buffer=nl.psum)\nn = 7\nn, m = divmod(n, 4)\n"
        "nisa.memset(dst=p[:, 0:m], value=0.0)",
        "p = nl.ndarray((128, 16), nl.bfloat16, buffer=nl.psum)\nn = 6\nn, m = divmod(n, 4)\n"
        "nisa.memset(dst=p[:, 0:m], value=0.0)",
    ),
    (
        "partition-start",
        "",
        "w = b.shape[1] // 32\nnisa.memset(dst=a[w:w + 8, :], value=0.0)",
        "w = b.shape[1] // 16\nnisa.memset(dst=a[w:w + 8, :], value=0.0)",
    ),
]


def _refused(tmp_path, pre, body):
    (tmp_path / "kernel.py").write_text(KERNEL.format(pre=pre, body=textwrap.indent(body, "    ")))
    found = {each.rule for row in lint(tmp_path / "kernel.py") for group in row.findings.values() for each in group}
    return {rule for rule in found if RULES[rule].refused}


@pytest.mark.parametrize(("rule", "pre", "bad", "good"), KINDS)
def test_a_value_is_judged_wherever_it_comes_from(rule, pre, bad, good, tmp_path):
    assert rule in _refused(tmp_path, pre, bad)


@pytest.mark.parametrize(("rule", "pre", "bad", "good"), KINDS)
def test_its_right_neighbour_is_not_refused(rule, pre, bad, good, tmp_path):
    found = _refused(tmp_path, pre, good)
    assert rule not in found
    assert found <= FORMS


RIGHT = [
    # what is not known, or what the way that is taken rules out; x[0:128] is read above
    (
        "",
        "n = x.shape[0]\nnisa.memset(dst=a[n:n + 8, :], value=0.0)",
    ),
    (
        "",
        "n = 40\nif x.shape[0] >= 128:\n    n = 64\nnisa.memset(dst=a[n:n + 8, :], value=0.0)",
    ),
    (
        "",
        "w = x.shape[1] % 3\nn = 40 if w == 1 else 64\nif w != 1:\n    nisa.memset(dst=a[n:n + 8, :], value=0.0)",
    ),
    (
        "",
        "n = 3\nassert n % 2 == 0\nnisa.memset(dst=ps.view(nl.bfloat16)[:, 0:n], value=0.0)",
    ),
    (
        "",
        "v = x if x.buffer == nl.sbuf else b\nnisa.tensor_copy(dst=a, src=v)",
    ),
    (
        "",
        "for i in range(x.shape[0] % 7):\n    s = i * 32\n    nisa.memset(dst=a[s:s + 32, :], value=0.0)",
    ),
    (
        "def put(t, r):\n    if r == 3:\n        return\n    nisa.memset(dst=t[32 * r:32 * r + 32, :], value=0.0)\n",
        "put(a, 3)\nput(a, 2)",
    ),
    (
        "",
        "h2 = a.ap(pattern=[[1024, 128], [1, 512]], dtype=nl.bfloat16)\n"
        "nisa.nc_matmul(dst=ps, stationary=h[:, 0:128], moving=h2)",
    ),
]


@pytest.mark.parametrize(("pre", "body"), RIGHT)
def test_what_cannot_be_or_is_not_known_is_not_refused(pre, body, tmp_path):
    assert _refused(tmp_path, pre, body) == set()


ENDLESS = [
    "a = [0]\nfor i in range(64):\n    a += a",
    "a = 'x'\nfor i in range(64):\n    a += a",
    "n = 10 ** 50000000",
    "n = 3\nfor i in range(64):\n    n = n * n",
    "a = [0] * 10**10",
    "f = lambda n: f(n) + f(n)\nf(3)",
    "def g(n):\n    return g(n) + g(n)\ng(1)",
    "a = '%999999999d' % 1",
    "import math\nn = math.factorial(10**7)",
    "a = tuple(range(10**9))",
    "a = x\nfor i in range(50):\n    a = (a, a)\nnisa.memset(dst=a, value=0)",
    "a = []\na.append(a)\nnisa.memset(dst=a, value=a)",
    "a = [(i, j, k) for i in range(999) for j in range(999) for k in range(999)]",
]


@pytest.mark.parametrize("body", ENDLESS)
def test_values_without_bound_are_not_made(body):
    """Python would need more memory or time than there is; the file is only read."""
    head = "from nki_hf.lang import nisa, nki, nl\n\n\n@nki.jit\ndef kernel(x):\n"
    before = time.process_time()
    lint_source(head + textwrap.indent(f"{body}\nreturn x", "    ") + "\n")
    assert time.process_time() - before < 60
