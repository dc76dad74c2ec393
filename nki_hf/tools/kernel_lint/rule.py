"""Rule and Finding: one documented refusal of a range of NKI versions, and one place in a source that breaks it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from nki_hf.tools.kernel_lint.evaluation.uses import Uses
from nki_hf.tools.kernel_lint.source import Source, own_nodes

__all__ = ["PARSER", "RULES", "VERSIONS", "Finding", "Module", "Rule", "own_nodes", "rule"]

VERSIONS = ("0.3", "0.4", "0.5", "0.6", "0.6-tracer", "0.7")
"""NKI versions that kernels are checked for. 0.3 to 0.6 parse the source, 0.7 traces it; 0.6 does so, too, if
NKI_COMPILER_FRONTEND=tracer is set."""

PARSER = VERSIONS[:4]


@dataclass(frozen=True, eq=False)
class Module:
    """What the rules look at in one module.

    Attributes:
      source: the module.
      functions: its kernel code: the entry functions, what they call, and every function that calls an instruction.
      entries: its functions that are decorated with `nki.jit`.
      sub_kernels: the entries that other kernel code calls.
      places: where tiles live.
      uses: calls of the language, with the values that reach them.
      values: what names of the module stand for that are bound once.
      callee: the functions of kernel code that a call in a function may mean.
      classes: its classes that kernel code names, wherever it stands.
      python: the function or constant of Python that a module-level name means, empty if none.
    """

    source: Source
    functions: tuple[ast.FunctionDef, ...]
    entries: tuple[ast.FunctionDef, ...]
    sub_kernels: frozenset[str]
    uses: Uses
    values: Mapping[str, ast.expr]
    callee: Callable[[ast.FunctionDef, ast.Call], list[ast.FunctionDef]]
    classes: tuple[ast.ClassDef, ...]
    python: Callable[[str], str]

    @functools.cached_property
    def inside(self) -> tuple[ast.AST, ...]:
        """Every node of the module's functions, each once: bodies and defaults of parameters, no annotations or decorators."""
        defaults = [
            node
            for function in self.functions
            for each in (*function.args.defaults, *function.args.kw_defaults)
            if each is not None
            for node in ast.walk(each)
        ]
        return (*(node for function in self.functions for node in own_nodes(function)), *defaults)

    @functools.cached_property
    def attributes(self) -> tuple[tuple[ast.Attribute, str], ...]:
        """Every attribute in kernel code, and its text."""
        return tuple((node, ast.unparse(node)) for node in self.inside if isinstance(node, ast.Attribute))

    @property
    def tree(self) -> ast.Module:
        """The module's tree."""
        return self.source.tree


Found = Iterator[tuple[ast.AST, str]]


@dataclass(frozen=True)
class Rule:
    """One documented refusal, or one piece of advice.

    Attributes:
      name: e.g. `keyword-only`.
      versions: the NKI versions that refuse it, or that the advice is for.
      why: what they do and where that is documented, a sentence.
      find: yields each offending node with what is wrong there.
      refused: True if these versions are documented to reject it or to compute something else than the source says; False
        for advice that keeps a kernel the same under all of them.
      unknown: True for what no public source speaks about.
    """

    name: str
    versions: tuple[str, ...]
    why: str
    find: Callable[[Module], Found]
    refused: bool = True
    unknown: bool = False

    @property
    def word(self) -> str:
        """What these versions do with it, in one word."""
        return "unknown" if self.unknown else "refused" if self.refused else "advice"


@dataclass(frozen=True, order=True)
class Finding:
    """One broken rule: file, line, rule, and what is wrong.

    Attributes:
      sure: False if it holds on some ways through the kernel only, by conditions that the source leaves open.
    """

    file: str
    line: int
    rule: str
    message: str
    sure: bool = True


RULES: dict[str, Rule] = {}
"""Every rule by name, in order of definition."""


def rule(
    name: str, versions: tuple[str, ...], why: str, *, refused: bool = True, unknown: bool = False
) -> Callable[[Callable[[Module], Found]], Callable[[Module], Found]]:
    """Decorator that registers a finder as the rule `name`."""

    def register(find: Callable[[Module], Found]) -> Callable[[Module], Found]:
        RULES[name] = Rule(name, versions, why, find, refused, unknown)
        return find

    return register
