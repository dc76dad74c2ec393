"""Calls of the language and the instructions: how arguments are passed, what is used of the result, where data lives."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nki_hf.tools.kernel_lint.rule import VERSIONS, Found, Module, own_nodes, rule

_ENUM_ARGUMENTS = ("op", "op0", "op1", "engine", "dge_mode", "oob_mode", "reduce_cmd", "dma_engine", "perf_mode", "priority")
_VALUES = ("get_nc_version", "nc_version", "get_sub_version", "register_alloc", "register_load", "scalar_load")
"""isa functions that are called for their value."""

_DMA = ("dma_copy", "dma_transpose", "dma_compute")


@rule("positional", VERSIONS, "parameter order drifted between versions (affine_select, dma_compute): name each", refused=False)
def _positional(module: Module) -> Found:
    for node, name in _isa_calls(module):
        if node.args:
            yield node, f"nisa.{name} has {len(node.args)} positional arguments"


@rule("result-used", VERSIONS, "release notes 0.2: instructions write dst and return nothing useful")
def _result_used(module: Module) -> Found:
    statements = {
        id(node.value) for function in module.functions.values() for node in ast.walk(function) if isinstance(node, ast.Expr)
    }
    for node, name in _isa_calls(module):
        if name not in _VALUES and id(node) not in statements:
            yield node, f"the result of nisa.{name} is used"


@rule("raw-enum", VERSIONS, "release notes 0.3.0: enums are objects; ints and strings are refused")
def _raw_enum(module: Module) -> Found:
    for node, name in _isa_calls(module):
        for keyword in node.keywords:
            if keyword.arg in _ENUM_ARGUMENTS and isinstance(keyword.value, ast.Constant) and keyword.value.value is not None:
                yield keyword.value, f"nisa.{name}({keyword.arg}={keyword.value.value!r})"


@rule("string-buffer", VERSIONS, "release notes 0.3.0: buffers and dtypes are objects; strings are refused")
def _string_buffer(module: Module) -> Found:
    for node in _nodes(module):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg in ("buffer", "dtype") and isinstance(keyword.value, ast.Constant):
                    yield keyword.value, f"{keyword.arg}={keyword.value.value!r}"


@rule("psum-in-dma", VERSIONS, "release notes 0.3.0: a DMA may not touch PSUM; copy to SBUF first")
def _psum_in_dma(module: Module) -> Found:
    for function in module.functions.values():
        homes = _homes(function)
        for node, name in _isa_calls_of(function):
            if name in _DMA:
                for keyword in node.keywords:
                    several = keyword.value.elts if isinstance(keyword.value, ast.List | ast.Tuple) else [keyword.value]
                    if keyword.arg in ("dst", "src", "srcs") and any(homes.get(_base(value)) == "psum" for value in several):
                        yield keyword.value, f"nisa.{name}({keyword.arg}={ast.unparse(keyword.value)}) is in PSUM"


@rule("output-buffer", VERSIONS, "release notes 0.3.0: outputs are allocated in shared_hbm and returned")
def _output_buffer(module: Module) -> Found:
    for function in module.entries:
        homes, returned = _homes(function), 0
        for node in own_nodes(function):
            if isinstance(node, ast.Return) and node.value is not None:
                values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
                for value in values:
                    returned += 1
                    home = homes.get(_base(value))
                    if home is not None and home != "shared_hbm":
                        yield value, f"{function.name} returns {ast.unparse(value)} in {home}"
        if not returned:
            yield function, f"{function.name} returns no output"


@rule("input-returned", VERSIONS, "aliasing of an input with an output is unverified; return fresh tensors")
def _input_returned(module: Module) -> Found:
    for function in module.entries:
        parameters = set(_with_views(function, {argument.arg: "" for argument in function.args.args}))
        for node in own_nodes(function):
            if isinstance(node, ast.Return) and node.value is not None:
                values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
                for value in values:
                    if _base(value) in parameters:
                        yield value, f"{function.name} returns its parameter {_base(value)}"


@rule("integer-fill", VERSIONS, "release notes 0.3.0: memset's value is typed like its destination")
def _integer_fill(module: Module) -> Found:
    for function in module.functions.values():
        dtypes = _dtypes(function)
        for node, name in _isa_calls_of(function):
            if name != "memset":
                continue
            named = {keyword.arg: keyword.value for keyword in node.keywords}
            value, target = named.get("value"), named.get("dst")
            if isinstance(value, ast.Constant) and target is not None:
                dtype = dtypes.get(_base(target), "")
                floating = isinstance(value.value, float)
                if (dtype.startswith(("int", "uint")) and floating) or (dtype.startswith(("float", "bfloat")) and not floating):
                    yield node, f"memset of {ast.unparse(target)} ({dtype}) with {value.value!r}"


@rule(
    "removed-argument",
    VERSIONS,
    "release notes 0.3.0: mask= of instructions and dst_rmw_op of dma_copy (now dma_compute) are gone",
)
def _removed_argument(module: Module) -> Found:
    for node, name in _isa_calls(module):
        for keyword in node.keywords:
            if keyword.arg == "mask" or (name == "dma_copy" and keyword.arg == "dst_rmw_op"):
                yield keyword.value, f"nisa.{name}({keyword.arg}=...)"


def _nodes(module: Module) -> Iterator[ast.AST]:
    for function in module.functions.values():
        yield from ast.walk(function)


def _isa_calls(module: Module) -> Iterator[tuple[ast.Call, str]]:
    for function in module.functions.values():
        yield from _isa_calls_of(function)


def _isa_calls_of(function: ast.FunctionDef) -> Iterator[tuple[ast.Call, str]]:
    """Calls `nisa.<name>(...)` of a function."""
    for node in own_nodes(function):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "nisa"
        ):
            yield node, node.func.attr


def _homes(function: ast.FunctionDef) -> dict[str, str]:
    """Local name -> memory of its `nl.ndarray`-like allocation, `sbuf` where the buffer is left to its default."""
    homes = {}
    for name, call in _allocations(function):
        position = 3 if _last(call.func) == "full" else 2  # (shape, dtype, buffer); full has its value between
        written = [keyword.value for keyword in call.keywords if keyword.arg == "buffer"] or call.args[position : position + 1]
        homes[name] = _last(written[0]) if written else "sbuf"
    return _with_views(function, homes)


def _with_views(function: ast.FunctionDef, homes: dict[str, str]) -> dict[str, str]:
    """`homes` and the names that are bound once, to such a variable or a view of it."""
    bound = [
        (target.id, node.value)
        for node in own_nodes(function)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    once = {name: value for name, value in bound if sum(other == name for other, _ in bound) == 1}
    found = dict(homes)
    for _ in once:  # a chain of views is at most as long as there are names
        found |= {name: found[_viewed(value)] for name, value in once.items() if name not in found and _viewed(value) in found}
    return found


def _viewed(node: ast.AST) -> str:
    """The variable that an expression is a view of: itself, subscripted, or through a method; not a property of it."""
    while True:
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        else:
            return node.id if isinstance(node, ast.Name) else ""


def _dtypes(function: ast.FunctionDef) -> dict[str, str]:
    """Local name -> dtype of its allocation, where it is written there as `nl.<dtype>`."""
    found = {}
    for name, call in _allocations(function):
        written = [keyword.value for keyword in call.keywords if keyword.arg == "dtype"] or call.args[1:2]
        if written and ast.unparse(written[0]).startswith("nl."):
            found[name] = _last(written[0])
    return found


def _allocations(function: ast.FunctionDef) -> Iterator[tuple[str, ast.Call]]:
    for node in own_nodes(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            called = node.value.func
            if isinstance(called, ast.Attribute) and called.attr in ("ndarray", "zeros", "ones", "full"):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        yield target.id, node.value


def _base(node: ast.AST) -> str:
    """The variable under subscripts and view methods: `x[0:8, :].ap(...)` -> `x`."""
    while isinstance(node, ast.Subscript | ast.Attribute | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _last(node: ast.AST) -> str:
    return ast.unparse(node).split(".")[-1]
