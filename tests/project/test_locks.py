"""Python 3.12 and 3.13 lose a lock where a jump back ends a branch inside its block.

There `while`, a loop whose body branches, and a comprehension that filters end in a jump that no handler covers. An interrupt
(Ctrl-C) taken at that jump leaves the block without calling `__exit__`: the lock stays held, and the next call waits for
ever. So such a loop is a function of its own, which the block calls.
"""

import ast
from pathlib import Path

import pytest

import nki_hf

ROOT = Path(nki_hf.__file__).parent
LOOPS = (ast.While, ast.For, ast.AsyncFor)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp)  # which Python 3.12 runs in the function that holds them
BRANCHES = (ast.If, ast.Try, ast.Continue, ast.Match)


def within(nodes):
    """The nodes below, without the bodies of functions that are defined there."""
    for node in nodes:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.GeneratorExp)):
            yield node
            yield from within(ast.iter_child_nodes(node))


def jumps_back(node):
    if isinstance(node, COMPREHENSIONS):
        return any(part.ifs for part in node.generators)
    return isinstance(node, ast.While) or (isinstance(node, LOOPS) and any(isinstance(n, BRANCHES) for n in within(node.body)))


def holds(node):
    """Whether the block holds what outlives an interrupt of a call: a lock, or settings of the whole process."""
    words = ("lock", "engine_numerics")
    return isinstance(node, ast.With) and any(
        word in ast.unparse(item.context_expr).lower() for item in node.items for word in words
    )


def lost(source):
    tree = ast.parse(source)
    return [inner.lineno for node in ast.walk(tree) if holds(node) for inner in within(node.body) if jumps_back(inner)]


def test_no_loop_under_a_lock_can_lose_it():
    files = list(ROOT.rglob("*.py"))
    assert sum(holds(node) for file in files for node in ast.walk(ast.parse(file.read_text()))) > 10
    assert {str(file.relative_to(ROOT)): lines for file in files if (lines := lost(file.read_text()))} == {}


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("while x: x.pop()", True),
        ("y = [a for a in x if a]", True),
        ("for a in x:\n            if a: y(a)", True),
        ("for a in x: y(a)", False),
        ("y = [a for a in x]", False),
        ("y = sum(a for a in x if a)", False),
        ("drop(x)", False),
    ],
)
def test_what_counts_as_such_a_loop(body, found):
    assert bool(lost(f"def f(lock, x):\n    with lock:\n        {body}\n")) == found
