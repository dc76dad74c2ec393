"""Races: two accesses to the same bytes, one of them a write, that nothing orders.

What orders. The compiler keeps the sequential order of a kernel wherever two instructions of one core depend on each other
through data ("the compiler may reorder operations that have no data dependencies, but this is functionally transparent",
nki/get-started/nki-language-guide.rst), `depends_on` adds edges, and `nl.no_reorder` adds them between all instructions of
its block (nki/guides/how-to-scheduling-apis.rst). So within one core the dependencies of sim/stream/dependencies.py are
ordered. Across the two cores of a launch nothing is, but where they meet: `core_barrier` (waits for this core's accesses to
its `data`, and holds back the later ones; nki/api/nki/isa/__init__.py) and `sendrecv`. Two accesses of different cores are
therefore ordered only if the first leads to a meeting, by dependencies, that leads to the second.
The order of issue within an engine's queue does not count there, because the compiler may change it.

Three kinds of dependency within a core are only inferred to be tracked; `Trust` says whether to rely on them:

* `addresses`: tiles that share bytes by `address=`. Public kernels rely on it (nki-library's attention kernels rotate over
  PSUM banks and SBUF addresses with no synchronisation of their own).
* `hbm`: an HBM tensor written by one DMA and read by another. Public kernels rely on it (nki-samples' attention with HBM
  round trips, nki-library's attention backward accumulates in HBM).
* `indices`: accesses whose elements run-time indices choose, taken as touching the whole tensor. No public statement. Between
  cores they are taken as touching what they chose in this run, where it computed values.

What is not trusted is ordered only if other dependencies and the order of the queues imply it.
"""

from __future__ import annotations

from collections.abc import Sequence

from nki_hf.errors import KernelFault
from nki_hf.observers.core_races import races_between_cores
from nki_hf.observers.inferred_order import Trust, races_within_cores
from nki_hf.observers.race import Race
from nki_hf.sim.stream.events import Event

__all__ = ["Race", "Trust", "check_races", "races"]


def races(events: Sequence[Event], *, trust: Trust | None = None) -> list[Race]:
    """Every unordered pair of conflicting accesses of a run, one `Race` per pair of source lines."""
    trust = trust or Trust()
    found = list(races_between_cores(events)) if any(event.core for event in events) else []
    if trust != Trust():
        found += races_within_cores(events, trust)
    merged: dict[tuple[object, ...], Race] = {}
    for race in found:
        key = (race.cause, race.first.file, race.first.line, race.second.file, race.second.line)
        known = merged.get(key)
        merged[key] = (
            race
            if known is None
            else Race(
                known.first,
                known.second,
                known.first_region,
                known.second_region,
                known.cause,
                known.missing,
                known.count + 1,
                known.same and race.same,
            )
        )
    return list(merged.values())


def check_races(events: Sequence[Event], *, trust: Trust | None = None) -> None:
    """Raise the first race of a run as a `KernelFault`."""
    for race in races(events, trust=trust):
        raise KernelFault(race.record())


# ---- two cores --------------------------------------------------------------------------------------------------------


# ---- one core -----------------------------------------------------------------------------------------------------------
