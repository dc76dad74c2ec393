"""One self-contained HTML page of headings, sentences, tables and charts; opens offline, follows the reader's theme."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["Page"]

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
:root{{color-scheme:light dark;--back:#fff;--text:#1f2328;--soft:#59636e;--line:#d0d7de;--good:#1a7f37;--bad:#cf222e}}
@media (prefers-color-scheme:dark){{:root{{--back:#0d1117;--text:#e6edf3;--soft:#9198a1;--line:#3d444d;--good:#3fb950;
--bad:#f85149}}}}
body{{background:var(--back);color:var(--text);font:15px/1.5 system-ui,sans-serif;max-width:72em;margin:1.5em auto;
padding:0 1em;overflow-wrap:anywhere}}
h1{{font-size:1.5em}}h2{{font-size:1.15em;margin-top:1.8em}}img{{max-width:100%;height:auto}}
.table{{overflow-x:auto}}table{{border-collapse:collapse;font-variant-numeric:tabular-nums}}
th,td{{padding:.25em .8em .25em 0;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}}
th:first-child,td:first-child{{text-align:left}}td.words{{text-align:left;white-space:normal}}
.note{{color:var(--soft)}}.good{{color:var(--good)}}.bad{{color:var(--bad)}}code{{font:13px ui-monospace,monospace}}
</style></head><body>
"""


class Page:
    """A page that is written from top to bottom; every text is escaped."""

    def __init__(self, title: str) -> None:
        self._parts = [_HEAD.format(title=escape(title)), f"<h1>{escape(title)}</h1>"]

    def lead(self, text: str, *, good: bool | None = None) -> None:
        """The sentence on top, coloured by a verdict if there is one."""
        kind = "" if good is None else f' class="{"good" if good else "bad"}"'
        self._parts.append(f"<p{kind}><b>{escape(text)}</b></p>")

    def heading(self, text: str) -> None:
        """The title of a section."""
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def say(self, text: str, *, note: bool = False) -> None:
        """A paragraph; a note is less loud."""
        self._parts.append(f'<p class="note">{escape(text)}</p>' if note else f"<p>{escape(text)}</p>")

    def code(self, text: str) -> None:
        """A command."""
        self._parts.append(f"<p><code>{escape(text)}</code></p>")

    def table(self, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """A table whose first column holds names, the others numbers."""
        head = "".join(f"<th>{escape(title)}</th>" for title in titles)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        self._parts.append(f'<div class="table"><table><tr>{head}</tr>{body}</table></div>')

    def facts(self, rows: Iterable[tuple[str, str]]) -> None:
        """A table of names and sentences."""
        body = "".join(f'<tr><td>{escape(name)}</td><td class="words">{escape(text)}</td></tr>' for name, text in rows)
        self._parts.append(f'<div class="table"><table>{body}</table></div>')

    def chart(self, element: str) -> None:
        """A chart, as charting.py makes it."""
        self._parts.append(element)

    def bytes(self) -> bytes:
        """The file."""
        return "\n".join([*self._parts, "</body></html>\n"]).encode()
