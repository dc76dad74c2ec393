"""Shapes: how a command line describes an attention call, for every verb alike."""

from __future__ import annotations

from typing import Any

from nki_hf.problem import DTYPES, LARGEST_SCALE, SMALLEST_SOFTCAP, Mask, Problem

__all__ = ["LARGEST", "SHAPE_HELP", "problem_of"]

SHAPE_HELP = (
    "The call in words: b (1), hq (1), hkv (= hq), sq (1), skv (= sq), d (128), dv (= d), as in b=1,hq=16,hkv=8,sq=4096; "
    "also causal, window=n (causal), ahead=n, offset=n (skv - sq), scale=x, softcap=x, sink, dtype=float32; and masks that "
    "are tensors: bias (added to the scores) or mask (true = seen), with bias=batch+heads+rows the axes that it has besides "
    "keys (rows; one = none of them), and bounds (first and last key of each row)."
    " Causal: the last query sees the last key."
)
"""Help of `--shape`; in brackets what a word that is left out means."""

LARGEST = 2**31 - 1
"""What a size may be: tensors are indexed with 32 bits."""

_SIZES = ("b", "hq", "hkv", "sq", "skv", "d", "dv", "window", "ahead")
_NUMBERS = ("softcap", "scale")
_FLAGS = ("causal", "sink", "bounds")
_BIASES = {"bias": "additive", "mask": "boolean"}
"""Words of a mask that is a tensor, with or without a value: kinds of `problem.Mask.bias`."""
_AXES = ("batch", "heads", "rows")
_NAMES = (*_SIZES, *_NUMBERS, "dtype", "offset")


def problem_of(shape: str) -> Problem:
    """The problem that `b=1,hq=32,hkv=8,sq=2048,skv=2048,d=128` describes; see `SHAPE_HELP` for the words.

    Raises:
      ValueError: a word is not known or given twice, or the sizes describe no attention.
    """
    words = _words(shape)
    sizes = {name: _size(shape, name, words[name]) for name in _SIZES if name in words}
    numbers = {name: _number(shape, name, words[name]) for name in _NUMBERS if name in words}
    if "causal" in words and sizes.get("ahead", 1) != 1:
        raise ValueError(f"shape={shape!r}: causal is ahead=1, give one of them.")
    dtype = words.get("dtype", "bfloat16")
    if dtype not in DTYPES:
        raise ValueError(f"shape: dtype={dtype} is not known: it is {', '.join(DTYPES[:-1])} or {DTYPES[-1]}.")
    heads, seqlen_q, head_dim = sizes.get("hq", 1), sizes.get("sq", 1), sizes.get("d", 128)
    seqlen_kv = sizes.get("skv", seqlen_q)
    window = sizes.get("window")
    ahead = sizes.get("ahead", 1 if "causal" in words or window is not None else None)
    banded = window is not None or ahead is not None
    if "offset" in words and not banded:
        raise ValueError(f"shape={shape!r}: offset says where a causal call or a window begins, give one of them too.")
    offset = _offset(shape, words["offset"]) if "offset" in words else seqlen_kv - seqlen_q
    return Problem(
        batch=sizes.get("b", 1),
        num_heads_q=heads,
        num_heads_kv=sizes.get("hkv", heads),
        seqlen_q=seqlen_q,
        seqlen_kv=seqlen_kv,
        head_dim=head_dim,
        head_dim_v=sizes.get("dv", head_dim),
        dtype=dtype,
        softmax_scale=numbers.get("scale"),
        mask=Mask(
            q_offset=offset if banded else 0,
            window=window,
            ahead=ahead,
            runtime_bounds="bounds" in words,
            **_bias(shape, words, {"batch": sizes.get("b", 1), "heads": heads, "rows": seqlen_q}),
        ),
        softcap=numbers.get("softcap"),
        sink="sink" in words,
    )


def _words(shape: str) -> dict[str, str]:
    """Value by word; empty for a word without one."""
    found: dict[str, str] = {}
    for word in filter(None, (part.strip() for part in shape.split(","))):
        name, equals, value = word.partition("=")
        if name in found:
            raise ValueError(f"shape={shape!r} says {name} twice: it is given once.")
        alone = name in (*_FLAGS, *_BIASES)
        if not (name in (*_NAMES, *_BIASES) and value if equals else alone):
            known = ", ".join(f"{key}=" for key in _NAMES)
            raise ValueError(f"shape: {word!r} is not known: it is {', '.join((*_FLAGS, *_BIASES))} or one of {known}.")
        found[name] = value
    if not found:
        raise ValueError(f"shape={shape!r} names no size: give some, as in sq=1024,causal.")
    return found


def _bias(shape: str, words: dict[str, str], sizes: dict[str, int]) -> dict[str, Any]:
    """The fields of `Mask` for a dense mask, which has one plane of rows for all batch entries and heads unless it is said.

    An axis of size 1 is none: a tensor of that shape has the same values for all.
    """
    given = [name for name in _BIASES if name in words]
    if not given:
        return {}
    if len(given) > 1:
        raise ValueError(f"shape={shape!r} has a bias and a mask: give one of them.")
    value = words[given[0]] or "rows"
    axes = () if value == "one" else tuple(value.split("+"))
    if len(set(axes)) < len(axes) or not set(axes) <= set(_AXES):
        known = f"{', '.join(_AXES)} joined by +, or one"
        raise ValueError(f"shape: {given[0]}={value} names no axes: it is {known}.")
    return {"bias": _BIASES[given[0]], **{f"bias_{axis}": axis in axes and sizes[axis] > 1 for axis in _AXES}}


def _offset(shape: str, value: str) -> int:
    try:
        offset = int(value)
    except ValueError as error:
        raise ValueError(f"shape={shape!r} has an offset that is not a number: {error}.") from None
    if not -LARGEST <= offset <= LARGEST:
        raise ValueError(f"shape: offset={value} is not an offset: it is at most {LARGEST:,} in size.")
    return offset


def _size(shape: str, name: str, value: str) -> int:
    try:
        size = int(value)
    except ValueError as error:
        raise ValueError(f"shape={shape!r} has a size that is not a number: {error}.") from None
    if not 1 <= size <= LARGEST:
        raise ValueError(f"shape: {name}={value} is not a size: it is 1 or more, and at most {LARGEST:,}.")
    return size


def _number(shape: str, name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError as error:
        raise ValueError(f"shape={shape!r}: {name} is not a number: {error}.") from None
    if name == "softcap" and not SMALLEST_SOFTCAP <= number <= LARGEST_SCALE:
        raise ValueError(f"shape: softcap={value} is not a cap: it is {SMALLEST_SOFTCAP} to {LARGEST_SCALE}, or left out.")
    if not -LARGEST_SCALE <= number <= LARGEST_SCALE:
        raise ValueError(f"shape: {name}={value} is not finite in float32: it is at most {LARGEST_SCALE} in size.")
    return number
