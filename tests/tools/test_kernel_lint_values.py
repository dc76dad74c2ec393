"""Refused values and further spellings: what the parser's public evaluator lacks, under other names and in odd places."""

import pytest
from test_kernel_lint_planted import HEAD, KERNEL, planted, rules_of

from nki_hf.tools.kernel_lint import RULES, lint

TILE = "a = nl.ndarray((1, 8), nl.float32)\n"

PLANTED_VALUES = [
    # rule, what is planted
    ("builtin", "f = zip\na = f((1,), (2,))"),
    ("builtin", "f = sorted"),
    ("builtin", "f = g = sorted\na = g((2, 1))"),
    ("builtin", "a = {'f': sum}"),
    ("builtin", "a = [sum][0]((1, 2))"),
    ("builtin", "a = print(map)"),
    ("builtin", "f = max if scale else sum\na = f((1, 2))"),
    ("builtin", "a = isinstance(scale, ValueError)"),
    ("builtin", "a = __builtins__"),
    ("builtin", "a = __builtins__['len']((1,))"),
    ("builtin", "a = __import__('math')"),
    ("builtin", "a = object()"),
    ("builtin", "a = NotImplemented"),
    ("builtin", "a = globals()['TILE']"),
    ("builtin", "a = 1 if any((scale,)) else 2"),
    ("builtin", "while not all((1,)):\n    pass"),
    ("builtin", "assert sum((1,)) == 1, repr(scale)"),
    ("builtin", "a = f'{sum((1, 2))}'"),
    ("builtin", "a = x.shape[sum((0, 0))]"),
    ("builtin-attribute", "a = int.from_bytes"),
    ("builtin-attribute", "a = list.append"),
    ("builtin-attribute", "a = str.upper('x')"),
    ("builtin-attribute", "a = dict.fromkeys(('a',))"),
    ("builtin-attribute", "f = len\na = f.__call__((1,))"),
    ("special-attribute", "a = scale.__class__"),
    ("special-attribute", "a = x.shape.__len__()"),
    ("special-attribute", "a = abs.__name__"),
    ("one-value", "a = int('3', base=10)"),
    ("one-value", "a = str(scale, 'utf8')"),
    ("least-of-many", "f = max\na = f(1, 2, 3)"),
    ("least-of-many", "a = min([1, 2], default=0)"),
    ("string-method", "name = 'abc'\na = name.upper()"),
    ("string-method", "name = f'{scale}'\na = name.zfill(3)"),
    ("string-method", "a = str(scale).replace('.', '')"),
    ("string-method", "a = 'abc'.count('a')"),
    ("string-operator", "name = f'{scale}'\na = name % 2"),
    ("string-operator", "a = 3 * 'a'"),
    ("string-item", "name = 'abc'\na = name[0]"),
    ("string-item", "for c in 'abc':\n    pass"),
    ("string-item", "name = 'abc'\na = len(name)"),
    ("string-item", "a = ('a' 'b')[0:1]"),
    ("dictionary-loop", "a = {'k': 1}\nfor k in a:\n    pass"),
    ("dictionary-loop", "for k in {'k': 1}:\n    pass"),
    ("container-operator", "a = {'k': 1}\na |= {'l': 2}"),
    ("container-operator", "a = {'k': 1} | {'l': 2}"),
    ("container-operator", "a = [1]\nb = a - [1]"),
    ("container-method", "a = {'k': 1}\na.fromkeys(('a',))"),
    ("slice-target", "a = [[1]]\na[0][-1] = 2"),
    ("slice-target", "a = [1]\na[0:1] += [2]"),
    ("slice-target", "a = [1, 2, 3]\na[::2] = [4, 5]"),
    ("slice-step", "a = x.shape[::-1]"),
    ("slice-step", "a = tile[:, 7::-1]"),
    ("tile-assignment", TILE + "a += 1.0"),
    ("tile-assignment", TILE + "b = -a"),
    ("tile-assignment", TILE + "b = 2 * a[0:1]"),
    ("tile-assignment", TILE + "b = a > 1.0"),
    ("tile-assignment", TILE + "a.data = 3"),
    ("ellipsis", "a = ..."),
    ("ellipsis", "..."),
    ("ellipsis", "print(...)"),
    ("several-targets", "a = [0]\nb = a[0] = []"),
    ("several-targets", "a = {}\na['k'] = b = [None] * 4"),
    ("several-targets", "a = [0]\na[0] = b = nl.ndarray((1, 8), nl.float32)"),
    ("made-twice", "a = [0]\nb = a[0] = 1"),
    ("made-twice", "a = [0]\na[len((0,)) - 1] += 2"),
    ("made-twice", "a = 0 < len((1,)) < 3"),
    ("list-target", "[a] = x.shape[0:1]"),
    ("tuple-loop", "for i, in ((1,), (2,)):\n    pass"),
    ("starred", "a = min(*x.shape)"),
    ("starred", "nl.ndarray(*((128, 8),), dtype=nl.float32)"),
    ("keyword-expansion", "kw = {'value': 0.0}\nnisa.memset(dst=tile, **kw)"),
    ("match", "match scale:\n    case {'a': b}:\n        pass\n    case _:\n        pass"),
    ("generator", "return (yield)"),
    ("set", "a = 1 in {1, 2}"),
    ("set", "f = frozenset\na = f((1,))"),
    ("with", "with nl.no_reorder() as nothing:\n    pass"),
]

