"""Loops that the chip itself runs: forms that came, went, or stand where they may not."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nki_hf.tools.kernel_lint.calls import calls_of
from nki_hf.tools.kernel_lint.rule import VERSIONS, Found, Module, rule
from nki_hf.tools.kernel_lint.source import own_nodes

_BODIES = {"fori_loop": 2, "while_loop": 1}
_ON_CHIP = ("dynamic_range", "fori_loop", "while_loop")


@rule("register-while", ("0.7",), "release notes 0.7: `while` on a register is gone (deprecated in 0.6); use nl.while_loop")
def _register_while(module: Module) -> Found:
    for function in module.functions:
        registers = {
            target.id
            for node in own_nodes(function)
            if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("nisa.register_alloc(")
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in own_nodes(function):
            if isinstance(node, ast.While) and isinstance(node.test, ast.Name) and node.test.id in registers:
                yield node, f"while {node.test.id}"


@rule("loop-in-no-reorder", VERSIONS, "nl.no_reorder: loops that run on the chip are not supported inside")
def _loop_in_no_reorder(module: Module) -> Found:
    for function in module.functions:
        for block in own_nodes(function):
            if isinstance(block, ast.With) and any("no_reorder" in ast.unparse(item.context_expr) for item in block.items):
                for node in ast.walk(block):
                    if isinstance(node, ast.Call) and ast.unparse(node.func).removeprefix("nl.") in _ON_CHIP:
                        yield node, f"{ast.unparse(node.func)} inside nl.no_reorder()"


@rule(
    "loop-body",
    ("0.6", "0.6-tracer", "0.7"),
    "migration guide 0.6.0: fori_loop's body returns nothing; its tiles stay inside of it",
)
def _loop_body(module: Module) -> Found:
    for name, body in _bodies(module):
        for node in own_nodes(body):
            if name == "fori_loop" and isinstance(node, ast.Return) and node.value is not None:
                yield node, f"{body.name} is the body of a fori_loop and returns {ast.unparse(node.value)}"
            if isinstance(node, ast.Global | ast.Nonlocal):
                yield node, f"{body.name} is the body of a {name} and hands {', '.join(node.names)} out"


@rule(
    "loop-index",
    ("0.6", "0.6-tracer", "0.7"),
    "migration guide 0.6.0: a loop's variable is read-only and no number: use .ap(scalar_offset=)",
)
def _loop_index(module: Module) -> Found:
    for name, body in _bodies(module):
        index = body.args.args[0].arg if body.args.args and name == "fori_loop" else ""
        for node in own_nodes(body):
            operands = [node.left, node.right] if isinstance(node, ast.BinOp) else []
            operands += [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
            stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == index
            if stored or any(isinstance(operand, ast.Name) and operand.id == index for operand in operands):
                yield node, f"`{ast.unparse(node)}` computes with the loop variable {index}"


@rule(
    "dynamic-index", VERSIONS[:4], "deep dive on dynamic loops: the variable of a dynamic_range is a register, never in an `if`"
)
def _dynamic_index(module: Module) -> Found:
    for function in module.functions:
        for loop in own_nodes(function):
            if isinstance(loop, ast.For) and ast.unparse(loop.iter).startswith("nl.dynamic_range("):
                for node in ast.walk(loop):
                    if isinstance(node, ast.Compare) and any(
                        isinstance(value, ast.Name) and ast.unparse(loop.target) == value.id
                        for value in (node.left, *node.comparators)
                    ):
                        yield node, f"`{ast.unparse(node)}` compares a register"


def _bodies(module: Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """(loop, body function) of every loop whose body is a function of this module."""
    for _, node, name in calls_of(module, "nl"):
        place = _BODIES.get(name)
        given = [keyword.value for keyword in node.keywords if keyword.arg in ("body_fun",)]
        given += node.args[place : place + 1] if place is not None else []
        for value in given if place is not None else ():
            for function in module.functions:
                if isinstance(value, ast.Name) and function.name == value.id:
                    yield name, function
