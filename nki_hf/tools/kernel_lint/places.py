"""Where tiles live: memory, element type and rank of what an expression of a kernel stands for, as far as the source shows it.

Followed are views, names bound to a tile, items of dictionaries and attributes by their key, elements of lists, parameters of
functions through their calls, and results. Not followed: tiles that are chosen at run time of the front end, and names that
are bound to tiles in different memories.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nki_hf.tools.kernel_lint.iterations import turns_of
from nki_hf.tools.kernel_lint.sizes import Size, View, number, view_of
from nki_hf.tools.kernel_lint.source import last_name, own_nodes

__all__ = ["Places", "Tile"]

_ALLOCATORS = ("ndarray", "zeros", "ones", "full")
_ROUNDS = 5
"""Passes over the functions; a tile travels at least one step further in each: a name, a call, a container."""

Key = tuple[int, str]


@dataclass(frozen=True)
class Tile:
    """A tile or a view of one.

    Attributes:
      spaces: memories it may live in; several only for a parameter that is given several.
      dtype: element type as written, e.g. `float32`; empty if that is not a name of the language.
      rank: of its shape; 0 if unknown.
      shape: sizes by axis, None where the source does not show one; empty if unknown.
    """

    spaces: frozenset[str]
    dtype: str = ""
    rank: int = 0
    shape: tuple[Size, ...] = ()


class Places:
    """The tiles of a set of functions that call each other."""

    def __init__(
        self,
        functions: list[ast.FunctionDef],
        callee: Callable[[ast.FunctionDef, ast.Call], list[ast.FunctionDef]],
        constants: Mapping[int, Mapping[str, int]],
        fields: Mapping[str, Sequence[str]],
    ) -> None:
        """Follow the tiles.

        Args:
          functions: kernel code.
          callee: the functions that a call in a function may mean.
          constants: by function (its id), the names that hold one whole number.
          fields: by class, the fields that its calls fill, in the order of their places.
        """
        self._callee = callee
        self._home = {
            id(node): function for function in functions for node in own_nodes(function) if isinstance(node, ast.Call)
        }
        self._cuts: dict[int, frozenset[str]] = {}
        self._constants = constants
        self._fields = fields
        self._parts: dict[int, dict[str, ast.expr]] = {}
        self._arguments: dict[Key, set[str]] = {}
        self._turns: dict[int, dict[int, tuple[dict[str, int], ...]]] = {}
        self._tiles: dict[Key, Tile | None] = {}
        self._held: dict[Key, list[Tile]] = {}  # of a container whose tiles lie in several memories too
        self._given: dict[Key, Tile] = {}
        self._results: dict[int, dict[int, Tile]] = {}
        for _ in range(_ROUNDS):
            before = dict(self._tiles), dict(self._given), {key: dict(value) for key, value in self._results.items()}
            for function in functions:
                self._follow(function)
            if before == (self._tiles, self._given, self._results):
                break

    def constants(self, function: ast.FunctionDef) -> Mapping[str, int]:
        """Names that hold one whole number in a function."""
        return self._constants.get(id(function), {})

    def cuts(self, function: ast.FunctionDef) -> frozenset[str]:
        """Names of a function that hold a part of an axis, made by `slice` or `ds`."""
        if id(function) not in self._cuts:
            places: list[ast.expr] = []
            for node in own_nodes(function):
                if isinstance(node, ast.Assign) and any(_is_cut(part) for part in ast.walk(node.value)):
                    places += node.targets
                elif isinstance(node, ast.For) and any(_is_cut(part) for part in ast.walk(node.iter)):
                    places.append(node.target)
            names = {name.id for place in places for name in ast.walk(place) if isinstance(name, ast.Name)}
            self._cuts[id(function)] = frozenset(names)
        return self._cuts[id(function)]

    def home(self, call: ast.Call) -> ast.FunctionDef:
        """The function that a call stands in."""
        return self._home[id(call)]

    def turns(self, function: ast.FunctionDef, call: ast.Call) -> tuple[Mapping[str, int], ...]:
        """Whole numbers by name in some turns of the loops around a call; see `turns_of`."""
        if id(function) not in self._turns:
            given = {argument.arg: self.given(function, argument.arg) for argument in function.args.args}
            numbers = {name: int(text) for name, text in given.items() if text.removeprefix("-").isdigit()}
            self._turns[id(function)] = turns_of(function, self.constants(function), numbers)
        return self._turns[id(function)].get(id(call), (self.constants(function),))

    def written(self, function: ast.FunctionDef, node: ast.expr) -> ast.expr:
        """What a name stands for if the function binds it once, to a part of a tile (`half = tile[:, 0:4]`); else the node."""
        if not isinstance(node, ast.Name):
            return node
        if id(function) not in self._parts:
            inside = list(own_nodes(function))
            stores = Counter(each.id for each in inside if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store))
            self._parts[id(function)] = {
                each.targets[0].id: each.value
                for each in inside
                if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name) and len(each.targets) == 1
                if isinstance(each.value, ast.Subscript) and stores[each.targets[0].id] == 1
            }
        return self._parts[id(function)].get(node.id, node)

    def given(self, function: ast.FunctionDef, name: str) -> str:
        """What every call in kernel code gives a parameter: a whole number or a name of the language; else empty."""
        texts = self._arguments.get((id(function), name), set())
        return next(iter(texts)) if len(texts) == 1 else ""

    def view(
        self,
        function: ast.FunctionDef,
        whole: Tile | None,
        index: ast.expr,
        constants: Mapping[str, int] | None = None,
    ) -> View | None:
        """The view `whole[index]` (see `view_of`); None too if a parameter stands in the brackets alone: it may be given a
        place or a part. `constants`: names that hold one whole number, if they are not those of the function.
        """
        if whole is None or not whole.shape:
            return None
        items = index.elts if isinstance(index, ast.Tuple) else [index]
        given = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)} - set(self.constants(function))
        if any(isinstance(item, ast.Name) and item.id in given for item in items):
            return None
        return view_of(whole.shape, index, self.constants(function) if constants is None else constants, self.cuts(function))

    def tile(self, function: ast.FunctionDef, node: ast.AST) -> Tile | None:
        """What an expression in a function stands for; None if it is no tile or that is not known."""
        if isinstance(node, ast.Name):
            key = (id(function), node.id)
            return self._tiles[key] if key in self._tiles else self._given.get(key)
        if isinstance(node, ast.Subscript):
            element = self._tiles.get(_element_key(function, node))
            viewed = element or self.tile(function, node.value)
            if element or viewed is None:
                return viewed
            view = self.view(function, viewed, node.slice)
            return replace(viewed, rank=0, shape=() if view is None else view.shape)
        if isinstance(node, ast.Attribute):
            return self._tiles.get((0, f".{node.attr}"))
        if isinstance(node, ast.IfExp):
            one, other = self.tile(function, node.body), self.tile(function, node.orelse)
            return one if one == other else None
        if isinstance(node, ast.Call):
            return self._called(function, node)
        return None

    def held(self, function: ast.FunctionDef, node: ast.expr) -> list[Tile]:
        """The tiles of a container: a literal, `tuple(...)` or `list(...)` of one, a name that is bound to one, a result."""
        if isinstance(node, ast.Starred):
            return self.held(function, node.value)
        if isinstance(node, ast.Tuple | ast.List):
            return [tile for element in node.elts for tile in self.held_or_self(function, element)]
        if isinstance(node, ast.ListComp | ast.GeneratorExp):
            copied = ast.unparse(node.elt) == ast.unparse(node.generators[0].target)
            return self.held(function, node.generators[0].iter) if copied else self.held_or_self(function, node.elt)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self.held(function, node.left) + self.held(function, node.right)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in ("tuple", "list", "reversed") and len(node.args) == 1:
                return self.held(function, node.args[0])
            called = self._callee(function, node)
            results = self._results.get(id(called[0]), {}) if len(called) == 1 else {}
            return [tile for place, tile in sorted(results.items()) if place != -1]
        return self._held.get((id(function), f"{ast.unparse(node)}[]"), [])

    def held_or_self(self, function: ast.FunctionDef, node: ast.expr) -> list[Tile]:
        """The tile that an expression stands for, else those it holds."""
        tile = self.tile(function, node)
        return self.held(function, node) if tile is None else [tile]

    def _called(self, function: ast.FunctionDef, node: ast.Call) -> Tile | None:
        if isinstance(node.func, ast.Attribute) and last_name(node.func) in _ALLOCATORS:
            if isinstance(node.func.value, ast.Name) and node.func.value.id == "nl":
                return _allocated(node, self.constants(function))
        results = [self._results.get(id(other), {}).get(-1) for other in self._callee(function, node)]
        if results:
            return results[0] if len(results) == 1 else None
        if isinstance(node.func, ast.Attribute):
            viewed = self.tile(function, node.func.value)
            dtype = "" if viewed is None or node.func.attr == "view" else viewed.dtype
            return None if viewed is None else replace(viewed, rank=0, shape=(), dtype=dtype)
        return None

    def _follow(self, function: ast.FunctionDef) -> None:
        bound: dict[str, list[Tile | None]] = {}
        for key in [key for key, tile in self._tiles.items() if key[0] == id(function) and tile is None]:
            del self._tiles[key]  # what was unknown is asked again
        for node in own_nodes(function):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._assign(function, target, node.value, bound)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self._assign(function, node.target, node.value, bound)
            elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
                self._hold(function, node.target, self.held(function, node.value))
            elif isinstance(node, ast.For) and isinstance(node.target, ast.Name):
                bound.setdefault(node.target.id, []).append(self._tiles.get((id(function), f"{ast.unparse(node.iter)}[]")))
            elif isinstance(node, ast.Return) and node.value is not None:
                self._return(function, node.value)
            elif isinstance(node, ast.Call):
                self._call(function, node)
        for name, tiles in bound.items():
            known = {tile for tile in tiles if tile is not None}
            # a name that is also bound to what is no tile, or to tiles elsewhere, says nothing
            self._tiles[id(function), name] = known.pop() if len(known) == 1 and None not in tiles else None

    def _assign(
        self, function: ast.FunctionDef, target: ast.expr, value: ast.expr, bound: dict[str, list[Tile | None]]
    ) -> None:
        if isinstance(target, ast.Tuple):
            for place, (item, each) in enumerate(_paired(target, value)):
                tile = self._result(function, value, place) if each is None else self.tile(function, each)
                if isinstance(item, ast.Name):
                    bound.setdefault(item.id, []).append(tile)
            return
        tile = self.tile(function, value)
        if isinstance(target, ast.Name):
            bound.setdefault(target.id, []).append(tile)
            self._hold(function, target, self.held(function, value) if tile is None else [])
            if isinstance(value, ast.Dict):
                for key, item in zip(value.keys, value.values, strict=True):
                    if isinstance(key, ast.Constant):
                        self._add((0, repr(key.value)), self.tile(function, item))
        elif isinstance(target, ast.Attribute):
            self._add((0, f".{target.attr}"), tile)
        elif isinstance(target, ast.Subscript) and self.tile(function, target.value) is None:
            self._add(_element_key(function, target), tile)

    def _hold(self, function: ast.FunctionDef, container: ast.expr, tiles: list[Tile]) -> None:
        key = (id(function), f"{ast.unparse(container)}[]")
        for tile in tiles:
            self._add(key, tile)
            if tile not in self._held.setdefault(key, []):
                self._held[key] = [*self._held[key], tile]

    def _add(self, key: Key, tile: Tile | None) -> None:
        """A container's place gets one more tile; two in different memories make it unknown."""
        if tile is not None:
            known = self._tiles.get(key, tile)
            self._tiles[key] = None if known is None or known.spaces != tile.spaces else _joined(known, tile)

    def _return(self, function: ast.FunctionDef, value: ast.expr) -> None:
        found = self._results.setdefault(id(function), {})
        whole = self.tile(function, value)
        if whole is not None:
            found[-1] = whole
        elif isinstance(value, ast.Tuple):
            for place, each in enumerate(value.elts):
                tile = self.tile(function, each)
                if tile is not None:
                    found[place] = tile
        else:
            found.update(enumerate(self.held(function, value)))

    def _result(self, function: ast.FunctionDef, value: ast.expr, place: int) -> Tile | None:
        called = self._callee(function, value) if isinstance(value, ast.Call) else []
        return self._results.get(id(called[0]), {}).get(place) if len(called) == 1 else None

    def _call(self, function: ast.FunctionDef, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute) and node.args:
            if node.func.attr in ("append", "insert"):
                self._hold(function, node.func.value, self.held_or_self(function, node.args[-1]))
            elif node.func.attr == "extend":
                self._hold(function, node.func.value, self.held(function, node.args[0]))
        if isinstance(node.func, ast.Name) and node.func.id in self._fields:
            filled = [*zip(self._fields[node.func.id], node.args, strict=False)]
            filled += [(word.arg, word.value) for word in node.keywords if word.arg]
            for field, value in filled:
                self._add((0, f".{field}"), self.tile(function, value))
        for other in self._callee(function, node):
            names = [argument.arg for argument in other.args.args]
            if names[:1] == ["self"]:
                names = names[1:]
            given = [*zip(names, node.args, strict=False), *((word.arg or "", word.value) for word in node.keywords)]
            for name, value in given:
                size = number(value, self.constants(function))
                text = ast.unparse(value) if size is None else str(size)
                known = size is not None or text.startswith(("nisa.", "nl."))
                self._arguments.setdefault((id(other), name), set()).add(text if known else "")
                tile = self.tile(function, value)
                if name in names and tile is not None and not isinstance(value, ast.Starred):
                    key = (id(other), name)
                    self._given[key] = _joined(self._given.get(key, tile), tile)


