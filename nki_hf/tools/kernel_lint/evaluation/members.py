"""Attributes, items and methods of values."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nki_hf.tools.kernel_lint.evaluation import running, scopes
from nki_hf.tools.kernel_lint.evaluation.operators import contains_unknown, fresh, key_of, marked, unknown
from nki_hf.tools.kernel_lint.evaluation.paths import Ended
from nki_hf.tools.kernel_lint.evaluation.tile import Tile, indexed, patterned, read_as, reshaped, unlaid
from nki_hf.tools.kernel_lint.evaluation.values import (
    Bound,
    Class,
    Dictionary,
    Function,
    Host,
    Instance,
    Language,
    Listed,
    Member,
    ModuleValue,
    Unknown,
)

if TYPE_CHECKING:
    from nki_hf.tools.kernel_lint.evaluation.machine import Machine

_EXACT = (
    "bit_length", "count", "endswith", "find", "index", "isdigit", "lower", "lstrip", "removeprefix", "removesuffix", "rstrip",
    "split", "startswith", "strip", "upper",
)  # fmt: skip
"""Methods of texts, numbers and tuples that are called as they are."""

__all__ = ["any_item", "attribute", "item", "method", "put"]

_TILE_SIZES = {"pmax": 128, "gemm_stationary_fmax": 128, "gemm_moving_fmax": 512, "psum_fmax": 512, "psum_bank_fmax": 512}
_SAME_SHAPE = ("slice", "select", "broadcast", "expand_dim", "squeeze_dim", "flatten_dims", "rearrange", "vector_select")


def attribute(machine: Machine, owner: Any, name: str) -> Any:
    """`owner.name`."""
    if isinstance(owner, Language):
        size = _TILE_SIZES.get(name) if owner.text == "nl.tile_size" else None
        return Language(f"{owner.text}.{name}") if size is None else size
    if isinstance(owner, Tile):
        return _of_tile(owner, name)
    if isinstance(owner, Unknown):
        return unknown(f"{owner.key}.{name}")
    if isinstance(owner, Instance):
        return _of_object(machine, owner, name)
    if isinstance(owner, Class):
        return _of_class(owner, name)
    if isinstance(owner, ModuleValue):
        return scopes.module_name(machine, owner, name)
    if isinstance(owner, Host):
        return Host(f"{owner.text}.{name}")
    if isinstance(owner, Member):
        return {"name": owner.name, "value": owner.value}.get(name, unknown(f"{key_of(owner)}.{name}"))
    if isinstance(owner, slice) and name in ("start", "stop", "step"):
        return getattr(owner, name)
    if isinstance(owner, Function):
        return unknown(f"{marked(owner)}.{name}")
    if owner is None:
        raise Ended(f"None has no {name}")
    return Bound(owner, name)


def _of_tile(tile: Tile, name: str) -> Any:
    if name == "shape":
        return unknown(f"{tile.key}.shape") if tile.shape is None or _open(tile) else tile.shape
    if name == "dtype":
        read_anew = ".view(" in tile.view or ".ap(" in tile.view
        return Language(f"nl.{tile.dtype}") if tile.dtype else unknown(f"{tile.key if read_anew else tile.whole}.dtype")
    if name == "buffer":
        told = tile.buffer and not tile.argument
        return Language(f"nl.{tile.buffer}") if told else unknown(f"{tile.whole}.buffer")
    if name == "ndim":
        return unknown(f"{tile.key}.ndim", low=1) if tile.shape is None or _open(tile) else len(tile.shape)
    if tile.argument and not tile.sure and name not in ("reshape", "ap", "view", "permute", *_SAME_SHAPE):
        return unknown(f"{tile.key}.{name}")
    return Bound(tile, name)


def _open(tile: Tile) -> bool:
    return any(isinstance(each, Unknown) and each.key == "?" for each in tile.shape or ())


def _of_object(machine: Machine, owner: Instance, name: str) -> Any:
    if name in owner.fields:
        return owner.fields[name]
    try:
        found = owner.kind.find(name)
    except KeyError:
        if name == "__dict__":
            return Dictionary(owner.fields)
        return Bound(owner, name) if name == "_replace" else unknown(f"{marked(owner)}.{name}")
    way = owner.kind.way(name)
    if isinstance(found, Function) and way == "property":
        return running.run(machine, found.of(owner, owner.kind), [], {})
    if isinstance(found, Function) and way != "staticmethod":
        return found.of(owner.kind if way == "classmethod" else owner, owner.kind)
    return found


def _of_class(owner: Class, name: str) -> Any:
    try:
        found = owner.find(name)
    except KeyError:
        return owner.node.name if name == "__name__" else unknown(f"{owner.node.name}.{name}")
    return found.of(owner, owner) if isinstance(found, Function) and owner.way(name) == "classmethod" else found


def item(machine: Machine, owner: Any, index: Any, place: ast.AST) -> Any:
    """`owner[index]`; where an index is not known each item may be meant, first and last ones at least."""
    if isinstance(owner, Tile):
        part = indexed(owner, index)
        if part is None:
            raise Ended("more indices than axes")
        if owner.argument and not owner.sure:
            _reached(machine, owner, index)
        return replace(part, view=f"{owner.view}[{key_of(index)}]")
    if isinstance(owner, Function | Class):
        return owner  # kernel[grid], list[int]
    if isinstance(owner, Instance):
        own = _of_object(machine, owner, "__getitem__")
        return running.run(machine, own, [index], {}) if isinstance(own, Function) else _field(owner, index)
    if isinstance(owner, list | tuple | dict | str | range) and not contains_unknown(index) and not _has_unknown(index):
        try:
            found = owner[index]
        except (KeyError, IndexError, TypeError) as error:
            if getattr(owner, "loose", False):
                return any_item(machine, owner)
            raise Ended(repr(error)) from error
        if isinstance(found, list):
            made = Listed(found)
            made.loose = getattr(owner, "loose", False) and isinstance(index, slice)
            return made if isinstance(index, slice) else found
        return found
    if isinstance(owner, list | tuple | dict | range) and isinstance(index, Unknown):
        return _one_of(machine, owner, index, place)
    if isinstance(owner, Unknown):
        shown = key_of(index)
        return unknown(f"{owner.key}[{shown}]", low=1 if owner.key.endswith("shape") else None)
    return unknown(f"{key_of(owner)}[{key_of(index)}]")


def _reached(machine: Machine, owner: Tile, index: Any) -> None:
    """What is sliced of an argument tells how long its axes are at least, up to `...` and new axes."""
    for axis, each in enumerate(index if isinstance(index, tuple) else (index,)):
        if each is None or each is ...:
            return
        stop = each.stop if isinstance(each, slice) else each + 1 if isinstance(each, int) else None
        if isinstance(stop, int) and stop > 0:
            machine.path.at_least(f"{owner.key}.shape[{axis}]", stop)


def _has_unknown(index: Any) -> bool:
    return isinstance(index, slice) and any(isinstance(each, Unknown) for each in (index.start, index.stop, index.step))


def _field(owner: Instance, index: Any) -> Any:
    names = owner.kind.fields
    return (
        owner.fields.get(names[index], None) if isinstance(index, int) and -len(names) <= index < len(names) else unknown("?")
    )


def _one_of(machine: Machine, owner: Any, index: Unknown, place: ast.AST) -> Any:
    keys = list(owner) if isinstance(owner, dict) else list(range(len(owner)))
    if not keys or getattr(owner, "loose", False):
        return any_item(machine, owner)
    if len(keys) > machine.CHOICES:
        keys = [keys[0], keys[1], keys[-1]]
    keys = [key for key in keys if machine.path.may_be(index, key)]
    if not keys:
        return any_item(machine, owner)
    if all(_alike(owner[key], owner[keys[0]]) for key in keys):
        return owner[keys[0]]
    key = keys[machine.path.choose(("item", id(place)), len(keys), index.key)] if len(keys) > 1 else keys[0]
    machine.path.bound[index.key] = key
    return owner[key]


def any_item(machine: Machine, owner: Any) -> Any:
    """What any item of a container is, as far as all that are known are alike."""
    items = list(owner.values()) if isinstance(owner, dict) else list(owner) if isinstance(owner, list | tuple) else []
    if items and all(_alike(each, items[0]) for each in items):
        return items[-1]
    return fresh(f"{marked(owner)}[?]")


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, Tile) and isinstance(other, Tile):
        return (one.buffer, one.dtype, one.shape, one.start, one.offset, one.steps) == (
            other.buffer,
            other.dtype,
            other.shape,
            other.start,
            other.offset,
            other.steps,
        )
    return type(one) is type(other) and bool(one == other)


def put(owner: Any, index: Any, value: Any) -> None:
    """`owner[index] = value`."""
    if isinstance(owner, Dictionary | Listed) and contains_unknown(index):
        owner.loose = True
        for key in list(owner) if isinstance(owner, Dictionary) else range(len(owner)):
            if not _alike(owner[key], value):
                owner[key] = fresh(f"{marked(owner)}[{key_of(key)}]")
    elif isinstance(owner, dict | list):
        try:
            owner[index] = value
        except (IndexError, TypeError) as error:
            if not getattr(owner, "loose", False):
                raise Ended(repr(error)) from error


def method(machine: Machine, bound: Bound, given: list[Any], words: dict[str, Any]) -> Any:
    """`owner.name(...)` of a tile, a list, a dictionary or a text."""
    owner, name = bound.owner, bound.name
    if isinstance(owner, Tile):
        made = _tile_method(owner, name, given, words)
        said = ", ".join([*map(key_of, given), *(f"{word}={key_of(each)}" for word, each in words.items())])
        return replace(made, view=f"{owner.view}.{name}({said})") if isinstance(made, Tile) else made
    if isinstance(owner, Instance):  # _replace
        return Instance(owner.kind, {**owner.fields, **words})
    if isinstance(owner, list | dict):
        return _container_method(machine, owner, name, given)
    exact = name in _EXACT and isinstance(owner, str | int | float | tuple)
    if not exact or contains_unknown([*given, *words.values()]):
        return unknown(f"{key_of(owner)}.{name}({', '.join(map(key_of, given))})")
    try:
        return getattr(owner, name)(*given, **words)
    except Exception as error:  # as the kernel's line would raise it
        raise Ended(repr(error)) from error


def _tile_method(tile: Tile, name: str, given: list[Any], words: dict[str, Any]) -> Any:
    first = given[0] if given else None
    if name == "view":
        dtype = words.get("dtype", first)
        return read_as(tile, dtype.text.rpartition(".")[2]) if isinstance(dtype, Language) else unlaid(tile, None, "")
    if name == "reshape":
        shape = words.get("shape", given if len(given) > 1 else first)
        return reshaped(tile, shape)
    if name == "ap":
        open_ended = set(words) - {"pattern", "offset"} or len(given) > 1
        dtype = words.get("dtype")
        kind = tile.dtype if dtype is None else dtype.text.rpartition(".")[2] if isinstance(dtype, Language) else ""
        return unlaid(tile, None, kind) if open_ended else patterned(tile, words.get("pattern", first), words.get("offset", 0))
    if name in ("permute", "broadcast_to", *_SAME_SHAPE) or tile.sure:
        return unlaid(tile)
    return fresh(f"{tile.key}.{name}()")


def _container_method(machine: Machine, owner: Any, name: str, given: list[Any]) -> Any:
    loose = getattr(owner, "loose", False)
    if isinstance(owner, dict) and name in ("get", "pop", "setdefault") and given:
        key, other = given[0], given[1] if len(given) > 1 else None
        if isinstance(key, Unknown):
            return any_item(machine, owner) if not loose else fresh(f"{marked(owner)}.get")
        if key not in owner and loose:
            return fresh(f"{marked(owner)}[{key_of(key)}]")
        return getattr(owner, name)(key, other)
    if isinstance(owner, dict) and name in ("items", "keys", "values"):
        made = Listed([(key, value) for key, value in owner.items()] if name == "items" else getattr(owner, name)())
        made.loose = loose
        return made
    if name in ("append", "extend", "insert", "update", "remove", "sort", "reverse", "clear", "copy", "count", "index", "pop"):
        if name in ("extend", "update") and given and not isinstance(given[0], list | tuple | dict | range):
            items = machine.items(given[0])
            owner.loose |= items is None
            given = [items or []]
        elif name in ("extend", "update") and given:
            owner.loose |= getattr(given[0], "loose", False)
        if name == "extend" and len(owner) + len(given[0] if given else ()) > machine.ITEMS:
            owner.loose = True
            return None
        try:
            made = getattr(owner, name)(*given)
        except Exception as error:  # as the kernel's line would raise it
            if loose:
                return any_item(machine, owner) if name == "pop" else fresh(f"{marked(owner)}.{name}")
            raise Ended(repr(error)) from error
        if isinstance(made, list):
            return Listed(made)
        return Dictionary(made) if isinstance(made, dict) else made
    return fresh(f"{marked(owner)}.{name}()")
