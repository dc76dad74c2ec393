"""Lint one file or folder of kernels for a choice of NKI versions."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import nki_hf.kernels
from nki_hf.tools.kernel_lint import (
    arguments,
    calls,
    loops,
    memory_rules,
    names,
    parser_forms,
    parser_values,
    size_rules,
    syntax,
)
from nki_hf.tools.kernel_lint.evaluation.uses import Uses
from nki_hf.tools.kernel_lint.reach import callees, classes_named, is_entry, kernel_code, python_name
from nki_hf.tools.kernel_lint.rule import RULES, VERSIONS, Finding, Module
from nki_hf.tools.kernel_lint.source import Source, bound_in_module, own_nodes, read_source

__all__ = ["KERNELS", "Row", "lint", "lint_source"]

KERNELS = Path(nki_hf.kernels.__path__[0])
"""The package's own kernels."""

_LOADED = (
    syntax,
    parser_forms,
    parser_values,
    calls,
    memory_rules,
    size_rules,
    arguments,
    loops,
    names,
)  # importing them registers their rules


@dataclass(frozen=True, kw_only=True)
class Row:
    """One kernel module and what each version says.

    Attributes:
      file: its path, relative to the folder that was linted.
      kernels: its kernels; none in a module of shared parts.
      findings: NKI version -> what it rejects; an empty tuple where it takes the module.
      since: the version from which on the module is used, if it says so (`SINCE = "0.6-tracer"`); earlier ones never meet it.
    """

    file: str
    kernels: tuple[str, ...]
    findings: dict[str, tuple[Finding, ...]]
    since: str = VERSIONS[0]

    @property
    def clean(self) -> bool:
        """True if no version rejects anything."""
        return not any(self.findings.values())


def lint(path: Path | str = KERNELS, versions: Sequence[str] = VERSIONS) -> list[Row]:
    """One row per module with kernel code: those under `path` (a file or a folder) and those that these import.

    Raises:
      ValueError: a version that is not in `VERSIONS`, or a path without Python files or without kernel code.
    """
    unknown = [version for version in versions if version not in VERSIONS]
    if unknown:
        raise ValueError(f"version={unknown[0]!r} is not known: it is one of {', '.join(VERSIONS)}.")
    path = Path(path).absolute()
    files = sorted(file for file in path.rglob("*.py") if file.is_file()) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise ValueError(f"path={str(path)!r} has no Python files: name a kernel's file or a folder of kernels.")
    home = path if path.is_dir() else path.parent
    known = {file: _read(file) for file in files}

    def row(file: Path, kernels: tuple[str, ...], findings: Callable[[str], list[Finding]], since: str = VERSIONS[0]) -> Row:
        shown = str(file.relative_to(home)) if file.is_relative_to(home) else file.name
        found = findings(shown)
        met = [version for version in versions if VERSIONS.index(version) >= VERSIONS.index(since)]
        return Row(
            file=shown,
            kernels=kernels,
            findings={
                version: tuple(each for each in found if version in met and version in RULES[each.rule].versions)
                for version in versions
            },
            since=since,
        )

    rows = [
        row(
            module.source.path or path,
            tuple(function.name for function in module.entries),
            partial(_findings, module),
            _since(module),
        )
        for module in _modules(list(known.values()), known)
    ]
    rows += [row(file, (), partial(_broken, source)) for file, source in known.items() if source.broken is not None]
    if not rows:
        raise ValueError(
            f"path={str(path)!r} has no kernel code: no function that is decorated with nki.jit, and none that calls nki.isa "
            "or nki.language. Name the file that holds the kernel."
        )
    return sorted(rows, key=lambda row: row.file)


def lint_source(source: str, file: str = "kernel.py") -> list[Finding]:
    """Everything that any version rejects in one module's source; SyntaxError if it is not Python."""
    return [finding for module in _modules([read_source(source)], {}) for finding in _findings(module, file)]


def _read(file: Path) -> Source:
    try:
        with tokenize.open(file) as opened:  # as Python reads it: a byte order mark and a coding line count
            return read_source(opened.read(), file)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OSError) as error:  # the parser's of deep nesting, too
        nothing = ast.Module(body=[], type_ignores=[])
        broken = (0, f"cannot be read ({type(error).__name__}: {error})")
        if isinstance(error, SyntaxError):
            broken = (error.lineno or 0, error.msg)
        return Source(path=file, tree=nothing, functions=(), by_name={}, imports={}, speaks_nki=False, broken=broken)


