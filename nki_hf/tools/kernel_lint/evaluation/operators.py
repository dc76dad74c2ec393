"""Operators of Python on values of kernel code: as Python does it where both sides are known, else what stays unknown."""

from __future__ import annotations

import ast
import operator
from typing import Any

from nki_hf.tools.kernel_lint.evaluation.paths import Ended, Path
from nki_hf.tools.kernel_lint.evaluation.tile import Tile
from nki_hf.tools.kernel_lint.evaluation.values import Cut, Dictionary, Instance, Language, Listed, Member, Unknown

__all__ = ["CHANGING", "compared", "computed", "contains_unknown", "forget_marked", "fresh", "key_of", "marked", "unknown"]

_ARITHMETIC = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Div: ("/", operator.truediv),
    ast.Mod: ("%", operator.mod),
    ast.Pow: ("**", operator.pow),
    ast.LShift: ("<<", operator.lshift),
    ast.RShift: (">>", operator.rshift),
    ast.BitAnd: ("&", operator.and_),
    ast.BitOr: ("|", operator.or_),
    ast.BitXor: ("^", operator.xor),
    ast.MatMult: ("@", operator.matmul),
}
_COMPARISONS = {
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.Is: ("==", operator.eq),
    ast.IsNot: ("!=", operator.ne),
}
CHANGING = (
    "next", "__next__", "pop", "popleft", "popitem", "read", "readline", "get_nowait", "random", "randint", "randrange",
    "choice", "time", "perf_counter", "monotonic",
)  # fmt: skip
"""Functions and methods that give another value from call to call with the same arguments."""
_LONG = 160
_DEEP = 6
_MOST_BITS, _MOST_ITEMS = 4096, 1 << 16
_fresh = 0
_kept: dict[int, Any] = {}


def key_of(value: Any, depth: int = 3) -> str:
    """The text of a value in the key of what is made of it."""
    if isinstance(value, Unknown | Tile):
        return value.key
    if isinstance(value, Language):
        return value.text
    if value is None or value is ... or isinstance(value, int | float | str | bool):
        return repr(value)
    if isinstance(value, tuple) and len(value) < 6 and depth:
        return f"({', '.join(key_of(each, depth - 1) for each in value)})"
    if isinstance(value, list) and len(value) < 6 and depth and not getattr(value, "loose", False):
        return f"[{', '.join(key_of(each, depth - 1) for each in value)}]"
    if isinstance(value, slice) and depth:
        return ":".join("" if each is None else key_of(each, depth - 1) for each in (value.start, value.stop, value.step))
    if isinstance(value, Cut) and depth:
        return f"ds({key_of(value.start, depth - 1)}, {key_of(value.size, depth - 1)})"
    if isinstance(value, Member):
        return f"{value.kind}.{value.name}"
    return marked(value)


def marked(value: Any) -> str:
    """The text of what is told apart by being itself. It is kept as long as the way: no other may take its place in memory."""
    _kept[id(value)] = value
    return f"<{id(value)}>"


def forget_marked() -> None:
    """Lets go of what `marked` keeps, as another way begins."""
    _kept.clear()


def fresh(key: str, *, low: int | None = None) -> Unknown:
    """What is not known and may be another value each time the same line runs: never one value with anything before."""
    global _fresh
    _fresh += 1
    return Unknown(f"{key[:_LONG]}#{_fresh}", low)


def unknown(key: str, *, low: int | None = None, high: int | None = None) -> Unknown:
    """What is not known, by a key; a very long key is one of its own."""
    global _fresh
    if len(key) > _LONG:
        _fresh += 1
        key = f"#{_fresh}"
    return Unknown(key, low, high)


def contains_unknown(value: Any, depth: int = _DEEP) -> bool:
    """True if a value is not known in all its parts; what is nested deeper than `depth` is not looked at."""
    if isinstance(value, Unknown) or (isinstance(value, Tile) and value.argument):
        return True
    if isinstance(value, tuple | list | dict):
        if depth == 0 or getattr(value, "loose", False):
            return True
        return any(contains_unknown(each, depth - 1) for each in (value.values() if isinstance(value, dict) else value))
    return False


def computed(path: Path, op: ast.operator, left: Any, right: Any) -> Any:
    """`left op right`."""
    sign, function = _ARITHMETIC[type(op)]
    if isinstance(left, Unknown | Tile) or isinstance(right, Unknown | Tile):
        return _open(path, sign, left, right)
    if isinstance(left, Listed | Dictionary) and (left.loose or getattr(right, "loose", False)):
        made = Listed([*left, *right]) if isinstance(right, list) and isinstance(left, list) else left
        made.loose = True
        return made
    if isinstance(left, Instance | Language) or isinstance(right, Instance | Language):
        return unknown(f"({key_of(left)} {sign} {key_of(right)})")
    if _too_large(sign, left, right):
        return unknown(f"({key_of(left)} {sign} {key_of(right)})")
    try:
        made = function(left, right)
    except Exception as error:  # as the kernel's line would raise it
        raise Ended(repr(error)) from error
    return Listed(made) if isinstance(made, list) else made


