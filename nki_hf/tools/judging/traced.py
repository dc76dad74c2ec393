"""A task's own reference, operation by operation: NumPy calls are seen and one of them is done otherwise.

Arrays of the class `Traced` report each ufunc, each NumPy function and each index; an operation's site is the place in the
reference's code where it stands, so that it is known again in the next run and can be quoted.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Call", "Change", "Site", "run", "sites"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Site:
    """Where an operation stands: file, lines and columns, NumPy's name, and the ufunc's method or `function`, `index`."""

    file: str
    place: tuple[int | None, int | None, int | None, int | None]
    name: str
    method: str

    @property
    def text(self) -> str:
        """The expression as the reference's file has it; empty without a file."""
        first, last, left, right = self.place
        if first is None or last is None:
            return ""
        lines = [line.encode() for line in linecache.getlines(self.file)[first - 1 : last]]
        if not lines:
            return ""
        lines[-1] = lines[-1][:right]
        lines[0] = lines[0][left or 0 :]
        text = " ".join(b" ".join(lines).decode(errors="replace").split())
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"

    @property
    def quoted(self) -> str:
        """The expression in quotes; the operation's name where there is no file."""
        return f"`{self.text or self.name}`"


_LONGEST = 70


@dataclass
class Call:
    """An operation: what is called, on plain arrays, and how often its site was reached before, what the
    reference was given, and what other sites gave last in this run.
    """

    site: Site
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    options: dict[str, Any]
    turn: int
    given: Mapping[str, Any]
    results: Mapping[Site, Any]

    def result(self, *inputs: Any, function: Any = None, **options: Any) -> Any:
        """What comes out, with other inputs or options, or of another ufunc."""
        other = self.function if function is None else _of(function, self.site.method)
        return other(*(inputs or self.inputs), **{**self.options, **options})


Change = Callable[[Call], Any]


@dataclass
class _State:
    """Of the run under way."""

    given: Mapping[str, Any] = field(default_factory=dict)
    seen: dict[Site, list[Call]] | None = None
    changes: Mapping[Site, Change] = field(default_factory=dict)
    turns: dict[Site, int] = field(default_factory=dict)
    results: dict[Site, Any] = field(default_factory=dict)


_now = _State()
_SKIPPED = (str(Path(np.__file__).parent), __file__)


def _of(ufunc: Any, method: str) -> Any:
    return ufunc if method == "__call__" else getattr(ufunc, method)


def _bare(value: Any) -> Any:
    if isinstance(value, Traced):
        return value.view(np.ndarray)
    if type(value) in (tuple, list):
        return type(value)(_bare(item) for item in value)
    return value


def _traced(value: Any) -> Any:
    if type(value) is np.ndarray:
        return value.view(Traced)
    return type(value)(_traced(item) for item in value) if type(value) in (tuple, list) else value


