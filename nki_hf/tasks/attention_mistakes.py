"""Mistakes of attention kernels: what each gives in place of the right output."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from nki_hf.tasks.attention_reference import attention, within
from nki_hf.tasks.attention_scores import filled, from_scores, of_probabilities, own_keys, zero_hidden
from nki_hf.tasks.attention_tiles import (
    anti_causal,
    bfloat16,
    by_tiles,
    heads_of,
    moved,
    online,
    over_queries,
    paired,
    tiles,
    transposed_probs,
    turned,
)
from nki_hf.tasks.in_range import InRange
from nki_hf.tasks.key_mistakes import KEYS, TILE, in_own_block, windowed

__all__ = ["mistakes"]

Array = np.ndarray[Any, Any]
_D = 128


_ONLINE = {
    "P is not transposed before PV": "transposed",
    "the sums are not corrected when the maximum moves": "sums",
    "the accumulated output is not corrected when the maximum moves": "out",
    "neither sums nor output are corrected when the maximum moves": "both",
    "the running maximum is that of the last block": "max",
    "the sums of a row are those of the last block only": "last sum",
    "the output is that of the last block only, divided by all sums": "last out",
    "each block is a softmax of its own, and the output is their mean": "own",
    "each block is a softmax of its own, and the output is their sum": "own sum",
}
"""Mistakes of a softmax that goes through the keys block by block."""


def mistakes(causal: bool, heads: bool, head_dim: int = _D, window: int = 0) -> dict[str, Callable[..., Any]]:
    """What a wrong kernel of attention may compute, in words; of causal attention and of several heads there is more.

    With a `window` (see `attention_reference.within`) those mistakes whose formulas know one, and those of its lower edge.
    """

    def of(**words: Any) -> Callable[..., Any]:
        given = {"causal": causal, **words, "keys": within(window, words.get("keys"))}
        return lambda q, k, v: attention(q, k, v, **given)

    right = of()

    def with_v(change: Callable[[Array], Array]) -> Callable[..., Any]:
        return lambda q, k, v: right(q, k, change(v))

    root = head_dim**-0.5
    if window:
        return windowed(of, with_v, root, head_dim, window)
    found: dict[str, Callable[..., Any]] = {
        "the scale is missing": of(scale=1.0),
        "the scale is applied twice": of(scale=root * root),
        "the scale is head_dim ** 0.5 instead of head_dim ** -0.5": of(scale=1 / root),
        "the scale is 1 / head_dim": of(scale=1 / head_dim),
        "the scale has the wrong sign": of(scale=-root),
        "the scores are transposed within their tiles (q and k are exchanged in each product)": (
            lambda q, k, v: from_scores(q, k, v, causal, lambda scores: turned(scores))
        ),
        "the rows are not divided by their sums": of(divide=False),
        "the maximum is not subtracted and the rows are not divided": of(divide=False, shift=False),
        **{words.format(size=size): of(keys=function(size)) for words, function in KEYS.items() for size in (TILE, 512)},
        "the maximum is that of one tile, and the rows overflow": of(shift=False),
        "the exponential has base 2 instead of e": of(scale=root * np.log(2)),
        "the scores are rounded to bfloat16 before the exponential": (lambda q, k, v: from_scores(q, k, v, causal, bfloat16)),
        "the queries are rounded to bfloat16 once more after they are scaled (scale the scores instead)": (
            lambda q, k, v: of(scale=1.0)(bfloat16(q * root), k, v)
        ),
        "the keys are rounded to bfloat16 once more after they are scaled (scale the scores instead)": (
            lambda q, k, v: of(scale=1.0)(q, bfloat16(k * root), v)
        ),
        "queries and keys are rounded to bfloat16 once more after each is scaled by the root of the scale": (
            lambda q, k, v: of(scale=1.0)(bfloat16(q * root**0.5), bfloat16(k * root**0.5), v)
        ),
        "the scores are rounded to bfloat16 before they are scaled": (
            lambda q, k, v: from_scores(q, k, v, causal, bfloat16, q.shape[-1] ** -0.5)
        ),
        **{
            f"{words}, keys in blocks of {size}": (
                lambda q, k, v, size=size, mistake=mistake: online(q, k, v, causal, size, mistake)
            )
            for words, mistake in _ONLINE.items()
            for size in (TILE, 512)
        },
        "the probabilities are used untransposed within their tiles (P is not transposed before PV)": (
            lambda q, k, v: transposed_probs(q, k, v, causal)
        ),
        "V is permuted by tiles (its rows are not rearranged: row t * 128 + p taken from p * tiles + t)": with_v(
            lambda v: tiles(v, -2, lambda index: index.reshape(-1).reshape(TILE, -1).T)
        ),
        "V is permuted by tiles (row p * tiles + t taken from t * 128 + p)": with_v(
            lambda v: tiles(v, -2, lambda index: index.T)
        ),
        "V's tiles are in reverse order": with_v(lambda v: tiles(v, -2, lambda index: index[::-1])),
        "every tile of V is the first one": with_v(lambda v: tiles(v, -2, lambda index: np.repeat(index[:1], len(index), 0))),
        "every tile of V is the last one": with_v(lambda v: tiles(v, -2, lambda index: np.repeat(index[-1:], len(index), 0))),
        "every tile of K is the first one": lambda q, k, v: attention(
            q, tiles(k, -2, lambda index: np.repeat(index[:1], len(index), 0)), v, causal=causal
        ),
        **{
            f"{what} of block j of {size} keys is read after block j + {by} overwrote it (a buffer is reused too early)": (
                lambda q, k, v, what=what, size=size, by=by: attention(
                    q, moved(k, size, by) if what == "K" else k, moved(v, size, by) if what == "V" else v, causal=causal
                )
            )
            for what in "KV"
            for size in (TILE, 512)
            for by in (1, 2)
        },
        **{
            f"{what} of every second block of {size} keys is that of the block before": (
                lambda q, k, v, what=what, size=size: attention(
                    q, paired(k, size) if what == "K" else k, paired(v, size) if what == "V" else v, causal=causal
                )
            )
            for what in "KV"
            for size in (TILE, 512)
        },
        "the scale is seqlen ** -0.5": lambda q, k, v: attention(q, k, v, causal=causal, scale=k.shape[-2] ** -0.5),
        "the scale is heads ** -0.5": lambda q, k, v: attention(q, k, v, causal=causal, scale=q.shape[0] ** -0.5),
        **{
            f"the scale is {words}": of(scale=root * factor)
            for words, factor in (
                ("twice as large", 2.0),
                ("half as large", 0.5),
                ("that of a head twice as long", 0.5**0.5),
                ("that of a head half as long", 2**0.5),
                ("head_dim ** -0.25", root**-0.5),
            )
        },
        "V's tiles of 128 x 128 are transposed": with_v(lambda v: turned(v)),
        "K's tiles of 128 x 128 are transposed": lambda q, k, v: attention(q, turned(k), v, causal=causal),
        "K is used in place of V": lambda q, k, v: attention(q, k, k, causal=causal),
        "V is used in place of K": lambda q, k, v: attention(q, v, v, causal=causal),
        "q and k are exchanged (the scores are transposed)": lambda q, k, v: attention(k, q, v, causal=causal),
        "the softmax runs over the queries instead of the keys": lambda q, k, v: over_queries(q, k, v, causal),
    }
    found |= of_probabilities(causal)
    if not causal:
        found |= {
            f"what fills up the last block of {size} keys counts, with scores of 0": functools.partial(filled, size=size)
            for size in (TILE, 512)
        }
    if causal:
        found |= {
            "the mask is strict: a row does not see its own key": of(ahead=0),
            "the mask is one ahead: a row sees the key after its own": of(ahead=2),
            "there is no mask": of(causal=False),
            **{f"the mask is {n} keys ahead": of(ahead=1 + n) for n in (2, 4, 8, 16, 32, 64)},
            **{f"the mask is {n} keys behind": of(ahead=1 - n) for n in (2, 4, 8, 16, 32, 64)},
            **{
                f"hidden scores {where}are 0 instead of the lowest number": functools.partial(zero_hidden, size=size)
                for where, size in (
                    ("of a row's own 128 keys ", TILE),
                    ("of a row's own 512 keys ", 512),
                    ("", 1 << 30),
                )
            },
            **{
                f"hidden scores {where}are {value} instead of the lowest number": InRange(
                    functools.partial(zero_hidden, size=size),
                    "value",
                    float(value),
                    (-1.0, -2.0, -5.0, -10.0, -20.0, -30.0, -50.0, -100.0, -200.0, -1000.0),
                    f"hidden scores {where}are a number that is not low enough (it is {{}}) instead of the lowest number",
                )
                for value in (-1, -2, -5, -10, -20, -50, -100)
                for where, size in (("of a row's own 128 keys ", TILE), ("of a row's own 512 keys ", 512), ("", 1 << 30))
            },
            **{
                f"every block of {size} keys is masked as the one on the diagonal (the mask starts anew in each block)": of(
                    causal=False,
                    keys=lambda rows, keys, n=size, m=tile: (keys // n <= rows // n) & (keys % n <= rows % m),
                )
                for tile, size in ((TILE, TILE), (512, 512), (TILE, 512), (64, TILE))
            },
            **{
                f"the mask forgets where a block of {n} keys begins, and a row sees up to the end of its {tile}": of(
                    causal=False, keys=lambda rows, keys, n=n, m=tile: (keys // m <= rows // m) & (keys % n <= rows)
                )
                for tile, n in ((TILE, 512), (512, 512))
            },
            "the mask is transposed: a row sees its own key and those after it": lambda q, k, v: anti_causal(q, k, v),
            "the mask is moved by a tile of 128 keys": of(ahead=1 + TILE),
            **{
                f"the mask is {n} keys {what}": of(
                    causal=False, keys=lambda rows, keys, n=sign * n: keys <= np.where(rows + n < 0, rows, rows + n)
                )
                for n in (TILE, 256, 512)
                for what, sign in (("ahead (whole tiles)", 1), ("behind (whole tiles), where a row has as many", -1))
            },
            **{
                f"only the keys from a row's own to the end of its block of {n} are seen": of(
                    causal=False, keys=lambda rows, keys, n=n: (keys >= rows) & (keys // n <= rows // n)
                )
                for n in (TILE, 512)
            },
            **{
                f"the mask is transposed within a row's own {size} keys: it sees its own and those after it": of(
                    causal=False,
                    keys=lambda rows, keys, n=size: (keys // n < rows // n) | (in_own_block(rows, keys, n) & (keys >= rows)),
                )
                for size in (TILE, 512)
            },
            **{
                f"there is a window: a row sees its last {n} keys only": of(keys=lambda rows, keys, n=n: keys > rows - n)
                for n in (64, TILE, 256, 512)
            },
            **{
                f"every block of {size} keys of K that a row sees is the row's own": functools.partial(own_keys, size=size)
                for size in (TILE, 512)
            },
            "the mask lets a row see its whole tile of 128": lambda q, k, v: by_tiles(q, k, v, TILE),
            "the mask lets a row see its whole block of 512": lambda q, k, v: by_tiles(q, k, v, 512),
        }
    if heads:
        found = {  # first: with several heads each mistake takes long to try
            "another head's keys: kv head h % kv_heads instead of h // group": lambda q, k, v: heads_of(
                q, k, v, "modulo", causal
            ),
            "another head's keys: every head reads kv head 0": lambda q, k, v: heads_of(q, k, v, "first", causal),
            "every head reads query head 0": lambda q, k, v: attention(np.repeat(q[:1], len(q), 0), k, v, causal=causal),
            "another head's keys: the kv heads are in reverse order": lambda q, k, v: attention(
                q, k[::-1], v[::-1], causal=causal
            ),
            "another head's keys, with its own values": lambda q, k, v: attention(q, np.roll(k, 1, 0), v, causal=causal),
            "another head's values, with its own keys": lambda q, k, v: attention(q, k, np.roll(v, 1, 0), causal=causal),
            **found,
        }
    return found
