"""Refused constructs, each in the smallest kernel that holds it: in the kernel, in a helper, in a helper of another module.

The source of each is the public parser's (leanprover/KLR) or the stubs'; see the rules.
"""

import pytest
from planted_kernels import HEAD, HELPER, KERNEL, planted, rules_of

from nki_hf.tools.kernel_lint import RULES

PLANTED_FORMS = [
    # rule, what is planted; four blanks are added to its further lines
    ("inner-function", "def f():\n    pass"),
    ("inner-class", "class A:\n    pass"),
    ("lambda", "f = lambda a: a"),
    ("lambda", "f = lambda a=1, *b: a"),
    ("comprehension", "a = [i for i in range(3)]"),
    ("comprehension", "a = [nl.ndarray((1, 1), nl.float32) for _ in range(2)]"),
    ("comprehension", "a = {'k': i for i in range(3)}"),
    ("generator", "a = tuple(i for i in range(3))"),
    ("generator", "yield tile"),
    ("generator", "yield from tile"),
    ("walrus", "if (n := 3) > 2:\n    pass"),
    ("delete", "a = 1\ndel a"),
    ("match", "match scale:\n    case 1:\n        pass"),
    ("raise", "if scale:\n    raise ValueError('x')"),
    ("try", "try:\n    pass\nexcept ValueError:\n    pass"),
    ("try", "try:\n    pass\nfinally:\n    pass"),
    ("try", "try:\n    pass\nexcept* ValueError:\n    pass"),
    ("nested-import", "import math"),
    ("nested-import", "from math import pi"),
    ("outer-name", "global TILE"),
    ("format-spec", "a = f'{scale:.2f}'"),
    ("format-spec", "assert scale > 0, f'{scale:>4}'"),
    ("starred", "a = (1, *x.shape)"),
    ("starred", "a, *b = x.shape"),
    ("starred", "print(*x.shape)"),
    ("keyword-expansion", "nisa.memset(**{'dst': tile, 'value': 0.0})"),
    ("keyword-expansion", "a = {'a': 1}\nb = {**a}"),
    ("tuple-loop", "for a, b in ((1, 2), (3, 4)):\n    pass"),
    ("tuple-loop", "for i, b in enumerate((1, 2)):\n    pass"),
    ("tuple-loop", "for (a, b), c in (((1, 2), 3),):\n    pass"),
    ("tuple-loop", "a = [0]\nfor a[0] in range(2):\n    pass"),
    ("tuple-target", "a = [0]\na[0], b = 1, 2"),
    ("tuple-target", "a = {}\na['x'], b = 1, 2"),
    ("tuple-target", "b, (c, scale.x) = 1, (2, 3)"),
    ("list-target", "[a, b] = 1, 2"),
    ("several-targets", "a = [0, 0]\na[0] = a[1] = 3"),
    ("loop-else", "for i in range(2):\n    pass\nelse:\n    a = 1"),
    ("loop-else", "a = 0\nwhile a < 2:\n    a += 1\nelse:\n    a = 0"),
    ("with", "with open('f'):\n    pass"),
    ("with", "with nl.no_reorder() as block:\n    pass"),
    ("with", "with nl.no_reorder(), nl.no_reorder():\n    pass"),
    ("with", "with nl.no_reorder(1):\n    pass"),
    ("matmul-operator", "a = tile @ tile"),
    ("matmul-operator", "a = scale\na @= scale"),
    ("chained-membership", "a = 1 < scale in (1, 2)"),
    ("constant-kind", "a = b'bytes'"),
    ("constant-kind", "a = 2j"),
    ("set", "a = {1, 2}"),
    ("set", "a = set((1, 2))"),
    ("set", "a = {i for i in range(2)}"),
    ("builtin", "a = sorted((2, 1))"),
    ("builtin", "a = zip((1,), (2,))"),
    ("builtin", "for pair in enumerate((1, 2)):\n    pass"),
    ("builtin", "a = map(str, (1, 2))"),
    ("builtin", "a = filter(None, (1, 2))"),
    ("builtin", "a = reversed((1, 2))"),
    ("builtin", "a = sum((1, 2))"),
    ("builtin", "a = any((True, False))"),
    ("builtin", "a = all((True, False))"),
    ("builtin", "a = round(1.5)"),
    ("builtin", "a = getattr(tile, 'shape')"),
    ("builtin", "a = hasattr(tile, 'shape')"),
    ("builtin", "a = format(scale, '.2f')"),
    ("builtin", "a = pow(2, 3)"),
    ("builtin", "a = iter((1, 2))"),
    ("builtin", "a = callable(scale)"),
    ("builtin", "a = repr(scale)"),
    ("least-of-many", "a = min(1, 2, 3)"),
    ("least-of-many", "a = max((1, 2), key=abs)"),
    ("string-method", "a = 'x{}'.format(scale)"),
    ("string-method", "a = scale.upper()"),
    ("string-method", "a = ','.join(('a', 'b'))"),
    ("string-operator", "a = '%d' % 3"),
    ("string-operator", "a = 'ab' * 2"),
    ("string-item", "a = 'abc'[0]"),
    ("container-method", "a = {'k': []}\na['k'].insert(0, 1)"),
    ("slice-target", "a = [1, 2]\na[0:1] = [3]"),
    ("slice-target", "a = [1, 2]\na[-1] = 3"),
    ("slice-target", "tile[0:1, 0:1] = scale"),
    ("decorator", None),
    ("class-body", None),
    ("container-method", "a = [1]\na.insert(0, 2)"),
    ("container-method", "a = [1]\na.sort()"),
    ("container-method", "a = {'k': 1}\na.update({'l': 2})"),
    ("container-method", "a = {'k': 1}\na.popitem()"),
    ("tile-assignment", "a = nl.ndarray((1, 8), nl.float32)\na[0] = 1.0"),
    ("tile-assignment", "a = nl.ndarray((1, 8), nl.float32)\nb = a + 1.0"),
    ("dict-key", "a = {1: 2}"),
    ("identity", "a = scale is True"),
    ("wide-integer", "a = 1 << 3\nb = 99999999999"),
    ("environment", "import os\na = os.environ['X']"),
    ("async", None),
    # The same in spellings that are seldom written.
    ("comprehension", "a = [x for (m, n) in ((1, 2),) for x in (m, n)]"),
    ("comprehension", "a = tile.shape[[i for i in range(2)][0]]"),
    ("comprehension", "assert [i for i in range(3)]"),
    ("starred", "(*a, b) = x.shape"),
    ("starred", "for i in (*x.shape, 1):\n    pass"),
    ("tuple-loop", "for *a, b in ((1, 2),):\n    pass"),
    ("tuple-loop", "for [a, b] in ((1, 2),):\n    pass"),
    ("tuple-loop", "for a, b in ((1, 2),):\n    pass\nelse:\n    pass"),
    ("tuple-loop", "i = 0\nwhile i < 1:\n    for k, v in {'a': 1}.items():\n        i += v"),
    ("tuple-target", "a = [0, 1]\na[0], a[1] = a[1], a[0]"),
    ("tuple-target", "a = [0]\nb = (c, a[0]) = 1, 2"),
    ("walrus", "n = 3\nwhile (n := n - 1) > 0:\n    pass"),
    ("walrus", "nisa.memset(dst=tile, value=(m := 0.0))"),
    ("with", "with nl.no_reorder() as (a, b):\n    pass"),
    ("lambda", "a = (lambda: 1)()"),
    ("lambda", "f = lambda a, b=(lambda: 2): a"),
    ("format-spec", "a = f'{scale!r:>10}'"),
    ("format-spec", "a = f'{scale:{4}}'"),
    ("format-spec", "print(f'{f\"{scale:.1f}\"}')"),
    ("delete", "a = {'k': 1}\nfor i in range(1):\n    del a['k']"),
    ("raise", "for i in range(1):\n    raise ValueError('x') from None"),
    ("builtin", "a = dict(zip(('a',), (2,)))"),
    ("generator", "a = max(i for i in range(3))"),
    ("match", "match x.shape:\n    case (a, b) if a > 1:\n        pass"),
    ("inner-function", "if scale:\n    def f(a=1):\n        return a"),
]

