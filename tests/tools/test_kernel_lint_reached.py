"""Values that reach an operand by a way that takes following: loops over tuples, branches, containers, helpers, defaults.

The plants are a matrix: a limit that the documents state (one family for each), and a way in which the value comes there. Each
plant has a right neighbour: the same way with a value that the limit allows. Half of the plants go two ways, one behind the
other. Which rule has to speak, and in which line, is written down with the family.
"""

import itertools
import re
import textwrap
from dataclasses import dataclass

import pytest

from nki_hf.tools.kernel_lint import RULES, lint

KERNEL = """import functools
from dataclasses import dataclass

import nki
import nki.isa as nisa
import nki.language as nl

{pre}

@nki.jit
def kernel(x, y):
    out = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
    a = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
    b = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
    h = nl.ndarray((128, 512), nl.bfloat16, buffer=nl.sbuf)
    ps = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
    nisa.dma_copy(dst=a, src=x[0:128, 0:512])
    nisa.dma_copy(dst=b, src=y[0:128, 0:512])
    nisa.tensor_copy(dst=h, src=b)
    nisa.memset(dst=ps, value=0.0)
{body}
    nisa.dma_copy(dst=out, src=a)
    return out
"""


@dataclass(frozen=True)
class Family:
    """A limit: what breaks it, what keeps it, and the code that uses the value `v`; the rule speaks where `# here` stands."""

    rule: str
    bad: str
    good: str
    use: str


FAMILIES = [
    Family(
        "psum-words", "3", "4",
        "p = nl.ndarray((128, 8), nl.bfloat16, buffer=nl.psum)\nnisa.tensor_copy(dst=p[:, 0:v], src=h[:, 0:v])  # here",
    ),
    Family("partition-start", "40", "64", "nisa.memset(dst=a[v:v + 8, :], value=0.0)  # here"),
    Family(
        "operand-size", "63", "64",
        "nisa.tensor_tensor(dst=a[:, 0:v], data1=a[:, 0:64], data2=b[:, 0:64], op=nl.add)  # here",
    ),
    Family(
        "matmul-size", "255", "256",
        "nisa.nc_matmul(dst=ps[:, 0:v], stationary=h[:, 0:128], moving=h[:, 0:256])  # here",
    ),
    Family("transpose-size", "96", "64", "nisa.nc_transpose(dst=ps[0:v, 0:128], data=a[:, 0:64])  # here"),
    Family("tile-size", "256", "128", "nl.ndarray((v, 4), nl.float32, buffer=nl.sbuf)  # here"),
    Family("reduce-axis", "0", "1", "nisa.tensor_reduce(dst=a[:, 0:1], op=nl.add, data=b, axis=v)  # here"),
    Family(
        "operand-dtype", "nl.float32", "nl.uint8",
        "m = nl.ndarray((128, 512), v, buffer=nl.sbuf)\nnisa.tensor_copy_predicated(dst=a, src=b, predicate=m)  # here",
    ),
    Family(
        "matmul-dtypes", "nl.float32", "nl.bfloat16",
        "w = nl.ndarray((128, 512), v, buffer=nl.sbuf)\nnisa.nc_matmul(dst=ps, stationary=h[:, 0:128], moving=w)  # here",
    ),
    Family(
        "engine-choice", "nisa.engine.scalar", "nisa.engine.vector",
        "nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.add, engine=v)  # here",
    ),
    Family(
        "gpsimd-psum", "nisa.engine.gpsimd", "nisa.engine.vector", "nisa.tensor_copy(dst=a, src=ps, engine=v)  # here"
    ),
    Family(
        "matmul-place", "nl.sbuf", "nl.psum",
        "t = nl.ndarray((128, 256), nl.float32, buffer=v)\n"
        "nisa.nc_matmul(dst=t, stationary=h[:, 0:128], moving=h[:, 0:256])  # here",
    ),
    Family("hbm-operand", "x", "b", "nisa.tensor_scalar(dst=a, data=v, op0=nl.add, operand0=1.0)  # here"),
    Family(
        "hbm-operand", "y[0:128, 0:512]", "b[0:128, 0:512]",
        "nisa.scalar_tensor_tensor(dst=a, data=b, op0=nl.multiply, operand0=2.0, op1=nl.add, operand1=v)  # here",
    ),
    Family("psum-in-dma", "ps", "b", "nisa.dma_copy(dst=x, src=v)  # here"),
    Family("both-in-psum", "ps", "b", "nisa.tensor_tensor(dst=a, data1=ps, data2=v, op=nl.add)  # here"),
    Family(
        "fill-type", "0.5", "1", "n = nl.ndarray((128, 4), nl.int32, buffer=nl.sbuf)\nnisa.memset(dst=n, value=v)  # here"
    ),
    Family("string-buffer", "'psum'", "nl.psum", "nl.ndarray((128, 4), nl.float32, buffer=v)  # here"),
]  # fmt: skip

