"""Random kernels of two cores, and random kernels from tapes: a sample of fixed seeds, and planted faults, which they find."""

from collections import Counter

import pytest
from fuzz_seeds import nothing_wrong

from nki_hf.sim.execution import cores, loop_execution
from nki_hf.sim.run import alike, play, tape_operands
from nki_hf.tools.judging import followed
from tools.fuzz.kernel_programs import EXCHANGES
from tools.fuzz.pair_programs import draw_pair
from tools.fuzz.search import KINDS, wrong_with
from tools.fuzz.tape_check import draw_taped


@pytest.mark.parametrize(("kind", "first", "count"), [("pairs", 0, 30), ("tapes", 0, 25)])
def test_random_kernels_of_two_cores_and_of_tapes(kind, first, count):
    nothing_wrong(kind, first, count)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "first"), [(kind, first) for kind in ("pairs", "tapes") for first in range(1000, 5000, 250)])
def test_many_random_kernels_of_two_cores_and_of_tapes(kind, first):
    nothing_wrong(kind, first, 250)


def test_cores_meet_in_loops_of_every_kind_and_in_exchanges_that_are_under_way():
    found = Counter()
    for seed in range(60):
        assert draw_pair(seed) == draw_pair(seed)
        assert draw_taped(seed) == draw_taped(seed)
        for step in KINDS["pairs"].draw(seed)["steps"]:
            found[step["op"], bool(step.get("late"))] += 1
            found.update((step["kind"], one["op"]) for one in step.get("body", ()))
    loops_of = [(kind, op) for kind in ("fori", "dynamic", "static") for op in EXCHANGES]
    assert min(found[each] for each in (("sendrecv", True), ("sendrecv", False), ("meet", False), *loops_of)) > 3


def _seen_once(meeting):
    if not meeting._staged:
        meeting.stage()
    return meeting.number


# By name: kind and seed of a program that finds it, and what it puts in the place of what.
FAULTS = {
    "what cores send in a loop is that of its first turn": ("pairs", 1, loop_execution, "_staged", _seen_once),
    "what an exchange sends is overwritten while it is under way": (
        "pairs",
        101,
        cores.Cooperation,
        "await_conflicts",
        lambda self, machine, reads, writes: [
            self._await(machine, item)
            for item in list(machine.pending)
            if item in machine.pending and cores._meet_any(item.writes, (*reads, *writes))
        ],
    ),
    "products do not ask who wrote their target": ("tapes", 67, alike.Alike, "_writer", lambda *_: alike._BY_PRODUCTS),
    "a tape knows one zero": ("tapes", 64, tape_operands, "repr", lambda value: repr(0.0) if value == 0 else repr(value)),
    "a shortened tape leaves out what accumulating products add to": ("tapes", 102, followed, "keeps", lambda event: False),
    "a shortened tape leaves out where cores meet": ("tapes", 0, followed, "_STATEFUL", ("no such instruction",)),
    "a tape refuses more indices than there are elements": ("tapes", 777157, play, "_CHOSEN", {}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(monkeypatch, name):
    kind, seed, owner, attribute, instead = FAULTS[name]
    case = KINDS[kind].draw(seed)
    assert not wrong_with(KINDS[kind], case)
    monkeypatch.setattr(owner, attribute, instead, raising=False)
    assert wrong_with(KINDS[kind], case)
