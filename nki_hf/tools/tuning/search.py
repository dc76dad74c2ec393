"""The search of a tuner: every combination with what the roofline rules out, or what a sampler asks for; results are kept."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nki_hf.tools.searching.workers import Workers
from nki_hf.tools.tuning.samplers import Sampled
from nki_hf.tools.tuning.space import Space, combinations, key_of
from nki_hf.tools.tuning.study import Study

__all__ = ["Case", "Tuned", "every", "exhaustive", "sampled"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kernel on one problem.

    Attributes:
      label: how it is called, e.g. `trn2@4096`.
      job: a trial of the workers but for its constants.
      start: the constants that the kernel has if it is told nothing; None if it must be told.
      study: where results are kept.
      band: the error band of its times.
    """

    label: str
    job: Mapping[str, Any]
    start: Mapping[str, Any] | None
    study: Study
    band: str


@dataclass(kw_only=True)
class Tuned:
    """What came of it: results by combination (`us`; `floor_us` and `pruned`; or `failed`).

    Attributes:
      case: the case.
      start_us: the time with the constants that the kernel has by itself; None if it has none, or fails.
      rows: constants and result.
      known: combinations (`key_of`) whose results were kept by an earlier command.
      shared: those whose results are of other commands on the same study.
      programs: what the kernel's Python starts or asks beyond Python, for which no result is kept.
      seconds: wall clock.
    """

    case: Case
    start_us: float | None = None
    rows: list[tuple[dict[str, Any], Mapping[str, Any]]] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)
    programs: set[str] = field(default_factory=set)
    seconds: float = 0.0

    @property
    def ranked(self) -> list[tuple[dict[str, Any], float]]:
        """Constants and us, the fastest first."""
        timed = [(constants, float(result["us"])) for constants, result in self.rows if "us" in result]
        return sorted(timed, key=lambda row: row[1])

    @property
    def best_us(self) -> float | None:
        """The least time."""
        return min((us for _, us in self.ranked), default=None)


def every(case: Case, space: Space, workers: Workers, limit: float) -> Tuned:
    """Every combination, scheduled; arguments as of `exhaustive`."""
    return exhaustive(case, space, workers, limit, prune=False)


def exhaustive(case: Case, space: Space, workers: Workers, limit: float, *, prune: bool = True) -> Tuned:
    """Every combination. One whose busiest engine alone takes longer than the best so far is not scheduled.

    Args:
      case: what is tuned.
      space: values by constant.
      workers: who runs trials.
      limit: seconds of one trial, from which it has hung.
      prune: False schedules all.
    """
    began = time.perf_counter()
    found = Tuned(case=case)
    known = case.study.known()
    found.start_us = _start(found, known, workers, limit)
    all_of_it = {key_of(constants): constants for constants in combinations(space)}
    results = {key: known[key] for key in all_of_it if key in known}
    best = [min((r["us"] for r in results.values() if "us" in r), default=float("inf"))]
    least = best[0] if prune else float("inf")
    missing = [key for key in all_of_it if key not in results or not _settled(results[key], least)]
    found.known = set(all_of_it) - set(missing)
    results.update(_run(found, missing, all_of_it, best if prune else [float("inf")], workers, limit, prune=prune))
    found.rows = [(constants, results[key]) for key, constants in all_of_it.items()]
    found.seconds = time.perf_counter() - began
    return found


def sampled(case: Case, space: Space, sampler: Sampled, workers: Workers, limit: float) -> Tuned:
    """What a sampler asks for, until its study has enough; other processes may work on it at the same time."""
    began = time.perf_counter()
    found = Tuned(case=case)
    known = case.study.known()
    found.start_us = _start(found, known, workers, limit)
    results: dict[str, Mapping[str, Any]] = {}
    constants_of: dict[str, dict[str, Any]] = {}
    for trial, constants in sampler.asked():
        key = key_of(constants)
        constants_of[key] = constants
        if key in known and ("us" in known[key] or "failed" in known[key]):
            results[key] = known[key]
            found.known.add(key)
        else:
            results.update(_run(found, [key], constants_of, [float("inf")], workers, limit))
        sampler.told(trial, results[key])
    for key, result in sampler.results().items():
        if key not in results:
            results[key] = result
            found.shared.add(key)
    for constants in combinations(space):
        if key_of(constants) in results:
            found.rows.append((constants, results[key_of(constants)]))
    found.seconds = time.perf_counter() - began
    return found


def _settled(result: Mapping[str, Any], best_us: float) -> bool:
    return "us" in result or "failed" in result or result["floor_us"] >= best_us


def _start(found: Tuned, known: Mapping[str, Mapping[str, Any]], workers: Workers, limit: float) -> float | None:
    case = found.case
    if case.start is None:
        return None
    key = key_of(case.start)
    result = known.get(key)
    if result is None or "pruned" in result:
        result = dict(_run(found, [key], {key: dict(case.start)}, [float("inf")], workers, limit))[key]
    return result.get("us")


def _run(
    found: Tuned,
    keys: list[str],
    constants_of: Mapping[str, dict[str, Any]],
    best: list[float],
    workers: Workers,
    limit: float,
    *,
    prune: bool = True,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Key and result of each, as they end; `best` is kept."""
    case = found.case

    def jobs() -> Iterator[dict[str, Any]]:
        for key in keys:
            limit_us = None if best[0] == float("inf") or not prune else best[0]
            own = constants_of[key]
            yield {**case.job, "constants": repr({**case.job["given"], **own}), "tuned": list(own), "best_us": limit_us}

    def heard(answer: Mapping[str, Any]) -> None:  # at once: keeping results may take longer than the next trials
        best[0] = min(best[0], answer.get("us", float("inf")))

    for number, answer in workers.run(jobs(), limit, heard):
        if "unknown" in answer:
            raise ValueError(answer["unknown"])
        if "error" in answer:  # of the process: another time it may do
            result = {"failed": answer["error"]}
        else:
            result = answer
            found.programs.update(answer.get("programs", ()))
            case.study.keep(keys[number], result)
        yield keys[number], result
