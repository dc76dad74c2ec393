"""Makes docs/hf_suites.md of the records of run.py.

    python tools/hf_suite/table.py RECORDS [RECORDS ...] --write docs/hf_suites.md

A new failure is a test that fails under "nki" and passes without nki_hf; newly skipped alike. Every one needs an entry in
explanations.toml that matches its name: without one it is printed as not explained, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_COLUMNS = (
    "suite",
    "passed",
    "skipped",
    "fail without nki_hf too",
    "new failures",
    "of these for the name alone",
    "of these not repeated",
    "newly skipped",
    "kernel calls",
    "fallbacks",
)
_BACKENDS = {
    "simulator": "Through the kernels, on the simulator",
    "torch_reference": "Through the op's plain torch back end (`NKI_HF_BACKEND=torch_reference`): all but the kernels",
}


@dataclass(frozen=True)
class Suite:
    """One suite on one back end.

    Attributes:
      head: what ran, with which versions.
      tests: the tests under "nki".
      plain: those that did not pass, as they went without nki_hf; by name.
      again: new failures, as they went the next time; by name.
      in_place: new failures, as they went with nki_hf under the name "sdpa"; by name.
      ended: whether all tests were run.
    """

    head: dict[str, Any]
    tests: list[dict[str, Any]]
    plain: dict[str, dict[str, Any]]
    again: dict[str, dict[str, Any]]
    in_place: dict[str, dict[str, Any]]
    ended: bool

    @property
    def name(self) -> str:
        """The folder of tests/models."""
        return self.head["suite"]

    def changed(self, outcome: str) -> list[dict[str, Any]]:
        """Tests of that outcome under "nki" that have another without nki_hf."""
        return [row for row in self.of(outcome) if self.plain.get(row["test"], row)["outcome"] != outcome]

    def of(self, outcome: str) -> list[dict[str, Any]]:
        """Tests of that outcome under "nki"."""
        return [row for row in self.tests if row["outcome"] == outcome]

    def unchanged_failures(self) -> list[dict[str, Any]]:
        """Tests that fail without nki_hf too, as they fail there."""
        plain = [self.plain.get(row["test"]) for row in self.of("failed")]
        return [row for row in plain if row and row["outcome"] == "failed"]

    def not_repeated(self) -> int:
        """New failures that passed the next time."""
        return sum(self.again.get(row["test"], row)["outcome"] == "passed" for row in self.changed("failed"))

    def for_the_name(self) -> int:
        """New failures that failed again and pass with nki_hf under the name "sdpa"."""
        names = [row["test"] for row in self.changed("failed")]
        repeated = [name for name in names if name in self.again and self.again[name]["outcome"] == "failed"]
        return sum(name in self.in_place and self.in_place[name]["outcome"] == "passed" for name in repeated)

    def unsettled(self) -> int:
        """Tests that did not pass under "nki" and were not run without it."""
        return sum(row["outcome"] != "passed" and row["test"] not in self.plain for row in self.tests)


def main() -> int:
    """Print the page or write it; 1 if a new failure has no explanation, 2 without records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+", help="folders with the records of run.py")
    parser.add_argument("--write", type=Path, help="the page; default: print it")
    options = parser.parse_args()
    suites = [suite for folder in options.records for suite in load(folder)]
    if not suites:
        folders = ", ".join(str(folder) for folder in options.records)
        print(
            f"table.py: no records (SUITE-BACKEND.jsonl) in {folders}. run.py writes them to FOLDER/records.", file=sys.stderr
        )
        return 2
    text, missing = page(suites, tomllib.loads((_HERE / "explanations.toml").read_text()))
    if options.write:
        options.write.write_text(text)
    else:
        print(text, end="")
    for test in missing:
        print(f"not explained: {test}", file=sys.stderr)
    return int(bool(missing))


def load(folder: Path) -> list[Suite]:
    """The recorded suites of a folder, by name."""
    suites = []
    for path in sorted(folder.glob("*-*.jsonl")):
        head, *rows = (json.loads(line) for line in path.read_text().splitlines())
        if head["suite"]:
            others = [
                _by_name(folder / f"{way}.jsonl") for way in ("none", f"again-{head['backend']}", f"as_sdpa-{head['backend']}")
            ]
            tests = [row for row in rows if "test" in row]
            suites.append(Suite(head, tests, *others, ended="end" in (rows or [head])[-1]))
    return suites


def _by_name(path: Path) -> dict[str, dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["test"]: row for row in map(json.loads, lines) if "test" in row}


def page(suites: list[Suite], explanations: dict[str, list[dict[str, str]]]) -> tuple[str, list[str]]:
    """The page, and the changed tests that nothing explains."""
    parts = [explanations["text"]["start"].strip(), _versions(suites)]
    for backend, title in _BACKENDS.items():
        rows = [_row(suite) for suite in suites if suite.head["backend"] == backend]
        if rows:
            parts.append(f"## {title}\n\n| {' | '.join(_COLUMNS)} |\n{'|---' * len(_COLUMNS)}|\n" + "\n".join(rows))
    changed = [(suite, row) for suite in suites for row in suite.changed("failed") + suite.changed("skipped")]
    classes, missing = _classes(changed, explanations["new"])
    parts.append("## New failures\n\n" + _listing(classes, 'No test fails or is skipped under "nki" that passes without it.'))
    failures = [(suite, row) for suite in suites for row in suite.unchanged_failures()]
    parts.append("## What fails without nki_hf too\n\n" + _listing(_classes(failures, explanations["without"])[0], "Nothing."))
    parts.append("## Fallbacks\n\n" + _fallbacks(suites))
    parts.append("## Skipped tests\n\n" + _skips(suites))
    return "\n\n".join(parts) + "\n", missing


