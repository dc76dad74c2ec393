"""The loop: rounds of an agent and the judge, a generation at a time, over several processes, up to a number or a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nki_hf.tasks import load_task
from nki_hf.tools.searching.facts import failed_record
from nki_hf.tools.searching.guide import guide
from nki_hf.tools.searching.options import round_limit
from nki_hf.tools.searching.request import request_of
from nki_hf.tools.searching.rounds import earlier, generation_of, parent_of
from nki_hf.tools.searching.run import Run, line_of
from nki_hf.tools.searching.workers import Workers

__all__ = ["loop"]


def loop(
    run: Run,
    settings: Mapping[str, Any],
    workers: Workers,
    *,
    rounds: int,
    budget: float | None,
    clock: Callable[[], float],
    say: Callable[[Mapping[str, Any]], None],
) -> str:
    """Go on with a run; why it ended.

    A round is idempotent: its number, the kernel that it starts from and the inputs on which it is judged follow from the
    settings and from the rounds of earlier generations. So it does not matter how often it is begun, or which of its
    generation ends first.

    Args:
      run: the folder, held by this process.
      settings: what the run is.
      workers: who runs rounds.
      rounds: how many there are to be, the finished ones included.
      budget: seconds of wall clock that all sessions of the run may take together; None = no limit. Its end is a time limit of
        the rounds that run then.
      clock: seconds that they have taken.
      say: gets the line of each round as it ends.
    """
    done = {item["round"]: item for item in run.rounds(mend=True)}

    def left() -> float | None:
        return None if budget is None else budget - clock()

    used_up = f"the budget of {budget:g} s is used up" if budget is not None else ""
    if settings["start"] and 0 not in done:
        _add(run, done, _started(run, settings, workers, clock), say)
    text = guide(load_task(settings["task"]), settings["judge"])
    width = int(settings["beam"]) * int(settings["tries"])
    for first in range(1, rounds + 1, width):
        missing = [number for number in range(first, min(first + width, rounds + 1)) if number not in done]
        if not missing:
            continue
        known = {
            r["sha256"]: r["round"]
            for r in reversed(earlier(list(done.values()), first, width))  # of rounds with one kernel the first
            if not r["transient"]
        }
        known.pop("", None)
        jobs = _jobs(run, settings, list(done.values()), missing, text, known, left)
        asked, cut = 0, False
        for number, answer in workers.run(jobs, float(settings["timeout"]) + round_limit(settings["judge"])):
            asked += 1
            cut |= bool(answer.get("budget"))
            _add(run, done, _ended(run, settings, done, missing[number], answer, clock()), say)
        if cut or asked < len(missing):
            return used_up
    return f"{rounds} rounds are done"


def _jobs(
    run: Run,
    settings: Mapping[str, Any],
    before: list[Mapping[str, Any]],
    numbers: list[int],
    text: str,
    known: Mapping[str, int],
    left: Callable[[], float | None],
) -> Iterator[dict[str, Any]]:
    """The jobs of one generation; none begins when the budget is used up."""
    for number in numbers:
        seconds = left()
        if seconds is not None and seconds <= 0:
            return
        yield {
            "kind": "round",
            "agent": settings["agent"],
            "folder": settings["folder"],
            "seconds": settings["timeout"],
            "path": str(run.kernel(number)),
            "request": request_of(run, settings, before, number, text),
            "task": settings["task"],
            "options": _options(settings, number),
            "known": dict(known),
            "left": seconds,
        }


def _options(settings: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Of the judge; inputs differ from round to round, and are the same if a round is begun again."""
    return {**settings["judge"], "seed": (int(settings["seed"]) * 1_000_003 + number) % (1 << 31)}


def _started(run: Run, settings: Mapping[str, Any], workers: Workers, clock: Callable[[], float]) -> tuple[dict[str, Any], Any]:
    """Round 0: the kernel that the run starts from."""
    path = run.kernel(0)
    path.write_text(settings["start"], encoding="utf-8")
    job = {"kind": "judge", "path": str(path), "task": settings["task"], "options": _options(settings, 0)}
    answer = next(workers.run([job], round_limit(settings["judge"])))[1]
    record = answer.get("record") or failed_record(str(path), settings["task"], answer.get("error", "no answer"))
    seconds = {"agent": 0.0, "judge": sum(record.get("seconds", {}).values())}
    line = line_of(
        0,
        0,
        None,
        settings["start"],
        record,
        note="the kernel that the run starts from",
        seconds=seconds,
        clock_s=clock(),
        same_as=None,
    )
    return line, record


def _ended(
    run: Run, settings: Mapping[str, Any], done: Mapping[int, Any], number: int, answer: Mapping[str, Any], clock_s: float
) -> tuple[dict[str, Any], Any]:
    width = int(settings["beam"]) * int(settings["tries"])
    parent = parent_of(list(done.values()), number, int(settings["beam"]), int(settings["tries"]))
    record, same = answer.get("record"), answer.get("same")
    if same is not None:
        record = run.record(same)
    error = ("died", answer["error"]) if isinstance(answer.get("error"), str) else tuple(answer.get("error", ("", "")))
    more: dict[str, Any] = {}
    if record is None:
        more["sentence"] = f"failed at stage agent: {error[1] or 'there is no kernel'}."
    if answer.get("budget"):
        what = more.get("sentence") or (record or {}).get("sentence", "")
        more["sentence"] = f"{what.rstrip('.')}: the end of the budget."
    seconds = {"agent": answer.get("agent_seconds", 0.0), "judge": sum((record or {}).get("seconds", {}).values())}
    source = run.source(number) if record is not None else ""
    line = line_of(number, generation_of(number, width), None if parent is None else parent["round"], source, record, **more,
                   note=answer.get("note", ""), error=error[0], seconds=seconds, clock_s=clock_s, same_as=same)  # fmt: skip
    return line, record


def _add(run: Run, done: dict[int, Any], ended: tuple[dict[str, Any], Any], say: Callable[[Mapping[str, Any]], None]) -> None:
    line, record = ended
    run.add(line, record)
    done[line["round"]] = line
    say(line)
