"""Mutation study of the hardware path: takes our own precautions out, one at a time, and shows which rule refuses what is left.

python tools/mutation/contract.py [--rule NAME ...] [--report]

Each mutant (contract_mutants.py) is a textual change of our source that breaks one rule of the contract. It is planted in a
copy of the project and run against tests of the stand-in packages, in a process of its own. A mutant is `refused` if a test
fails with the rule's name, `noticed` if another one fails, `missed` if none does. Without changes these tests must pass.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import re
import runpy
import shutil
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.mutation.contract_mutants import MUTANTS, NO_MUTANT, ContractMutant
from tools.mutation.replacing import replaced_once
from tools.page_block import replace_block

__all__ = ["ROOT", "Verdict", "examine", "markdown", "planted", "rules", "unchanged"]

ROOT = Path(__file__).parents[2]
_PAGE = ROOT / "docs" / "evidence.md"
_COPIED = ("nki_hf", "examples", "tests", "pyproject.toml")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of one mutant.

    Attributes:
      word: refused, noticed, missed, or error (the suite itself did not run).
      tests: the failing tests that name the rule, else those that failed, as `suite::test`.
      detail: the last lines of an error.
    """

    word: str
    tests: tuple[str, ...]
    detail: str = ""


def rules() -> dict[str, str]:
    """The contract's rules: name -> where it is documented."""
    found: dict[str, str] = runpy.run_path(str(ROOT / "tests/fakes/common/fake_neuron/rules.py"))["RULES"]
    return found


@contextmanager
def planted(mutant: ContractMutant | None) -> Iterator[Path]:
    """A copy of the project with the mutant's changes in it; with None, as it is.

    Raises:
      ValueError: what is to be replaced does not stand exactly once in its file.
    """
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for name in _COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, home / name)  # with the compiled files: only what is mutated is compiled anew
            else:
                shutil.copy2(source, home / name)
        for change in mutant.changes if mutant else ():
            path = home / change.file
            path.write_text(replaced_once(path.read_text(), change.old, change.new))
        yield home


def examine(mutant: ContractMutant) -> Verdict:
    """Run the mutant's tests and judge what failed.

    The tests run in a fork of this process, which must not have imported nki_hf or any stand-in.
    """
    with planted(mutant) as home:
        failures, trouble = _run(home, mutant.suite, mutant.tests)
    # As a traceback ends, or as torch quotes what a trace raised.
    named = re.compile(rf"""Refused(: |\(['"])\[{mutant.rule}\]""")
    if named.search(trouble):  # ops are registered when the stand-in is imported, before any test
        return Verdict(word="refused", tests=(f"{mutant.suite}::import",))
    if trouble:
        return Verdict(word="error", tests=(), detail=trouble)
    naming = sorted({test for test, text in failures if named.search(text)})
    if naming:
        return Verdict(word="refused", tests=tuple(f"{mutant.suite}::{test}" for test in naming))
    others = sorted({test for test, _ in failures})
    return Verdict(word="noticed" if others else "missed", tests=tuple(f"{mutant.suite}::{test}" for test in others))


def unchanged() -> list[str]:
    """Tests of the mutants that fail without any mutant; none may."""
    chosen: dict[str, list[str]] = {}
    for mutant in MUTANTS:
        chosen.setdefault(mutant.suite, []).append(mutant.tests)
    failed = []
    with planted(None) as home:
        for suite, tests in chosen.items():
            failures, trouble = _run(home, suite, " or ".join(sorted(set(tests))))
            failed += [f"{suite}::{test}: {text}" for test, text in failures] + [trouble] * bool(trouble)
    return failed