LINES = {
    # rule -> (lines of the module, the kernel's line)
    "decorator": ("@functools.total_ordering\nclass Sizes(nl.NKIObject):\n    n: int = 1\n", "a = Sizes()"),
    "class-body": ("class Sizes(nl.NKIObject):\n    n, m = 1, 2\n", "a = Sizes()"),
    "inheritance": ("class Sizes(dict):\n    n: int = 1\n", "a = Sizes()"),
    "builtin": ("order = sorted\n", "a = order((2, 1))"),
    "string-item": ("NAME = 'abc'\n", "a = NAME[0]"),
    "string-operator": ("NAME = 'abc'\n", "a = NAME * 2"),
}

TAKEN = [
    "f = len\na = f((1,))",
    "a = [len][0]((1,))",
    "sum = 3\na = sum + 1",
    "a = float('inf')",
    "a = f'{scale=}'",
    "a = f'{scale!a}'",
    "a: object = 3",
    "a: list[int] = []",
    "a, = x.shape[0:1]",
    "a = b, c = 1, 2",
    "a = x.shape[0:2:1]",
    "a = tile[0:128, ::2]",
    "for k in {'a': 1}.keys():\n    pass",
    "a = {'k': 1}\nfor k in a.values():\n    pass",
    "a = [1]\na += [2]",
    "a = [None] * 4",
    "a = 'ab' in 'abc'",
    "a = 'x'\na += 'y'",
    "a = nl.ndarray((1, 8), nl.float32)\nb = a == None",
    "a = nl.ndarray((1, 8), nl.float32)\nb = a.shape[0] + 1",
    "a = 0 < scale < 3",
    "a = (scale,)\nb = a[0]",
    "a = tile.dtype",
]


@pytest.mark.parametrize("place", ["kernel", "module"])
@pytest.mark.parametrize(("rule", "body"), PLANTED_VALUES)
def test_each_spelling_is_found(rule, body, place, tmp_path):
    file, wanted = planted(place, body, tmp_path)
    assert rule in rules_of(file, wanted)


@pytest.mark.parametrize("rule", LINES)
def test_what_the_module_binds_is_known_in_its_functions(rule, tmp_path):
    lines, body = LINES[rule]
    (tmp_path / "kernel.py").write_text(f"import functools\n{HEAD}\n{lines}{KERNEL.replace('# BODY', body)}")
    assert rule in rules_of(tmp_path / "kernel.py")


@pytest.mark.parametrize("rule", ["decorator", "class-body", "inheritance"])
def test_a_class_of_another_file_is_looked_at(rule, tmp_path):
    lines, body = LINES[rule]
    (tmp_path / "steps.py").write_text(f"import functools\n{HEAD}\n{lines}")
    (tmp_path / "kernel.py").write_text(f"{HEAD}\nfrom steps import Sizes\n{KERNEL.replace('# BODY', body)}")
    assert rule in rules_of(tmp_path / "kernel.py", "steps.py")


@pytest.mark.parametrize("text", ["type Size = int"])
def test_a_type_statement_is_refused(text, tmp_path):
    """Python before 3.12 has no such statement and cannot read the file at all."""
    file, wanted = planted("module", text, tmp_path)
    assert rules_of(file, wanted) & {"type-alias", "syntax"}


@pytest.mark.parametrize("body", TAKEN)
def test_neighbours_that_the_parser_takes_are_not_refused(body, tmp_path):
    file, wanted = planted("helper", body, tmp_path)
    assert {name for name in rules_of(file, wanted) if RULES[name].refused} == set()


OPERANDS = ["b = {} + 1.0", "b = -{}", "b = {}[0:1] * 2", "{} += 1.0", "{}.shape = (1, 2)", "b = {} < 2.0"]


@pytest.mark.parametrize("line", OPERANDS)
@pytest.mark.parametrize("name", ["x", "given"])
def test_a_parameter_that_instructions_get_is_a_tile(line, name, tmp_path):
    helper = f"\n\ndef part(given):\n    nisa.memset(dst=given, value=0.0)\n    {line.format('given')}\n"
    kernel = KERNEL.replace("# BODY", line.format("x")) if name == "x" else KERNEL.replace("# BODY", "part(tile)")
    (tmp_path / "kernel.py").write_text(HEAD + (helper if name == "given" else "") + kernel)
    expected = line != "{} += 1.0" or name == "given"  # it binds the name; what a call gives is a tile by its value
    assert ("tile-assignment" in rules_of(tmp_path / "kernel.py")) == expected


@pytest.mark.parametrize("engine", ["vector", "tensor"])
def test_the_engine_of_a_transpose_counts_from_0_4_on(engine, tmp_path):
    """Release notes of 0.4.0: nc_transpose honours `engine`. Before, what ran was not what the source says."""
    body = f"nisa.nc_transpose(dst=tile[0:8, 0:8], data=tile[0:8, 0:8], engine=nisa.engine.{engine})"
    if engine == "tensor":
        body = "bank = nl.ndarray((8, 128), nl.float32, nl.psum)\n" + body.replace("dst=tile[0:8, 0:8]", "dst=bank")
        body = body.replace("data=tile[0:8, 0:8]", "data=tile")
    file, _ = planted("kernel", body, tmp_path)
    (row,) = lint(file)
    told = [version for version, findings in row.findings.items() if "transpose-engine" in {each.rule for each in findings}]
    assert told == (["0.3"] if engine == "vector" else [])
