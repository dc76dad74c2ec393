"""Ways through a kernel: each condition that nothing decides is taken both ways, by running the kernel again."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from typing import Any

from nki_hf.tools.kernel_lint.evaluation.values import Unknown

UNFIT = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError, ZeroDivisionError)
"""What values raise that go together in no kernel."""

__all__ = ["UNFIT", "Ended", "Exhausted", "Path", "paths"]

_WAITING = 400
"""Ways that are kept for later at most."""


class Ended(Exception):
    """The kernel stops itself: an assertion, `raise`, or what Python does not do."""


class Exhausted(Exception):
    """The way is longer than is looked at."""


class Path:
    """One way through a kernel, and what it takes for granted.

    Attributes:
      taken: (place, choices, choice) of each decision.
      bound: key of what is unknown -> the value that this way gives it.
      truths: key of a condition -> what this way takes it for.
      doubtful: True once a condition that may tell where a tensor lies was decided.
    """

    def __init__(self, script: tuple[int, ...], steps: int) -> None:
        """`script`: the first choices; `steps`: statements that may run."""
        self._script = script
        self.left = steps
        self.taken: list[tuple[Hashable, int, int]] = []
        self.bound: dict[str, Any] = {}
        self.truths: dict[str, bool] = {}
        self._low: dict[str, int] = {}
        self._high: dict[str, int] = {}
        self.doubtful = False

    @property
    def decided(self) -> bool:
        """True if the way has taken a condition for one of two things that may both be so."""
        return any(not (isinstance(place, tuple) and place[0] == "defaults") for place, _, _ in self.taken)

    def step(self) -> None:
        """One statement more."""
        self.left -= 1
        if self.left < 0:
            raise Exhausted

    def choose(self, place: Hashable, choices: int, key: str) -> int:
        """One of `choices`, 0 first; `key`: of what is decided."""
        self.doubtful |= _tells_memory(key)
        at = len(self.taken)
        choice = min(self._script[at], choices - 1) if at < len(self._script) else 0
        self.taken.append((place, choices, choice))
        return choice

    def range_of(self, value: Any) -> tuple[int | None, int | None]:
        """Bounds of a number as this way knows them."""
        if isinstance(value, Unknown):
            lows = [each for each in (value.low, self._low.get(value.key)) if each is not None]
            highs = [each for each in (value.high, self._high.get(value.key)) if each is not None]
            return max(lows, default=None), min(highs, default=None)
        return (int(value), int(value)) if isinstance(value, int) else (None, None)

    def known(self, value: Any) -> Any:
        """The value that this way gives to what is unknown."""
        return self.bound.get(value.key, value) if isinstance(value, Unknown) else value

    def at_least(self, key: str, low: int) -> None:
        """What has this key is not below a number."""
        self._low[key] = max(low, self._low.get(key, low))

    def may_be(self, value: Unknown, key: Any) -> bool:
        """False if this way has already said that a value is not `key`."""
        if self.truths.get(f"({value.key} == {key!r})") is False:
            return False
        return self._compared("==", self.range_of(value), self.range_of(key)) is None

    def told(self, condition: Unknown) -> bool | None:
        """What this way already says of a condition; None if nothing."""
        if condition.key in self.truths:
            return self.truths[condition.key]
        if condition.test is None:
            low, high = self.range_of(condition)
            return True if (low is not None and low > 0) or (high is not None and high < 0) else None
        operator, left, right = condition.test
        if operator == "not":
            inner = self.told(left)
            return None if inner is None else not inner
        return self._compared(operator, self.range_of(left), self.range_of(right))

    @staticmethod
    def _compared(operator: str, left: tuple[int | None, int | None], right: tuple[int | None, int | None]) -> bool | None:
        def below(one: int | None, other: int | None, *, equal: bool) -> bool:
            return one is not None and other is not None and (one <= other if equal else one < other)

        if operator in ("==", "!="):
            apart = below(left[1], right[0], equal=False) or below(right[1], left[0], equal=False)
            return (operator == "!=") if apart else None  # equal bounds are bound already
        if operator in (">", ">="):
            left, right, operator = right, left, operator.replace(">", "<")
        if operator in ("<", "<="):
            if below(left[1], right[0], equal=operator == "<="):
                return True
            if below(right[1], left[0], equal=operator == "<"):
                return False
        return None

    def assume(self, condition: Unknown, truth: bool) -> None:
        """From here on the condition is taken for true, or for false; of what has no name of its own nothing is kept."""
        if "?" in condition.key:
            return
        self.truths[condition.key] = truth
        self.doubtful |= _tells_memory(condition.key)
        if condition.test is None:
            return
        operator, left, right = condition.test
        if operator == "not":
            self.assume(left, not truth)
            return
        if not truth:
            operator = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}.get(operator, "")
        if isinstance(left, Unknown):
            self._bound_by(left, operator, right)
        if isinstance(right, Unknown):
            self._bound_by(right, {"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(operator, operator), left)

    def _bound_by(self, value: Unknown, operator: str, other: Any) -> None:
        if operator == "==" and not isinstance(other, Unknown):
            self.bound[value.key] = other
        low, high = self.range_of(other)
        if operator in ("<", "<=") and high is not None:
            self._high[value.key] = min(self._high.get(value.key, high), high - (operator == "<" and _is_whole(value.key)))
        if operator in (">", ">=") and low is not None:
            self._low[value.key] = max(self._low.get(value.key, low), low + (operator == ">" and _is_whole(value.key)))


def _is_whole(key: str) -> bool:
    """True for a size: below 1 it is 0, where `eps < 1` says nothing of `eps > 0`."""
    return " / " not in key and any(word in key for word in (".shape", ".ndim", "len(", "range("))


def _tells_memory(key: str) -> bool:
    """True if a condition speaks of a memory: `x.buffer == nl.sbuf`, `x_in_sbuf`."""
    return any(word in key.lower() for word in ("buffer", "sbuf", "psum", "hbm", "memory"))


def paths(run: Callable[[Path], int], most: int, steps: int) -> Generator[Path, None, bool]:
    """Runs `run` along one way after the other, those first that take a condition as none has taken it yet.

    Args:
      run: follows a way; returns how many statements it ran.
      most: ways.
      steps: statements of all ways together.

    Returns:
      True if there is no other way.
    """
    whole = True
    waiting: list[tuple[Hashable, int, tuple[int, ...]]] = [("", 0, ())]
    covered: set[tuple[Hashable, int]] = set()
    for _ in range(most):
        if not waiting or steps <= 0:
            break
        at = next((place for place, (where, choice, _) in enumerate(waiting) if (where, choice) not in covered), 0)
        script = waiting.pop(at)[2]
        path = Path(script, steps)
        steps -= run(path)
        choices = tuple(choice for _, _, choice in path.taken)
        for place, (where, count, choice) in enumerate(path.taken):
            covered.add((where, choice))
            if place >= len(script) and count > 1 and len(waiting) >= _WAITING:
                whole = False
            elif place >= len(script):
                waiting += [(where, other, (*choices[:place], other)) for other in range(count) if other != choice]
        yield path
    return whole and not waiting
