"""A result within a reference that is clamped, or rounded to bfloat16; the bound follows from the output (fitted.py)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from nki_hf.tools.judging import fitted
from nki_hf.tools.judging.traced import Call, Change, Site

__all__ = ["clamps", "narrowed"]

Array = np.ndarray[Any, Any]
Changes = Mapping[Site, Change]

_SHARES = (0.5, 0.75, 0.9, 0.97, 0.99, 0.997, 0.999, 0.9999)
"""Shares of a result that lie within the bounds that are tried first."""
_TRIALS = (0.75, 0.97, 0.999)
_LIKELY = 0.3
"""Cosine between what a clamp does and the error, from which on its bound is looked for."""
_FEW = 3
"""Clamps whose bound is looked for: the likeliest first, of some that are as likely the one that comes first."""
_COARSE = 0.05
"""Error of the output beyond which no single rounding to bfloat16 is tried."""


def _both(result: Any, bound: float) -> Any:
    return np.clip(result, -bound, bound)


def _above(result: Any, bound: float) -> Any:
    return np.minimum(result, bound)


def _below(result: Any, bound: float) -> Any:
    return np.maximum(result, -bound)


_CLAMPS: tuple[tuple[str, Callable[[Any, float], Any], Callable[[Array], Array]], ...] = (
    ("is clamped to -{c} to {c}", _both, np.abs),
    ("is clamped to at most {c}", _above, lambda x: x[x > 0]),
    ("is clamped to at least -{c}", _below, lambda x: -x[x < 0]),
)


def clamps(
    seen: Mapping[Site, Sequence[Call]],
    error: Callable[[Changes], float],
    toward: Callable[[Changes], float],
    whole: float,
    enough: float,
) -> Iterator[tuple[str, Changes]]:
    """Words about a result that is clamped, and the change; arguments as for `changed_numbers.numbers`."""
    found: list[tuple[float, int, Site, str, Callable[[float], Changes], list[float]]] = []
    for site, calls in seen.items():
        if not _is_float(site, calls[0]):
            continue
        finite = calls[0].results[site][np.isfinite(calls[0].results[site])]
        for words, clamp, sizes in _CLAMPS:
            held = sizes(finite)
            if not held.size or float(held.max()) <= 0:
                continue
            make = _clamped(site, clamp)
            likely = max(toward(make(float(bound))) for bound in np.quantile(held, _TRIALS))
            found.append((likely, len(found), site, words, make, [float(bound) for bound in np.quantile(held, _SHARES)]))
    for likely, _, site, words, make, guesses in sorted(found, key=lambda item: (-round(item[0], 1), item[1]))[:_FEW]:
        if likely < _LIKELY:
            return
        number = fitted.number(_error_of(error, make), [guess for guess in guesses if guess > 0], whole)
        if number is not None and error(make(number)) <= enough:
            yield f"{site.quoted} of the reference {words.format(c=f'{number:.5g}')}", make(number)


def _clamped(site: Site, clamp: Callable[[Any, float], Any]) -> Callable[[float], Changes]:
    return lambda bound: {site: lambda call: clamp(call.result(), bound)}


def _error_of(error: Callable[[Changes], float], make: Callable[[float], Changes]) -> Callable[[float], float]:
    return lambda bound: error(make(bound))


def narrowed(seen: Mapping[Site, Sequence[Call]], whole: float) -> Iterator[tuple[str, Changes]]:
    """Words about results that are rounded to bfloat16 on the way, and the changes, where the error is small enough for it:
    one, two after each other (a tile that is computed with in place), or all.
    """
    sites = [site for site, calls in seen.items() if _is_float(site, calls[0])] if whole < _COARSE else []
    for site in sites:
        yield f"{site.quoted} of the reference is rounded to bfloat16", {site: _rounded}
    for first, second in itertools.pairwise(sites):
        words = f"{first.quoted} and {second.quoted} of the reference are rounded to bfloat16"
        yield words, {first: _rounded, second: _rounded}
    if len(sites) > 2:
        yield "every result within the reference is rounded to bfloat16", dict.fromkeys(sites, _rounded)


def _is_float(site: Site, call: Call) -> bool:
    result = call.results.get(site)
    return site.method != "index" and isinstance(result, np.ndarray) and result.size > 1 and result.dtype.kind == "f"


def _rounded(call: Call) -> Any:
    result = call.result()
    return result.astype(ml_dtypes.bfloat16).astype(result.dtype) if isinstance(result, np.ndarray) else result
