"""Each rule of the contract refuses a change of our own source; the full study is tools/mutation/contract.py."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.mutation.contract import Verdict, markdown, planted, rules
from tools.mutation.contract_mutants import MUTANTS, NO_MUTANT

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
        assert source.count(change.old) == 1, change
        assert ast.dump(ast.parse(source.replace(change.old, change.new))) != ast.dump(ast.parse(source))


def test_the_tests_of_the_mutants_exist():
    for mutant in MUTANTS:
        suite = (ROOT / "tests" / "fakes" / "suites" / f"{mutant.suite}.py").read_text()
        for name in mutant.tests.split(" or "):
            assert f"def {name}" in suite, mutant


def test_a_mutant_that_no_longer_fits_is_an_error():
    mutant = MUTANTS[0]
    twice = type(mutant)(mutant.rule, mutant.suite, mutant.tests, mutant.what, (mutant.changes[0], mutant.changes[0]))
    with pytest.raises(ValueError, match="0 times, not once"), planted(twice):
        pass


def test_the_table_in_the_documentation_has_every_mutant_and_all_are_refused():
    rows = markdown([(mutant, Verdict(word="refused", tests=())) for mutant in MUTANTS]).splitlines()
    for row in rows:
        assert row.rsplit(" |", 2)[0] in PAGE if row.startswith("| ") else row in PAGE, row
    table = PAGE.split("<!-- begin: contract -->")[1].split("<!-- end: contract -->")[0]
    assert table.count("| refused: ") == len(MUTANTS)
    assert not any(word in table for word in ("| noticed: ", "| missed: ", "| error: "))


def _study(*arguments):
    return subprocess.run([sys.executable, str(TOOL), *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


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
