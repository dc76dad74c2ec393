"""Random kernels of the whole public language: what they draw, a sample of fixed seeds, and planted faults, which they find."""

import importlib

import numpy as np
import pytest
from fuzz_seeds import nothing_wrong

from tools.fuzz import coverage
from tools.fuzz.kernel_check import without_refused
from tools.fuzz.kernel_programs import draw_program
from tools.fuzz.not_drawn import NOT_DRAWN
from tools.fuzz.rare_programs import RARE, draw_rare
from tools.fuzz.search import KINDS, wrong_with
from tools.fuzz.wide_programs import draw_wide

KINDS_OF_KERNELS = ("kernels", "wide", "rare")


@pytest.mark.parametrize("first", [0, 40])
def test_random_kernels_of_the_rest_of_the_language(first):
    nothing_wrong("rare", first, 40)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 5000, 250))
def test_many_random_kernels_of_the_rest_of_the_language(first):
    nothing_wrong("rare", first, 250)


def test_every_instruction_of_the_simulator_is_drawn():
    drawn = coverage.drawn_by(KINDS_OF_KERNELS, range(150))
    instructions = {name for name in coverage.names() if name.startswith("isa.") and name.count(".") == 1 and "(" not in name}
    assert len(instructions) > 50
    assert not instructions - NOT_DRAWN.keys() - {name for name, count in drawn.items() if count}
    assert not {name for name in NOT_DRAWN if drawn[name]}


def test_what_is_not_drawn_has_a_name_and_a_reason():
    assert not NOT_DRAWN.keys() - set(coverage.names())
    assert all(len(reason) > 10 for reason in NOT_DRAWN.values())


@pytest.mark.slow
def test_every_name_and_argument_is_drawn_or_named_with_a_reason():
    drawn = coverage.drawn_by(KINDS_OF_KERNELS, range(900))
    assert not [name for name in coverage.names() if not drawn[name] and name not in NOT_DRAWN]
    assert not {name for name in NOT_DRAWN if drawn[name]}


def test_a_name_that_a_release_adds_is_missing_until_it_is_drawn(monkeypatch, capsys):
    added = lambda dst, strength=1.0: None  # noqa: E731
    monkeypatch.setitem(coverage.ISA, "squeeze", coverage.ISA["memset"])
    monkeypatch.setattr(coverage.isa, "squeeze", added, raising=False)
    assert coverage.main(["--count", "1"]) == 1
    missing = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.endswith("MISSING")}
    assert {"isa.squeeze", "isa.squeeze(strength)"} <= missing


def test_most_rare_steps_are_taken_by_the_rules_and_equal_seeds_give_equal_programs():
    kept, lost, reached = 0, 0, set()
    for seed in range(200):
        program = draw_rare(seed)
        assert program == draw_rare(seed)
        lost += len(without_refused(program)[1])
        kept += len(program["steps"])
        reached |= {step["what"] for step in program["steps"] if step["op"] == "rare"}
    assert lost < kept / 4
    assert reached == {*RARE}
    assert draw_wide(3) != draw_rare(3) != draw_program(3)


PLANTED = {
    "a scale of MX that is a power too small": (
        "nki_hf.sim.isa.microscaling",
        "_MAX_EXPONENT",
        lambda right: {**right, "float8_e4m3fn_x4": 9},
    ),
    "scales of MX in other rows": ("nki_hf.sim.isa.microscaling", "_scale_rows", lambda right: lambda rows: right(rows)[::-1]),
    "a generator with another counter": ("nki_hf.sim.isa.random_state", "_WEYL", lambda right: right + np.uint32(2)),
    "dropout with the other chance": (
        "nki_hf.sim.isa.random_numbers",
        "column",
        lambda right: lambda given: lambda: 1 - right(given)(),
    ),
    "groups of topk": ("nki_hf.sim.isa.gpsimd_search", "GPSIMD_GROUP", lambda right: 8),
    "types of mixed tiles": ("nki_hf.sim.language.tile_math", "promote", lambda right: lambda one, two: two),
    "groups of an index": (
        "nki_hf.sim.tensors.indirect",
        "locator",
        lambda right: lambda tensor, moved, skip, group: right(tensor, moved, skip, 32 if group == 16 else 16),
    ),
    "turns of an angle": ("nki_hf.sim.language.tile_math", "_TWO_PI_LOW", lambda right: 2 * right),
    "a norm in 16 bits": (
        "nki_hf.sim.language.composites",
        "sbuf_tile",
        lambda right: lambda shape, dtype, *more: right(shape, "bfloat16" if dtype == "float32" else dtype, *more),
    ),
}
"""Module, name, and what is put in its place."""


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_of_a_rare_step_is_found(monkeypatch, name):
    module, attribute, wrong = PLANTED[name]
    owner = importlib.import_module(module)
    monkeypatch.setattr(owner, attribute, wrong(getattr(owner, attribute)))
    kind = KINDS["rare"]
    drawn = (kind.draw(seed) for seed in range(400))
    assert any(wrong_with(kind, case) for case in drawn if case is not None)
