"""Where two tapes part: the same arguments give the same program, and another chip may be given another one."""

from __future__ import annotations

from typing import Any

from nki_hf.tools.judging import plain

__all__ = ["tape_difference"]


def tape_difference(first: Any, second: Any) -> dict[str, Any] | None:
    """File and line of the first entry in which two tapes differ, names apart; None if they are the same program."""
    if plain.dump(first) == plain.dump(second):
        return None
    tapes = [plain.load(plain.dump(item)) for item in (first, second)]
    for item in tapes:
        item["tensors"] = [tensor[:-1] for tensor in item["tensors"]]
    one, other = (_nameless(item) for item in tapes)
    if one == other:
        return None
    for entry, changed in zip(_entries(one), _entries(other), strict=False):
        if _said(one, entry) != _said(other, changed):
            file, line = one["places"][entry[3]]
            return {"file": file, "line": line}
    return {"file": "", "line": 0}


def _nameless(value: Any) -> Any:
    """A tape without the names of tiles and instructions, which a module may count on over its launches."""
    if isinstance(value, dict):
        return {key: _nameless(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_nameless(item) for item in value if not (isinstance(item, list) and len(item) == 2 and item[0] == "name")]
    return value


def _said(tape_: Any, entry: Any) -> list[Any]:
    """What an entry does, with its form in place of the form's number."""
    kind, name, operands = entry[:3]
    return [kind, name, [tape_["forms"][operands[1]], *operands[2:]] if operands[0] == "f" else operands]


def _entries(tape_: Any) -> list[Any]:
    return [entry for entries in tape_["cores"].values() for entry in entries]
