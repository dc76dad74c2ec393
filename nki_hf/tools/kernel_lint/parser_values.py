"""Values that the evaluator of the parser (NKI 0.3 to 0.6) does not have: Python's functions, strings, containers, tiles.

By the same public source as parser_forms.py, its trace step. The evaluator has changed since; what nki-library's kernels use
is not refused.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from nki_hf.tools.kernel_lint.evaluation.watch import DICT_METHODS, FUNCTIONS, LIST_METHODS, ONE_VALUE
from nki_hf.tools.kernel_lint.rule import PARSER, Found, Module, rule
from nki_hf.tools.kernel_lint.source import own_nodes, string_constants

STRING_METHODS = tuple(name for name in dir(str) if not name.startswith("_") and name not in (*LIST_METHODS, *DICT_METHODS))
_NO_METHODS = ("insert", "sort", "update", "popitem", "fromkeys")
"""Methods of Python's lists and dictionaries that are told by their name alone."""

_TRACE = "KLR, trace (the evaluator, changed since)"
_TILE_WORDS = ("dst", "src", "data", "data1", "data2", "stationary", "moving", "on_true_tile")
"""Parameters of instructions that take tiles or tensors only."""
_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


@rule("builtin", PARSER, f"{_TRACE}: has {', '.join(FUNCTIONS)} and no other name of Python, called or handed on")
def _builtin(module: Module) -> Found:
    for function, node in _values(module):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in _own_names(function):
            meant = module.python(node.id)
            if meant and meant not in (*FUNCTIONS, "set", "frozenset", "True", "False", "None"):
                yield node, f"`{meant}`" + (f" as {node.id}" if meant != node.id else "")


@rule("builtin-attribute", PARSER, f"{_TRACE}: Python's functions and types have no attributes there")
def _builtin_attribute(module: Module) -> Found:
    for function, node in _values(module):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id not in _own_names(function):
            if module.python(node.value.id) in FUNCTIONS:
                yield node, f"`{ast.unparse(node)}`"


@rule("special-attribute", PARSER, f"{_TRACE}: values have no special attributes; nki-library has __dict__ only")
def _special_attribute(module: Module) -> Found:
    for _, node in _values(module):
        if isinstance(node, ast.Attribute) and node.attr.startswith("__") and node.attr.endswith("__"):
            if node.attr != "__dict__" and ast.unparse(node.value) not in module.source.imports:
                yield node, f"`{ast.unparse(node)}`"


@rule("least-of-many", PARSER, f"{_TRACE}: min and max take two values, or one list or tuple")
def _least_of_many(module: Module) -> Found:
    for node in module.inside:
        if _calls(node, ("min", "max")) and (len(node.args) > 2 or node.keywords):  # type: ignore[attr-defined]
            yield node, f"`{ast.unparse(node)}`"


@rule("one-value", PARSER, f"{_TRACE}: {', '.join(ONE_VALUE)} take one value")
def _one_value(module: Module) -> Found:
    for node in module.inside:
        if _calls(node, ONE_VALUE) and (len(node.args) > 1 or node.keywords):  # type: ignore[attr-defined]
            yield node, f"`{ast.unparse(node)}`"


@rule("string-method", PARSER, f"{_TRACE}: strings have no attributes")
def _string_method(module: Module) -> Found:
    for function, node in _values(module):
        if isinstance(node, ast.Attribute) and _is_string(module, function, node.value):
            yield node, f"`{ast.unparse(node)}`"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name in STRING_METHODS and name not in ("replace", "expandtabs"):
                yield node, f"`{ast.unparse(node)}`"


@rule("string-operator", PARSER, f"{_TRACE}: strings can be added and compared, nothing else")
def _string_operator(module: Module) -> Found:
    for function, node in _values(module):
        if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Add):
            if _is_string(module, function, node.left) or _is_string(module, function, node.right):
                yield node, f"`{ast.unparse(node)}`"


@rule("string-item", PARSER, f"{_TRACE}: string subscript is not implemented, nor their length, nor a loop over them")
def _string_item(module: Module) -> Found:
    for function, node in _values(module):
        whole = node.value if isinstance(node, ast.Subscript) else node.iter if isinstance(node, ast.For) else None
        if _calls(node, ("len", "list", "tuple")) and node.args:  # type: ignore[attr-defined]
            whole = node.args[0]  # type: ignore[attr-defined]
        if whole is not None and _is_string(module, function, whole):
            yield whole, f"`{ast.unparse(node).splitlines()[0]}`"


