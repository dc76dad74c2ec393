"""A page of headings, sentences, tables and charts, written from top to bottom into the shell that all pages share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from nki_hf.tools.pages.shell import long_cell, page

__all__ = ["Page"]


class Page:
    """A page in the making; every text is escaped."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._sections: list[list[str]] = [[]]

    def lead(self, text: str, *, good: bool | None = None) -> None:
        """The sentence on top, coloured by a verdict if there is one."""
        colour = "" if good is None else f' style="color:var(--{"good" if good else "bad"})"'
        self._add(f"<p{colour}><b>{escape(text)}</b></p>")

    def heading(self, text: str) -> None:
        """The title of a section, which begins one."""
        self._sections.append([f"<h2>{escape(text)}</h2>"])

    def say(self, text: str, *, note: bool = False) -> None:
        """A paragraph; a note is less loud."""
        self._add(f'<p class="quiet small">{escape(text)}</p>' if note else f"<p>{escape(text)}</p>")

    def code(self, text: str) -> None:
        """A command."""
        self._add(f"<p><code>{escape(text)}</code></p>")

    def table(self, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """A table whose first column holds names, the others numbers; on a phone each row becomes a block."""
        head = "".join(f"<th>{escape(title)}</th>" for title in titles)
        body = "".join(
            "<tr>"
            + "".join(f'<td data-name="{escape(t)}"{long_cell(c)}>{escape(c)}</td>' for t, c in zip(titles, row, strict=True))
            + "</tr>"
            for row in rows
        )
        self._add(f'<div class="wide"><table class="stack"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>')

    def facts(self, rows: Iterable[tuple[str, str]]) -> None:
        """A table of names and sentences."""
        body = "".join(f'<tr><td>{escape(name)}</td><td class="words">{escape(text)}</td></tr>' for name, text in rows)
        self._add(f"<table><tbody>{body}</tbody></table>")

    def chart(self, element: str) -> None:
        """A chart, as charting.py makes it; where its words would be too small to read it scrolls instead (charts.css)."""
        self._add(f'<div class="wide">{element}</div>')

    def text(self) -> str:
        """The file."""
        body = "".join(f"<section>{''.join(parts)}</section>\n" for parts in self._sections if parts)
        return page(self._title, body, styles=("charts.css",))

    @staticmethod
    def _cells(titles: Sequence[str], row: Sequence[str]) -> str:
        pairs = zip(titles, row, strict=True)
        return "".join(f'<td data-name="{escape(title)}"{long_cell(cell)}>{escape(cell)}</td>' for title, cell in pairs)

    def _add(self, part: str) -> None:
        self._sections[-1].append(part)
