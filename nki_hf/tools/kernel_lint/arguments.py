"""How arguments are passed: names and places that the documented signatures do not have, or not yet."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from typing import Any

from nki_hf.sim import isa, language
from nki_hf.tools.kernel_lint.calls import calls_of
from nki_hf.tools.kernel_lint.evaluation.machine import Use
from nki_hf.tools.kernel_lint.rule import VERSIONS, Found, Module, rule
from nki_hf.tools.kernel_lint.source import last_name, own_nodes

REMOVED = {
    ("dma_copy", "dst_rmw_op"): "dma_compute(reduce_op=)",
    ("dma_copy", "unique_indices"): "dma_compute(unique_indices=)",
    ("register_move", "imm"): "src=",
    ("sendrecv", "use_gpsimd_dma"): "dma_engine=",
}
"""(instruction, argument) that the migration guide to 0.3.0 lists as removed or renamed -> what took its place."""

NEW = {"0.4": (("dma_compute", "oob_mode"),), "0.6": (("tensor_scalar_reduce", "reduce_cmd"),)}
"""First version -> (instruction, argument)."""

_FOR_THEIR_VALUE = ("get_nc_version", "nc_version", "get_nc_sub_version", "register_alloc", "scalar_load")


@rule("removed-argument", VERSIONS, "migration guide 0.3.0: gone or renamed; 0.2.0: instructions know no mask=")
def _removed_argument(module: Module) -> Found:
    for where, functions in (("nisa", isa), ("nl", language)):
        for name, word, node in _words(module, where):
            gone = where == "nisa" and (name, word) in REMOVED
            if gone or (word == "mask" and "mask" not in _parameters(functions, name, ("mask",))):
                instead = REMOVED.get((name, word), "slices that end at the tensor's edge")
                yield node, f"{where}.{name}({word}=...): use {instead}"


@rule("unknown-argument", VERSIONS, "the public stubs of nki.isa and nki.language (0.6) have no such parameter")
def _unknown_argument(module: Module) -> Found:
    for where, functions in (("nisa", isa), ("nl", language)):
        for name, word, node in _words(module, where):
            known = _parameters(functions, name, ())
            if known and word not in (*known, "mask") and (name, word) not in REMOVED:
                yield node, f"{where}.{name}({word}=...)"


@rule("missing-argument", VERSIONS, "migration guide 0.2.0: instructions write dst and return nothing; all operands are given")
def _missing_argument(module: Module) -> Found:
    for _, node, name in calls_of(module, "nisa"):
        function = getattr(isa, name, None)
        open_ended = any(isinstance(value, ast.Starred) for value in node.args) or any(
            word.arg is None for word in node.keywords
        )
        if not inspect.isfunction(function) or open_ended:
            continue
        given = {keyword.arg for keyword in node.keywords}
        parameters = list(inspect.signature(function).parameters.values())
        if len(node.args) > len(parameters):
            yield node, f"nisa.{name} takes {len(parameters)} arguments"
        for parameter in parameters[len(node.args) :]:
            if parameter.default is parameter.empty and parameter.name not in given:
                yield node, f"nisa.{name} without {parameter.name}="
    for use in module.uses.of(module.functions, "nisa"):
        function = getattr(isa, use.name, None)
        if inspect.isfunction(function) and not _written(use):
            for parameter in inspect.signature(function).parameters.values():
                if parameter.default is parameter.empty and parameter.name not in use.given:
                    yield use.call, f"nisa.{use.name} without {parameter.name}="


for _version, _added in NEW.items():

    @rule(f"new-argument-in-{_version}", VERSIONS[: VERSIONS.index(_version)], f"release notes {_version}.0: new parameters")
    def _new_argument(module: Module, added: tuple[tuple[str, str], ...] = _added) -> Found:
        for name, word, node in _words(module, "nisa"):
            if (name, word) in added:
                yield node, f"nisa.{name}({word}=...)"


@rule("transpose-engine", VERSIONS[:1], "release notes 0.4.0: nc_transpose takes its engine= from 0.4 on", refused=False)
def _transpose_engine(module: Module) -> Found:
    """On the Tensor engine a tile is turned whole, on the Vector engine in blocks of 32 x 32: it matters which one runs."""
    for _, node, name in calls_of(module, "nisa"):
        for keyword in node.keywords if name == "nc_transpose" else ():
            if keyword.arg == "engine" and last_name(keyword.value) not in ("tensor", "unknown"):
                yield keyword.value, f"nisa.nc_transpose(engine={ast.unparse(keyword.value)}) is ignored"


@rule("moved-argument", VERSIONS, "migration guide 0.3.0: affine_select's offset and dma_compute's scales changed their places")
def _moved_argument(module: Module) -> Found:
    for _, node, name in calls_of(module, "nisa"):
        if name == "affine_select" and len(node.args) > 5 and not isinstance(node.args[5], ast.Attribute | ast.Name):
            yield node, "nisa.affine_select with the offset in third place"
        if name == "dma_compute" and len(node.args) > 2 and isinstance(node.args[2], ast.List | ast.Tuple):
            yield node, "nisa.dma_compute with the scales in third place"


@rule("positional", VERSIONS, "the order of parameters has changed between versions: name each one", refused=False)
def _positional(module: Module) -> Found:
    for _, node, name in calls_of(module, "nisa"):
        if node.args and name not in _FOR_THEIR_VALUE:
            yield node, f"nisa.{name} has {len(node.args)} positional arguments"


@rule("result-used", VERSIONS, "an instruction's result is a handle for depends_on, no tile", refused=False)
def _result_used(module: Module) -> Found:
    alone = {id(node.value) for function in module.functions for node in own_nodes(function) if isinstance(node, ast.Expr)} | {
        id(node.value)
        for function in module.functions
        for node in own_nodes(function)
        if isinstance(node, ast.Attribute) and node.attr == "depends_on"
    }
    for _, node, name in calls_of(module, "nisa"):
        if name not in _FOR_THEIR_VALUE and id(node) not in alone and name[:1].islower():
            yield node, f"the result of nisa.{name} is used"


def _words(module: Module, where: str) -> Iterator[tuple[str, str, ast.AST]]:
    """(name, argument, place) of every argument that is given by its name: as written, or by `**words` and `partial`."""
    for _, node, name in calls_of(module, where):
        for keyword in node.keywords:
            if keyword.arg:
                yield name, keyword.arg, keyword.value
    for use in module.uses.of(module.functions, where):
        if not _written(use):
            for word in use.given:
                yield use.name, word, use.nodes[word]


def _written(use: Use) -> bool:
    """True if a call stands in the source with all its arguments and its own name."""
    plain = not any(isinstance(each, ast.Starred) for each in use.call.args) and all(word.arg for word in use.call.keywords)
    return plain and ast.unparse(use.call.func) in (f"nisa.{use.name}", f"nl.{use.name}")


def _parameters(functions: Any, name: str, unknown: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the parameters of a function of the language; `unknown` if it has no such function."""
    function = getattr(functions, name, None)
    if not inspect.isfunction(function):
        return unknown
    parameters = inspect.signature(function).parameters
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return unknown if open_ended else tuple(parameters)
