"""docs/evidence.md names tests: each exists, each contract rule and each known risk is answered."""

import ast
import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "evidence.md").read_text()
TEST = re.compile(r"\b(\w+)::(test_\w+)")
IMPORT = re.compile(r"\b(\w+)::import\b")  # an op is refused when the suite's stand-in registers it, before its first test


def _rows(heading):
    section = PAGE.split(f"## {heading}")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("| ")]
    return rows[1:]


def _tests_of(file):
    (path,) = [*(ROOT / "tests").glob(f"*/{file}.py"), *(ROOT / "tests/fakes/suites").glob(f"{file}.py")]
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_test_that_the_page_names_exists():
    named = set(TEST.findall(PAGE))
    assert len(named) > 40
    assert [pair for pair in sorted(named) if pair[1] not in _tests_of(pair[0])] == []


def test_every_contract_rule_has_a_row_with_a_test():
    rules = runpy.run_path(str(ROOT / "tests/fakes/common/fake_neuron/rules.py"))["RULES"]
    rows = _rows("Contract rules")
    assert list(dict.fromkeys(rule for rule, *_ in rows)) == list(rules)
    assert all(TEST.search(test) or _tests_of(IMPORT.search(test)[1]) for *_, test in rows)


def test_every_risk_is_answered_by_a_test_or_says_by_which_design():
    rows = _rows("Known risks")
    assert [int(number) for number, *_ in rows] == list(range(1, len(rows) + 1))
    by_test = [number for number, _, answer in rows if TEST.search(answer)]
    assert all("design:" in answer for number, _, answer in rows if number not in by_test)


def _messages(path):
    """The texts of a file that are no docstrings; `{}` stands for what an f-string fills in."""
    tree = ast.parse(path.read_text())
    parts = {
        id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node) if part is not node
    }
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in parts | docstrings:
            continue
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _explained():
    """What the page on Trainium quotes of messages."""
    page = (ROOT / "docs" / "trainium.md").read_text()
    section = page.split("## Messages")[1].split("\n## ")[0]
    return [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]


def test_every_message_that_the_trainium_page_explains_is_in_the_code():
    sources = [*(ROOT / "nki_hf").rglob("*.py"), *(ROOT / "examples").glob("*.py")]
    known = [message for path in sources for message in _messages(path)]
    assert len(_explained()) >= 20
    assert [words for words in _explained() if not any(words in message for message in known)] == []


def test_every_message_of_the_hardware_path_is_explained():
    # Ends of other messages, and words of AWS's that ours quote.
    elsewhere = ("Compile with dynamic=False", "Install it from AWS's", "Convert it", "Failed to get Neuron", "nothing names a")
    elsewhere += ("{} The command that repeats it",)
    sentences = [
        message
        for path in (ROOT / "nki_hf" / "backends").glob("neuron*.py")
        for message in _messages(path)
        if message.count(" ") >= 4 and not message.startswith(elsewhere) and "\\" not in message  # patterns are no messages
    ]
    assert len(sentences) >= 20
    assert [message for message in sentences if not any(words in message for words in _explained())] == []
