"""One word for one thing (the word list of DESIGN.md): no room says a word that could only have its other meaning there."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "nki_hf"
NOT_HERE = [
    ("observers", "plan", "schedule"),
    ("timing", "plan", "schedule"),
    ("kernels", "schedule", "plan"),
    ("adapters", "schedule", "plan"),
    ("sim/isa", "step", "action"),
    ("sim/execution", "step", "action"),
    ("sim/run/needed.py", "step", "action"),
    ("sim/run/program.py", "step", "action"),
    ("kernels", "action", "step"),
]
"""Room or file, the word that is not used there, and the word for what is meant."""


def names_with(word, source):
    """Names of `source` (variables, arguments, attributes, functions, classes) of which `word` is a part, by line."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        for name in (getattr(node, field, None) for field in ("id", "arg", "attr", "name")):
            if isinstance(name, str) and {word, f"{word}s"} & {
                part.lower() for part in re.split(r"_|(?<=[a-z])(?=[A-Z])", name)
            }:
                found.add((getattr(node, "lineno", 0), name))
    return sorted(found)


@pytest.mark.parametrize(("room", "word", "meant"), NOT_HERE)
def test_a_word_keeps_its_meaning(room, word, meant):
    files = [PACKAGE / room] if room.endswith(".py") else sorted((PACKAGE / room).rglob("*.py"))
    found = {str(path): names_with(word, path.read_text()) for path in files}
    assert found
    assert {path: names for path, names in found.items() if names} == {}, f"{word!r} is not said here: say {meant!r}"


def test_the_second_meaning_is_found():
    source = "def f(plan, the_plan):\n    plane = Plan.plan_of\n    return planner, plans, FirstPlan"
    assert names_with("plan", source) == [
        (1, "plan"),
        (1, "the_plan"),
        (2, "Plan"),
        (2, "plan_of"),
        (3, "FirstPlan"),
        (3, "plans"),
    ]
