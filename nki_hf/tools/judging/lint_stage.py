"""The stage of lint: what the versions of NKI refuse of a kernel's source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nki_hf.tools.judging.findings import Failed, finding
from nki_hf.tools.judging.line_words import line_words
from nki_hf.tools.kernel_lint import RULES, lint

__all__ = ["judge_lint"]


def judge_lint(request: Mapping[str, Any], record: dict[str, Any]) -> None:
    """Fail for what no version of NKI takes, whatever the ways through the kernel; what some versions refuse, or what is
    not sure, is a warning in the record.

    Args:
      request, record: of the judgement.

    Raises:
      Failed: with up to five findings.
    """
    path = Path(request["file"])
    if not path.is_file():
        return
    try:
        rows = lint(path)
    except (SyntaxError, ValueError, OSError, RecursionError):
        return
    refused = []
    for row in rows:
        for found in sorted({item for items in row.findings.values() for item in items}):
            versions = [version for version, items in row.findings.items() if found in items]
            beside = path.absolute().parent / found.file
            file = str(path) if beside == path.absolute() else str(beside) if beside.is_file() else found.file
            at = line_words(str(path), file, found.line)
            record["warnings"].append(f"lint: {found.rule}: {found.message} ({at}), NKI {', '.join(versions)}")
            if len(versions) == len(row.findings) and RULES[found.rule].word == "refused" and found.sure:
                refused.append(
                    finding(
                        "lint",
                        {
                            "kind": found.rule,
                            "message": f"no version of NKI takes this: {found.message}",
                            "limit": RULES[found.rule].why,
                            "file": file,
                            "line": found.line,
                        },
                    )
                )
    if refused:
        raise Failed("lint", *refused[:5])