NUMBERS = [family for family in FAMILIES if family.bad.isdigit()]
NAMES = [family for family in FAMILIES if family.bad[0] in "nx'0" or "[" in family.bad]

Way = tuple[str, str, str]
"""Code of the module, code of the kernel, and the expression that then holds the value; a block may be left open."""


def _constant(family):
    """True if the value may stand outside of the kernel."""
    return family.bad.split("[")[0] not in ("x", "y", "ps")


VALUES = {
    # how a value reaches a name; {0} is it, {1} another one that the limit allows
    "loop": ("", "for v in ({1}, {0}):\n", "v", ">"),
    "least": ("", "v = min({0}, {0} + 600)\n", "v", "number"),
    "most": ("", "v = max({0}, 0)\n", "v", "number"),
    "branch": ("", "v = {1}\nif x.shape[0] > 7:\n    v = {0}\n", "v", ""),
    "other-branch": ("", "if x.shape[1] % 3 == 1:\n    v = {1}\nelse:\n    v = {0}\n", "v", ""),
    "chosen": ("", "v = {0} if x.shape[1] % 3 == 2 else {1}\n", "v", ""),
    "dictionary": ("", "c = {{'good': {1}, 'n': {0}}}\n", "c['n']", ""),
    "dictionary-set": ("", "c = {{}}\nc['n'] = {0}\n", "c['n']", ""),
    "nested": ("", "c = {{'s': ({1}, {{'n': {0}}})}}\n", "c['s'][1]['n']", ""),
    "dictionary-get": ("", "c = {{'n': {0}}}\n", "c.get('n', {1})", ""),
    "list": ("", "c = [{1}]\nc.append({0})\n", "c[-1]", ""),
    "module-tuple": ("C = ({1}, {0})\n", "", "C[1]", "constant"),
    "dataclass": ("@dataclass\nclass C:\n    m: object\n    n: object = None\n", "c = C({1}, n={0})\n", "c.n", ""),
    "field": ("class C(nl.NKIObject):\n    n: object = 0\n", "c = C()\nc.n = {0}\n", "c.n", ""),
    "constructor": ("class C:\n    def __init__(self, n):\n        self.n = n\n", "c = C({0})\n", "c.n", ""),
    "class-attribute": ("class C:\n    m = {1}\n    n = {0}\n", "", "C.n", "constant"),
    "method": ("class C:\n    def n(self):\n        return {0}\n", "c = C()\n", "c.n()", "constant"),
    "results": ("def f(m, n):\n    return m, n\n", "_, v = f({1}, {0})\n", "v", ""),
    "either-result": (
        "def f(s, m, n):\n    if s == 1:\n        return m\n    return n\n",
        "v = f(x.shape[1] % 3, {1}, {0})\n",
        "v",
        "",
    ),
    "default": ("def f(m, n={0}):\n    return n\n", "v = f({1})\n", "v", "constant"),
    "comprehension": ("", "c = [e for e in ({1}, {0})]\n", "c[1]", ""),
    "walrus": ("", "if (v := {0}) is not None:\n    pass\n", "v", ""),
    "augmented": ("", "v = {0} - 2\nv += 2\n", "v", "number"),
    "counted": ("", "v = {0} - 3\nfor i in range(3):\n    v += 1\n", "v", "number"),
    "length": ("", "c = [0] * {0}\n", "len(c)", "number"),
    "enumerated": ("", "for i, v in enumerate(({1}, {0})):\n", "v", ">"),
    "zipped": ("", "for i, v in zip((1, 2), ({1}, {0})):\n", "v", ">"),
    "items": ("", "for k, v in {{'m': {1}, 'n': {0}}}.items():\n", "v", ">"),
    "starred": ("", "m, *c = {1}, {1}, {0}\n", "c[1]", ""),
    "swapped": ("", "m, v = {0}, {1}\nm, v = v, m\n", "v", ""),
    "lambda": ("", "f = lambda n: n\n", "f({0})", ""),
}

