"""docs/evidence.md names tests: each exists, each contract rule and each known risk is answered."""

import ast
import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "evidence.md").read_text()
TEST = re.compile(r"\b(\w+)::(test_\w+)")


def _rows(heading):
    section = PAGE.split(f"## {heading}")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("| ")]
    return rows[1:]


def _tests_of(file):
    (path,) = [path for path in (ROOT / "tests" / f"{file}.py", ROOT / "tests/fakes/suites" / f"{file}.py") if path.exists()]
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_test_that_the_page_names_exists():
    named = set(TEST.findall(PAGE))
    assert len(named) > 40
    assert [pair for pair in sorted(named) if pair[1] not in _tests_of(pair[0])] == []


def test_every_contract_rule_has_a_test_that_fails_without_our_care():
    rules = runpy.run_path(str(ROOT / "tests/fakes/common/fake_neuron/rules.py"))["RULES"]
    rows = _rows("Contract rules")
    assert [rule for rule, _ in rows] == list(rules)
    assert all(TEST.search(test) for _, test in rows)


def test_the_mutations_are_those_of_the_contract():
    tree = ast.parse((ROOT / "tests/fakes/suites/native_contract.py").read_text())
    (mutations,) = [node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "MUTATIONS"]
    named = {rule for rule, test in _rows("Contract rules") if "test_without_our_care" in test and "native_contract" in test}
    assert {key.value for key in mutations.keys} == named


def test_all_39_risks_are_answered_and_at_least_30_by_a_test():
    rows = _rows("Known risks")
    assert [int(number) for number, *_ in rows] == list(range(1, 40))
    by_test = [number for number, _, answer in rows if TEST.search(answer)]
    assert len(by_test) >= 30
    assert all("design:" in answer for number, _, answer in rows if number not in by_test)


def test_the_messages_that_the_trainium_page_explains_are_raised_somewhere():
    page = (ROOT / "docs" / "trainium.md").read_text()
    section = page.split("## Messages")[1].split("\n## ")[0]
    sources = [path.read_text() for path in (ROOT / "nki_hf").rglob("*.py")]
    explained = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert len(explained) >= 10
    for words in (found for cell in explained for found in re.findall(r"`([^`]+)`", cell)):
        template = words.replace("must be one of bfloat16", "must be one of {', '.join(DEVICE_DTYPES)}")
        template = re.sub(r"the native world|^xla$", "the {self.world.name} world", template)
        assert any(text in source for text in (words, template) for source in sources), words
