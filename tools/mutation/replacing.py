"""Replaces a piece of Python source that is found by its tokens: however the formatter breaks its lines."""

from __future__ import annotations

import io
import tokenize

__all__ = ["occurrences", "replaced_once"]

_LAYOUT = {
    tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENDMARKER,
}  # fmt: skip
_CLOSING = (")", "]", "}")


def occurrences(source: str, old: str) -> list[tuple[int, int]]:
    """Where the tokens of `old` stand in `source`, as offsets `[begin, end)`; layout and trailing commas do not count."""
    wanted = [text for text, _, _ in _tokens(old)]
    tokens = _tokens(source)
    texts = [text for text, _, _ in tokens]
    places = (i for i in range(len(texts) - len(wanted) + 1) if texts[i : i + len(wanted)] == wanted)
    return [(tokens[i][1], tokens[i + len(wanted) - 1][2]) for i in places]


def replaced_once(source: str, old: str, new: str) -> str:
    """`source` with `new` in the one place where `old` stands.

    Raises:
      ValueError: `old` stands there not once.
    """
    places = occurrences(source, old)
    if len(places) != 1:
        raise ValueError(f"{old!r} stands in the source {len(places)} times, not once: the mutant no longer fits it.")
    ((begin, end),) = places
    indent = old[: len(old) - len(old.lstrip())]
    return source[:begin] + new.removeprefix(indent) + source[end:]


def _tokens(source: str) -> list[tuple[str, int, int]]:
    """Text, begin and end of each token that means something; a piece that is cut off in the middle ends where it ends."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[tuple[str, int, int]] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type in _LAYOUT:
                continue
            begin, end = (starts[row - 1] + column for row, column in (token.start, token.end))
            if token.string in _CLOSING and found and found[-1][0] == ",":
                found.pop()
            found.append((token.string, begin, end))
    except (tokenize.TokenError, IndentationError):
        pass  # a piece of a statement: its tokens have all been seen
    return found
