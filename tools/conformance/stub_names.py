"""Compares the lists of public names (nki_hf/sim/surface/) with the public API stubs: names, signatures, members.

python tools/conformance/stub_names.py CHECKOUT_OF_AWS_NEURON_SDK

The stubs are not part of this repository, so that no test of it can read them: whoever changes the lists runs this.
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from nki_hf.sim.surface import NAMESPACES, Entry
from nki_hf.sim.surface.entry import UNLISTED

__all__ = ["differences", "names_of"]

_STUBS = {"nki": "", "nki.language": "language", "nki.isa": "isa", "nki.collectives": "collectives"}


def names_of(source: str) -> dict[str, str]:
    """Public names that a stub defines, with their signatures in the words of the lists.

    Functions, constants and type aliases count, and classes with their constructors, methods and attributes
    (`NkiTensor.ap`); a constant of a private class (`tile_size`) has that class's attributes. Signatures are
    `(a, b=0)`, of enumerations `{a=1}`, and empty for values.
    """
    tree = ast.parse(source)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            found[node.name] = _signature(node)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            found.update(_class(node.name, node))
        elif isinstance(node, ast.Assign):
            found.update({target.id: "" for target in node.targets if isinstance(target, ast.Name)})
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = ""
            kind = classes.get(ast.unparse(node.annotation))
            if kind is not None and kind.name.startswith("_"):
                found.update({f"{node.target.id}.{member}": text for member, text in _members(kind).items()})
    return {name: text for name, text in found.items() if not name.startswith("_")}


def differences(namespace: str, stub: dict[str, str], listed: dict[str, Entry]) -> list[str]:
    """One line for each name that the list lacks, has too many of (unless of a later version), or signs otherwise."""
    lines = [f"{namespace}.{name}: not listed" for name in stub if name not in listed]
    for name, entry in listed.items():
        if name not in stub:
            if not entry.since and not name.startswith("__") and not entry.note.startswith(UNLISTED):
                lines.append(f"{namespace}.{name}: listed, but not in the stub")
        elif stub[name] and not _agree(entry.signature, stub[name]) and "since 0.7" not in entry.note:
            lines.append(f"{namespace}.{name}: listed as {entry.signature or 'a value'}, the stub has {stub[name]}")
    return lines


def _agree(listed: str, stub: str) -> bool:
    if stub.startswith("{"):  # members of an enumeration in any order
        return sorted(listed.strip("{}").split(", ")) == sorted(stub.strip("{}").split(", "))
    if stub.endswith("**kwargs)") and listed.startswith(stub.removesuffix("**kwargs)")) and listed.endswith("**kwargs)"):
        return True  # parameters of which the documents speak, among those that the stub takes by any name
    stub = stub.replace("=[0]", "=(0,)")
    if "=..." in stub:  # a default that the stub does not say
        before, after = stub.split("=...", 1)
        return listed.startswith(before) and listed.endswith(after)
    return listed == stub


def _class(name: str, node: ast.ClassDef) -> dict[str, str]:
    if any(ast.unparse(base) == "Enum" for base in node.bases):
        values = [item for item in node.body if isinstance(item, ast.Assign)]
        return {name: "{" + ", ".join(f"{ast.unparse(item.targets[0])}={_text(item.value)}" for item in values) + "}"}
    start = next((item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"), None)
    members = {f"{name}.{member}": text for member, text in _members(node).items()}
    return {name: "" if start is None else _signature(start), **members}


def _members(node: ast.ClassDef) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and not item.name.startswith("_"):
            attribute = any(ast.unparse(decorator) == "property" for decorator in item.decorator_list)
            found[item.name] = "" if attribute else _signature(item)
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and not item.target.id.startswith("_"):
            found[item.target.id] = ""
        elif isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
            found[item.targets[0].id] = ""
    return found


def _signature(node: ast.FunctionDef) -> str:
    given = node.args
    plain = [*given.posonlyargs, *given.args]
    gap = len(plain) - len(given.defaults)
    parts = [_parameter(item.arg, given.defaults[i - gap] if i >= gap else None) for i, item in enumerate(plain)]
    if parts and plain[0].arg == "self":
        parts = parts[1:]
    if given.vararg is not None:
        parts.append(f"*{given.vararg.arg}")
    elif given.kwonlyargs:
        parts.append("*")
    parts += [_parameter(item.arg, default) for item, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg is not None:
        parts.append(f"**{given.kwarg.arg}")
    return "(" + ", ".join(parts) + ")"


def _parameter(name: str, default: ast.expr | None) -> str:
    return name if default is None else f"{name}={_text(default)}"


def _text(value: ast.expr) -> str:
    if isinstance(value, ast.Attribute):
        return value.attr
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return f'"{value.value}"'
    return ast.unparse(value)


def main() -> int:
    """Print the differences; 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    folder = parser.parse_args().checkout / "nki" / "api" / "nki"
    lines, count = [], 0
    for namespace, part in _STUBS.items():
        stub = names_of((folder / part / "__init__.py").read_text(encoding="utf-8"))
        count += len(stub)
        lines += differences(namespace, stub, NAMESPACES[namespace])
    print("\n".join(lines) or f"all {count} names of the stubs are listed, with their signatures")
    return int(bool(lines))


if __name__ == "__main__":
    raise SystemExit(main())
