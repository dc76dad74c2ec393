"""Replaces a piece of Python source that is found by its tokens: however the formatter breaks its lines, and whatever the
names in it are called by now.
"""

from __future__ import annotations

import builtins
import io
import keyword
import tokenize
from collections.abc import Mapping, Sequence

__all__ = ["occurrences", "replaced_once"]

_LAYOUT = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.COMMENT,
    tokenize.ENDMARKER,
}
_CLOSING = (")", "]", "}")

_Token = tuple[str, int, int]
_Place = tuple[int, int, Mapping[str, str]]


def occurrences(source: str, old: str) -> list[_Place]:
    """Where `old` stands in `source`: offsets `[begin, end)`, and its names by the names that they have there.

    Layout and trailing commas do not count. If the tokens stand there nowhere, a place counts that differs from them in
    names alone, each in place of one other; attributes, keyword arguments and what Python itself names stay as they are.
    """
    wanted, tokens = _tokens(old), _tokens(source)
    spans = [tokens[i : i + len(wanted)] for i in range(len(tokens) - len(wanted) + 1)]
    texts = [text for text, _, _ in wanted]
    same = [(span[0][1], span[-1][2], {}) for span in spans if [text for text, _, _ in span] == texts]
    if same or not wanted:
        return list(same)
    return [(span[0][1], span[-1][2], names) for span in spans if (names := _renamed(wanted, span)) is not None]


def replaced_once(source: str, old: str, new: str) -> str:
    """`source` with `new` in the one place where `old` stands; names that were changed there are changed in `new` as well.

    Raises:
      ValueError: `old` stands there not once.
    """
    places = occurrences(source, old)
    if len(places) != 1:
        raise ValueError(f"{old!r} stands in the source {len(places)} times, not once: the mutant no longer fits it.")
    ((begin, end, names),) = places
    indent = old[: len(old) - len(old.lstrip())]
    return source[:begin] + _with_names(new.removeprefix(indent), names) + source[end:]


def _renamed(wanted: Sequence[_Token], span: Sequence[_Token]) -> dict[str, str] | None:
    """The names of `span` by those of `wanted`, if nothing else differs; else None."""
    names: dict[str, str] = {}
    for number, ((old, _, _), (new, _, _)) in enumerate(zip(wanted, span, strict=True)):
        if _free(wanted, number) and _free(span, number):
            if names.setdefault(old, new) != new:
                return None
        elif old != new:
            return None
    return names if len(set(names.values())) == len(names) else None


def _free(tokens: Sequence[_Token], number: int) -> bool:
    """True for a name that whoever wrote the source has chosen: no keyword, builtin, attribute or keyword argument."""
    text = tokens[number][0]
    before = tokens[number - 1][0] if number else ""
    behind = tokens[number + 1][0] if number + 1 < len(tokens) else ""
    if not text.isidentifier() or keyword.iskeyword(text) or hasattr(builtins, text):
        return False
    return before != "." and not (behind == "=" and before in ("(", ","))


def _with_names(text: str, names: Mapping[str, str]) -> str:
    tokens = _tokens(text)
    for number in reversed(range(len(tokens))):
        word, begin, end = tokens[number]
        if word in names and _free(tokens, number):
            text = text[:begin] + names[word] + text[end:]
    return text


def _tokens(source: str) -> list[_Token]:
    """Text, begin and end of each token that means something; a piece that is cut off in the middle ends where it ends."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[_Token] = []
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