USES = {
    # where the use stands; {0} is the value, {1} another one; the body of `use` is the family's
    "twice": ("def use(x, a, b, h, ps, v):\n{use}\n", "use(x, a, b, h, ps, {1})\nuse(x, a, b, h, ps, {0})\n"),
    "dispatch": (
        "def no(x, a, b, h, ps, v):\n    nisa.memset(dst=a, value=0.0)\n\n\ndef use(x, a, b, h, ps, v):\n{use}\n\n\n"
        "TABLE = {{'no': no, 'use': use}}\n",
        "TABLE['use'](x, a, b, h, ps, {0})\n",
    ),
    "partial": ("def use(x, a, b, h, ps, v):\n{use}\n", "go = functools.partial(use, x, a, b, v={0})\ngo(h, ps)\n"),
    "star-arguments": ("def use(x, a, b, h, ps, v):\n{use}\n", "c = (x, a, b, h, ps, {0})\nuse(*c)\n"),
    "keywords": ("def use(x, a, b, h, ps, v):\n{use}\n", "c = {{'v': {0}, 'a': a, 'x': x}}\nuse(b=b, h=h, ps=ps, **c)\n"),
    "variadic": ("def use(*c, **k):\n    x, a, b, h, ps = c\n    v = k['v']\n{use}\n", "use(x, a, b, h, ps, v={0})\n"),
    "inner": ("", "w = {0}\n\ndef use(v):\n{use}\n\nuse(w)\n"),
    "closure": ("", "v = {0}\n\ndef use():\n{use}\n\nuse()\n"),
    "deep": (
        "def use(x, a, b, h, ps, v):\n{use}\n\n\ndef over(t, v):\n    use(t[0], t[1], t[2], t[3], t[4], v)\n",
        "over((x, a, b, h, ps), {0})\n",
    ),
    "object": (
        "class U:\n    def __init__(self, a, b, v):\n        self.a, self.b, self.v = a, b, v\n\n"
        "    def use(self, x, h, ps):\n        a, b, v = self.a, self.b, self.v\n{inner}\n",
        "U(a, b, {0}).use(x, h, ps)\n",
    ),
}


def allowed(family, way):
    kind = VALUES[way][3]
    return (kind != "number" or family in NUMBERS) and (kind != "constant" or _constant(family))


def planted(family, ways, use, value, other):
    """The kernel in which `value` reaches the family's use by `ways`, then by `use` (none: where the kernel stands)."""
    pre, body, depth, expression = "", "", 0, value
    for place, way in enumerate(ways):
        head, lines, named, kind = VALUES[way]
        for name in ("v", "c", "C", "f", "m"):  # each way has names of its own
            head, lines, named = (_renamed(text, name, f"{name}{place}_") for text in (head, lines, named))
        pre += head.format(expression, other) + "\n\n"
        body += textwrap.indent(lines.format(expression, other), "    " * depth)
        expression = named.format(expression, other)
        depth += kind == ">"
    if use:
        head, lines = USES[use]
        blocks = {"use": textwrap.indent(family.use, "    "), "inner": textwrap.indent(family.use, " " * 8)}
        pre += head.format(expression, other, **blocks) + "\n\n"
        body += textwrap.indent(lines.format(expression, other, **blocks), "    " * depth)
    else:
        body += textwrap.indent(f"v = {expression}\n{family.use}", "    " * depth)
    return KERNEL.format(pre=pre, body=textwrap.indent(body, "    "))


def _renamed(text, name, fresh):
    return re.sub(rf"(?<![\w.']){name}(?![\w'])(?!=[^=])", fresh, text) if name in text else text


SINGLE = [(f, (w,), "") for f in FAMILIES for w in VALUES if allowed(f, w)] + [(f, (), u) for f in FAMILIES for u in USES]
DOUBLE = [
    (f, ways, u)
    for f in FAMILIES
    for ways, u in [*((p, "") for p in itertools.permutations(VALUES, 2)), *(((w,), u) for w in VALUES for u in USES)]
    if allowed(f, ways[0]) and all(VALUES[w][3] != "constant" for w in ways[1:]) and all(allowed(f, w) for w in ways)
]
PLANTS = SINGLE[::5] + DOUBLE[:: len(DOUBLE) // 80]


def _found(text, tmp_path):
    compile(text, "kernel.py", "exec")
    (tmp_path / "kernel.py").write_text(text)
    rows = lint(tmp_path / "kernel.py")
    return {(found.rule, found.line) for row in rows for group in row.findings.values() for found in group}


def _name(plant):
    family, ways, use = plant
    return "-".join((family.rule, *ways, use))


@pytest.mark.parametrize("plant", PLANTS, ids=_name)
def test_what_reaches_an_operand_is_judged(plant, tmp_path):
    family, ways, use = plant
    text = planted(family, ways, use, family.bad, family.good)
    here = next(number for number, line in enumerate(text.splitlines(), 1) if "# here" in line)
    assert (family.rule, here) in _found(text, tmp_path)


FORMS = {name for name, rule in RULES.items() if "0.7" not in rule.versions}
"""Constructs that the parser refuses, whatever value they carry."""


@pytest.mark.parametrize("plant", PLANTS, ids=_name)
def test_its_right_neighbour_is_not_refused(plant, tmp_path):
    family, ways, use = plant
    text = planted(family, ways, use, family.good, family.good)
    refused = {rule for rule, _ in _found(text, tmp_path) if RULES[rule].refused}
    assert refused - FORMS == set()
