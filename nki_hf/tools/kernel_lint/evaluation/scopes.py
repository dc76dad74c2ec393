"""Names of kernel code: of functions, of modules and what these import, and how they are bound."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from nki_hf.tools.kernel_lint.evaluation import calls, expressions, members, running, statements, watch
from nki_hf.tools.kernel_lint.evaluation.modules import hosts_of, module_file
from nki_hf.tools.kernel_lint.evaluation.operators import key_of, unknown
from nki_hf.tools.kernel_lint.evaluation.paths import UNFIT, Ended, Exhausted, Path
from nki_hf.tools.kernel_lint.evaluation.values import (
    Class,
    Dictionary,
    Frame,
    Function,
    Host,
    Instance,
    Language,
    Listed,
    ModuleValue,
    Unknown,
)
from nki_hf.tools.kernel_lint.source import Source

if TYPE_CHECKING:
    from nki_hf.tools.kernel_lint.evaluation.machine import Machine

__all__ = ["bind", "imported", "lookup", "module_name", "module_of"]


def module_of(machine: Machine, source: Source) -> ModuleValue:
    """A module, run as Python runs it when it is imported."""
    found = machine.modules.get(id(source))
    if found is None:
        found = machine.modules[id(source)] = ModuleValue(
            source, hosts_of(source.tree), frozenset(name for name in source.imports if "." in name)
        )
        found.frame = Frame({}, found)
        kept, machine.path = machine.path, Path((), 4000)
        machine.starting += 1
        for statement in source.tree.body:
            try:
                statements.run(machine, found.frame, [statement])
            except (Ended, Exhausted, statements.Left, statements.Returned, RecursionError, *UNFIT):
                continue
        machine.path = kept
        machine.starting -= 1
    return found


def module_name(machine: Machine, module: ModuleValue, name: str) -> Any:
    """What a name of a module means."""
    frame, source = module.frame, module.source
    if frame is not None and name in frame.names:
        return frame.names[name]
    if name in source.imports:
        file, there = source.imports[name]
        other = module_of(machine, machine.load(file))
        return module_name(machine, other, there) if there else other
    if name in module.hosts:
        return Host(module.hosts[name])
    for file in source.stars:
        if name in machine.load(file).bound:
            return module_name(machine, module_of(machine, machine.load(file)), name)
    inside = None if source.path is None else module_file(source.path, name)
    if inside is not None:
        return module_of(machine, machine.load(inside))
    return Host(f"builtins.{name}") if name in calls.PYTHON else unknown(f"{name}@{id(source)}")


def lookup(machine: Machine, frame: Frame, name: str) -> Any:
    """What a name means in a frame."""
    inner: Frame | None = frame
    while inner is not None:
        if name in inner.names and not (inner is frame and name in frame.outside):
            return inner.names[name]
        inner = inner.outer
    if name in ("nl", "nisa", "nki"):
        return Language(name)
    return module_name(machine, frame.module, name)


def imported(machine: Machine, frame: Frame, node: ast.Attribute) -> ModuleValue | None:
    """The module that `package.module` means after `import package.module`."""
    dotted = frame.module.dotted
    if not dotted or not isinstance(node.value, ast.Name | ast.Attribute):
        return None
    text = ast.unparse(node)
    file, there = frame.module.source.imports.get(text, (None, "x")) if text in dotted else (None, "x")
    return module_of(machine, machine.load(file)) if file is not None and not there else None


def bind(machine: Machine, frame: Frame, target: ast.expr, value: Any) -> None:
    """`target = value`."""
    if isinstance(target, ast.Name):
        holder = frame
        if target.id in frame.outside:
            outer = frame.outer
            while outer is not None and target.id not in outer.names:
                outer = outer.outer
            holder = outer or frame.module.frame or frame
        holder.names[target.id] = value
    elif isinstance(target, ast.Tuple | ast.List):
        _unpack(machine, frame, target, value)
    elif isinstance(target, ast.Attribute):
        owner = expressions.evaluated(machine, frame, target.value)
        if isinstance(owner, Instance):
            owner.fields[target.attr] = value
        elif isinstance(owner, Class):
            owner.names[target.attr] = value
    elif isinstance(target, ast.Subscript):
        owner = expressions.evaluated(machine, frame, target.value)
        index = expressions.evaluated(machine, frame, target.slice)
        machine.tell(frame, target, watch.stored(owner, index))
        if isinstance(owner, Dictionary | Listed):
            members.put(owner, index, value)
        elif isinstance(owner, Instance) and isinstance(owner.kind.names.get("__setitem__"), Function):
            running.run(machine, owner.kind.names["__setitem__"].of(owner, owner.kind), [index, value], {})


def _unpack(machine: Machine, frame: Frame, target: ast.Tuple | ast.List, value: Any) -> None:
    items = machine.items(value)
    star = next((place for place, each in enumerate(target.elts) if isinstance(each, ast.Starred)), None)
    if items is None:
        shape = isinstance(value, Unknown) and value.key.endswith("shape")
        items = [unknown(f"{key_of(value)}[{place}]", low=1 if shape else None) for place in range(len(target.elts))]
        if star is not None:
            items[star] = Listed()
            items[star].loose = True
    elif star is not None:
        after = len(target.elts) - star - 1
        items = [*items[:star], Listed(items[star : len(items) - after]), *items[len(items) - after :]]
    if len(items) != len(target.elts):
        raise Ended("as many names as values")
    for each, item in zip(target.elts, items, strict=True):
        bind(machine, frame, each.value if isinstance(each, ast.Starred) else each, item)
