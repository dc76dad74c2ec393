"""The shell of every page: theme, switch between light and dark, scripts and data, all in one file that asks for nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

__all__ = ["D3_ZOOM", "long_cell", "page", "part"]

_FOLDER = Path(__file__).parent
D3_ZOOM = "vendor/d3_zoom.js"
"""The script that makes `d3.select` and `d3.zoom` known."""

_LONG_WORD = 24
"""Letters of a word from which a table breaks it."""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none';style-src 'unsafe-inline';script-src 'unsafe-inline';\
img-src data:">
<title>{title}</title><style>{style}</style><script>{theme}</script></head>
<body><main>
<header class="top"><h1>{heading}</h1><button id="theme" type="button" aria-label="light or dark"></button></header>
{body}
</main>{data}{scripts}</body></html>
"""


def part(name: str) -> str:
    """The text of a file beside this one."""
    return (_FOLDER / name).read_text(encoding="utf-8")


def long_cell(text: str) -> str:
    """The attribute of a table's cell whose word may be broken anywhere: names that would push figures out of sight."""
    return ' class="long"' if max(map(len, text.split()), default=0) > _LONG_WORD else ""


def page(
    title: str,
    body: str,
    *,
    heading: str = "",
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
    data: Mapping[str, Any] | None = None,
) -> str:
    """A whole page.

    Args:
      title: of the browser's tab, as text.
      body: HTML, whose texts are escaped already.
      heading: HTML of the first heading; empty = the title.
      styles, scripts: files beside this one, put in after the theme's.
      data: plain values that the scripts find as `JSON.parse(document.getElementById("data").textContent)`.
    """
    return _PAGE.format(
        title=escape(title),
        style="".join(part(name) for name in ("theme.css", *styles)),
        theme=part("theme.js"),
        heading=heading or escape(title),
        body=body,
        data="" if data is None else f'<script type="application/json" id="data">{_inert(data)}</script>',
        scripts="".join(f"<script>{_script(part(name))}</script>" for name in scripts),
    )


def _inert(data: Mapping[str, Any]) -> str:
    """JSON that cannot end the element that holds it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _script(text: str) -> str:
    if "</script" in text.lower():
        raise ValueError("a script holds </script, which would end it.")
    return text