WHOLE = {
    "decorator": (
        HEAD + "import functools\n" + HELPER.replace("\ndef", "\n@functools.cache\ndef") + KERNEL,
        "helper(x, out, tile, scale)",
    ),
    "class-body": (
        HEAD + "\n\nclass Sizes(nl.NKIObject):\n    n: int = 1\n    if n:\n        m: int = 2\n" + KERNEL,
        "a = Sizes()",
    ),
    "lambda": (HEAD + HELPER.replace("scale)", "scale=lambda: 1)") + KERNEL, "helper(x, out, tile, scale)"),
    "async": (HEAD + HELPER.replace("# BODY", "async def f():\n        pass") + KERNEL, "helper(x, out, tile, scale)"),
}

BODIES = [(rule, body) for rule, body in PLANTED_FORMS if body is not None]


@pytest.mark.parametrize("place", ["kernel", "helper", "module"])
@pytest.mark.parametrize(("rule", "body"), BODIES)
def test_each_planted_construct_is_found_wherever_it_stands(rule, body, place, tmp_path):
    file, wanted = planted(place, body, tmp_path)
    assert rule in rules_of(file, wanted)


@pytest.mark.parametrize("rule", WHOLE)
def test_what_stands_outside_of_a_body_is_found(rule, tmp_path):
    text, body = WHOLE[rule]
    (tmp_path / "kernel.py").write_text(text.replace("# BODY", body))
    assert rule in rules_of(tmp_path / "kernel.py")