def _modules(sources: Sequence[Source], known: dict[Path, Source]) -> list[Module]:
    """What the rules look at: kernel code only, with the tiles followed through all of it; imported files join `known`."""

    def load(file: Path) -> Source:
        if file not in known:
            known[file] = _read(file)
        return known[file]

    code = kernel_code(sources, load)
    home = {id(function): source for source, functions in code.items() for function in functions}
    kernels = [function for functions in code.values() for function in functions]
    named: dict[int, dict[str, list[ast.FunctionDef]]] = {}
    for function in kernels:
        own = named.setdefault(id(function), {})
        for _, other in callees(home[id(function)], function, load):
            if id(other) in home and other not in own.setdefault(other.name, []):
                own[other.name].append(other)

    def callee(function: ast.FunctionDef, call: ast.Call) -> list[ast.FunctionDef]:
        called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if isinstance(call.func, ast.Name):  # `from steps import run as go`
            called = home[id(function)].imports.get(called, (None, ""))[1] or called
        return named[id(function)].get(called, [])

    classes = classes_named(code, load)
    called = {
        id(other)
        for function in kernels
        for node in own_nodes(function)
        if isinstance(node, ast.Call)
        for other in callee(function, node)
    }
    modules = {source: _module_names(source, load) for source in code}
    entries = [function for function in kernels if is_entry(function) and id(function) not in called]
    uses = Uses(code, entries, load)
    for source, function in uses.visited:
        if id(function) not in home:
            code.setdefault(source, []).append(function)
    nothing: dict[Source, list[ast.FunctionDef]] = {source: [] for source in classes}
    return [
        Module(
            source=source,
            functions=tuple(functions),
            entries=tuple(function for function in functions if is_entry(function)),
            sub_kernels=frozenset(function.name for function in functions if is_entry(function) and id(function) in called),
            uses=uses,
            values=modules.get(source, {}),
            callee=callee,
            classes=tuple(classes.get(source, ())),
            python=partial(python_name, source, load=load),
        )
        for source, functions in (nothing | code).items()
    ]


def _module_names(source: Source, load: Callable[[Path], Source]) -> dict[str, ast.expr]:
    """What names of a module stand for that are bound once, there or in the file that they are imported from."""
    found = {}
    for name, (file, there) in source.imports.items():
        value = bound_in_module(load(file).tree).get(there) if there else None
        if value is not None:
            found[name] = value
    return found | bound_in_module(source.tree)


def _since(module: Module) -> str:
    """What the module's `SINCE` says, if it is a version."""
    for node in module.source.tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value in VERSIONS:
            if any(isinstance(target, ast.Name) and target.id == "SINCE" for target in node.targets):
                return str(node.value.value)
    return VERSIONS[0]


def _broken(source: Source, file: str) -> list[Finding]:
    line, message = source.broken or (0, "")
    return [Finding(file=file, line=line, rule="syntax", message=message)]


def _findings(module: Module, file: str) -> list[Finding]:
    """What the module breaks, once a place: what other turns of a loop say with other numbers is left out."""
    found: dict[tuple[str, int, str], Finding] = {}
    surely = replace(module, uses=module.uses.sure())
    for rule in RULES.values():
        broken = [(getattr(node, "lineno", 0), message) for node, message in rule.find(module)]
        sure = {(getattr(node, "lineno", 0), message) for node, message in rule.find(surely)} if broken else set()
        for line, message in sorted(broken, key=lambda each: each not in sure):
            made = Finding(file=file, line=line, rule=rule.name, message=message, sure=(line, message) in sure)
            found.setdefault((rule.name, line, re.sub(r"\d+", "", message)), made)
    lines = {(rule, line) for rule, line, _ in found}
    for name, node in module.uses.told(module.functions):
        line = getattr(node, "lineno", 0)
        if (name, line) not in lines:
            text = ast.unparse(node).splitlines()[0][:80]
            found.setdefault((name, line, text), Finding(file=file, line=line, rule=name, message=f"`{text}`, by its value"))
    return sorted(found.values())
