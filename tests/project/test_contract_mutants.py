"""Each rule of the contract refuses a change of our own source; the full study is tools/mutation/contract.py."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.mutation.contract import Verdict, markdown, planted, rules
from tools.mutation.contract_mutants import MUTANTS, NO_MUTANT
from tools.mutation.replacing import _with_names, occurrences, replaced_once
from tools.page_block import block_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "evidence.md").read_text()
TOOL = ROOT / "tools" / "mutation" / "contract.py"


def test_every_rule_has_a_mutant_or_a_reason():
    by_mutant = {mutant.rule for mutant in MUTANTS}
    assert by_mutant | set(NO_MUTANT) == set(rules())
    assert not by_mutant & set(NO_MUTANT)
    assert all(without.reason and "::test_" in without.test for without in NO_MUTANT.values())


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.rule}: {mutant.what}")
def test_every_mutant_still_fits_our_source_and_changes_it(mutant):
    for change in mutant.changes:
        source = (ROOT / change.file).read_text()
        assert ast.dump(ast.parse(replaced_once(source, change.old, change.new))) != ast.dump(ast.parse(source))


def test_the_tests_of_the_mutants_exist():
    for mutant in MUTANTS:
        suite = (ROOT / "tests" / "fakes" / "suites" / f"{mutant.suite}.py").read_text()
        for name in mutant.tests.split(" or "):
            assert f"def {name}" in suite, mutant


REFORMATTED = "outputs = f(\n    a,  # why\n    b,\n)\nif x:\n    y = g(a)\n"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("outputs = f(a, b)", "outputs = h(a)", "outputs = h(a)\nif x:\n    y = g(a)\n"),
        ("f(a, b", "f(b", "outputs = f(b,\n)\nif x:\n    y = g(a)\n"),
        ("    y = g(a)", "    pass", REFORMATTED.replace("y = g(a)", "pass")),
    ],
)
def test_a_piece_of_source_is_found_however_its_lines_are_broken(old, new, expected):
    assert ast.dump(ast.parse(replaced_once(REFORMATTED, old, new))) == ast.dump(ast.parse(expected))


RENAMED = "def g(call):\n    values = call.shape\n    return g(values, name=values)\n"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("outputs = tensor.shape", "outputs = tensor.dtype", "    values = call.dtype\n"),
        ("f(x, name=x)", "h(f, x, name=1, x=x)", "    return h(g, values, name=1, x=values)\n"),
    ],
)
def test_a_piece_of_source_is_found_whatever_its_names_are_by_now(old, new, expected):
    assert expected in replaced_once(RENAMED, old, new)


@pytest.mark.parametrize("old", ["f(x, title=x)", "f(x, name=y)", "outputs = tensor.size", "f(y, name=print)"])
def test_other_attributes_keywords_and_confused_names_are_another_piece(old):
    assert occurrences(RENAMED, old) == []


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.rule}: {mutant.what}")
def test_every_mutant_fits_a_source_whose_names_were_changed(mutant):
    for change in mutant.changes:
        source = (ROOT / change.file).read_text()
        tree = ast.parse(source)
        local = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        local |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        renamed = _with_names(source, {name: f"{name}_by_now" for name in local})
        assert ast.dump(ast.parse(replaced_once(renamed, change.old, change.new))) != ast.dump(ast.parse(renamed))


def test_a_piece_of_source_that_stands_there_twice_or_never_is_an_error():
    assert len(occurrences(REFORMATTED, "a")) == 2
    for old, times in (("a", 2), ("c.d", 0)):
        with pytest.raises(ValueError, match=f"{times} times, not once"):
            replaced_once(REFORMATTED, old, "d")


@pytest.mark.slow
def test_a_mutant_that_no_longer_fits_is_an_error():
    mutant = MUTANTS[0]
    twice = type(mutant)(mutant.rule, mutant.suite, mutant.tests, mutant.what, (mutant.changes[0], mutant.changes[0]))
    with pytest.raises(ValueError, match="0 times, not once"), planted(twice):
        pass


def test_the_table_in_the_documentation_has_every_mutant_and_all_are_refused():
    rows = markdown([(mutant, Verdict(word="refused", tests=())) for mutant in MUTANTS]).splitlines()
    for row in rows:
        assert row.rsplit(" |", 2)[0] in PAGE if row.startswith("| ") else row in PAGE, row
    table = block_of(ROOT / "docs" / "evidence.md", "contract")
    assert table.count("| refused: ") == len(MUTANTS)
    assert not any(word in table for word in ("| noticed: ", "| missed: ", "| error: "))


def _study(*arguments):
    return subprocess.run([sys.executable, str(TOOL), *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_sample_of_mutants_is_refused_by_its_rule():
    done = _study("--rule", "tensor-offset", "--rule", "output-shared-hbm")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("refused  ") == 2


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_mutant_is_refused_by_its_rule_and_nothing_fails_without_one():
    done = _study()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("refused  ") == len(MUTANTS)
