"""A mistake with a number of its own, of which the inputs that show it may leave open which one it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["InRange"]


@dataclass(frozen=True)
class InRange:
    """What a wrong kernel computes with one number, and which other numbers may give the same.

    Where all scores of a row are far below 0, hidden ones of -10 and of -30 are alike: both are all that is left.

    Attributes:
      function: what is computed, but for the number.
      word: the number's parameter.
      value: the number.
      values: numbers that are tried in its place, in order.
      words: what is said where several of them agree with the output, with a gap for them.
    """

    function: Callable[..., Any]
    word: str
    value: float
    values: Sequence[float]
    words: str

    def __call__(self, *args: Any, **given: Any) -> Any:
        """What is computed."""
        return self.function(*args, **{self.word: self.value}, **given)

    def instead(self, value: float) -> InRange:
        """The same with another number."""
        return InRange(self.function, self.word, value, self.values, self.words)

    def said(self, values: Sequence[float], words: str) -> str:
        """The words, given the numbers that agree: `words` if it is one alone."""
        if len(values) < 2:
            return words
        ends = sorted(values)
        last = ends[0] == min(self.values)
        return self.words.format(f"{ends[-1]:g} or lower" if last else f"between {ends[0]:g} and {ends[-1]:g}")