@rule("dictionary-loop", PARSER, f"{_TRACE}: a dictionary is not iterable; loop over its keys()")
def _dictionary_loop(module: Module) -> Found:
    for function in module.functions:
        kinds = _containers(function)
        for node in own_nodes(function):
            over = node.iter if isinstance(node, ast.For) else None
            named = isinstance(over, ast.Name) and kinds.get(over.id) == DICT_METHODS
            if over is not None and (named or isinstance(over, ast.Dict) or _calls(over, ("dict",))):
                yield over, f"`for {ast.unparse(node.target)} in {ast.unparse(over)}`"  # type: ignore[attr-defined]


@rule("slice-target", PARSER, f"{_TRACE}: what is assigned is one item of a list by its number from 0, or of a dictionary")
def _slice_target(module: Module) -> Found:
    for node in module.inside:
        for target in _targets(node):
            if isinstance(target, ast.Subscript) and (isinstance(target.slice, ast.Slice | ast.Tuple) or _minus(target.slice)):
                yield node, f"`{ast.unparse(node)}`"


@rule("slice-step", PARSER, f"{_TRACE}: the step of a slice is positive")
def _slice_step(module: Module) -> Found:
    for node in module.inside:
        if isinstance(node, ast.Slice) and node.step is not None and _minus(node.step):
            yield node, f"`{ast.unparse(node)}`"


@rule("container-method", PARSER, f"{_TRACE}: lists have {', '.join(LIST_METHODS)}; dictionaries {', '.join(DICT_METHODS)}")
def _container_method(module: Module) -> Found:
    for function in module.functions:
        kinds = _containers(function)
        for node in own_nodes(function):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                known = kinds.get(node.value.id)
                if known is not None and node.attr not in known:
                    yield node, f"`{ast.unparse(node)}`"
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _NO_METHODS:
                yield node, f"`{ast.unparse(node.func)}()`"


@rule("container-operator", PARSER, f"{_TRACE}: dictionaries have no operator, lists and tuples have + and *, ==, < and in")
def _container_operator(module: Module) -> Found:
    for function in module.functions:
        kinds = _containers(function)

        def kind(node: ast.expr, kinds: dict[str, tuple[str, ...] | None] = kinds) -> tuple[str, ...] | None:
            if isinstance(node, ast.Name):
                return kinds.get(node.id)
            return DICT_METHODS if isinstance(node, ast.Dict) else LIST_METHODS if isinstance(node, ast.List) else None

        for node in own_nodes(function):
            sides = [node.left, node.right] if isinstance(node, ast.BinOp) else []
            sides += [node.target, node.value] if isinstance(node, ast.AugAssign) else []
            operator = getattr(node, "op", None)
            for side in sides:
                lists = kind(side) == LIST_METHODS and not isinstance(operator, ast.Add | ast.Mult)
                if kind(side) == DICT_METHODS or lists:
                    yield node, f"`{ast.unparse(node)}`"


@rule("tile-assignment", PARSER, f"{_TRACE}: a tile cannot be updated by assignment, nor computed with by operators of Python")
def _tile_assignment(module: Module) -> Found:
    for function in module.functions:
        tiles = _tiles(function)

        def is_tile(node: ast.expr, tiles: set[str] = tiles) -> bool:
            whole = node.value if isinstance(node, ast.Subscript) else node
            return isinstance(whole, ast.Name) and whole.id in tiles

        for node in own_nodes(function):
            for target in _targets(node):
                changed = isinstance(target, ast.Subscript | ast.Attribute)
                # `bank += nisa.nc_matmul(...)` was how one accumulated; it is deprecated there, and rules of its own tell it
                changed |= isinstance(node, ast.AugAssign) and not ast.unparse(node.value).startswith("nisa.")
                if changed and is_tile(target.value if isinstance(target, ast.Attribute) else target):
                    yield target, f"`{ast.unparse(target)} = ...`"
            operands: list[ast.expr] = [node.left, node.right] if isinstance(node, ast.BinOp) else []
            if isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not):
                operands = [node.operand]
            elif isinstance(node, ast.Compare) and any(isinstance(op, _ORDER) for op in node.ops):
                operands = [node.left, *node.comparators]
            if any(is_tile(operand) for operand in operands):
                yield node, f"`{ast.unparse(node)}`"


@rule(
    "host-call", PARSER, "no public source says which functions of other modules the parser knows", refused=False, unknown=True
)
def _host_call(module: Module) -> Found:
    known = {"nki", "nl", "nisa", "math", "builtins"}
    modules = (
        {
            alias.asname or alias.name.split(".")[0]
            for node in module.tree.body
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        - known
        - {name.split(".")[0] for name in module.source.imports}
    )
    names = {
        alias.asname or alias.name
        for node in module.tree.body
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] not in {*known, "nki_hf"}
        for alias in node.names
    } - set(module.source.imports)
    for node in module.inside:
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and ast.unparse(called).split(".")[0] in modules:
            yield node, f"`{ast.unparse(called)}()`"
        elif isinstance(called, ast.Name) and called.id in names:
            yield node, f"`{called.id}()`"


