"""Runs Transformers' own model suites under "nki", and what does not pass there once more without nki_hf.

    python tools/hf_suite/prepare.py CHECKOUT FOLDER --sdist transformers-X.Y.Z.tar.gz
    NKI_HF_BACKEND=torch_reference python tools/hf_suite/run.py FOLDER llama qwen3 gemma2
    python tools/hf_suite/run.py FOLDER llama                   # through the kernels, on the simulator
    python tools/hf_suite/table.py FOLDER --write docs/hf_suites.md

Each suite runs with every model switched to "nki" (swap.py). Tests that failed or were skipped then run as they are, which
tells what nki_hf changes. Failures that are new run twice more: again under "nki", which tells whether they repeat, and with
nki_hf under the name "sdpa", which tells what fails for the name alone. Every test is recorded as it ends (record.py) in
FOLDER/records: the same command continues a run that was interrupted, and does nothing for one that is done. Needs what the
suites need: pytest, pytest-timeout, parameterized and the packages that single tests ask for.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]


class Refused(Exception):
    """One line: what is wrong and what to do."""


def main() -> int:
    """Run the suites; 1 if a suite was not run to its end, 2 if nothing can be run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what prepare.py made")
    parser.add_argument("suites", nargs="+", help="folders of tests/models")
    parser.add_argument("-k", dest="keyword", default="", help="pytest's -k")
    parser.add_argument("--records", type=Path, help="where the records go (default: FOLDER/records)")
    parser.add_argument("--seconds", type=int, default=7200, help="longest time of one run of a suite")
    parser.add_argument("--test-seconds", type=int, default=900, help="longest time of one test; needs pytest-timeout")
    parser.add_argument("--again", action="store_true", help="forget what was recorded of these suites")
    options = parser.parse_args()
    try:
        return run_suites(options)
    except Refused as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("run.py: interrupted. The same command continues.", file=sys.stderr)
        return 130


def run_suites(options: argparse.Namespace) -> int:
    """Run every suite three ways; 1 if one was not run to its end."""
    if importlib.util.find_spec("pytest_timeout") is None:
        raise Refused("pytest_timeout cannot be imported: pip install pytest-timeout")
    folder = options.folder.resolve()
    records = (options.records or folder / "records").resolve()
    suites = {suite: test_files(folder, suite) for suite in options.suites}
    records.mkdir(parents=True, exist_ok=True)
    _link_sources(folder)
    limits = [f"--timeout={options.test_seconds}", "-o", "timeout_method=signal"]
    keyword = ["-k", options.keyword] if options.keyword else []
    unfinished = 0
    for suite, paths in suites.items():
        record = begin(folder, records, "whole", suite, options.keyword, options.again)
        problem = "" if finished(record) else run(folder, record, "nki", [*limits, *keyword, *paths], options.seconds)
        print(f"{record.stem}: {problem or summary(rows(record))}", flush=True)
        unfinished += bool(problem)
    for way, swap, changed in (
        ("none", "none", not_passed),
        ("again", "nki", new_failures),
        ("as_sdpa", "as_sdpa", new_failures),
    ):
        record = begin(folder, records, way, again=options.again and way != "none")
        left = sorted(changed(records) - {row["test"] for row in rows(record)})
        problem = run(folder, record, swap, [*limits, *left], options.seconds) if left else ""
        if problem:
            print(f"{record.stem}: {problem}", flush=True)
        unfinished += bool(problem)
    return int(unfinished > 0)


def test_files(folder: Path, suite: str) -> list[str]:
    """The model test files of a suite, relative to the folder."""
    if not (folder / "COMMIT").exists():
        make = f"python tools/hf_suite/prepare.py CHECKOUT {shlex.quote(str(folder))}"
        raise Refused(f"{folder} is not a folder of prepare.py. Make one: {make}")
    paths = sorted(str(path.relative_to(folder)) for path in (folder / "tests" / "models" / suite).glob("test_modeling_*.py"))
    if not paths:
        near = sorted(path.name for path in (folder / "tests" / "models").glob(f"{suite[:3]}*"))
        raise Refused(f"suite {suite!r} has no test_modeling_*.py in {folder / 'tests' / 'models'}. Near: {', '.join(near)}")
    return paths


def _link_sources(folder: Path) -> None:
    """Some tests read the library's sources beside the tests: those of the installed package."""
    link = folder / "src" / "transformers"
    if not link.exists():
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(Path(importlib.util.find_spec("transformers").origin).parent)


