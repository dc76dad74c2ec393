"""The evaluator: names, calls of kernel code, modules; what it records is each call of the language with its arguments."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path as File
from typing import Any

from nki_hf.tools.kernel_lint.evaluation import calls, expressions, members, statements
from nki_hf.tools.kernel_lint.evaluation.modules import hosts_of, module_file
from nki_hf.tools.kernel_lint.evaluation.operators import contains_unknown, key_of, plain, unknown
from nki_hf.tools.kernel_lint.evaluation.paths import Ended, Exhausted, Path
from nki_hf.tools.kernel_lint.evaluation.tile import Tile
from nki_hf.tools.kernel_lint.evaluation.values import (
    Bound,
    Class,
    Cut,
    Dictionary,
    Frame,
    Function,
    Host,
    Instance,
    Language,
    Listed,
    Member,
    ModuleValue,
    Partial,
    Unknown,
)
from nki_hf.tools.kernel_lint.signatures import arguments_of
from nki_hf.tools.kernel_lint.source import Source, last_name, own_nodes

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
    """

    function: ast.FunctionDef
    call: ast.Call
    name: str
    given: dict[str, Any]
    nodes: dict[str, ast.expr]
    doubtful: bool
    result: Any = None


class Machine:
    """Evaluates functions of kernel code.

    Attributes:
      path: the way that is followed.
      width: turns of the loops around, multiplied.
      turns: how many turns of unknown loops were taken: each has names of its own.
      uses: what was recorded, by language (`nisa`, `nl`; `tile`: methods of tiles).
      returned: (expression, value) of what the outermost function returns.
    """

    TURNS = 64
    CHOICES = 4
    DEPTH = 24

    def __init__(self, load: Callable[[File], Source]) -> None:
        """`load`: reads a file that a module imports."""
        self._load = load
        self._modules: dict[int, ModuleValue] = {}
        self._depth = 0
        self.path = Path((), 0)
        self.width = 1
        self.turns = 0
        self.uses: list[tuple[str, Use]] = []
        self.returned: list[tuple[ast.expr, Any]] = []

    # Names

    def module(self, source: Source) -> ModuleValue:
        """A module, run as Python runs it when it is imported."""
        found = self._modules.get(id(source))
        if found is None:
            found = self._modules[id(source)] = ModuleValue(source, hosts_of(source.tree), frozenset(name for name in source.imports if "." in name))
            found.frame = Frame({}, found)
            kept, self.path = self.path, Path((), 4000)
            for statement in source.tree.body:
                try:
                    statements.run(self, found.frame, [statement])
                except (Ended, Exhausted, statements.Left, statements.Returned, RecursionError):
                    continue
            self.path = kept
        return found

    def module_name(self, module: ModuleValue, name: str) -> Any:
        """What a name of a module means."""
        frame, source = module.frame, module.source
        if frame is not None and name in frame.names:
            return frame.names[name]
        if name in source.imports:
            file, there = source.imports[name]
            other = self.module(self._load(file))
            return self.module_name(other, there) if there else other
        if name in module.hosts:
            return Host(module.hosts[name])
        for file in source.stars:
            if name in self._load(file).bound:
                return self.module_name(self.module(self._load(file)), name)
        inside = None if source.path is None else module_file(source.path, name)
        if inside is not None:
            return self.module(self._load(inside))
        return Host(f"builtins.{name}") if name in calls.PYTHON else unknown(f"{name}@{id(source)}")

    def lookup(self, frame: Frame, name: str) -> Any:
        """What a name means in a frame."""
        inner: Frame | None = frame
        while inner is not None:
            if name in inner.names and not (inner is frame and name in frame.outside):
                return inner.names[name]
            inner = inner.outer
        if name in ("nl", "nisa", "nki"):
            return Language(name)
        return self.module_name(frame.module, name)

    def imported(self, frame: Frame, node: ast.Attribute) -> ModuleValue | None:
        """The module that `package.module` means after `import package.module`."""
        dotted = frame.module.dotted
        if not dotted or not isinstance(node.value, ast.Name | ast.Attribute):
            return None
        text = ast.unparse(node)
        file, there = frame.module.source.imports.get(text, (None, "x")) if text in dotted else (None, "x")
        return self.module(self._load(file)) if file is not None and not there else None

    def bind(self, frame: Frame, target: ast.expr, value: Any) -> None:
        """`target = value`."""
        if isinstance(target, ast.Name):
            holder = frame
            if target.id in frame.outside:
                outer = frame.outer
                while outer is not None and target.id not in outer.names:
                    outer = outer.outer
                holder = outer or frame.module.frame or frame
            holder.names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            self._unpack(frame, target, value)
        elif isinstance(target, ast.Attribute):
            owner = expressions.evaluated(self, frame, target.value)
            if isinstance(owner, Instance):
                owner.fields[target.attr] = value
            elif isinstance(owner, Class):
                owner.names[target.attr] = value
        elif isinstance(target, ast.Subscript):
            owner = expressions.evaluated(self, frame, target.value)
            index = expressions.evaluated(self, frame, target.slice)
            if isinstance(owner, Dictionary | Listed):
                members.put(owner, index, value)
            elif isinstance(owner, Instance) and isinstance(owner.kind.names.get("__setitem__"), Function):
                self.run(owner.kind.names["__setitem__"].of(owner, owner.kind), [index, value], {})

    def _unpack(self, frame: Frame, target: ast.Tuple | ast.List, value: Any) -> None:
        items = self.items(value)
        star = next((place for place, each in enumerate(target.elts) if isinstance(each, ast.Starred)), None)
        if items is None:
            shape = isinstance(value, Unknown) and value.key.endswith("shape")
            told = isinstance(value, Unknown) and value.plain
            items = [
                unknown(f"{key_of(value)}[{place}]", plain=told, low=1 if shape else None) for place in range(len(target.elts))
            ]
            if star is not None:
                items[star] = Listed()
                items[star].loose = True
        elif star is not None:
            after = len(target.elts) - star - 1
            items = [*items[:star], Listed(items[star : len(items) - after]), *items[len(items) - after :]]
        if len(items) != len(target.elts):
            raise Ended("as many names as values")
        for each, item in zip(target.elts, items, strict=True):
            self.bind(frame, each.value if isinstance(each, ast.Starred) else each, item)

    def items(self, value: Any) -> list[Any] | None:
        """The items of what can be looped over; None if they are not all known."""
        if isinstance(value, Instance) and value.kind.is_a("NamedTuple"):
            return [value.fields.get(name) for name in value.kind.fields]
        if isinstance(value, range) and len(value) > 1 << 20:
            return [value[0], value[1], *value[2 : self.TURNS], value[-1]]
        if isinstance(value, list | tuple | dict | str | range | set) and not getattr(value, "loose", False):
            return list(value)
        return None

    # Definitions

    def function(self, frame: Frame, node: ast.FunctionDef | ast.Lambda) -> Function:
        """The function that a `def` or a lambda makes."""
        defaults = [expressions.evaluated(self, frame, each) for each in node.args.defaults]
        words = {
            argument.arg: expressions.evaluated(self, frame, each)
            for argument, each in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            if each is not None
        }
        return Function(node, frame.module, frame if frame.function is not None else None, defaults, words)

    def define(self, frame: Frame, node: ast.FunctionDef) -> None:
        """Binds the name of a `def`."""
        frame.names[node.name] = self.function(frame, node)

    def class_of(self, frame: Frame, node: ast.ClassDef) -> Class:
        """The class that a `class` statement makes."""
        bases = [expressions.evaluated(self, frame, base) for base in node.bases]
        fields = [name for base in bases if isinstance(base, Class) for name in base.fields]
        fields += [
            item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        ]
        ways = {
            item.name: last_name(decorator)
            for item in node.body
            if isinstance(item, ast.FunctionDef)
            for decorator in item.decorator_list
            if last_name(decorator) in ("staticmethod", "classmethod", "property")
        }
        made = Class(node, {}, bases, list(dict.fromkeys(fields)), ways)
        inside = Frame(made.names, frame.module, None, frame if frame.function is not None else None)
        statements.run(self, inside, node.body)
        if made.is_a("Enum", "IntEnum", "StrEnum"):
            for name, value in made.names.items():
                if not isinstance(value, Function) and not name.startswith("_"):
                    made.names[name] = Member(node.name, name, value)
        return made

    # Calls

    def call(
        self,
        frame: Frame,
        node: ast.Call,
        called: Any,
        given: list[Any],
        words: dict[str, Any],
        *,
        nodes: list[ast.expr | None],
        loose: bool = False,
    ) -> Any:
        """`called(*given, **words)` at a place; `loose`: some arguments are not known."""
        if isinstance(called, Language):
            return self._language(frame, node, called.text, given, words, nodes, loose)
        if isinstance(called, Partial) and isinstance(called.called, Language):
            given, words = [*called.given, *given], {**called.words, **words}
            return self._language(frame, node, called.called.text, given, words, [None] * len(given), loose)
        if loose and isinstance(called, Function):
            names = [argument.arg for argument in called.node.args.args][called.owner is not None :]
            given = given + [unknown(f"*{name}@{id(node)}") for name in names[len(given) :] if name not in words]
        if isinstance(called, Function) and getattr(called.node, "name", "").endswith("assert") and node.args:
            statements.assumed(self, frame, node.args[0], True)
            return None
        if isinstance(called, Bound) and isinstance(called.owner, Tile) and frame.function is not None:
            use = Use(frame.function, node, called.name, {}, {}, self.path.doubtful)
            self.uses.append(("tile", use))
        if isinstance(called, Host) and called.text == "builtins.super":
            return self._parent(frame)
        return self.run(called, given, words, node)

    def run(self, called: Any, given: list[Any], words: dict[str, Any], place: ast.AST | None = None) -> Any:
        """`called(*given, **words)`."""
        if isinstance(called, Function):
            return self._run_function(called, given, words)
        if isinstance(called, Class):
            return self._made(called, given, words)
        if isinstance(called, Partial):
            return self.run(called.called, [*called.given, *given], {**called.words, **words}, place)
        if isinstance(called, Bound):
            return members.method(self, called, given, words)
        if isinstance(called, Host):
            return calls.hosted(self, called.text, given, words)
        if isinstance(called, Instance):
            try:
                return self.run(called.kind.find("__call__").of(called, called.kind), given, words, place)
            except (KeyError, AttributeError):
                return unknown(f"<{id(called)}>()")
        for each in (*given, *words.values()):
            if isinstance(each, Listed | Dictionary):
                each.loose = True
        return unknown(f"{key_of(called)}({', '.join(map(key_of, given))})", plain=plain(called, *given, *words.values()))

    def _parent(self, frame: Frame) -> Any:
        owner = frame.names.get("self")
        kind = frame.names.get("<class>")
        bases = [base for base in kind.bases if isinstance(base, Class)] if isinstance(kind, Class) else []
        if isinstance(owner, Instance) and bases:
            parent = Instance(bases[0], owner.fields)
            return parent
        return unknown(f"super@{id(frame)}")

    def _run_function(self, called: Function, given: list[Any], words: dict[str, Any]) -> Any:
        if self._depth >= self.DEPTH:
            return unknown(f"<{id(called)}>()@{self.turns}")
        node = called.node
        names = self._arguments(called, given, words)
        function = node if isinstance(node, ast.FunctionDef) else called.outer.function if called.outer else None
        frame = Frame(names, called.module, function, called.outer)
        if called.kind is not None:
            names.setdefault("<class>", self._owner_of(called))
        self._depth += 1
        try:
            if isinstance(node, ast.Lambda):
                return expressions.evaluated(self, frame, node.body)
            statements.run(self, frame, node.body)
        except statements.Returned as returned:
            if self._depth == 1 and returned.node is not None:
                self.returned.append((returned.node, returned.value))
            return returned.value
        finally:
            self._depth -= 1
        return frame.names.get("<yielded>")

    @staticmethod
    def _owner_of(called: Function) -> Any:
        """The class in whose body a method is written."""
        kinds: list[Any] = [called.kind]
        while kinds:
            kind = kinds.pop(0)
            if isinstance(kind, Class):
                if called.node in kind.node.body:
                    return kind
                kinds += kind.bases
        return called.kind

    def _arguments(self, called: Function, given: list[Any], words: dict[str, Any]) -> dict[str, Any]:
        """What a call gives the parameters of a function."""
        args = called.node.args
        names = [argument.arg for argument in (*args.posonlyargs, *args.args)]
        given = given if called.owner is None else [called.owner, *given]
        found = dict(zip(names, given, strict=False))
        more = {name: value for name, value in words.items() if name not in names and name not in _names(args.kwonlyargs)}
        if (len(given) > len(names) and args.vararg is None) or (more and args.kwarg is None):
            raise Ended("no such parameter")
        found |= {name: value for name, value in words.items() if name not in more}
        for name, value in zip(reversed(names), reversed(called.defaults), strict=False):
            found.setdefault(name, value)
        for name, value in called.keyword_defaults.items():
            found.setdefault(name, value)
        missing = [name for name in (*names, *_names(args.kwonlyargs)) if name not in found]
        if missing:
            raise Ended(f"without {missing[0]}")
        if args.vararg is not None:
            found[args.vararg.arg] = tuple(given[len(names) :])
        if args.kwarg is not None:
            found[args.kwarg.arg] = Dictionary(more)
        return found

    def _made(self, kind: Class, given: list[Any], words: dict[str, Any]) -> Any:
        """What a call of a class makes."""
        if kind.is_a("Enum", "IntEnum", "StrEnum"):
            members_of = [each for each in kind.names.values() if isinstance(each, Member)]
            return next((each for each in members_of if given and each.value == given[0]), unknown(f"{kind.node.name}()"))
        made = Instance(kind, {})
        try:
            first = kind.find("__init__")
        except KeyError:
            first = None
        if isinstance(first, Function):
            self.run(first.of(made, kind), given, words)
            return made
        made.fields.update(zip(kind.fields, given, strict=False))
        made.fields.update(words)
        for name in kind.fields:
            if name not in made.fields:
                try:
                    made.fields[name] = kind.find(name)
                except KeyError:
                    made.fields[name] = unknown(f"{kind.node.name}.{name}")
        try:
            after = kind.find("__post_init__")
        except KeyError:
            return made
        if isinstance(after, Function):
            self.run(after.of(made, kind), [], {})
        return made

    def _language(
        self,
        frame: Frame,
        node: ast.Call,
        text: str,
        given: list[Any],
        words: dict[str, Any],
        nodes: list[ast.expr | None],
        loose: bool,
    ) -> Any:
        space, _, name = text.partition(".")
        if space == "nl" and name in calls.RANGES:
            return calls.ranged(self, given or list(words.values()))
        if space == "nl" and name == "ds":
            return Cut(*(given + list(words.values()))[:2]) if len(given) + len(words) >= 2 else unknown("nl.ds")
        self.turns += 1
        result: Any = unknown(f"{text}#{self.turns}")
        by_name = arguments_of(space, name, given) | words
        if space == "nl" and name in calls.ALLOCATORS:
            result = calls.allocated(name, by_name, node, self.turns)
        elif name in ("get_nc_version", "program_id", "num_programs", "nc_version", "program_ndim"):
            result = unknown(f"{text}({', '.join(map(key_of, given))})", plain=True, low=0)
        if name in ("fori_loop", "while_loop"):
            for each in (*given, *words.values()):
                if isinstance(each, Function):
                    count = len(each.node.args.args)
                    self.run(each, [unknown(f"{name}#{self.turns}.{place}", plain=True) for place in range(count)], {})
        if frame.function is not None and not loose:
            places = {key: node for key in by_name}
            written = {word.arg: word.value for word in node.keywords if word.arg}
            for key, each in zip(arguments_of(space, name, given), nodes, strict=False):
                if each is not None:
                    written[key] = each
            use = Use(frame.function, node, name, by_name, places | written, self.path.doubtful, result)  # type: ignore[arg-type]
            self.uses.append((space, use))
        return result


def _names(arguments: list[ast.arg]) -> list[str]:
    return [argument.arg for argument in arguments]
