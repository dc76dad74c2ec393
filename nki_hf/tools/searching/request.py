"""What an agent's command is told: one JSON object, a function of the rounds of earlier generations alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nki_hf.tasks import load_task
from nki_hf.tools.judging.line_words import line_words
from nki_hf.tools.searching.facts import source_diff
from nki_hf.tools.searching.menu import some
from nki_hf.tools.searching.rounds import Round, best_of, earlier, pairs, parent_of, speedup
from nki_hf.tools.searching.run import Run

__all__ = ["REQUEST_VERSION", "remembered", "request_of"]

REQUEST_VERSION = 1
_PAIRS = 4
_HISTORY = 200


def request_of(run: Run, settings: Mapping[str, Any], rounds: Sequence[Round], number: int, guide: str) -> dict[str, Any]:
    """The request of round `number`.

    Entries: `version`, `round`, `task` (name, about, options of the judge), `guide` (the text of `nki_hf prompt`), `parent`
    (the kernel to start from), `best`, `last` (the highest round that came from the same parent, else the highest), each with
    source, verdict, times, hints and critical path, or null; `history` (a line per round), `memory` (slow and fast kernels with
    the difference between them, here and in other runs), `diversity` (a part of the menu of changes, what others have tried
    from the same parent, a seed).
    """
    size, tries = int(settings["beam"]), int(settings["tries"])
    before = earlier(rounds, number, size * tries)
    parent, best = parent_of(before, number, size, tries), best_of(before)
    siblings = [r for r in before if parent is not None and r["parent"] == parent["round"]]
    last = siblings[-1] if siblings else before[-1] if before else None
    seed = int(settings["seed"]) + number
    task = load_task(settings["task"])
    return {
        "version": REQUEST_VERSION,
        "round": number,
        "task": {
            "name": task.name,
            "about": task.about,
            **{k: settings["judge"][k] for k in ("check", "at", "chip", "layout")},
        },
        "guide": guide,
        "parent": parent and _whole(run, parent),
        "best": best and _whole(run, best),
        "last": last and _whole(run, last),
        "history": [_line(r) for r in before[-_HISTORY:]],
        "memory": [*(_pair(run, slow, fast) for slow, fast in pairs(before, _PAIRS)), *settings["remembered"]],
        "diversity": {
            "changes": some(seed),
            "tried": [{"note": r["note"], "passed": r["passed"], "score": r["score"]} for r in siblings[-8:]],
            "seed": seed,
        },
    }


def remembered(runs: Sequence[Run], most: int = _PAIRS) -> list[dict[str, Any]]:
    """Slow and fast kernels of other runs, the largest gains first.

    Raises:
      ValueError: a run is damaged.
    """
    for run in runs:
        run.check()
    found = [_pair(run, slow, fast) for run in runs for slow, fast in pairs(run.rounds(), most)]
    return sorted(found, key=lambda pair: -pair["speedup"])[:most]


def _line(item: Round) -> dict[str, Any]:
    return {key: item[key] for key in ("round", "parent", "passed", "stage", "score", "us", "sentence", "note")}


def _pair(run: Run, slow: Round, fast: Round) -> dict[str, Any]:
    sources = run.source(slow["round"]), run.source(fast["round"])
    return {
        "speedup": speedup(slow, fast),
        "note": fast["note"],
        "slow_us": slow["us"],
        "fast_us": fast["us"],
        "slow": sources[0],
        "fast": sources[1],
        "diff": source_diff(*sources, ("slow", "fast")),
    }


def _whole(run: Run, item: Round) -> dict[str, Any]:
    record = run.record(item["round"]) or {}
    times = [
        {
            **{key: row[key] for key in ("chip", "size", "us", "least_us", "score", "sentence", "floors_us", "counters")},
            "hints": [
                hint["text"] + (f" ({line_words(record['file'], hint['file'], hint['line'])})" if hint["line"] else "")
                for hint in row["hints"]
            ],
            "path": [{key: step[key] for key in ("engine", "opcode", "line", "us", "share")} for step in row["path"]],
        }
        for row in record.get("times", [])
    ]
    findings = [
        {key: found[key] for key in ("stage", "kind", "message", "limit", "advice", "line")}
        for found in record.get("findings", [])
    ]
    return {**_line(item), "source": run.source(item["round"]), "times": times, "findings": findings}
