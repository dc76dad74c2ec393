"""Where tiles live: memory, element type and rank of what an expression of a kernel stands for, as far as the source shows it.

Followed are views, names bound to a tile, items of dictionaries and attributes by their key, elements of lists, parameters of
functions through their calls, results, and shapes, element types and memories taken from names and other tiles. Not followed:
tiles that are chosen at run time of the front end, and names that are bound to tiles in different memories.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from nki_hf.tools.kernel_lint.iterations import straight_calls, turns_of
from nki_hf.tools.kernel_lint.meanings import bound_once, derived_names, meaning, parsed, stores_of
from nki_hf.tools.kernel_lint.sharing import sharing_groups
from nki_hf.tools.kernel_lint.sizes import Size, View, number, view_of
from nki_hf.tools.kernel_lint.source import last_name, own_nodes
from nki_hf.tools.kernel_lint.tile import Tile, by_axis, joined, read_as

__all__ = ["Places"]

_VIEWS = (
    "ap",
    "broadcast",
    "expand_dim",
    "flatten_dims",
    "permute",
    "rearrange",
    "reshape",
    "reshape_dim",
    "select",
    "slice",
    "view",
)
"""Methods that show a tensor's elements another way."""
_ALLOCATORS = ("ndarray", "zeros", "ones", "full")
_ROUNDS = 10
"""Passes over the functions; a tile travels at least one step further in each: a name, a call, a container."""

Key = tuple[int, str]


