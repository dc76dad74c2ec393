"""The part of a documentation page that a command writes: everything between `<!-- begin NAME -->` and `<!-- end NAME -->`.

The one writer of such parts: every tool that fills in a page comes here.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["TIMING", "block_in", "block_of", "replace_block", "with_block"]

TIMING = Path(__file__).parent.parent / "docs" / "timing.md"


def block_in(text: str, name: str) -> str:
    """The block `name` of a page's text, without its markers.

    Raises:
      ValueError: there is no such block.
    """
    return _around(text, name)[1].strip("\n")


def with_block(text: str, name: str, body: str) -> str:
    """The page's text with `body` as its block `name`; the rest stays as it is.

    Raises:
      ValueError: there is no such block.
    """
    before, _, after = _around(text, name)
    return f"{before}\n{body}\n{after}"


def block_of(page: Path, name: str) -> str:
    """The block `name` of a page; errors as of `block_in`."""
    return block_in(page.read_text(encoding="utf-8"), name)


def replace_block(page: Path, name: str, body: str) -> None:
    """Put `body` into the block `name` of a page; errors as of `with_block`."""
    page.write_text(with_block(page.read_text(encoding="utf-8"), name, body), encoding="utf-8")


def _around(text: str, name: str) -> tuple[str, str, str]:
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    before, found, rest = text.partition(begin)
    body, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"The page has no block {name!r}: add the lines <!-- begin {name} --> and <!-- end {name} -->.")
    return before + begin, body, end + after
