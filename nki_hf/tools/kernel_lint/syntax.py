"""Python that NKI's parser (0.3 to 0.6) does not take, and the little that the tracer (0.7) does not take either."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from nki_hf.tools.kernel_lint.rule import PARSER, VERSIONS, Found, Module, rule
from nki_hf.tools.kernel_lint.source import own_nodes

_PURE = "language guide, kernel caching: kernels are pure functions of their arguments; compiled ones are kept"


@rule("syntax", VERSIONS, "every front end parses the file first")
def _syntax(module: Module) -> Found:
    yield from ()  # a file that is not Python has no tree to look at: `lint` reports it


@rule("keyword-only", PARSER, "migration guide 0.3.0: no keyword-only marker in a signature")
def _keyword_only(module: Module) -> Found:
    for function in module.functions:
        if function.args.kwonlyargs:
            yield function, f"{function.name} has keyword-only parameters"


@rule("variadic", PARSER, "KLR, simplify: varargs are not supported, and no argument may arrive in **kwargs")
def _variadic(module: Module) -> Found:
    for function in module.functions:
        if function.args.vararg or function.args.kwarg:
            yield function, f"{function.name} has *args or **kwargs"


@rule("positional-only", PARSER, "the language guide does not name it; KLR, simplify, takes it", refused=False)
def _positional_only(module: Module) -> Found:
    for function in module.functions:
        if function.args.posonlyargs:
            yield function, f"{function.name} has positional-only parameters"


@rule("identity", PARSER, "migration guide 0.3.0: no `is` and `is not`; KLR, simplify, warns and reads them as == and !=")
def _identity(module: Module) -> Found:
    for node in _identities(module):
        if not _with_none(node):
            yield node, f"`{ast.unparse(node)}`"


@rule("identity-of-none", PARSER, "the same guide; KLR and public kernels that compile have `is None`: write ==", refused=False)
def _identity_of_none(module: Module) -> Found:
    for node in _identities(module):
        if _with_none(node):
            yield node, f"`{ast.unparse(node)}`"


def _identities(module: Module) -> Iterator[ast.Compare]:
    for node in module.inside:
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            yield node


def _with_none(node: ast.Compare) -> bool:
    return len(node.ops) == 1 and isinstance(node.comparators[0], ast.Constant) and node.comparators[0].value is None


@rule("list-argument", VERSIONS, "migration guide 0.3.0: kernel arguments may be tuples, not lists")
def _list_argument(module: Module) -> Found:
    for function in module.entries:
        if function.name in module.sub_kernels:
            continue
        for argument in function.args.args:
            if argument.annotation is not None and ast.unparse(argument.annotation).split("[")[0] in (
                "list",
                "List",
                "typing.List",
            ):
                yield argument, f"{function.name} declares {argument.arg} as a list"
        for default in function.args.defaults:
            if _is_list(default, {}):
                yield default, f"{function.name} has a list as default"
    yield from _lists_given(module)


def _lists_given(module: Module) -> Found:
    """Lists in the launches that stand in the same file: `kernel(x, [1])`, `kernel[2](x, sizes)` after `sizes = list(...)`."""
    entries = {function.name for function in module.entries} - module.sub_kernels
    for scope in (module.tree, *module.source.functions):
        nodes = [node for statement in scope.body for node in ast.walk(statement)] if scope is module.tree else own_nodes(scope)
        nodes = list(nodes)
        bound = {
            target.id: node.value
            for node in nodes
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in nodes:
            called = node.func if isinstance(node, ast.Call) else None
            called = called.value if isinstance(called, ast.Subscript) else called
            if isinstance(node, ast.Call) and isinstance(called, ast.Name) and called.id in entries:
                for value in (*node.args, *(keyword.value for keyword in node.keywords)):
                    if _is_list(value, bound):
                        yield value, f"{called.id} is given the list {ast.unparse(value)}"


def _is_list(node: ast.expr, bound: dict[str, ast.expr]) -> bool:
    if isinstance(node, ast.Name) and node.id in bound:
        node = bound[node.id]
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("list", "sorted")
    return called or isinstance(node, ast.List | ast.ListComp)


_BASES = (["NKIObject"], ["Enum"])
_OTHER_BASES = (["NamedTuple"], ["IntEnum"], ["str", "Enum"], ["int", "Enum"])


@rule("inheritance", PARSER, "language guide, class support: a class derives from NKIObject (or is an Enum), from nothing else")
def _inheritance(module: Module) -> Found:
    for node in module.classes:
        bases = _bases(node)
        if bases not in (*_BASES, *_OTHER_BASES):
            head = f"{node.name}({', '.join(bases)})" if bases else f"{node.name}, which has no base,"
            yield node, f"class {head} is used in a kernel"


@rule(
    "other-base",
    PARSER,
    "the language guide takes NKIObject and Enum alone; KLR, gather, NamedTuple and every kind of Enum, too",
    refused=False,
    unknown=True,
)
def _other_base(module: Module) -> Found:
    for node in module.classes:
        bases = _bases(node)
        if bases in _OTHER_BASES:
            yield node, f"class {node.name}({', '.join(bases)}) is used in a kernel"


def _bases(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).split(".")[-1] for base in node.bases]


@rule("enum-operator", PARSER, "language guide, enumerations: == and != only; no other operator on their members")
def _enum_operator(module: Module) -> Found:
    enums = {node.name for node in module.tree.body if isinstance(node, ast.ClassDef) and _bases(node) == ["Enum"]}
    for node in module.inside:
        operands = [node.left, node.right] if isinstance(node, ast.BinOp) else []
        if isinstance(node, ast.Compare) and not all(
            isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for op in node.ops
        ):
            operands += [node.left, *node.comparators]
        for operand in operands:
            if isinstance(operand, ast.Attribute) and isinstance(operand.value, ast.Name) and operand.value.id in enums:
                yield node, f"`{ast.unparse(node)}`"


@rule("wide-integer", PARSER, "language guide, values: integers are 32 bits wide")
def _wide_integer(module: Module) -> Found:
    for node in module.inside:
        if isinstance(node, ast.Constant) and type(node.value) is int and not -(2**31) <= node.value < 2**31:
            yield node, f"{node.value:,}"


@rule("dict-key", PARSER, "language guide, values: keys of dictionaries are strings")
def _dict_key(module: Module) -> Found:
    for function in module.functions:
        dictionaries = {
            target.id
            for node in own_nodes(function)
            if isinstance(node, ast.Assign) and (isinstance(node.value, ast.Dict) or ast.unparse(node.value) == "dict()")
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in own_nodes(function):
            for key in node.keys if isinstance(node, ast.Dict) else []:
                if key is not None and not _may_be_text(key):
                    yield key, f"key `{ast.unparse(key)}`"
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in dictionaries:
                if not _may_be_text(node.slice):
                    yield node, f"key `{ast.unparse(node.slice)}` of {node.value.id}"


def _may_be_text(key: ast.expr) -> bool:
    """False for what is surely no string: numbers, tuples, and names of the language."""
    if isinstance(key, ast.Constant):
        return isinstance(key.value, str)
    return not isinstance(key, ast.Tuple | ast.UnaryOp) and not ast.unparse(key).startswith(("nl.", "nisa."))


@rule(
    "kernel-in-kernel",
    PARSER,
    "migration guide 0.2.0: sub-kernels have no nki.jit decorator; public kernels that compile have it",
    refused=False,
)
def _kernel_in_kernel(module: Module) -> Found:
    for function in module.entries:
        if function.name in module.sub_kernels:
            yield function, f"{function.name} is called by a kernel"


@rule("changing-global", VERSIONS, _PURE)
def _changing_global(module: Module) -> Found:
    changing = _changing_names(module.tree)
    attributes = _changing_attributes(module.tree)
    for node in module.inside:
        if isinstance(node, ast.Global | ast.Nonlocal):
            yield node, ast.unparse(node)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in changing:
            yield node, f"reads {node.id}, a global that this module changes"
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and ast.unparse(node) in attributes:
            yield node, f"reads {ast.unparse(node)}, which this module changes"


@rule("environment", VERSIONS, _PURE)
def _environment(module: Module) -> Found:
    for node in module.inside:
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.environ", "os.getenv"):
            yield node, f"reads {ast.unparse(node)}"


def _changing_names(tree: ast.Module) -> set[str]:
    """Module-level names that the module assigns again, or changes in place: by an item, a method or a `global`."""
    seen: set[str] = set()
    changing: set[str] = set()
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = {target.id for target in targets if isinstance(target, ast.Name)}
            changing |= names & seen | (names if isinstance(statement, ast.AugAssign) else set())
            seen |= names
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            changing |= set(node.names)
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        own = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
        own |= {node.id for node in own_nodes(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        changing |= (_changed_in_place(list(own_nodes(function))) & seen) - own
    changing |= _changed_in_place([node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef)]) & seen
    return changing - {"__all__"}


def _changing_attributes(tree: ast.Module) -> set[str]:
    """`settings.N` of an imported module (or of what is imported from one) that this module assigns or changes in place."""
    imported = {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    found = {ast.unparse(place) for place in _changed_places(ast.walk(tree)) if isinstance(place, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr" and len(node.args) == 3:
            if isinstance(node.args[1], ast.Constant):
                found.add(f"{ast.unparse(node.args[0])}.{node.args[1].value!s}")
    return {text for text in found if text.split(".")[0] in imported}


_CHANGES = ("append", "extend", "insert", "pop", "remove", "clear", "update", "setdefault", "add", "discard", "sort", "reverse")


def _changed_in_place(nodes: Iterable[ast.AST]) -> set[str]:
    """Names whose value changes by an item, an attribute or a method."""
    found = set()
    for place in _changed_places(nodes):
        owner = place.value if isinstance(place, ast.Attribute) else place
        if isinstance(owner, ast.Name):
            found.add(owner.id)
    return found


def _changed_places(nodes: Iterable[ast.AST]) -> Iterator[ast.expr]:
    """What is assigned as an attribute, and what gets another item or is changed by a method."""
    for node in nodes:
        if isinstance(node, ast.Expr):
            node = node.value
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
            yield node.func.value
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
        for target in targets:
            if isinstance(target, ast.Attribute):
                yield target
            elif isinstance(target, ast.Subscript):
                yield target.value
