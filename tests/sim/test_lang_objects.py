"""NKIObject: both forms of a class construct the same objects (language guide, "Class Support")."""

from __future__ import annotations

import dataclasses
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import ClassVar

import pytest

from nki_hf.sim import language as nl

FORMS = {
    "plain": lambda cls: cls,
    "dataclass": dataclass,
    "called": dataclass(),
    "frozen": dataclass(frozen=True),
    "slots": dataclass(slots=True),
    "no eq": dataclass(eq=False),
    "keyword only": dataclass(kw_only=False),
    "no init": dataclass(init=False),
}


@pytest.fixture(params=FORMS)
def form(request):
    return FORMS[request.param]


def test_missing_fields_are_none(form):
    @form
    class Tiles(nl.NKIObject):
        x: int
        y: int
        z = 5

    tiles = Tiles(1)
    assert (tiles.x, tiles.y, tiles.z) == (1, None, 5)
    assert Tiles().x is None
    assert (Tiles(1, 2, 3).y, Tiles(1, 2, 3).z) == (2, 3)
    assert Tiles(y=4).y == 4


def test_what_field_says_holds_in_both_forms(form):
    @form
    class Plan(nl.NKIObject):
        size: int
        names: list = field(default_factory=list)
        mode: str = field(kw_only=True, default="fast")
        derived: int = field(init=False, default=7)
        count: ClassVar[int] = 3

    first, second = Plan(1), Plan(2, ["a"], mode="slow")
    assert (first.size, first.names, first.mode, first.derived, first.count) == (1, [], "fast", 7, 3)
    assert (second.names, second.mode) == (["a"], "slow")
    assert Plan(1).names is not first.names
    with pytest.raises(TypeError, match="Plan takes 2 fields"):
        Plan(1, [], "slow")
    for unknown in ("derived", "count", "other"):
        with pytest.raises(TypeError, match=unknown):
            Plan(1, **{unknown: 1})
    with pytest.raises(TypeError, match="twice"):
        Plan(1, size=2)


def test_a_field_without_a_default_is_none_too(form):
    @form
    class Plan(nl.NKIObject):
        size: int = field(kw_only=True)
        late: int = field(init=False)

    assert (Plan().size, Plan(size=3).size, Plan().late) == (None, 3, None)


def test_fields_behind_kw_only_are_passed_by_name(form):
    @form
    class Plan(nl.NKIObject):
        a: int
        _: KW_ONLY
        b: int
        c: int = 4

    assert (Plan(1, b=2).b, Plan(1).b, Plan(1).c) == (2, None, 4)
    with pytest.raises(TypeError, match="takes 1 fields"):
        Plan(1, 2)


def test_inherited_fields_come_first_and_may_be_left_out(form):
    @form
    class Base(nl.NKIObject):
        x: int
        y: int = 2

    @form
    class Derived(Base):
        z: int = 0
        y: int = 9

    @form
    class Nested(Derived):
        inner: Base = None

    derived = Derived(1)
    assert (derived.x, derived.y, derived.z) == (1, 9, 0)
    assert Derived(1, 2, 3).z == 3
    nested = Nested(inner=Base(5))
    assert (nested.x, nested.inner.x, nested.inner.y) == (None, 5, 2)


@pytest.mark.parametrize(("base", "derived"), [(dataclass, lambda c: c), (lambda c: c, dataclass), (dataclass, dataclass)])
def test_the_forms_may_be_mixed_along_an_inheritance(base, derived):
    @base
    class Base(nl.NKIObject):
        x: int

    @derived
    class Derived(Base):
        y: int

    assert (Derived(1, 2).x, Derived(1, 2).y, Derived(1).y) == (1, 2, None)


def test_post_init_sees_the_fields_and_its_init_variables(form):
    seen = []

    @form
    class Plan(nl.NKIObject):
        size: int
        scale: InitVar[int] = 3

        def __post_init__(self, scale):
            seen.append((self.size, scale))

    Plan(1)
    Plan(2, 5)
    Plan()
    assert seen == [(1, 3), (2, 5), (None, 3)]


def test_a_dataclass_of_ones_own_mixes_in():
    @dataclass
    class Sizes:
        rows: int

    @dataclass
    class Plan(Sizes, nl.NKIObject):
        columns: int = 4

    assert (Plan().rows, Plan(1).columns) == (None, 4)
    assert dataclasses.replace(Plan(1), rows=5) == Plan(5)
    assert dataclasses.asdict(Plan(1)) == {"rows": 1, "columns": 4}


def test_a_class_with_an_init_of_its_own_keeps_it(form):
    @form
    class Plan(nl.NKIObject):
        size: int

        def __init__(self, given):
            object.__setattr__(self, "size", 2 * given)

    assert Plan(3).size == 6


def test_a_frozen_dataclass_stays_frozen():
    @dataclass(frozen=True)
    class Plan(nl.NKIObject):
        size: int

    with pytest.raises(dataclasses.FrozenInstanceError):
        Plan(1).size = 2