def _joined(one: Tile, other: Tile) -> Tile:
    return Tile(
        spaces=one.spaces | other.spaces,
        dtype=one.dtype if one.dtype == other.dtype else "",
        rank=one.rank if one.rank == other.rank else 0,
        shape=one.shape if one.shape == other.shape else (),
    )


def _allocated(call: ast.Call, constants: Mapping[str, int]) -> Tile:
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    position = 3 if last_name(call.func) == "full" else 2  # (shape, dtype, buffer); full has its value between
    places = dict(enumerate(call.args))
    buffer = named.get("buffer", places.get(position))
    dtype = named.get("dtype", places.get(position - 1))
    shape = named.get("shape", places.get(0))
    written = dtype is not None and ast.unparse(dtype).startswith("nl.")
    return Tile(
        spaces=frozenset({"sbuf" if buffer is None else last_name(buffer)}),
        dtype=last_name(dtype) if written and dtype is not None else "",
        rank=len(shape.elts) if isinstance(shape, ast.Tuple | ast.List) else 0,
        shape=tuple(number(size, constants) for size in shape.elts) if isinstance(shape, ast.Tuple | ast.List) else (),
    )


def _is_cut(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) in ("slice", "ds")


def _element_key(function: ast.FunctionDef, node: ast.Subscript) -> Key:
    """The place of an item: by its key where that is a text, in whatever dictionary; else by the list's name."""
    if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        return 0, repr(node.slice.value)
    return id(function), f"{ast.unparse(node.value)}[]"


def _paired(target: ast.Tuple, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
        yield from zip(target.elts, value.elts, strict=True)
    else:
        yield from ((item, None) for item in target.elts)
