"""Lint one file or folder of kernels for a choice of NKI versions."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import nki_hf.kernels
from nki_hf.tools.kernel_lint import calls, names, syntax
from nki_hf.tools.kernel_lint.imports import with_known_names
from nki_hf.tools.kernel_lint.rule import RULES, VERSIONS, Finding, Module

__all__ = ["KERNELS", "Row", "lint", "lint_source"]

KERNELS = Path(nki_hf.kernels.__path__[0])
"""The package's own kernels."""

_LOADED = (syntax, calls, names)  # importing them registers their rules


@dataclass(frozen=True, kw_only=True)
class Row:
    """One kernel module and what each version says.

    Attributes:
      file: its path, relative to the folder that was linted.
      kernels: its kernels; none in a module of shared parts.
      findings: NKI version -> what it rejects; an empty tuple where it takes the module.
    """

    file: str
    kernels: tuple[str, ...]
    findings: dict[str, tuple[Finding, ...]]

    @property
    def clean(self) -> bool:
        """True if no version rejects anything."""
        return not any(self.findings.values())


def lint(path: Path | str = KERNELS, versions: Sequence[str] = VERSIONS) -> list[Row]:
    """One row per module under `path` (a file or a folder) that is written in NKI; plain Python beside them is passed over.

    Raises:
      ValueError: a version that is not in `VERSIONS`, or a path without Python files.
    """
    unknown = [version for version in versions if version not in VERSIONS]
    if unknown:
        raise ValueError(f"version={unknown[0]!r} is not known: it is one of {', '.join(VERSIONS)}.")
    path = Path(path)
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    if not files or not files[0].exists():
        raise ValueError(f"path={str(path)!r} has no Python files: name a kernel's file or a folder of kernels.")
    rows = []
    for file in files:
        shown = str(file.relative_to(path)) if path.is_dir() else file.name
        module = _module(file.read_text())
        if module.speaks_nki:
            findings = _findings(module, shown)
            rows.append(
                Row(
                    file=shown,
                    kernels=tuple(function.name for function in module.entries),
                    findings={v: tuple(f for f in findings if v in RULES[f.rule].versions) for v in versions},
                )
            )
    return rows


def lint_source(source: str, file: str = "kernel.py") -> list[Finding]:
    """Everything that any version rejects in one module's source."""
    return _findings(_module(source), file)


def _findings(module: Module, file: str) -> list[Finding]:
    found = {
        Finding(file=file, line=getattr(node, "lineno", 0), rule=rule.name, message=message)
        for rule in RULES.values()
        for node, message in rule.find(module)
    }
    return sorted(found)


def _module(source: str) -> Module:
    tree = with_known_names(ast.parse(source))
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    entries = tuple(function for function in functions.values() if any(map(_is_jit, function.decorator_list)))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    speaks = bool(imported & {"nki_hf.lang", "nki", "nki.language", "nki.isa"})
    return Module(tree=tree, functions=functions, entries=entries, speaks_nki=speaks)


def _is_jit(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(called).split(".")[-1] == "jit"
