"""Imports of NKI under any name, read as the names that the rules know: `nki`, `nl` and `nisa`."""

from __future__ import annotations

import ast

__all__ = ["with_known_names"]

_MODULES = {"nki": "nki", "nki.language": "nl", "nki.isa": "nisa"}


def with_known_names(tree: ast.Module) -> ast.Module:
    """The tree, in which `isa.memset` after `import nki.isa as isa`, `memset` after `from nki.isa import memset` and
    `nki.isa.memset` all read `nisa.memset`. Places in the source stay.
    """  # fmt: skip
    known: ast.Module = _Renamed(_imported_names(tree)).visit(tree)
    return known


def _imported_names(tree: ast.Module) -> dict[str, str]:
    """Name in this module -> what it stands for."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname: _MODULES[alias.name] for alias in node.names if alias.asname and alias.name in _MODULES}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if node.module == "nki_hf.lang" and alias.name in _MODULES.values():
                    found[alias.asname or alias.name] = alias.name
                elif full in _MODULES:
                    found[alias.asname or alias.name] = _MODULES[full]
                elif node.module in _MODULES:
                    found[alias.asname or alias.name] = f"{_MODULES[node.module]}.{alias.name}"
    return {name: meaning for name, meaning in found.items() if name != meaning}


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return _parsed(self.names[node.id], node) if node.id in self.names and isinstance(node.ctx, ast.Load) else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        whole = ast.unparse(node)
        return _parsed(_MODULES[whole], node) if whole in _MODULES else self.generic_visit(node)


def _parsed(text: str, place: ast.expr) -> ast.expr:
    made = ast.parse(text, mode="eval").body
    for node in ast.walk(made):
        ast.copy_location(node, place)
    return made
