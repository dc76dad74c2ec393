"""Text from outside (names of files, values of result and price files) as a terminal may be given it."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str, *, but: str = "") -> str:
    """The text with control characters, except those in `but`, as escapes: a name must not steer a terminal or end a line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in but else c.encode("unicode_escape").decode() for c in text)