@rule("named-lambda", PARSER, "KLR, gather: unsupported expression, wherever the function that kernel code names is written")
def _named_lambda(module: Module) -> Found:
    for function in module.functions:
        for node in own_nodes(function):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                if node.id not in _own_names(function) and isinstance(module.values.get(node.id), ast.Lambda):
                    yield node, f"`{node.id}` is a lambda"


@rule("coroutine", PARSER, "KLR, gather: async is refused")
def _coroutine(module: Module) -> Found:
    for function in module.functions:
        if id(function) in module.source.coroutines:
            yield function, f"async def {function.name}"


def _tiles(function: ast.FunctionDef) -> set[str]:
    """Names that are surely tiles or tensors: allocated here and bound to nothing else, or given and handed to instructions."""
    bound = list(_bound(function))
    tiles = {name for name, value in bound if _allocates(value)} - {name for name, value in bound if not _allocates(value)}
    given = {argument.arg for argument in function.args.args}
    given -= {node.id for node in own_nodes(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in own_nodes(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("nisa."):
            for word in node.keywords:
                if word.arg in _TILE_WORDS and isinstance(word.value, ast.Name) and word.value.id in given:
                    tiles.add(word.value.id)
    return tiles


def _allocates(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func) in ("nl.ndarray", "nl.zeros", "nl.ones", "nl.full")


def _values(module: Module) -> Iterator[tuple[ast.FunctionDef, ast.AST]]:
    """(function, node) of what is evaluated: bodies and defaults, but annotations and what other rules refuse as a whole."""
    for function in module.functions:
        for node in _evaluated(function):
            yield function, node


@lru_cache(maxsize=4096)
def _evaluated(function: ast.FunctionDef) -> tuple[ast.AST, ...]:
    waiting: list[ast.AST] = [*function.body, *function.args.defaults]
    waiting += [each for each in function.args.kw_defaults if each is not None]
    found = []
    while waiting:
        node = waiting.pop()
        found.append(node)
        if isinstance(node, ast.Raise | ast.FunctionDef | ast.ClassDef | ast.Match):
            continue
        skipped = (
            node.annotation if isinstance(node, ast.AnnAssign) else node.type if isinstance(node, ast.ExceptHandler) else None
        )
        waiting += [child for child in ast.iter_child_nodes(node) if child is not skipped]
    return tuple(found)


@lru_cache(maxsize=4096)
def _own_names(function: ast.FunctionDef) -> frozenset[str]:
    names = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    stored = {node.id for node in own_nodes(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return frozenset(names | stored)


@lru_cache(maxsize=4096)
def _own_strings(function: ast.FunctionDef) -> frozenset[str]:
    """Names that a function binds to strings only."""
    stored = Counter(node.id for node in own_nodes(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    texts = Counter(name for name, value in _bound(function) if _text(value))
    given = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    return frozenset(name for name, count in texts.items() if stored[name] == count and name not in given)


def _is_string(module: Module, function: ast.FunctionDef, node: ast.expr) -> bool:
    """True for a string as it stands there, `str(...)`, and a name that is bound to such only, here or in the module."""
    if isinstance(node, ast.Name):
        own = _own_strings(function)
        return node.id in own or (node.id in string_constants(module.tree) and node.id not in _own_names(function))
    return _text(node)


def _text(node: ast.expr) -> bool:
    constant = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return constant or isinstance(node, ast.JoinedStr) or _calls(node, ("str",))


def _calls(node: ast.AST, names: tuple[str, ...]) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def _minus(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AugAssign) else []


def _containers(function: ast.FunctionDef) -> dict[str, tuple[str, ...] | None]:
    """Methods of the names that are surely lists or dictionaries; None for names that are bound to something else as well."""
    found: dict[str, tuple[str, ...] | None] = {}
    for name, value in _bound(function):
        kind: tuple[str, ...] | None = None
        if isinstance(value, ast.List) or _calls(value, ("list",)):
            kind = LIST_METHODS
        elif isinstance(value, ast.Dict) or _calls(value, ("dict",)):
            kind = DICT_METHODS
        found[name] = kind if found.get(name, kind) == kind else None
    return found


def _bound(function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    for node in own_nodes(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, node.value
