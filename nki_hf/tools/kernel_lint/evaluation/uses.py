"""Every call of the language in kernel code, with the values that reach it on the ways that the source shows."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path as File
from typing import Any

from nki_hf.tools.kernel_lint.evaluation import running, scopes
from nki_hf.tools.kernel_lint.evaluation.machine import Machine, Use
from nki_hf.tools.kernel_lint.evaluation.operators import unknown
from nki_hf.tools.kernel_lint.evaluation.paths import UNFIT, Ended, Exhausted, Path, paths
from nki_hf.tools.kernel_lint.evaluation.statements import Left, Returned
from nki_hf.tools.kernel_lint.evaluation.tile import Tile
from nki_hf.tools.kernel_lint.evaluation.values import Frame, Function
from nki_hf.tools.kernel_lint.source import Source, own_nodes

__all__ = ["Uses"]

_WAYS, _STEPS = 48, 10_000
"""Ways through a kernel, and statements of all of them together."""
_WAYS_ALONE, _STEPS_ALONE = 12, 3_000
"""The same of a function that no kernel was seen to reach."""
_NO_TENSORS = ("int", "float", "bool", "str", "tuple", "Tuple", "Optional[int]", "Optional[float]", "Optional[bool]")


class Uses:
    """What kernel code calls of the language, and what its kernels return."""

    def __init__(
        self,
        code: Mapping[Source, Sequence[ast.FunctionDef]],
        entries: Sequence[ast.FunctionDef],
        load: Callable[[File], Source],
    ) -> None:
        """Evaluates kernel code.

        Args:
          code: kernel functions by module.
          entries: the kernels that no other kernel code calls: what they are given lies in HBM.
          load: reads a file that a module imports.
        """
        self._machine = Machine(load)
        self._by_function: dict[int, list[tuple[str, Use, tuple[Any, ...]]]] = {}
        self._seen: set[tuple[Any, ...]] = set()
        self._sure: set[tuple[Any, ...]] = set()
        self._only_sure = False
        self._kernels = bool(entries)
        self._reached: set[int] = set()
        self._told: dict[int, dict[tuple[str, int], ast.AST]] = {}
        self.returned: dict[int, list[tuple[ast.expr, Any]]] = {}
        homes = {id(function): source for source, functions in code.items() for function in functions}
        for entry in entries:
            self._follow(homes[id(entry)], entry, _WAYS, _STEPS, entry=True)
        for source, functions in code.items():
            for function in functions:
                if any(id(call) not in self._reached for call in _calls(function)):
                    self._follow(source, function, _WAYS_ALONE, _STEPS_ALONE, entry=False)

    def of(self, functions: Sequence[ast.FunctionDef], space: str) -> Iterator[Use]:
        """The calls of `nisa` or `nl` in some functions."""
        for function in functions:
            for where, use, sign in self._by_function.get(id(function), ()):
                if where == space and (sign in self._sure or not self._only_sure):
                    yield use

    def sure(self) -> Uses:
        """The same with those calls alone that a kernel surely makes with these values: on each of its ways, or before the
        first condition that the source leaves open. Two conditions together may leave no way that is ever gone.
        """
        found = copy.copy(self)
        found._only_sure = True
        return found

    def told(self, functions: Sequence[ast.FunctionDef]) -> Iterator[tuple[str, ast.AST]]:
        """(rule, place) of what values in some functions turned out to break."""
        for function in functions:
            for (rule, _), node in self._told.get(id(function), {}).items():
                yield rule, node

    @property
    def visited(self) -> list[tuple[Source, ast.FunctionDef]]:
        """Every function that a kernel was seen to reach."""
        return list(self._machine.visited.values())

    def _follow(self, source: Source, function: ast.FunctionDef, ways: int, steps: int, *, entry: bool) -> None:
        machine = self._machine
        ended: list[set[tuple[Any, ...]]] = []

        def run(path: Path) -> int:
            before = path.left
            machine.follow(path)
            kept, whole = True, True
            try:
                self._run(source, function, entry=entry)
            except Ended:
                kept = not path.taken
            except (Exhausted, Left, RecursionError):
                whole = False
            except UNFIT:
                whole = False  # values of kinds that go together in no kernel: the way ends, what it called is judged
            self._reached |= {id(use.call) for _, use in machine.uses}
            signs = [(self._keep(space, use), use) for space, use in machine.uses if kept]
            if entry or not self._kernels:
                self._sure |= {sign for sign, use in signs if not use.decided}
                if kept and whole:
                    ended.append({sign for sign, _ in signs})
            for rule, where, node in machine.told:
                self._told.setdefault(id(where), {})[rule, id(node)] = node
            if entry:
                self.returned.setdefault(id(function), []).extend(machine.returned)
            return before - max(path.left, 0)

        if _all_gone(paths(run, ways, steps)) and ended:
            self._sure |= set.intersection(*ended)

    def _run(self, source: Source, function: ast.FunctionDef, *, entry: bool) -> None:
        machine = self._machine
        module = scopes.module_of(machine, source)
        made = running.function(machine, module.frame or Frame({}, module), function)
        args = function.args
        names = [argument for argument in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
        optional = {argument.arg: value for argument, value in zip(reversed(args.args), reversed(made.defaults), strict=False)}
        optional |= made.keyword_defaults
        by_default = entry and bool(optional) and machine.path.choose(("defaults", id(function)), 2, "") == 0
        words: dict[str, Any] = {}
        for argument in names:
            if argument.arg in optional and by_default:
                continue
            tensor = entry and argument.arg not in optional and not _is_number(argument)
            key = argument.arg
            words[argument.arg] = Tile(key, "hbm", "", None, argument=key, sure=False) if tensor else unknown(key)
        first = [words.pop(argument.arg) for argument in args.posonlyargs if argument.arg in words]
        try:
            running.run(machine, Function(function, module, None, made.defaults, made.keyword_defaults), first, words)
        except Returned:
            return

    def _keep(self, space: str, use: Use) -> tuple[Any, ...]:
        """Keeps a call unless one with the same values was kept; what tells it apart."""
        values = tuple((key, _shown(value)) for key, value in use.given.items())
        sign = (id(use.call), use.name, use.doubtful, values, _shown(use.result))
        if sign not in self._seen:
            self._seen.add(sign)
            self._by_function.setdefault(id(use.function), []).append((space, use, sign))
        return sign


def _all_gone(ways: Generator[Path, None, bool]) -> bool:
    """Goes every way; True if none was left out."""
    while True:
        try:
            next(ways)
        except StopIteration as end:
            return bool(end.value)


def _shown(value: Any, depth: int = 6) -> Any:
    if isinstance(value, Tile):
        sizes = None if value.shape is None else tuple(each if isinstance(each, int) else None for each in value.shape)
        return (
            value.argument,
            value.sure,
            value.buffer,
            value.dtype,
            sizes,
            value.start,
            value.offset,
            value.steps,
            value.rows,
        )
    if isinstance(value, list | tuple) and depth:
        return tuple(_shown(each, depth - 1) for each in value)
    if value is None or isinstance(value, int | float | str):
        return type(value), value
    return getattr(value, "text", type(value).__name__)


def _is_number(argument: ast.arg) -> bool:
    return argument.annotation is not None and ast.unparse(argument.annotation).split("[int")[0].split(" |")[0] in _NO_TENSORS


def _calls(function: ast.FunctionDef) -> Iterator[ast.Call]:
    """The calls of instructions and allocations that are written in a function."""
    for node in own_nodes(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            if node.func.value.id == "nisa" or (node.func.value.id == "nl" and node.func.attr == "ndarray"):
                yield node
