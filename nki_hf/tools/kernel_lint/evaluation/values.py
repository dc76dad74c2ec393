"""Values of kernel code that Python's own cannot stand for; numbers, texts, tuples, lists stand for themselves."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nki_hf.tools.kernel_lint.source import Source

__all__ = [
    "Bound",
    "Class",
    "Cut",
    "Dictionary",
    "Frame",
    "Function",
    "Host",
    "Instance",
    "Language",
    "Listed",
    "Member",
    "ModuleValue",
    "Partial",
    "Unknown",
]


@dataclass(frozen=True)
class Unknown:
    """What the source does not show. Two with one key are one value.

    Attributes:
      key: how it came about: `x.shape[0]`.
      low, high: bounds of a number, both included.
      test: `(operator, left, right)` of a comparison, `("not", value, None)` of its opposite.
    """

    key: str
    low: int | None = field(default=None, compare=False)
    high: int | None = field(default=None, compare=False)
    test: tuple[str, Any, Any] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Language:
    """A name of the language: `nl.float32`, `nisa.engine.vector`, `nl`."""

    text: str


@dataclass(frozen=True)
class Host:
    """A function or module of Python: `builtins.len`, `math`."""

    text: str


@dataclass(frozen=True)
class Cut:
    """`nl.ds(start, size)`: a part of an axis."""

    start: Any
    size: Any


class Listed(list[Any]):
    """A list; `loose` once it may hold more than is told."""

    loose = False


class Dictionary(dict[Any, Any]):
    """A dictionary; `loose` once it may hold more than is told."""

    loose = False


@dataclass(eq=False)
class Frame:
    """A function at work.

    Attributes:
      names: what its names hold.
      module: the module in which it is written.
      function: its syntax; None for a module or a class.
      outer: the frame in which it was defined.
      outside: names that it takes from another frame to change them (`nonlocal`, `global`).
    """

    names: dict[str, Any]
    module: ModuleValue
    function: ast.FunctionDef | None = None
    outer: Frame | None = None
    outside: set[str] = field(default_factory=set)


@dataclass(eq=False)
class ModuleValue:
    """A module: its source, what of Python it imports, the modules that it names in full, its names once it has run."""

    source: Source
    hosts: dict[str, str]
    dotted: frozenset[str]
    frame: Frame | None = None


@dataclass(eq=False)
class Function:
    """A function or lambda, with the frame in which it was defined and the object that it is a method of."""

    node: ast.FunctionDef | ast.Lambda
    module: ModuleValue
    outer: Frame | None
    defaults: list[Any]
    keyword_defaults: dict[str, Any]
    owner: Any = None
    kind: Class | None = None

    def of(self, owner: Any, kind: Class) -> Function:
        """The method of an object."""
        return Function(self.node, self.module, self.outer, self.defaults, self.keyword_defaults, owner, kind)


@dataclass(eq=False)
class Class:
    """A class: what its body binds, its bases, and the fields that its calls fill, in their order."""

    node: ast.ClassDef
    names: dict[str, Any]
    bases: list[Any]
    fields: list[str]
    ways: dict[str, str]

    def find(self, name: str) -> Any:
        """What the class or its first base that has it binds to a name; raises KeyError if none does."""
        if name in self.names:
            return self.names[name]
        for base in self.bases:
            if isinstance(base, Class):
                try:
                    return base.find(name)
                except KeyError:
                    continue
        raise KeyError(name)

    def way(self, name: str) -> str:
        """`staticmethod`, `classmethod`, `property` or empty: how a method is called."""
        if name in self.names:
            return self.ways.get(name, "")
        return next((way for base in self.bases if isinstance(base, Class) and (way := base.way(name))), "")

    def is_a(self, *names: str) -> bool:
        """True if it, or a class that it comes from, has one of the names."""
        for base in self.bases:
            text = base.node.name if isinstance(base, Class) else getattr(base, "text", getattr(base, "key", ""))
            if text.rpartition(".")[2] in names or (isinstance(base, Class) and base.is_a(*names)):
                return True
        return False


@dataclass(eq=False)
class Instance:
    """An object of a class."""

    kind: Class
    fields: dict[str, Any]


@dataclass(frozen=True)
class Member:
    """A member of an Enum."""

    kind: str
    name: str
    value: Any = field(compare=False)


@dataclass(eq=False)
class Partial:
    """`functools.partial(called, ...)`."""

    called: Any
    given: list[Any]
    words: dict[str, Any]


@dataclass(eq=False)
class Bound:
    """A method of a tile, a list, a dictionary or a text."""

    owner: Any
    name: str