def begin(folder: Path, records: Path, way: str, suite: str = "", keyword: str = "", again: bool = False) -> Path:
    """The record of a run, with its head written: what is run, with which versions.

    The whole of a suite has a record of its own; of the other ways to run (`none`, `again`, `as_sdpa`) each has one for all.
    """
    backend = "none" if way == "none" else _backend()
    commit, *laid_over = (folder / "COMMIT").read_text().split()
    head = {"suite": suite, "backend": backend, "keyword": keyword, "tests": commit, "laid_over": "".join(laid_over)}
    head["versions"] = {name: importlib.metadata.version(name) for name in ("transformers", "torch", "pytest")}
    head["versions"]["python"] = platform.python_version()
    if way != "none":
        head["nki_hf"] = _package_tree()
    record = records / ("none.jsonl" if way == "none" else f"{suite or way}-{backend}.jsonl")
    if again or not record.exists():
        record.write_text(json.dumps(head) + "\n")
    recorded = json.loads(record.read_text().partition("\n")[0])
    other = sorted(key for key in head if recorded.get(key) != head[key])
    if other:
        raise Refused(
            f"{record} is of a run with another {', '.join(other)}: {recorded.get(other[0])!r}, now {head[other[0]]!r}. "
            "Run with --again to replace it, or with another --records."
        )
    return record


def _backend() -> str:
    return os.environ.get("NKI_HF_BACKEND", "simulator")


def _package_tree() -> str:
    """Git's name of the package's sources, which stays when commits are rebased; `+` marks what is not committed."""
    git = ["git", "-C", str(_ROOT)]
    tree = subprocess.run([*git, "rev-parse", "--short=12", "HEAD:nki_hf"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "status", "--porcelain", "nki_hf"], capture_output=True, text=True, check=False)
    return (tree.stdout.strip() or "unknown") + ("+" if changed.stdout else "")


def run(folder: Path, record: Path, swap: str, arguments: list[str], seconds: int) -> str:
    """Run the tests that the record does not hold; a line about what went wrong, empty if all were run."""
    path = os.pathsep.join([str(folder), str(folder / "utils"), str(_HERE), str(_ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-m", "pytest", "-p", "swap", "--swap", swap, "-p", "record", "--record", str(record)]
    command += ["-q", "--no-header", "--tb=short", "--disable-warnings", "-p", "no:cacheprovider", *arguments]
    log = record.with_suffix(".log")
    with log.open("w") as file:
        try:
            done = subprocess.run(command, cwd=folder, env=environment, stdout=file, stderr=file, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            return f"stopped after {seconds} s with {summary(rows(record))}; the same command continues"
    if done.returncode in (0, 1, 5) and finished(record):  # 5: nothing was left
        return ""
    errors = [line[1:].strip() for line in log.read_text().splitlines() if line.startswith("E  ")]
    last = f" ({errors[-1]})" if errors else ""
    return f"pytest ended with status {done.returncode} after {summary(rows(record))}{last}: see {log}"


def rows(record: Path) -> list[dict[str, Any]]:
    """What each test of a record did."""
    return [row for row in map(json.loads, record.read_text().splitlines()) if "test" in row]


def finished(record: Path) -> bool:
    """Whether the last run of a record came to its end."""
    return "end" in json.loads(record.read_text().splitlines()[-1])


def not_passed(records: Path) -> set[str]:
    """The tests of all suites that failed or were skipped under "nki" on this back end."""
    return {row["test"] for row in _under_nki(records) if row["outcome"] != "passed"}


def new_failures(records: Path) -> set[str]:
    """The tests of all suites that failed under "nki" on this back end and do not without nki_hf."""
    plain = {row["test"] for row in rows(records / "none.jsonl") if row["outcome"] != "failed"}
    return {row["test"] for row in _under_nki(records) if row["outcome"] == "failed"} & plain


def _under_nki(records: Path) -> list[dict[str, Any]]:
    paths = [path for path in records.glob(f"*-{_backend()}.jsonl") if not path.stem.startswith(("again-", "as_sdpa-"))]
    return [row for path in paths for row in rows(path)]


def summary(tests: list[dict[str, Any]]) -> str:
    """How many passed, failed and were skipped, as text."""
    outcomes = [row["outcome"] for row in tests]
    return ", ".join(f"{outcomes.count(which)} {which}" for which in ("passed", "failed", "skipped"))


if __name__ == "__main__":
    sys.exit(main())