def _run(home: Path, suite: str, tests: str) -> tuple[list[tuple[str, str]], str]:
    """(failing test, its report) of a choice of tests of one suite, and what went wrong with the run itself."""
    world = suite.partition("_")[0]
    fakes = home / "tests" / "fakes"
    report, output = home / "report.xml", home / "output.txt"
    command = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--junitxml={report}", "-k", tests]
    command.append(str(fakes / "suites" / f"{suite}.py"))
    paths = [str(path) for path in (home, fakes / world, fakes / "common")]
    child = multiprocessing.get_context("fork").Process(target=_pytest, args=(home, world, paths, command, output))
    child.start()
    child.join(timeout=600)
    if child.is_alive():
        child.kill()
        child.join()
    if not report.exists() or child.exitcode not in (0, 1):
        return [], f"exit code {child.exitcode}: {output.read_text()[-4000:]}"
    failures = []
    for case in ElementTree.parse(report).iter("testcase"):
        for found in case:
            if found.tag in ("failure", "error"):
                failures.append(((case.get("name") or "").split("[")[0], (found.get("message") or "") + (found.text or "")))
    return failures, ""


def _pytest(home: Path, world: str, paths: list[str], command: list[str], output: Path) -> None:
    """The body of a child process: pytest as if it had been started with these paths in the mutant's folder."""
    if "nki_hf" in sys.modules:
        raise RuntimeError("nki_hf is imported already: the mutant would not be. Run this tool as a program.")
    for name in [name for name in os.environ if name.startswith(("NEURON_", "NKI_", "PYTEST_"))]:
        del os.environ[name]
    os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "FAKE_NEURON_WORLD": world, "HF_HUB_OFFLINE": "1"}
    sys.path[:0] = paths
    os.chdir(home)
    import pytest

    with output.open("w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        code = pytest.main(command)
    os._exit(int(code))


def markdown(verdicts: Sequence[tuple[ContractMutant, Verdict]]) -> str:
    """The table of the documentation: each rule with its mutants, or with the reason why there is none."""
    lines = ["| rule | our source without its care | what the stand-in said, and in which test |", "|---|---|---|"]
    for rule in rules():
        for mutant, verdict in verdicts:
            if mutant.rule == rule:
                tests = ", ".join(verdict.tests[:2]) + (f" and {len(verdict.tests) - 2} more" * (len(verdict.tests) > 2))
                files = ", ".join(dict.fromkeys(change.file.removeprefix("nki_hf/") for change in mutant.changes))
                lines.append(f"| {rule} | {files}: {mutant.what} | {verdict.word}: {tests} |")
        if rule in NO_MUTANT:
            lines.append(f"| {rule} | none: {NO_MUTANT[rule].reason} | {NO_MUTANT[rule].test} |")
    by_mutant = len({mutant.rule for mutant, verdict in verdicts if verdict.word == "refused"})
    lines += ["", f"{by_mutant} of {len(rules())} rules refuse a mutant of our source; {len(verdicts)} mutants in all."]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the study; 0 if every mutant is refused by its rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rule", action="append", help="only the mutants of this rule; may be repeated")
    parser.add_argument("--report", action="store_true", help="write the table to docs/evidence.md")
    asked = parser.parse_args()
    if asked.report and asked.rule:
        parser.error("--report needs all mutants: leave --rule away")
    import torch._dynamo  # noqa: F401  (the children share what is slow to import)

    if not asked.rule:
        failed = unchanged()
        if failed:
            print("without a mutant these fail:", *failed, sep="\n")
            return 1
    verdicts = []
    for mutant in MUTANTS:
        if asked.rule and mutant.rule not in asked.rule:
            continue
        verdict = examine(mutant)
        verdicts.append((mutant, verdict))
        print(f"{verdict.word:8} {mutant.rule}: {mutant.what}  [{', '.join(verdict.tests)}]{verdict.detail}", flush=True)
    text = markdown(verdicts)
    print(text)
    if asked.report:
        replace_block(_PAGE, "contract", text.removesuffix("\n"))
    return 0 if all(verdict.word == "refused" for _, verdict in verdicts) else 1


if __name__ == "__main__":
    raise SystemExit(main())
