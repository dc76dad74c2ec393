"""What trace, report and bench are asked for on the command line, as one record, and its schedule."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from nki_hf.chips import get_chip
from nki_hf.observers.schedule import Schedule, schedule
from nki_hf.problem import Mask, Problem
from nki_hf.tools.subjects import events_of, flash_prefill_events

__all__ = ["Asked", "check_writable", "model", "problem_of", "window_of"]

_KEYS = ("b", "hq", "hkv", "sq", "skv", "d", "dv", "dtype", "window", "softcap")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One kernel at one size on one chip.

    Attributes:
      kernel: `flash_prefill` or a subject of tools/subjects.py.
      seqlen: size of a subject.
      shape: problem of `flash_prefill` (see `problem_of`); empty = causal, one head, `seqlen` keys, head_dim 128.
      chip: trn1, trn2 or trn3.
      lnc: cores that flash_prefill runs on.
    """

    kernel: str = "flash_prefill"
    seqlen: int = 1024
    shape: str = ""
    chip: str = "trn2"
    lnc: int = 1

    def __str__(self) -> str:
        return f"{self.kernel} {self.shape or self.seqlen}"

    @property
    def problem(self) -> Problem:
        """The problem of `flash_prefill`."""
        return problem_of(self.shape or f"sq={self.seqlen},skv={self.seqlen},causal")


def model(asked: Asked, *, window: int | None) -> Schedule:
    """The schedule of what was asked for.

    Raises:
      ValueError: a name or a shape is not known.
      UnsupportedProblem: flash_prefill does not take the problem.
    """
    chip = get_chip(asked.chip)
    if asked.shape and asked.kernel != "flash_prefill":
        raise ValueError(f"shape={asked.shape!r} describes flash_prefill: kernel={asked.kernel} takes --seqlen instead.")
    if asked.kernel == "flash_prefill":
        events = flash_prefill_events(asked.problem, chip, asked.lnc)
    else:
        events = events_of(asked.kernel, asked.seqlen, chip)
    return schedule(events, chip, window=window)


def problem_of(shape: str) -> Problem:
    """The problem that `b=1,hq=32,hkv=8,sq=2048,skv=2048,d=128` describes; what is left out is 1, or 128 for head_dim.

    Further words: `causal`, `window=n`, `softcap=x`, `dtype=float32`, `dv=n`, `sink`.

    Raises:
      ValueError: a word is not known, or the sizes describe no attention.
    """
    values: dict[str, str] = {}
    flags = set()
    for word in filter(None, (part.strip() for part in shape.split(","))):
        name, equals, value = word.partition("=")
        if name in values or name in flags:
            raise ValueError(f"shape={shape!r} says {name} twice: it is given once.")
        if not equals and name in ("causal", "sink"):
            flags.add(name)
        elif equals and name in _KEYS:
            values[name] = value
        else:
            raise ValueError(f"shape: {word!r} is not known: it is causal, sink or one of {', '.join(f'{k}=' for k in _KEYS)}.")
    try:
        batch, heads, seqlen_q, seqlen_kv = (int(values.get(name, 1)) for name in ("b", "hq", "sq", "skv"))
        head_dim = int(values.get("d", 128))
        window = int(values["window"]) if "window" in values else None
        softcap = float(values["softcap"]) if "softcap" in values else None
        heads_kv, head_dim_v = int(values.get("hkv", heads)), int(values.get("dv", head_dim))
    except ValueError as error:
        raise ValueError(f"shape={shape!r} has a size that is not a number: {error}.") from None
    for name, value in values.items():
        if name not in ("dtype", "softcap") and int(value) < 1:
            raise ValueError(f"shape: {name}={value} is not a size: it is 1 or more.")
    causal = "causal" in flags or window is not None
    mask = Mask(q_offset=seqlen_kv - seqlen_q, ahead=1, window=window) if causal else Mask()
    return Problem(
        batch=batch, num_heads_q=heads, num_heads_kv=heads_kv, seqlen_q=seqlen_q, seqlen_kv=seqlen_kv, head_dim=head_dim,
        head_dim_v=head_dim_v, mask=mask, softcap=softcap, sink="sink" in flags, dtype=values.get("dtype", "bfloat16"),
    )  # fmt: skip


def window_of(order: str) -> int | None:
    """None for `program`, else the window as a number."""
    if order == "program":
        return None
    if not order.isdigit() or int(order) < 1:
        raise ValueError(f"order={order!r} is not known: it is program or a window of 1 or more instructions, e.g. 64.")
    return int(order)


def check_writable(path: Path) -> None:
    """Refuse, before the work, a file that cannot be written: ValueError."""
    folder = path.parent
    if path.is_dir() or not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise ValueError(f"output={path} cannot be written: give a file in an existing folder that you may write to.")
