"""NKI, Python's own functions and the module's, under whatever other name, read as the names that the rules know."""

from __future__ import annotations

import ast
import builtins
import re
from collections import Counter

__all__ = ["with_known_names"]

_CHAIN = 3
"""How many names may stand between a use and the language."""

_IN_LANGUAGE = re.compile(r"(nl|nisa)(\.\w+)?")

_MODULES = {"nki": "nki", "nki.language": "nl", "nki.isa": "nisa"}
_MODULES |= {f"neuronxcc.{name}": short for name, short in _MODULES.items()}  # the language before 0.2, to be told so


def with_known_names(tree: ast.Module) -> ast.Module:
    """The tree, in which `isa.memset` after `import nki.isa as isa`, `memset` after `from nki.isa import memset`,
    `wipe` after `wipe = nisa.memset` and `nki.isa.memset` all read `nisa.memset`; `order` after `order = sorted` and
    `builtins.sorted` read `sorted`. Places in the source stay.
    """
    known: ast.Module = _Renamed(*_imported_names(tree)).visit(tree)
    for _ in range(_CHAIN):
        aliases = _aliases(known)
        if not aliases:
            break
        known = _Renamed(aliases).visit(known)
    return known


def _aliases(tree: ast.Module) -> dict[str, str]:
    """Names that the module binds once, and only to a name of the language (`wipe = nisa.memset`), to a function that it
    defines or imports, or to one of Python's -> that name.
    """
    nodes = list(ast.walk(tree))
    bound = Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    bound.update(node.arg for node in nodes if isinstance(node, ast.arg))
    functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    functions |= {
        alias.asname or alias.name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names
    }
    functions = (functions | {name for name in dir(builtins) if not name.startswith("_")}) - set(bound)
    used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    found = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.value, ast.Attribute | ast.Name):
            target, text = node.targets[0], ast.unparse(node.value)
            if isinstance(target, ast.Name) and bound[target.id] == 1 and target.id in used:
                if text in functions or _IN_LANGUAGE.fullmatch(text):
                    found[target.id] = text
    return found


def _imported_names(tree: ast.Module) -> tuple[dict[str, str], frozenset[str]]:
    """Name in this module -> what it stands for; the names of the module `builtins`."""
    found: dict[str, str] = {}
    python: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname: _MODULES[alias.name] for alias in node.names if alias.asname and alias.name in _MODULES}
            python |= {alias.asname or alias.name for alias in node.names if alias.name == "builtins"}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if node.module == "nki_hf.lang" and alias.name in _MODULES.values():
                    found[alias.asname or alias.name] = alias.name
                elif full in _MODULES:
                    found[alias.asname or alias.name] = _MODULES[full]
                elif node.module in _MODULES:
                    found[alias.asname or alias.name] = f"{_MODULES[node.module]}.{alias.name}"
                elif node.module == "builtins":
                    found[alias.asname or alias.name] = alias.name
    return {name: meaning for name, meaning in found.items() if name != meaning}, frozenset(python)


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: dict[str, str], python: frozenset[str] = frozenset()) -> None:
        self.names = names
        self.python = python

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return _parsed(self.names[node.id], node) if node.id in self.names and isinstance(node.ctx, ast.Load) else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        whole = ast.unparse(node)
        if isinstance(node.value, ast.Name) and node.value.id in self.python:
            return _parsed(node.attr, node)
        return _parsed(_MODULES[whole], node) if whole in _MODULES else self.generic_visit(node)


def _parsed(text: str, place: ast.expr) -> ast.expr:
    made = ast.parse(text, mode="eval").body
    for node in ast.walk(made):
        ast.copy_location(node, place)
    return made
