"""The screen: text and tables that fit the terminal, in plain letters; a table that does not fit becomes a block per row."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import IO, Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nki_hf.tools.printable import printable

__all__ = ["PIPED", "Screen"]

PIPED = 80
"""Columns where no terminal says how many it has, and COLUMNS does not either."""
_NARROW = 20
_GAP = "  "
_HEAD = 6
"""Letters that a column's name may take in a line, however short its cells are."""


class Screen:
    """Where a verb prints: standard output unless told otherwise.

    Attributes:
      width: columns that a line of prose may take: the terminal's, else those of COLUMNS, else `PIPED`.
    """

    def __init__(self, file: IO[str] | None = None) -> None:
        stream = sys.stdout if file is None else file
        terminal = bool(getattr(stream, "isatty", lambda: False)())
        given = os.environ.get("COLUMNS", "")
        known = given.isascii() and given.isdigit() and 0 < int(given[:6]) < 100_000
        width = None if terminal or known else PIPED
        self.console = Console(file=stream, width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)
        self.width = max(self.console.width, _NARROW)
        self.console.width = self.width

    def say(self, *paragraphs: str, indent: int = 0) -> None:
        """Print paragraphs, wrapped between words; one that begins with spaces keeps them on every line."""
        for text in paragraphs:
            if not text:
                self.console.print()
                continue
            body = text.lstrip(" ")
            left = indent + len(text) - len(body)
            for line in _wrapped(body, self.width - left):
                self.line(" " * left + line)

    def line(self, text: str) -> None:
        """Print what is copied or read by other programs (a path, a command, a finding) as one line, whatever the width."""
        self.console.print(Text(printable(text, but="\n\t")), soft_wrap=True)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "", left: Sequence[int] = (0,)) -> None:
        """Print rows under their names, or, where a row is wider than the screen, a block for each.

        Args:
          head: names of the columns, with their units.
          rows: cells as text.
          title: a line before it.
          left: columns that are text, not numbers.
        """
        if title:
            self.say(title)
        if not rows:
            return
        rows = [[printable(cell) for cell in row] for row in rows]
        names, widths = _columns(head, rows)
        if _width(widths) <= self.width:
            high = max(map(len, names))
            top = zip(*([""] * (high - len(name)) + name for name in names), strict=True)
            for row in (*top, *rows):
                self.line(_GAP.join(_placed(row[n], widths[n], n in left) for n in range(len(head))).rstrip())
            return
        for row in rows:
            first, *rest = [(name, cell) for name, cell in zip(head, row, strict=True) if cell]
            self.say(first[1])
            self.say("; ".join(f"{name} {cell}" for name, cell in rest), indent=2)

    def fits(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
        """True if `table` prints these rows under their names."""
        return not rows or _width(_columns(head, rows)[1]) <= self.width

    def pairs(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Print names with their values beside them; a long value goes on below its beginning."""
        wide = max((cell_len(name) for name, _ in pairs), default=0) + len(_GAP)
        for name, value in pairs:
            first, *rest = _wrapped(value, max(self.width - wide, _NARROW))
            self.line((name + " " * (wide - cell_len(name)) + first).rstrip())
            for line in rest:
                self.line(" " * wide + line)

    def show(self, table: Table) -> None:
        """Print a table of rich in the same way: its cells' texts, without lines and colours."""
        columns = [[_plain(cell) for cell in column.cells] for column in table.columns]
        head = [" ".join(_plain(column.header).split()) for column in table.columns]
        left = [n for n, column in enumerate(table.columns) if column.justify in ("default", "left")]
        numbers = {n for n in left if n and all(_is_number(cell) for cell in columns[n])}
        self.table(
            head, list(zip(*columns, strict=True)), title=_plain(table.title or ""), left=[n for n in left if n not in numbers]
        )
        if table.caption:
            self.say(*_plain(table.caption).splitlines())


def _columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[list[str]], list[int]]:
    """The lines of each column's name, and its width."""
    cells = [max(cell_len(row[n]) for row in rows) for n in range(len(head))]
    names = [_wrapped(name, max(cell, _longest(name), _HEAD)) for name, cell in zip(head, cells, strict=True)]
    return names, [max(cell, *map(cell_len, name)) for cell, name in zip(cells, names, strict=True)]


def _width(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _plain(item: Any) -> str:
    return item.plain if isinstance(item, Text) else Text.from_markup(str(item)).plain


def _is_number(text: str) -> bool:
    return not text or text[0] in "0123456789+-~.<>"


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width` letters; a word that is longer (a path) stands whole on a line of its own."""
    lines: list[str] = [""]
    for word in map(printable, text.split()):
        if lines[-1] and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
            continue
        if lines[-1]:
            lines.append("")
        lines[-1] = word
    return lines


def _placed(text: str, width: int, left: bool) -> str:
    room = " " * (width - cell_len(text))
    return text + room if left else room + text


def _longest(name: str) -> int:
    return max(len(word) for word in name.split()) if name.split() else 0
