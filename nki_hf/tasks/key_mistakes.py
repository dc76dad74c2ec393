"""Mistakes in which keys a row of attention sees: blocks that are forgotten, and the lower edge of a window."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from nki_hf.tasks.attention_reference import attention
from nki_hf.tasks.attention_tiles import (
    tiles,
    turned,
)

__all__ = ["KEYS", "TILE", "in_own_block", "windowed"]

Array = np.ndarray[Any, Any]
TILE = 128
"""Rows, and keys, of a tile."""


def in_own_block(rows: Array, keys: Array, size: int) -> Array:
    """True for keys of the block of `size` in which a row's own key is."""
    return keys // size == rows // size


KEYS: dict[str, Callable[[int], Callable[[Array, Array], Array]]] = {
    "the first block of {size} keys is missing": lambda n: lambda rows, keys: keys >= n,
    "the last block of {size} keys is missing": lambda n: lambda rows, keys: keys < len(keys) - n,
    "the first block of {size} keys is missing where there are more": lambda n: lambda rows, keys: (keys >= n) | (rows < n),
    "the last block of {size} keys that a row sees is missing where there are more": (
        lambda n: lambda rows, keys: ~in_own_block(rows, keys, n) | (rows < n)
    ),
    "the block of {size} keys before the last that a row sees is missing": (
        lambda n: lambda rows, keys: keys // n != rows // n - 1
    ),
    "only the first block of {size} keys is seen": lambda n: lambda rows, keys: keys < n,
    "only the last block of {size} keys is seen": lambda n: lambda rows, keys: keys >= len(keys) - n,
    "only the last block of {size} keys that a row may see is seen": lambda n: lambda rows, keys: in_own_block(rows, keys, n),
    "only the last two blocks of {size} keys that a row may see are seen": lambda n: (
        lambda rows, keys: keys // n >= rows // n - 1
    ),
    "only the first and the last block of {size} keys that a row may see are seen": (
        lambda n: lambda rows, keys: in_own_block(rows, keys, n) | (keys < n)
    ),
    "only every second block of {size} keys is seen": lambda n: lambda rows, keys: keys // n % 2 == 0,
}
"""What a kernel forgets of its keys; a name holds the size of a block."""


_EDGES: dict[str, Callable[..., Array]] = {
    "the window begins with the whole block of {size} keys in which it begins": (
        lambda rows, keys, window, size: keys >= np.maximum(rows - window + 1, 0) // size * size
    ),
    "the window is that of the first row of each {size} rows": (
        lambda rows, keys, window, size: keys > rows // size * size - window
    ),
    "the window is that of the last row of each {size} rows": (
        lambda rows, keys, window, size: (keys > rows // size * size + size - 1 - window) | (keys == rows)
    ),
    "the block of {size} keys in which the window begins is missing": (
        lambda rows, keys, window, size: (keys > rows - window) & (keys // size > np.maximum(rows - window, -1) // size)
    ),
}
"""Mistakes at the lower edge of a window, by blocks of keys or of rows."""


def _after(rows: Array, keys: Array, start: int) -> Array:
    return keys > rows - start


def windowed(of: Any, with_v: Any, root: float, head_dim: int, window: int) -> dict[str, Callable[..., Any]]:
    """Mistakes of causal attention in which a row sees the last `window` keys."""

    def seen(keys: Callable[[Array, Array], Array]) -> Callable[..., Any]:
        return lambda q, k, v: attention(q, k, v, causal=True, keys=keys)

    found = {
        "the scale is missing": of(scale=1.0),
        "the scale is applied twice": of(scale=root * root),
        "the scale is 1 / head_dim": of(scale=1 / head_dim),
        "the exponential has base 2 instead of e": of(scale=root * np.log(2)),
        "the rows are not divided by their sums": of(divide=False),
        "the maximum is not subtracted and the rows are not divided": of(divide=False, shift=False),
        "the maximum is that of one tile, and the rows overflow": of(shift=False),
        "the mask is strict: a row does not see its own key": of(ahead=0),
        "the mask is one ahead: a row sees the key after its own": of(ahead=2),
        "there is no causal mask: a row sees all later keys": of(causal=False),
        "there is no window: a row sees all earlier keys": seen(lambda rows, keys: keys >= 0),
        "the window is one key too long": seen(lambda rows, keys: keys >= rows - window),
        "the window is one key too short": seen(lambda rows, keys: keys > rows - window + 1),
        **{
            f"the window is {n} keys too {what}": seen(functools.partial(_after, start=window + sign * n))
            for n in (TILE, 512)
            for what, sign in (("long", 1), ("short", -1))
        },
        "the window is twice as long": seen(lambda rows, keys: keys > rows - 2 * window),
        "the window is half as long": seen(lambda rows, keys: keys > rows - window // 2),
        "there is neither a mask nor a window": lambda q, k, v: attention(q, k, v),
        "the window begins with the first key of all": seen(lambda rows, keys: keys < np.maximum(window, 1)),
        "V's tiles are in reverse order": with_v(lambda v: tiles(v, -2, lambda index: index[::-1])),
        "every tile of V is the first one": with_v(lambda v: tiles(v, -2, lambda index: np.repeat(index[:1], len(index), 0))),
        "V's tiles of 128 x 128 are transposed": with_v(turned),
        **{words.format(size=size): of(keys=function(size)) for words, function in KEYS.items() for size in (TILE, 512)},
    }
    found |= {
        f"the window is {n} keys {what}": seen(functools.partial(_after, start=window + sign * n))
        for n in (2, 64, 256)
        for what, sign in (("too long", 1), ("too short", -1))
        if window + sign * n > 0
    }
    found["the window has as many keys before a row as after it"] = lambda q, k, v: attention(
        q, k, v, keys=lambda rows, keys: np.abs(keys - rows) <= window // 2
    )
    found["the window reaches as far after a row as before it (there is no causal mask)"] = lambda q, k, v: attention(
        q, k, v, keys=lambda rows, keys: np.abs(keys - rows) < window
    )
    found["the window is turned round: only keys outside of it are seen"] = seen(lambda rows, keys: keys <= rows - window)
    for size in (TILE, 512):
        for words, keys in _EDGES.items():
            found[words.format(size=size)] = seen(functools.partial(keys, window=window, size=size))
    return found
