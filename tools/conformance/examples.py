"""Runnable examples out of docstrings: code blocks, split at their headings, with their shape comments as assertions."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Example", "code_blocks", "examples_of", "with_shape_checks"]

_HEADING = re.compile(r"^# nki\.language\.\w+( --.*)?$")
_SHAPE = re.compile(r"#.*?shape (?:becomes|stays) (\([\d, ]+\))")
_RESULT_SHAPE = re.compile(r"^# Result shape: (\([\d, ]+\))$")


@dataclass(frozen=True)
class Example:
    """One snippet.

    Attributes:
      owner: public name whose docstring it stands in, e.g. `NkiTensor.permute`.
      number: running number among the owner's snippets.
      title: its heading, or its first comment.
      code: the snippet.
      kind: `kernel` (defines functions to launch), `checks` (has assertions), `runs` (none), or `prose` (no Python, or
        pseudo-code with names that nothing defines).
    """

    owner: str
    number: int
    title: str
    code: str
    kind: str


def examples_of(source: str) -> list[Example]:
    """The examples in the docstrings of a Python source, in order."""
    found: list[Example] = []
    for owner, docstring in _docstrings(ast.parse(source), ""):
        snippets = [part for block in code_blocks(docstring) for part in _split(block)]
        for number, code in enumerate(snippets, 1):
            code = with_shape_checks(code)
            title = next((line.strip("# ") for line in code.splitlines() if line.startswith("#")), owner)
            found.append(Example(owner, number, title, code, _kind(code)))
    return found


def with_shape_checks(code: str) -> str:
    """The code with `# shape becomes (...)` behind an expression turned into an assertion about it."""
    lines: list[str] = []
    for line in code.splitlines():
        shape, result = _SHAPE.search(line), _RESULT_SHAPE.match(line)
        statement = line.split("#")[0].rstrip()
        if shape and statement and "=" not in statement.split("(")[0]:
            lines.append(f"assert ({statement}).shape == {shape[1]}")
        elif result and lines:
            lines.append(f"assert ({lines.pop()}).shape == {result[1]}")
        else:
            lines.append(line)
    return "\n".join(lines)


def _docstrings(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, str]]:
    for item in node.body:
        if isinstance(item, ast.FunctionDef | ast.ClassDef):
            docstring = ast.get_docstring(item, clean=True)
            if docstring:
                yield prefix + item.name, docstring
        if isinstance(item, ast.ClassDef):
            yield from _docstrings(item, f"{prefix}{item.name}.")


def code_blocks(text: str) -> list[str]:
    """The Python code blocks of a reStructuredText, dedented."""
    return list(_blocks(text))


def _blocks(docstring: str) -> Iterator[str]:
    lines = docstring.splitlines()
    index = 0
    while index < len(lines):
        line = lines[index]
        index += 1
        if line.strip() != ".. code-block:: python":
            continue
        indent = len(line) - len(line.lstrip())
        body: list[str] = []
        while index < len(lines) and (not lines[index].strip() or len(lines[index]) - len(lines[index].lstrip()) > indent):
            body.append(lines[index])
            index += 1
        yield textwrap.dedent("\n".join(body)).strip("\n")


def _split(block: str) -> list[str]:
    """One snippet per heading; imports before the first heading belong to each."""
    preamble: list[str] = []
    parts: list[list[str]] = []
    for line in block.splitlines():
        if _HEADING.match(line) and not (parts and parts[-1] and all(item.startswith("#") for item in parts[-1])):
            parts.append([line])
        else:
            (parts[-1] if parts else preamble).append(line)
    if not parts:
        return [block]
    return ["\n".join(preamble + part).strip("\n") for part in parts]


def _kind(code: str) -> str:
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return "prose"
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    if functions and any(node.name.endswith("kernel") for node in functions):
        return "kernel"
    if "nl." not in code and "nisa." not in code and not re.search(r"\b(core_barrier|sendrecv|t|hbm_t|u|sb)\.?\(", code):
        language = any(isinstance(node, ast.Attribute) for node in ast.walk(tree)) and re.search(r"\bt\.\w+\(", code)
        return "checks" if language and "assert" in code else "prose"
    if "src=..." in code or "\n    ..." in code:
        return "prose"
    return "checks" if "assert " in code else "runs"