def _too_large(sign: str, left: Any, right: Any) -> bool:
    """True if a result may be larger than any that a kernel has use for: it is not made then."""
    if isinstance(left, str) and sign == "%":
        return True
    if isinstance(left, int) and isinstance(right, int):
        bits = {"*": left.bit_length() + right.bit_length(), "**": left.bit_length() * max(right, 0), "<<": right}
        return bits.get(sign, 0) > _MOST_BITS
    lengths = [len(each) for each in (left, right) if isinstance(each, str | bytes | list | tuple)]
    times = max([each for each in (left, right) if isinstance(each, int)], default=1)
    return sum(lengths) * max(times, 1) > _MOST_ITEMS


def _open(path: Path, sign: str, left: Any, right: Any) -> Any:
    low = high = None
    one, other = path.range_of(left), path.range_of(right)
    if sign == "+":
        low, high = (None if None in (a, b) else a + b for a, b in zip(one, other, strict=True))  # type: ignore[operator]
    elif sign == "-":
        low, high = (None if None in (a, b) else a - b for a, b in zip(one, reversed(other), strict=True))  # type: ignore[operator]
    elif sign in ("*", "//") and isinstance(right, int) and right > 0:
        low, high = (None if a is None else a * right if sign == "*" else a // right for a in one)
    elif sign == "*" and isinstance(left, int) and left > 0:
        low, high = (None if a is None else a * left for a in other)
    elif sign == "%" and isinstance(right, int) and right > 0:
        low, high = 0, right - 1
    made = unknown(f"({key_of(left)} {sign} {key_of(right)})", low=low, high=high)
    return path.known(made)


def compared(path: Path, op: ast.cmpop, left: Any, right: Any) -> Any:
    """`left op right`: True, False, or a condition that nothing decides."""
    if isinstance(op, ast.In | ast.NotIn):
        found = _holds(path, left, right)
        return found if isinstance(op, ast.In) else negated(found)
    sign, function = _COMPARISONS[type(op)]
    for one, other in ((left, right), (right, left)):
        if one is None and not isinstance(other, Unknown):
            if sign in ("==", "!="):
                return (other is None) == (sign == "==")
    if isinstance(left, Language | Member | Instance) and isinstance(right, Language | Member | Instance | str | int):
        if sign in ("==", "!=") and not (isinstance(left, Language) and left.text.startswith("?")):
            return (left == right) == (sign == "==")
    if contains_unknown(left) or contains_unknown(right) or isinstance(left, Language) or isinstance(right, Language):
        if sign in ("==", "!=") and isinstance(left, Unknown | Tile) and left == right:
            return sign == "=="
        if sign in ("==", "!=") and isinstance(left, Language) and isinstance(right, str | int):
            return sign == "!="
        made = unknown(f"({key_of(left)} {sign} {key_of(right)})")
        if sign == "!=":
            return negated(compared(path, ast.Eq(), left, right))
        return Unknown(made.key, test=(sign, _asked(left), _asked(right)))
    try:
        return bool(function(left, right))
    except Exception as error:  # as the kernel's line would raise it
        raise Ended(repr(error)) from error


def _asked(value: Any) -> Any:
    return Unknown(value.key) if isinstance(value, Tile) and value.argument else value


def negated(condition: Any) -> Any:
    """`not condition`."""
    if not isinstance(condition, Unknown):
        return not condition
    if condition.test is not None and condition.test[0] == "not":
        return condition.test[1]
    return Unknown(f"(not {condition.key})", test=("not", condition, None))


def _holds(path: Path, item: Any, whole: Any) -> Any:
    if isinstance(whole, tuple | list | dict | str | set | range):
        if not contains_unknown(item):
            try:
                if item in whole:
                    return True
                if not contains_unknown(tuple(whole) if isinstance(whole, dict) else whole):
                    return bool(getattr(whole, "loose", False)) and unknown(f"({key_of(item)} in {key_of(whole)})")
            except TypeError as error:
                raise Ended(repr(error)) from error
        elif isinstance(whole, tuple | list) and len(whole) == 1:
            return compared(path, ast.Eq(), item, whole[0])
    shown = ", ".join(key_of(each) for each in whole) if isinstance(whole, tuple | list) and len(whole) < 9 else key_of(whole)
    return unknown(f"({key_of(item)} in [{shown}])")