def _site(name: str, method: str) -> Site:
    frame: Any = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_SKIPPED):
        frame = frame.f_back
    code = frame.f_code
    if code not in _places:
        _places[code] = list(code.co_positions())
    return Site(code.co_filename, _places[code][frame.f_lasti // 2], name, method)


_places: dict[types.CodeType, list[Any]] = {}
_KEPT = 8
"""Calls of a site that are kept: of a loop over more steps than taps or heads, the first ones."""


def _done(site: Site, function: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    turn = _now.turns.get(site, 0)
    _now.turns[site] = turn + 1
    call = Call(site, function, inputs, options, turn, _now.given, _now.results)
    if _now.seen is not None:
        calls = _now.seen.setdefault(site, [])
        if len(calls) <= _KEPT:
            calls.append(call)
    change = _now.changes.get(site)
    _now.results[site] = found = call.result() if change is None else change(call)
    return found


class Traced(np.ndarray[Any, Any]):
    """An array whose operations are seen."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        """The ufunc on plain arrays, or what is done in its place."""
        options = {key: _bare(value) for key, value in options.items()}
        found = _done(_site(ufunc.__name__, method), _of(ufunc, method), tuple(map(_bare, inputs)), options)
        if out is None:
            return _traced(found)
        _bare(out[0])[...] = found
        return out[0]

    def __array_function__(self, function: Any, kinds: Any, args: Any, options: Any) -> Any:
        """A NumPy function: one in C as one operation, one in Python by those that it consists of."""
        if function not in _FUNCTIONS:
            return _traced(super().__array_function__(function, kinds, args, options))
        inputs, named = tuple(map(_bare, args)), {key: _bare(value) for key, value in options.items()}
        return _traced(_done(_site(function.__name__, "function"), function, inputs, named))

    def __getitem__(self, index: Any) -> Any:
        """Elements; slices and numbers are an operation."""
        index = _bare(index)
        if not any(
            isinstance(item, int | slice) and item != slice(None) for item in (index if type(index) is tuple else (index,))
        ):
            return _traced(_bare(self)[index])
        return _traced(_done(_site("index", "index"), lambda array, at: array[at], (_bare(self), index), {}))

    def __setitem__(self, index: Any, value: Any) -> None:
        """Plain."""
        _bare(self)[_bare(index)] = _bare(value)


_FUNCTIONS = (np.where, np.concatenate, np.copyto, np.take_along_axis)
_MAKERS = ("array", "asarray", "asanyarray", "arange", "zeros", "ones", "full", "tri", "eye", "linspace", "indices")


class _Numpy:
    """NumPy whose new arrays are traced."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        return (lambda *args, **options: _traced(found(*args, **options))) if name in _MAKERS else found


@functools.lru_cache(maxsize=4)
def _uses(function: Any) -> list[tuple[dict[str, Any], str]]:
    """Where the modules of a function and of what it calls have NumPy: their globals, and its name there.

    Kept: a reference is traced hundreds of times, and what it reaches does not change between them.
    """
    return [(space, name) for space in _modules(function) for name, item in space.items() if item is np]


def _modules(function: Any) -> list[dict[str, Any]]:
    """The globals of a function and of what it calls, without NumPy's."""
    found: dict[int, dict[str, Any]] = {}
    todo = [function]
    while todo:
        one = todo.pop()
        one = getattr(one, "__wrapped__", None) or getattr(one, "func", one)
        if not isinstance(one, types.FunctionType) or one.__code__.co_filename.startswith(_SKIPPED):
            continue
        if id(one.__globals__) not in found:
            found[id(one.__globals__)] = one.__globals__
            todo += [item for item in one.__globals__.values() if isinstance(item, types.FunctionType)]
        for cell in one.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell
                todo.append(cell.cell_contents)
    return list(found.values())


@contextlib.contextmanager
def _tracing(function: Any) -> Iterator[None]:
    """Block in which modules of a reference have the traced NumPy."""
    try:
        changed = _uses(function)
    except TypeError:  # a callable without a hash
        changed = _uses.__wrapped__(function)
    for space, name in changed:
        space[name] = _Numpy()
    try:
        yield
    finally:
        for space, name in changed:
            space[name] = np


def run(function: Callable[..., Any], given: Mapping[str, Any], changes: Mapping[Site, Change]) -> Any:
    """What the reference gives if the operations at these sites are done otherwise."""
    return _run(function, given, _State(given, changes=changes))


def sites(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[Site, list[Call]]:
    """The operations of the reference on these arrays, by site, in the order in which they are reached."""
    state = _State(given, seen={})
    _run(function, given, state)
    return state.seen or {}


def _run(function: Callable[..., Any], given: Mapping[str, Any], state: _State) -> Any:
    global _now
    before, _now = _now, state
    try:
        with _tracing(function), np.errstate(all="ignore"):
            return _bare(
                function(
                    **{
                        name: _traced(np.asarray(item)) if isinstance(item, np.ndarray) else item
                        for name, item in given.items()
                    }
                )
            )
    finally:
        _now = before