ALLOWED = [
    "a, b = 1, 2",
    "a, (b, c) = 1, (2, 3)",
    "a = b = 3",
    "a = [None] * 4\na[1 % 5] = 2",
    "a = {'k': 1}\na['k'] = 2",
    "a = {}\nb = a.get('k')",
    "a = []\na.append(1)\nb = a.pop()",
    "for i in range(2):\n    continue",
    "for i in (1, 2):\n    break",
    "a = 0\nwhile a < 2:\n    a += 1",
    "with nl.no_reorder():\n    nisa.memset(dst=tile, value=0.0)",
    "a = 1 if scale else 2",
    "a = 0 < scale < 3",
    "a = 1 in (1, 2)",
    "a = f'{scale}'",
    "a = f'{scale!r}'",
    "a = 'x' + 'y'",
    "a = min(1, 2) + max((1, 2))",
    "a = isinstance(scale, float)",
    "a = len(x.shape)",
    "print('x')",
    "assert scale == 1.0, 'scale'",
    "a: int = 3",
    "a = divmod(7, 2)",
    "a = [1, 2, 3][0:2]",
    "a = x.shape[-1]",
    "a = not scale and scale or 1",
    "a = [1]\na[0] += 2",
    "a = math.ceil(1.5)",
    "a = (1 + (scale > 0)) * 2 // 3 % 4",
    "pass",
    "a = tile[:, 0:8]",
    "a = tile[..., 0:4]",
    "a = list((1, 2))",
    "a = str(scale)",
]


@pytest.mark.parametrize("body", ALLOWED)
def test_what_the_parser_takes_is_not_refused(body, tmp_path):
    """Forms that public kernels use or that the public parser handles."""
    file, wanted = planted("helper", body, tmp_path)
    assert rules_of(file, wanted) == set()


ENUM = f"""from enum import Enum
{HEAD}

class Kind(Enum):
    A = 0

    def __str__(self):
        return self.name.lower()
"""

HOST = {
    "an import for annotations": "import neuronxcc.nki.typing as nt\n" + HEAD + KERNEL.replace("x, sc", "x: nt.tensor, sc"),
    "the printing of an Enum": ENUM + KERNEL.replace("# BODY", "a = scale == Kind.A"),
}


@pytest.mark.parametrize("text", HOST.values(), ids=HOST)
def test_what_runs_on_the_host_is_not_refused(text, tmp_path):
    (tmp_path / "kernel.py").write_text(text)
    assert {name for name in rules_of(tmp_path / "kernel.py") if RULES[name].refused} == set()


def test_an_old_import_that_kernel_code_uses_is_refused(tmp_path):
    body = "a = nt.tensor"
    (tmp_path / "kernel.py").write_text("import neuronxcc.nki.typing as nt\n" + HEAD + KERNEL.replace("# BODY", body))
    assert "old-namespace" in rules_of(tmp_path / "kernel.py")