def _versions(suites: list[Suite]) -> str:
    def values(read: Any) -> str:
        return ", ".join(sorted({str(read(suite.head)) for suite in suites}))

    names = suites[0].head["versions"]
    versions = ", ".join(f"{name} {values(lambda head, name=name: head['versions'][name])}" for name in names)
    tests = values(lambda head: head["tests"][:10])
    laid = values(lambda head: head["laid_over"] or "nothing")
    return (
        f"{versions}. Tests of a checkout at {tests}, with the top-level test files of {laid} laid over them. "
        f"Sources of nki_hf (`git rev-parse HEAD:nki_hf`): {values(lambda head: head['nki_hf'])}."
    )


def _row(suite: Suite) -> str:
    kernel = sum(row["kernel"] for row in suite.tests)
    fallbacks = sum(sum(row["fallbacks"].values()) for row in suite.tests)
    note = "" if suite.ended else f" (not run to its end: {len(suite.tests)} tests)"
    note += f" (-k {suite.head['keyword']!r})" if suite.head["keyword"] else ""
    note += f" ({suite.unsettled()} not run without nki_hf)" if suite.unsettled() else ""
    counts = (len(suite.of("passed")), len(suite.of("skipped")), len(suite.unchanged_failures()), len(suite.changed("failed")))
    counts += (suite.for_the_name(), suite.not_repeated(), len(suite.changed("skipped")), kernel, fallbacks)
    return f"| {suite.name}{note} | {' | '.join(map(str, counts))} |"


_Changed = tuple[Suite, dict[str, Any]]


def _classes(changed: Iterable[_Changed], entries: list[dict[str, str]]) -> tuple[dict[str, list[_Changed]], list[str]]:
    """Tests by what explains them, and the names of those that nothing does."""
    classes: dict[str, list[_Changed]] = {}
    missing = []
    for suite, row in changed:
        name = row["test"].rpartition("::")[2]
        found = [
            entry["why"]
            for entry in entries
            if fnmatch.fnmatchcase(name, entry["test"])
            and fnmatch.fnmatchcase(suite.name, entry.get("suite", "*"))
            and fnmatch.fnmatchcase(row["why"], entry.get("message", "*"))
        ]
        if not found:
            missing.append(f"{suite.head['backend']} {row['test']}: {row['why']}")
        classes.setdefault(found[0] if found else f"**Not explained:** `{row['why']}`", []).append((suite, row))
    return classes, missing


def _listing(classes: dict[str, list[_Changed]], nothing: str) -> str:
    """Under each explanation its tests, by the suites they stand in."""
    if not classes:
        return nothing
    parts = []
    for why, changed in classes.items():
        suites: dict[str, set[str]] = {}
        for suite, row in changed:
            suites.setdefault(row["test"].rpartition("::")[2], set()).add(suite.name)
        names: dict[str, list[str]] = {}
        for name, found in sorted(suites.items()):
            names.setdefault(", ".join(sorted(found)), []).append(f"`{name}`")
        parts.append(f"{why}\n\n" + "\n".join(f"* {found}: {', '.join(tests)}" for found, tests in names.items()))
    return "\n\n".join(parts)


def _fallbacks(suites: list[Suite]) -> str:
    counts: dict[str, Counter[str]] = {}
    names: dict[str, set[str]] = {}
    for suite in suites:
        for row in suite.tests:
            for reason, count in row["fallbacks"].items():
                counts.setdefault(reason, Counter())[suite.name] += count
                names.setdefault(reason, set()).add(row["test"].rpartition("::")[2].partition("_0")[0])
    if not counts:
        return "None."
    lines = ["| reason | calls | where | tests |", "|---|---|---|---|"]
    for reason, found in sorted(counts.items(), key=lambda item: -item[1].total()):
        tests = ", ".join(f"`{name}`" for name in sorted(names[reason]))
        lines.append(
            f"| {reason} | {found.total()} | {', '.join(f'{name} {found[name]}' for name in sorted(found))} | {tests} |"
        )
    return "\n".join(lines)


def _skips(suites: list[Suite]) -> str:
    reasons = {(suite.name, row["test"]): row["why"] for suite in suites for row in suite.of("skipped")}
    counts = Counter(reasons.values())
    common = counts.most_common(12)
    lines = ["| reason | tests |", "|---|---|", *(f"| {reason} | {count} |" for reason, count in common)]
    rest = counts.total() - sum(count for _, count in common)
    return "\n".join([*lines, f"| {len(counts) - len(common)} other reasons | {rest} |"] if rest else lines)


if __name__ == "__main__":
    sys.exit(main())
