"""The state of an evaluation: the way that is followed, and what is recorded on it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path as File
from typing import Any

from nki_hf.tools.kernel_lint.evaluation.operators import forget_marked
from nki_hf.tools.kernel_lint.evaluation.paths import Path
from nki_hf.tools.kernel_lint.evaluation.values import Frame, Instance, ModuleValue
from nki_hf.tools.kernel_lint.source import Source

__all__ = ["Machine", "Use"]


@dataclass(eq=False)
class Use:
    """A call of the language on one way through a kernel.

    Attributes:
      function: the function of kernel code in which it stands.
      call: its syntax.
      name: of what is called: `memset`.
      given: its arguments by parameter.
      nodes: where each is written; the call itself where that is not told (`*operands`).
      doubtful: True if the way has decided a condition that may tell where a tensor lies.
      result: what it gives, of an allocation.
      decided: True if the way has decided any condition: that it can be gone is not sure then.
    """

    function: ast.FunctionDef
    call: ast.Call
    name: str
    given: dict[str, Any]
    nodes: dict[str, ast.expr]
    doubtful: bool
    result: Any = None
    decided: bool = True


class Machine:
    """What the functions of this package share while they evaluate kernel code.

    Attributes:
      load: reads a file that a module imports.
      modules: those that were imported, by their source (its id).
      path: the way that is followed.
      depth: calls of functions that are at work.
      width: turns of the loops around, multiplied.
      turns: calls of the language and turns of unknown loops so far: each has a name of its own.
      uses: what was recorded, by language (`nisa`, `nl`; `tile`: methods of tiles).
      returned: (expression, value) of what the outermost function returns.
      told: (rule, function, place) of what a value turned out to break.
      visited: the functions that ran, with their modules.
      starting: modules that are being imported.
    """

    TURNS = 64
    """Turns of loops that are all taken, multiplied where loops are nested."""
    CHOICES = 4
    """Items of which each may be meant by an index that is not known."""
    ITEMS = 1 << 16
    """Items of a list that are told apart."""
    DEPTH = 24
    """Calls inside of calls that are followed."""

    def __init__(self, load: Callable[[File], Source]) -> None:
        """`load`: reads a file that a module imports."""
        self.load = load
        self.modules: dict[int, ModuleValue] = {}
        self.path = Path((), 0)
        self.depth = 0
        self.width = 1
        self.turns = 0
        self.starting = 0
        self.uses: list[tuple[str, Use]] = []
        self.returned: list[tuple[ast.expr, Any]] = []
        self.told: list[tuple[str, ast.FunctionDef, ast.AST]] = []
        self.visited: dict[int, tuple[Source, ast.FunctionDef]] = {}

    def follow(self, path: Path) -> None:
        """Begins a way anew."""
        forget_marked()
        self.path, self.depth, self.width, self.turns = path, 0, 1, 0
        self.uses, self.returned, self.told = [], [], []

    def tell(self, frame: Frame, node: ast.AST, rule: str) -> None:
        """Records that a place breaks a rule, if it does: empty for none."""
        if rule and frame.function is not None and not self.starting:
            self.told.append((rule, frame.function, node))

    def items(self, value: Any) -> list[Any] | None:
        """The items of what can be looped over; None if they are not all known."""
        if isinstance(value, Instance) and value.kind.is_a("NamedTuple"):
            return [value.fields.get(name) for name in value.kind.fields]
        if isinstance(value, range) and len(value) > self.ITEMS:
            return [value[0], value[1], *value[2 : self.TURNS], value[-1]]
        if isinstance(value, list | tuple | dict | str | range | set) and not getattr(value, "loose", False):
            return list(value)
        return None
