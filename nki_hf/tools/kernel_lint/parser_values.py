"""Values that the evaluator of the parser (NKI 0.3 to 0.6) does not have: Python's functions, strings, containers, tiles.

By the same public source as parser_forms.py, its trace step. The evaluator has changed since; what nki-library's kernels use
is not refused.
"""

from __future__ import annotations

import ast

from nki_hf.tools.kernel_lint.evaluated_nodes import calls, containers, is_string, minus, own_names, targets, tiles_of, values
from nki_hf.tools.kernel_lint.evaluation.watch import DICT_METHODS, FUNCTIONS, LIST_METHODS, ONE_VALUE
from nki_hf.tools.kernel_lint.rule import PARSER, Found, Module, rule
from nki_hf.tools.kernel_lint.source import own_nodes

STRING_METHODS = tuple(name for name in dir(str) if not name.startswith("_") and name not in (*LIST_METHODS, *DICT_METHODS))
_NO_METHODS = ("insert", "sort", "update", "popitem", "fromkeys")
"""Methods of Python's lists and dictionaries that are told by their name alone."""

_TRACE = "KLR, trace (the evaluator, changed since)"
_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


@rule("builtin", PARSER, f"{_TRACE}: has {', '.join(FUNCTIONS)} and no other name of Python, called or handed on")
def _builtin(module: Module) -> Found:
    for function, node in values(module):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in own_names(function):
            meant = module.python(node.id)
            if meant and meant not in (*FUNCTIONS, "set", "frozenset", "True", "False", "None"):
                yield node, f"`{meant}`" + (f" as {node.id}" if meant != node.id else "")


@rule("builtin-attribute", PARSER, f"{_TRACE}: Python's functions and types have no attributes there")
def _builtin_attribute(module: Module) -> Found:
    for function, node in values(module):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id not in own_names(function):
            if module.python(node.value.id) in FUNCTIONS:
                yield node, f"`{ast.unparse(node)}`"


@rule("special-attribute", PARSER, f"{_TRACE}: values have no special attributes; nki-library has __dict__ only")
def _special_attribute(module: Module) -> Found:
    for _, node in values(module):
        if isinstance(node, ast.Attribute) and node.attr.startswith("__") and node.attr.endswith("__"):
            if node.attr != "__dict__" and ast.unparse(node.value) not in module.source.imports:
                yield node, f"`{ast.unparse(node)}`"


@rule("least-of-many", PARSER, f"{_TRACE}: min and max take two values, or one list or tuple")
def _least_of_many(module: Module) -> Found:
    for node in module.inside:
        if calls(node, ("min", "max")) and (len(node.args) > 2 or node.keywords):  # type: ignore[attr-defined]
            yield node, f"`{ast.unparse(node)}`"


@rule("one-value", PARSER, f"{_TRACE}: {', '.join(ONE_VALUE)} take one value")
def _one_value(module: Module) -> Found:
    for node in module.inside:
        if calls(node, ONE_VALUE) and (len(node.args) > 1 or node.keywords):  # type: ignore[attr-defined]
            yield node, f"`{ast.unparse(node)}`"


@rule("string-method", PARSER, f"{_TRACE}: strings have no attributes")
def _string_method(module: Module) -> Found:
    for function, node in values(module):
        if isinstance(node, ast.Attribute) and is_string(module, function, node.value):
            yield node, f"`{ast.unparse(node)}`"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name in STRING_METHODS and name not in ("replace", "expandtabs"):
                yield node, f"`{ast.unparse(node)}`"


@rule("string-operator", PARSER, f"{_TRACE}: strings can be added and compared, nothing else")
def _string_operator(module: Module) -> Found:
    for function, node in values(module):
        if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Add):
            if is_string(module, function, node.left) or is_string(module, function, node.right):
                yield node, f"`{ast.unparse(node)}`"


@rule("string-item", PARSER, f"{_TRACE}: string subscript is not implemented, nor their length, nor a loop over them")
def _string_item(module: Module) -> Found:
    for function, node in values(module):
        whole = node.value if isinstance(node, ast.Subscript) else node.iter if isinstance(node, ast.For) else None
        if calls(node, ("len", "list", "tuple")) and node.args:  # type: ignore[attr-defined]
            whole = node.args[0]  # type: ignore[attr-defined]
        if whole is not None and is_string(module, function, whole):
            yield whole, f"`{ast.unparse(node).splitlines()[0]}`"


@rule("dictionary-loop", PARSER, f"{_TRACE}: a dictionary is not iterable; loop over its keys()")
def _dictionary_loop(module: Module) -> Found:
    for function in module.functions:
        kinds = containers(function)
        for node in own_nodes(function):
            over = node.iter if isinstance(node, ast.For) else None
            named = isinstance(over, ast.Name) and kinds.get(over.id) == DICT_METHODS
            if over is not None and (named or isinstance(over, ast.Dict) or calls(over, ("dict",))):
                yield over, f"`for {ast.unparse(node.target)} in {ast.unparse(over)}`"  # type: ignore[attr-defined]


@rule("slice-target", PARSER, f"{_TRACE}: what is assigned is one item of a list by its number from 0, or of a dictionary")
def _slice_target(module: Module) -> Found:
    for node in module.inside:
        for target in targets(node):
            if isinstance(target, ast.Subscript) and (isinstance(target.slice, ast.Slice | ast.Tuple) or minus(target.slice)):
                yield node, f"`{ast.unparse(node)}`"


@rule("slice-step", PARSER, f"{_TRACE}: the step of a slice is positive")
def _slice_step(module: Module) -> Found:
    for node in module.inside:
        if isinstance(node, ast.Slice) and node.step is not None and minus(node.step):
            yield node, f"`{ast.unparse(node)}`"


@rule("container-method", PARSER, f"{_TRACE}: lists have {', '.join(LIST_METHODS)}; dictionaries {', '.join(DICT_METHODS)}")
def _container_method(module: Module) -> Found:
    for function in module.functions:
        kinds = containers(function)
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
        kinds = containers(function)

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
        tiles = tiles_of(function)

        def is_tile(node: ast.expr, tiles: set[str] = tiles) -> bool:
            whole = node.value if isinstance(node, ast.Subscript) else node
            return isinstance(whole, ast.Name) and whole.id in tiles

        for node in own_nodes(function):
            for target in targets(node):
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
                if node.id not in own_names(function) and isinstance(module.values.get(node.id), ast.Lambda):
                    yield node, f"`{node.id}` is a lambda"


@rule("coroutine", PARSER, "KLR, gather: async is refused")
def _coroutine(module: Module) -> Found:
    for function in module.functions:
        if id(function) in module.source.coroutines:
            yield function, f"async def {function.name}"