class Places:
    """The tiles of a set of functions that call each other."""

    def __init__(
        self,
        functions: list[ast.FunctionDef],
        callee: Callable[[ast.FunctionDef, ast.Call], list[ast.FunctionDef]],
        constants: Mapping[int, Mapping[str, int]],
        fields: Mapping[str, Sequence[str]],
        modules: Mapping[int, Mapping[str, ast.expr]],
        entries: Sequence[ast.FunctionDef],
    ) -> None:
        """Follow the tiles.

        Args:
          functions: kernel code.
          callee: the functions that a call in a function may mean.
          constants: by function (its id), the names that hold one whole number.
          fields: by class, the fields that its calls fill, in the order of their places.
          modules: by function (its id), what names stand for that its module binds once.
          entries: the kernels that no other kernel code calls: what they are given lies in HBM.
        """
        self._callee = callee
        self._home = {
            id(node): function for function in functions for node in own_nodes(function) if isinstance(node, ast.Call)
        }
        self._cuts: dict[int, frozenset[str]] = {}
        self._constants = constants
        self._fields = fields
        self._groups = sharing_groups(functions, callee)
        self._modules = modules
        self._arguments: dict[Key, set[str]] = {}
        self._collected: dict[Key, set[str]] = {}
        self._inputs = {(id(entry), name) for entry in entries for name in _parameters(entry, defaults=False)}
        self._seen: dict[int, dict[str, int]] = {}
        self._turns: dict[int, dict[int, tuple[dict[str, int], ...]]] = {}
        self._tiles: dict[Key, Tile | None] = {}
        self._held: dict[Key, list[Tile]] = {}  # of a container whose tiles lie in several memories too
        self._given: dict[Key, Tile] = {}
        self._next: dict[Key, Tile] = {}
        self._results: dict[int, dict[int, Tile]] = {}
        for _ in range(_ROUNDS):
            results = {key: dict(value) for key, value in self._results.items()}
            before = dict(self._tiles), dict(self._given), results, self._arguments, dict(self._seen), set(self._inputs)
            self._collected, self._next = {}, {}
            for function in functions:
                self._follow(function)
                self._seen[id(function)] = self._sizes(function)
            self._arguments, self._given, self._turns = self._collected, self._next, {}
            if before == (self._tiles, self._given, self._results, self._arguments, self._seen, self._inputs):
                break

    def constants(self, function: ast.FunctionDef) -> Mapping[str, int]:
        """Names that hold one whole number in a function, and sizes of its tiles (`tile.shape[0]`)."""
        return self._seen.get(id(function)) or self._constants.get(id(function), {})

    def _sizes(self, function: ast.FunctionDef) -> dict[str, int]:
        found = dict(self._constants.get(id(function), {}))
        for name in stores_of(function):
            tile = self._tiles.get((id(function), name))
            if tile is not None:
                found |= by_axis(f"{name}.shape", tile.shape)
        for name, value in derived_names(function):
            size = number(value, found)
            if size is not None:
                found.setdefault(name, size)
            elif isinstance(value, ast.Tuple | ast.List | ast.Attribute) and name in bound_once(function):
                found |= by_axis(name, self.numbers(function, value))
        for name, value in self._modules.get(id(function), {}).items():
            if isinstance(value, ast.Tuple) and not any(argument.arg == name for argument in function.args.args):
                found |= {} if name in dict(derived_names(function)) else by_axis(name, self.numbers(function, value))
        return found

    def meant(self, function: ast.FunctionDef, node: ast.expr, given: Mapping[str, ast.expr] | None = None) -> ast.expr:
        """What an expression in a function stands for: names that are bound once, parameters that every call gives the same
        (or what `given` says of one call), the shape and element type of a tile; else the expression itself.
        """

        def argument(name: str) -> ast.expr | None:
            if given is not None:
                return given.get(name)
            text = self.given(function, name)
            return parsed(text) if text else None

        def known(node: ast.expr) -> ast.expr | None:
            if isinstance(node, ast.Attribute) and node.attr in ("dtype", "shape"):
                tile = self.tile(function, node.value)
                if tile is not None and node.attr == "dtype":
                    return parsed(f"nl.{tile.dtype}") if tile.dtype else None
                if tile is not None and tile.shape and None not in tile.shape:
                    return parsed(str(tile.shape))
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                whole = self.meant(function, node.value, given)
                if isinstance(whole, ast.Attribute) and ast.unparse(whole).startswith(("nl.", "nisa.")):
                    return parsed(f"{ast.unparse(whole)}.{node.attr}")
            return None

        return meaning(function, node, argument, self._modules.get(id(function), {}), known)

    def module_value(self, function: ast.FunctionDef, name: str) -> ast.expr | None:
        """What a name of a function's module stands for that is bound once there and not in the function."""
        return None if stores_of(function)[name] else self._modules.get(id(function), {}).get(name)

    def numbers(
        self,
        function: ast.FunctionDef,
        node: ast.expr | None,
        given: Mapping[str, ast.expr] | None = None,
        constants: Mapping[str, int] | None = None,
    ) -> tuple[Size, ...]:
        """The whole numbers that a tuple or list stands for, None for each that is not known; empty if it is none."""
        node = None if node is None else self.meant(function, node, given)
        if not isinstance(node, ast.Tuple | ast.List):
            return ()
        return tuple(number(each, self.constants(function) if constants is None else constants) for each in node.elts)

    def is_input(self, function: ast.FunctionDef, node: ast.expr) -> bool:
        """True if an expression is a kernel's argument or a part of one, which lies in HBM, whatever calls the function."""
        for _ in range(_ROUNDS):
            while isinstance(node, ast.Subscript | ast.Call):
                if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Attribute) and node.func.attr in _VIEWS):
                    return False
                node = node.value if isinstance(node, ast.Subscript) else node.func.value  # type: ignore[attr-defined]
            if not isinstance(node, ast.Name):
                return False
            key = id(function), node.id
            if key in self._inputs:
                return key not in self._given
            if node.id not in bound_once(function):
                return False
            node = bound_once(function)[node.id]
        return False

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
            numbers: dict[str, int] = {}
            for name in (argument.arg for argument in function.args.args):
                text, tile = self.given(function, name), self._given.get((id(function), name))
                if text.removeprefix("-").isdigit():
                    numbers[name] = int(text)
                elif text.startswith("("):
                    numbers |= by_axis(name, ast.literal_eval(text))
                if tile is not None:
                    numbers |= by_axis(f"{name}.shape", tile.shape)
            self._turns[id(function)] = turns_of(function, self.constants(function), numbers)
        return self._turns[id(function)].get(id(call), (self.constants(function),))

    def written(self, function: ast.FunctionDef, node: ast.expr) -> ast.expr:
        """What a name stands for if the function binds it once, to a part of a tile (`half = tile[:, 0:4]`); else the node."""
        value = bound_once(function).get(node.id) if isinstance(node, ast.Name) else None
        return value if isinstance(value, ast.Subscript) else node

    def given(self, function: ast.FunctionDef, name: str) -> str:
        """What every call in kernel code gives a parameter: a whole number, a tuple of them, or a name of the language; else
        empty.
        """
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
        items = [self._part(function, item) for item in (index.elts if isinstance(index, ast.Tuple) else [index])]
        index = ast.Tuple(elts=items, ctx=ast.Load())
        given = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)} - set(self.constants(function))
        if any(isinstance(item, ast.Name) and item.id in given for item in items):
            return None
        return view_of(whole.shape, index, self.constants(function) if constants is None else constants, self.cuts(function))

    def _part(self, function: ast.FunctionDef, item: ast.expr) -> ast.expr:
        """A part of an axis as it stands in brackets: `0:4` of `slice(0, 4)` and of a name that is bound once to that."""
        meant = self.meant(function, item) if isinstance(item, ast.Name) else item
        if not _is_cut(meant) or not isinstance(meant, ast.Call) or meant.keywords or len(meant.args) < 2:
            return item
        return meant if last_name(meant.func) == "ds" else ast.Slice(*meant.args)

    def tile(self, function: ast.FunctionDef, node: ast.AST) -> Tile | None:
        """What an expression in a function stands for; None if it is no tile or that is not known."""
        if isinstance(node, ast.Name):
            key = (id(function), node.id)
            return self._tiles[key] if key in self._tiles else self._given.get(key)
        if isinstance(node, ast.Subscript):
            element = self._tiles.get(self._element_key(function, node))
            viewed = element or self.tile(function, node.value)
            if element or viewed is None:
                return viewed
            view = self.view(function, viewed, node.slice)
            return replace(viewed, rank=0, shape=() if view is None else view.shape)
        if isinstance(node, ast.Attribute):
            return self._tiles.get((self._groups[id(function)], f".{node.attr}"))
        if isinstance(node, ast.IfExp):
            one, other = self.tile(function, node.body), self.tile(function, node.orelse)
            return one if one == other else None
        if isinstance(node, ast.Call):
            return self._called(function, node)
        return None

    def _element_key(self, function: ast.FunctionDef, node: ast.Subscript) -> Key:
        """The place of an item: by its key where that is a text, in a dictionary of the function's group; else by the list's
        name.
        """
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            return self._groups[id(function)], repr(node.slice.value)
        return id(function), f"{ast.unparse(node.value)}[]"

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
                return self._allocated(function, node)
        called = self._callee(function, node)
        if called:
            return (
                (self._made(function, node, called[0]) or self._results.get(id(called[0]), {}).get(-1))
                if len(called) == 1
                else None
            )
        if isinstance(node.func, ast.Attribute):
            viewed = self.tile(function, node.func.value)
            if viewed is not None and node.func.attr == "view" and len(node.args) == 1:
                return read_as(viewed, _dtype(self.meant(function, node.args[0])))
            dtype = "" if viewed is None or node.func.attr == "view" else viewed.dtype
            return None if viewed is None else replace(viewed, rank=0, shape=(), dtype=dtype)
        return None

    def _allocated(self, function: ast.FunctionDef, call: ast.Call, given: Mapping[str, ast.expr] | None = None) -> Tile:
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        position = 3 if last_name(call.func) == "full" else 2  # (shape, dtype, buffer); full has its value between
        places = dict(enumerate(call.args))
        buffer = named.get("buffer", places.get(position))
        dtype = named.get("dtype", places.get(position - 1))
        shape = named.get("shape", places.get(0))
        if given is None:
            shapes = {self.numbers(function, shape, None, values) for values in self.turns(function, call)}
        else:
            sizes = {name: size for name, value in given.items() if (size := number(value, {})) is not None}
            shapes = {self.numbers(function, shape, given, {**self.constants(function), **sizes})}
        known = shapes.pop() if len(shapes) == 1 else ()
        written = None if shape is None else self.meant(function, shape, given)
        rank = len(written.elts) if isinstance(written, ast.Tuple | ast.List) else 0
        return Tile(
            spaces=frozenset({"sbuf" if buffer is None else last_name(self.meant(function, buffer, given))}),
            dtype="" if dtype is None else _dtype(self.meant(function, dtype, given)),
            rank=rank,
            shape=known or (None,) * rank,
        )

    def _made(self, function: ast.FunctionDef, call: ast.Call, other: ast.FunctionDef) -> Tile | None:
        """The tile that a function allocates and returns, with what this call of it gives; None if it does something else."""
        returned = [node.value for node in own_nodes(other) if isinstance(node, ast.Return)]
        value = returned[0] if len(returned) == 1 else None
        if isinstance(value, ast.Name):
            value = bound_once(other).get(value.id)
        if not (isinstance(value, ast.Call) and last_name(value.func) in _ALLOCATORS and ast.unparse(value.func)[:3] == "nl."):
            return None
        names = [argument.arg for argument in other.args.args]
        given = dict(zip(reversed(names), reversed(other.args.defaults), strict=False))
        for name, each in [*zip(names, call.args, strict=False), *((word.arg or "", word.value) for word in call.keywords)]:
            given[name] = self._plain(function, each)
        return self._allocated(other, value, given)

    def _plain(self, function: ast.FunctionDef, node: ast.expr) -> ast.expr:
        """What an expression stands for, its numbers written out where they are known: it can be read in another function."""
        meant = self.meant(function, node)
        size = number(meant, self.constants(function))
        if size is not None:
            return parsed(str(size))
        if isinstance(meant, ast.Tuple | ast.List):
            return ast.Tuple(elts=[self._plain(function, each) for each in meant.elts], ctx=ast.Load())
        return meant if ast.unparse(meant).startswith(("nl.", "nisa.")) else ast.Constant(value=...)

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
                        self._add((self._groups[id(function)], repr(key.value)), self.tile(function, item))
        elif isinstance(target, ast.Attribute):
            self._add((self._groups[id(function)], f".{target.attr}"), tile)
        elif isinstance(target, ast.Subscript) and self.tile(function, target.value) is None:
            self._add(self._element_key(function, target), tile)

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
            self._tiles[key] = None if known is None or known.spaces != tile.spaces else joined(known, tile)

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
                self._add((self._groups[id(function)], f".{field}"), self.tile(function, value))
        for other in self._callee(function, node):
            names = [argument.arg for argument in other.args.args]
            if names[:1] == ["self"]:
                names = names[1:]
            given = [*zip(names, node.args, strict=False), *((word.arg or "", word.value) for word in node.keywords)]
            for name, value in given:
                text = ast.unparse(self._plain(function, value))
                self._collected.setdefault((id(other), name), set()).add("" if "..." in text else text)
                if id(node) in straight_calls(function) and self.is_input(function, value):
                    if name in _parameters(other, defaults=True):
                        self._inputs.add((id(other), name))
                tile = self.tile(function, value)
                if name in names and tile is not None and not isinstance(value, ast.Starred):
                    key = (id(other), name)
                    self._next[key] = joined(self._next.get(key, tile), tile)


def _dtype(node: ast.expr) -> str:
    """The element type that an expression names; empty if it is no name of the language."""
    return last_name(node) if ast.unparse(node).startswith("nl.") else ""


def _parameters(function: ast.FunctionDef, *, defaults: bool) -> list[str]:
    """Parameters, those with defaults too or not, that the function does not bind to something else."""
    names = [argument.arg for argument in function.args.args]
    names = names if defaults else names[: len(names) - len(function.args.defaults)]
    stores = {node.id for node in own_nodes(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return [name for name in names if name not in stores]


def _is_cut(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) in ("slice", "ds")


def _paired(target: ast.Tuple, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
        yield from zip(target.elts, value.elts, strict=True)
    else:
        yield from ((item, None) for item in target.elts)
