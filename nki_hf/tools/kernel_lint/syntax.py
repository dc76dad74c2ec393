"""Python that NKI's parser (0.3 to 0.6) does not take, and the little that the tracer (0.7) does not take either."""

from __future__ import annotations

import ast

from nki_hf.tools.kernel_lint.rule import PARSER, VERSIONS, Found, Module, rule

_TRACED = "release notes 0.7: kernels are traced; a function reads what it sees at trace time and compiled results are reused"


@rule("keyword-only", PARSER, "release notes 0.3.0: no keyword-only marker in a signature")
def _keyword_only(module: Module) -> Found:
    for function in module.functions.values():
        if function.args.kwonlyargs:
            yield function, f"{function.name} has keyword-only parameters"


@rule("variadic", PARSER, "language guide: parameters are named; *args and **kwargs are not in the accepted subset")
def _variadic(module: Module) -> Found:
    for function in module.functions.values():
        if function.args.vararg or function.args.kwarg:
            yield function, f"{function.name} has *args or **kwargs"


@rule("identity", PARSER, "release notes 0.3.0: no `is` and `is not`; compare with == and !=")
def _identity(module: Module) -> Found:
    for node in _inside(module):
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            yield node, f"`{ast.unparse(node)}`"


@rule("list-argument", VERSIONS, "release notes 0.3.0: kernel arguments may be tuples, not lists")
def _list_argument(module: Module) -> Found:
    for function in module.entries:
        for argument in function.args.args:
            if argument.annotation is not None and ast.unparse(argument.annotation).split("[")[0] in (
                "list",
                "List",
                "typing.List",
            ):
                yield argument, f"{function.name} declares {argument.arg} as a list"
        for default in function.args.defaults:
            if isinstance(default, ast.List):
                yield default, f"{function.name} has a list as default"


@rule("generator", PARSER, "language guide: no generators before the tracer")
def _generator(module: Module) -> Found:
    for node in _inside(module):
        if isinstance(node, ast.Yield | ast.YieldFrom | ast.GeneratorExp):
            yield node, f"`{ast.unparse(node)}`"


@rule("comprehension", PARSER, "language guide: of comprehensions only the plain list one is in the accepted subset")
def _comprehension(module: Module) -> Found:
    for node in _inside(module):
        if isinstance(node, ast.SetComp | ast.DictComp):
            yield node, f"`{ast.unparse(node)}`"
        elif isinstance(node, ast.ListComp):
            nested = isinstance(node.elt, ast.ListComp) or len(node.generators) > 1
            if nested or node.generators[0].ifs:
                yield node, f"`{ast.unparse(node)}` is nested or has a condition"


@rule("lambda", PARSER, "language guide: functions are named and inlined; lambdas are not in the accepted subset")
def _lambda(module: Module) -> Found:
    for node in _inside(module):
        if isinstance(node, ast.Lambda):
            yield node, f"`{ast.unparse(node)}`"


@rule("try-with", PARSER, "language guide: no try, and no with except nl.no_reorder()")
def _try_with(module: Module) -> Found:
    for node in _inside(module):
        if isinstance(node, ast.Try | ast.TryStar):
            yield node, "try"
        elif isinstance(node, ast.With) and any("no_reorder" not in ast.unparse(item.context_expr) for item in node.items):
            yield node, f"with {ast.unparse(node.items[0].context_expr)}"


@rule("while", VERSIONS, "release notes 0.7: `while` on a register is gone; the parser knew no other. Use range")
def _while(module: Module) -> Found:
    for node in _inside(module):
        if isinstance(node, ast.While):
            yield node, f"while {ast.unparse(node.test)}"


@rule("inheritance", PARSER, "language guide: classes may only derive from nl.NKIObject (dataclasses) and Enum")
def _inheritance(module: Module) -> Found:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                if ast.unparse(base).split(".")[-1] not in ("NKIObject", "Enum"):
                    yield node, f"class {node.name}({ast.unparse(base)})"


@rule("nested-import", PARSER, "language guide: imports stand at the top of the module")
def _nested_import(module: Module) -> Found:
    for node in _inside(module):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, ast.unparse(node)


@rule("wide-integer", VERSIONS, "language guide: integers are 32 bits wide")
def _wide_integer(module: Module) -> Found:
    for node in _inside(module):
        if isinstance(node, ast.Constant) and type(node.value) is int and not -(2**31) <= node.value < 2**31:
            yield node, f"{node.value:,}"


@rule("dict-key", PARSER, "language guide: dictionary keys are strings")
def _dict_key(module: Module) -> Found:
    for node in _inside(module):
        if isinstance(node, ast.Dict):
            for key in node.keys:
                if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
                    yield node, f"key `{'**' if key is None else ast.unparse(key)}`"


@rule("kernel-in-kernel", PARSER, "language guide: functions called by a kernel are undecorated")
def _kernel_in_kernel(module: Module) -> Found:
    entries = {function.name for function in module.entries}
    for node in _inside(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in entries:
            yield node, f"calls the kernel {node.func.id}"


@rule("changing-global", VERSIONS, _TRACED)
def _changing_global(module: Module) -> Found:
    changing = _changing_names(module.tree)
    for node in _inside(module):
        if isinstance(node, ast.Global | ast.Nonlocal):
            yield node, ast.unparse(node)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in changing:
            yield node, f"reads {node.id}, which is a mutable or reassigned global"


@rule("environment", VERSIONS, _TRACED)
def _environment(module: Module) -> Found:
    for node in _inside(module):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.environ", "os.getenv"):
            yield node, f"reads {ast.unparse(node)}"


def _changing_names(tree: ast.Module) -> set[str]:
    """Module-level names that are assigned twice, hold a list, dict or set, or are assigned through `global`."""
    seen: set[str] = set()
    changing: set[str] = set()
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = {target.id for target in targets if isinstance(target, ast.Name)} - {"__all__"}
            mutable = isinstance(statement.value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)
            changing |= names & seen | (names if mutable or isinstance(statement, ast.AugAssign) else set())
            seen |= names
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            changing |= set(node.names)
    return changing


def _inside(module: Module) -> list[ast.AST]:
    """Every node of the module's functions (signatures and decorators excluded), each once."""
    return [node for function in module.functions.values() for statement in function.body for node in ast.walk(statement)]
