"""Values of options as text: `--const NAME=VALUE`, `--check 512,1024`."""

from __future__ import annotations

import ast
from typing import Any

__all__ = ["constant_of", "sizes_of"]


def constant_of(text: str) -> tuple[str, Any]:
    """Name and value of `NAME=VALUE`; what is no literal is a string.

    Raises:
      ValueError: it is not of that form, or has several values or a range, as only `nki_hf tune` takes them.
    """
    name, separator, value = text.partition("=")
    if not separator or not name.isidentifier():
        raise ValueError(f"const={text!r} is not a constant: write --const NAME=VALUE.")
    try:
        found = ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # the last two: brackets too deep
        found = value
    several = isinstance(found, tuple) and not value.strip().startswith("(")
    if several or (found is value and ("," in value or ".." in value)):
        raise ValueError(
            f"const={text[:200]!r} is not one value: write --const NAME=VALUE, a tuple in brackets, a text with a "
            "comma or two dots in quotes (nki_hf tune takes several values and ranges)."
        )
    return name, found


def sizes_of(text: str, what: str) -> list[int]:
    """The sizes of `512,1024`."""
    parts = text.split(",") if text else []
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise ValueError(f"{what}={text!r} is no list of sizes: write --{what} 512,1024.")
    return [int(part) for part in parts]
