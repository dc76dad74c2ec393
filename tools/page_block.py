"""The part of a documentation page that a command writes: everything between `<!-- begin NAME -->` and `<!-- end NAME -->`."""

from __future__ import annotations

from pathlib import Path

__all__ = ["TIMING", "block_of", "replace_block"]

TIMING = Path(__file__).parent.parent / "docs" / "timing.md"


def block_of(page: Path, name: str) -> str:
    """The text of the block `name`, without its markers.

    Raises:
      ValueError: the page has no such block.
    """
    _, found, rest = page.read_text().partition(f"<!-- begin {name} -->\n")
    body, closed, _ = rest.partition(f"\n<!-- end {name} -->")
    if not (found and closed):
        raise ValueError(f"{page} has no block {name!r}: add the lines <!-- begin {name} --> and <!-- end {name} -->.")
    return body


def replace_block(page: Path, name: str, body: str) -> None:
    """Put `body` into the block `name` of `page`; the rest stays as it is.

    Raises:
      ValueError: the page has no such block.
    """
    old, text = block_of(page, name), page.read_text()
    begin = f"<!-- begin {name} -->\n"
    before, _, rest = text.partition(begin)
    page.write_text(f"{before}{begin}{body}{rest[len(old) :]}")
