"""Runs Transformers' own model suites under "nki" and prints one row for each architecture.

    python tools/hf_suite/prepare.py CHECKOUT FOLDER --sdist transformers-X.Y.Z.tar.gz
    NKI_HF_BACKEND=torch_reference python tools/hf_suite/run.py FOLDER llama qwen3 gemma2
    python tools/hf_suite/run.py FOLDER llama -k "sdpa or batching"     # through the kernels, on the simulator

Each suite runs once with every model switched to "nki" (swap.py). The tests that fail are run again as they are: those
that pass then are the new failures, the others fail without nki_hf too. Needs what the suites need: pytest,
parameterized and the packages that single tests ask for.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_HEAD = "| suite | back end | passed | skipped | fail without nki_hf too | new failures | kernel calls | fallbacks | seconds |"


def main() -> int:
    """Run the suites; 1 if one of them gave no result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what prepare.py made")
    parser.add_argument("suites", nargs="+", help="folders of tests/models")
    parser.add_argument("-k", dest="keyword", default="", help="pytest's -k")
    parser.add_argument("--seconds", type=int, default=600, help="longest time of one suite")
    options = parser.parse_args()
    _link_sources(options.folder.resolve())
    print(_HEAD + "\n" + "|---" * _HEAD.count(" | ") + "|---|", flush=True)
    missing = 0
    for suite in options.suites:
        row, notes = judge(options.folder.resolve(), suite, options.keyword, options.seconds)
        print(row, flush=True)
        for note in notes:
            print(f"    {note}", file=sys.stderr, flush=True)
        missing += row.endswith("no result |")
    return int(missing > 0)


def _link_sources(folder: Path) -> None:
    """Some tests read the library's sources beside the tests: those of the installed package."""
    link = folder / "src" / "transformers"
    if not link.exists():
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(Path(importlib.util.find_spec("transformers").origin).parent)


def judge(folder: Path, suite: str, keyword: str, seconds: int) -> tuple[str, list[str]]:
    """The row of one suite, and a line for each new failure and each reason of a fallback."""
    backend = os.environ.get("NKI_HF_BACKEND", "simulator")
    start = time.monotonic()
    paths = sorted(str(path.relative_to(folder)) for path in (folder / "tests" / "models" / suite).glob("test_modeling_*.py"))
    swapped = _pytest(folder, suite, paths, "nki", seconds, ["-k", keyword] if keyword else [])
    took = time.monotonic() - start
    if swapped is None:
        return f"| {suite} | {backend} | no result |", [
            f"{suite}: no result within {seconds} s, or not collected: see {suite}-nki.log"
        ]
    failed = sorted(name for name, outcome in swapped["tests"].items() if outcome == "failed")
    plain = _pytest(folder, suite, failed, "none", seconds, []) if failed else {"tests": {}}
    if plain is None:
        return f"| {suite} | {backend} | no result |", [f"{suite}: the tests that failed gave no result without nki_hf"]
    new = [name for name in failed if plain["tests"].get(name) == "passed"]
    counts, calls = Counter(swapped["tests"].values()), swapped["calls"]
    row = (
        f"| {suite} | {backend} | {counts['passed']} | {counts['skipped']} | {len(failed) - len(new)} | {len(new)} | "
        f"{calls['kernel']} | {calls['fallback']} | {took:.0f} |"
    )
    reasons = [f"{count} fallbacks: {reason}" for reason, count in calls["reasons"].items()]
    return row, [f"new failure: {name.rpartition('/')[2]}" for name in new] + reasons


def _pytest(folder: Path, suite: str, tests: list[str], swap: str, seconds: int, arguments: list[str]) -> dict[str, Any] | None:
    root = str(_HERE.parents[1])
    path = os.pathsep.join([str(folder), str(folder / "utils"), str(_HERE), root, os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryDirectory() as temporary:
        record = Path(temporary) / "record.json"
        command = [sys.executable, "-m", "pytest", "-p", "swap", "--swap", swap, "--swap-record", str(record)]
        command += ["-q", "--no-header", "--tb=line", "-W", "ignore", "-p", "no:cacheprovider", *arguments, *tests]
        with (folder / f"{suite}-{swap}.log").open("w") as log:
            try:
                done = subprocess.run(
                    command, cwd=folder, env=environment, stdout=log, stderr=log, timeout=seconds, check=False
                )
            except subprocess.TimeoutExpired:
                return None
        return json.loads(record.read_text()) if done.returncode in (0, 1) else None  # else not all tests were run


if __name__ == "__main__":
    sys.exit(main())
