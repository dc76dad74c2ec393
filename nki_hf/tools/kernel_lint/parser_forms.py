"""Python that the parser of NKI 0.3 to 0.6 refuses: one rule per construct, by the public source of that front end.

That source is the repository leanprover/KLR, by AWS authors (state of March 2026): its gather step walks Python's syntax, its
simplify step rewrites statements, its trace step evaluates them. Error texts reported from deployed 0.3 to 0.6 match the first
two; the evaluator has changed since, so what only it says is told as such. No kernel of nki-library (April 2026, which
compiles) uses any of these, except where docs/trainium.md says so.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from nki_hf.tools.kernel_lint.rule import PARSER, Found, Module, rule
from nki_hf.tools.kernel_lint.source import own_nodes

DECORATORS = ("nki.jit", "jit", "staticmethod", "dataclass", "dataclasses.dataclass")

_GATHER, _SIMPLIFY = "KLR, gather", "KLR, simplify"
_NO_REORDER = ("with nl.no_reorder():",)
_ASYNC = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)

Find = Callable[[ast.AST], bool]


def _kinds(*kinds: type[ast.AST]) -> Find:
    return lambda node: isinstance(node, kinds)


FORMS: dict[str, tuple[str, Find]] = {
    "inner-function": (f"{_GATHER}: inner function definitions are refused; field reports", _kinds(ast.FunctionDef)),
    "inner-class": (f"{_GATHER}: class definitions within a function are refused", _kinds(ast.ClassDef)),
    "lambda": (f"{_GATHER}: unsupported expression", _kinds(ast.Lambda)),
    "comprehension": (f"{_GATHER}: unsupported expression; write a loop", _kinds(ast.ListComp, ast.DictComp)),
    "generator": (
        f"{_GATHER}: unsupported expression; release notes 0.7: generators came with the tracer",
        _kinds(ast.Yield, ast.YieldFrom, ast.GeneratorExp),
    ),
    "walrus": (f"{_GATHER}: unsupported expression", _kinds(ast.NamedExpr)),
    "delete": (f"{_GATHER}: del statements are refused; assign None", _kinds(ast.Delete)),
    "async": (f"{_GATHER}: async is refused", _kinds(*_ASYNC)),
    "match": (f"{_GATHER}: match statements are refused; use if and elif", _kinds(ast.Match)),
    "raise": (f"{_GATHER}: raise statements are refused; use assert", _kinds(ast.Raise)),
    "try": (f"{_GATHER}: try statements are refused", _kinds(ast.Try, ast.TryStar)),
    "nested-import": (f"{_GATHER}: imports within a function are refused", _kinds(ast.Import, ast.ImportFrom)),
    "outer-name": (f"{_GATHER}: global and nonlocal statements are refused", _kinds(ast.Global, ast.Nonlocal)),
    "format-spec": (
        f"{_GATHER}: no format specifiers in an f-string",
        lambda node: isinstance(node, ast.FormattedValue) and node.format_spec is not None,
    ),
    "starred": (f"{_SIMPLIFY}: tuple expansion is not supported", _kinds(ast.Starred)),
    "keyword-expansion": (
        f"{_SIMPLIFY}: keyword expansion is not supported, nor ** in a dictionary",
        lambda node: (isinstance(node, ast.keyword) and node.arg is None) or (isinstance(node, ast.Dict) and None in node.keys),
    ),
    "tuple-loop": (
        f"{_SIMPLIFY}: expecting simple variable; five field reports; loop over an index",
        lambda node: isinstance(node, ast.For) and not isinstance(node.target, ast.Name),
    ),
    "tuple-target": (
        f"{_SIMPLIFY}: expecting pattern; in a tuple target stand plain names only",
        lambda node: isinstance(node, ast.Assign) and any(_mixed(target) for target in node.targets),
    ),
    "list-target": (
        f"{_SIMPLIFY}: a list is no pattern; write names without brackets",
        lambda node: isinstance(node, ast.Assign) and any(isinstance(target, ast.List) for target in node.targets),
    ),
    "several-targets": (
        f"{_SIMPLIFY}: mutating assignments must be in separate statements; beside a name the value is made twice",
        lambda node: (
            isinstance(node, ast.Assign)
            and (_mutated(node) > 1 or (_mutated(node) == 1 < len(node.targets) and _makes(node.value)))
        ),
    ),
    "loop-else": (
        f"{_SIMPLIFY}: for-else and while-else are not supported",
        lambda node: isinstance(node, ast.For | ast.While) and bool(node.orelse),
    ),
    "with": (
        f"{_SIMPLIFY}: one plain call without arguments and without `as`; KLR, trace: no context but no_reorder",
        lambda node: isinstance(node, ast.With) and ast.unparse(node).split("\n")[0] not in _NO_REORDER,
    ),
    "matmul-operator": (
        f"{_SIMPLIFY}: the matmul operator is not supported",
        lambda node: isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult),
    ),
    "chained-membership": (
        f"{_SIMPLIFY}: the in operator is not supported inside a chained comparison",
        lambda node: (
            isinstance(node, ast.Compare) and len(node.ops) > 1 and any(isinstance(op, ast.In | ast.NotIn) for op in node.ops)
        ),
    ),
    "constant-kind": (
        f"{_GATHER}: constants are None, bool, int, float and str",
        lambda node: isinstance(node, ast.Constant) and isinstance(node.value, bytes | complex),
    ),
    "ellipsis": (
        f"{_SIMPLIFY}: invalid use of ellipsis; it stands in brackets only",
        lambda node: (
            any(isinstance(part, ast.Constant) and part.value is ... for part in ast.iter_child_nodes(node))
            and not isinstance(node, ast.Subscript | ast.Tuple)
        ),
    ),
    "type-alias": (f"{_GATHER}: type statements are refused", lambda node: type(node).__name__ == "TypeAlias"),
    "set": (
        f"{_GATHER}: unsupported expression; language guide, values: containers are tuples, lists and dictionaries",
        lambda node: isinstance(node, ast.Set | ast.SetComp) or _calls(node, ("set", "frozenset")),
    ),
}
"""Rule -> (who says so, which nodes it is)."""


def _forms(name: str, why: str, wanted: Find) -> None:
    @rule(name, PARSER, why)
    def _find(module: Module) -> Found:
        for node in module.inside:
            if wanted(node):
                place = node.value if isinstance(node, ast.keyword | ast.FormattedValue) else node
                yield place, f"`{ast.unparse(node).splitlines()[0][:80]}`"


for _name, (_why, _wanted) in FORMS.items():
    _forms(_name, _why, _wanted)


@rule("made-twice", PARSER, f"{_SIMPLIFY}: evaluated once for each place where it stands; name it first", refused=False)
def _made_twice(module: Module) -> Found:
    for node in module.inside:
        twice: list[ast.AST] = []
        if isinstance(node, ast.Assign) and _mutated(node) == 1 < len(node.targets) and not _makes(node.value):
            twice = [node]
        elif isinstance(node, ast.AugAssign) and any(isinstance(part, ast.Call) for part in ast.walk(node.target)):
            twice = [node.target]
        elif isinstance(node, ast.Compare):
            between = node.comparators[:-1]
            twice = [each for each in between if any(isinstance(part, ast.Call) for part in ast.walk(each))]
        for each in twice:
            yield each, f"`{ast.unparse(each)}` in `{ast.unparse(node)}`" if each is not node else f"`{ast.unparse(node)}`"


@rule("decorator", PARSER, f"{_SIMPLIFY}: decorators are nki.jit, staticmethod and dataclass")
def _decorator(module: Module) -> Found:
    for function in module.functions:
        for decorator in function.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if ast.unparse(called) not in DECORATORS:
                yield decorator, f"@{ast.unparse(decorator)} on {function.name}"
    for node in module.classes:
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if ast.unparse(called) not in DECORATORS:
                yield decorator, f"@{ast.unparse(decorator)} on class {node.name}"


@rule("class-body", PARSER, f"{_GATHER}: a class holds fields and methods, no other statement, no class keywords")
def _class_body(module: Module) -> Found:
    for node in module.classes:
        for word in node.keywords:
            yield word.value, f"class {node.name}({word.arg}=...)"
        for item in node.body:
            docstring = isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)
            field = isinstance(item, ast.Assign) and len(item.targets) == 1 and isinstance(item.targets[0], ast.Name)
            if not (docstring or field or isinstance(item, ast.Pass | ast.AnnAssign | ast.FunctionDef)):
                yield item, f"in class {node.name}: `{ast.unparse(item).splitlines()[0]}`"


@rule(
    "hoisted-attribute",
    PARSER,
    f"{_SIMPLIFY}: the object of an attribute is evaluated before the statement, outside of any guard; name it first",
    refused=False,
)
def _hoisted_attribute(module: Module) -> Found:
    for outer in module.inside:
        guarded: list[ast.AST] = list(outer.values[1:]) if isinstance(outer, ast.BoolOp) else []
        guarded += [outer.body, outer.orelse] if isinstance(outer, ast.IfExp) else []
        guarded += [outer.test] if isinstance(outer, ast.While) else []
        for part in guarded:
            for node in ast.walk(part):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call | ast.Subscript):
                    yield node, f"`{ast.unparse(node)}` in `{ast.unparse(outer).splitlines()[0][:60]}`"


@rule("helper-default", PARSER, "one project reports that helpers' keyword defaults were dropped; pass each", refused=False)
def _helper_default(module: Module) -> Found:
    for function in module.functions:
        for node in own_nodes(function):
            if isinstance(node, ast.Call):
                own = isinstance(node.func, ast.Name) or ast.unparse(node.func).startswith("self.")
                for other in module.callee(function, node) if own else ():
                    names = [argument.arg for argument in other.args.args]
                    names = names[1:] if names[:1] == ["self"] else names
                    given = {*names[: len(node.args)], *(word.arg for word in node.keywords)}
                    left = [name for name in names if name not in given]
                    if left and None not in given and other.name != "__init__":
                        yield node, f"{other.name} is called without {', '.join(left)}"


def _mutated(node: ast.Assign) -> int:
    return sum(not _pattern(target) for target in node.targets)


def _makes(value: ast.expr) -> bool:
    """True for what is another value each time that it is evaluated."""
    return any(isinstance(part, ast.Call | ast.List | ast.Dict) for part in ast.walk(value))


def _calls(node: ast.AST, names: tuple[str, ...]) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def _pattern(target: ast.expr) -> bool:
    return isinstance(target, ast.Name | ast.Tuple)


def _mixed(target: ast.expr) -> bool:
    """True for a tuple in which something else than names and such tuples stands."""
    return isinstance(target, ast.Tuple) and any(not _pattern(item) or _mixed(item) for item in target.elts)
