"""What trace, report and bench are asked for on the command line, as one record, and its schedule."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from nki_hf.chips import Chip, get_chip
from nki_hf.observers.schedule import Schedule, schedule
from nki_hf.observers.working_set import working_sets
from nki_hf.problem import Mask, Problem
from nki_hf.sim.events import Event
from nki_hf.tools.lengths import check_length, prefill_instructions, subject_instructions
from nki_hf.tools.subjects import events_of, flash_prefill_events, subject

__all__ = ["Asked", "model", "planned", "problem_of", "stream", "visible_flops", "window_of"]

_KEYS = ("b", "hq", "hkv", "sq", "skv", "d", "dv", "dtype", "window", "softcap")
_LONG = 50_000
"""Instructions from which a run takes so long that it says what it is about."""
_BENCH = "; nki_hf bench schedules some (batch, kv head) units and repeats them"
_LARGEST = 2**31 - 1
"""What a size may be: tensors are indexed with 32 bits."""


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

    @property
    def useful_flops(self) -> int:
        """Operations that attention asks for: those on visible keys (a subject that is a matmul: all of its own)."""
        return visible_flops(self.problem) if self.kernel == "flash_prefill" else subject(self.kernel).flops(self.seqlen)


def stream(asked: Asked) -> Sequence[Event]:
    """The event stream of what was asked for, before any spill; of a long one a line on standard error says how long it is.

    Raises:
      ValueError: a name or a shape is not known, or so many instructions are not modelled (see tools/lengths.py).
      UnsupportedProblem: flash_prefill does not take the problem.
    """
    chip = get_chip(asked.chip)
    if asked.shape and asked.kernel != "flash_prefill":
        raise ValueError(f"shape={asked.shape!r} describes flash_prefill: kernel={asked.kernel} takes --seqlen instead.")
    own = asked.kernel == "flash_prefill"
    if asked.seqlen > _LARGEST:
        raise ValueError(f"seqlen={asked.seqlen} is not a size: it is at most {_LARGEST:,}.")
    count = prefill_instructions(asked.problem, chip) if own else subject_instructions(asked.kernel, asked.seqlen, chip)
    check_length(count, str(asked), f"give a smaller {'shape' if asked.shape else 'seqlen'}{_BENCH if own else ''}")
    if count >= _LONG:
        print(f"{asked}: about {count:,} instructions to trace and to schedule", file=sys.stderr, flush=True)
    return flash_prefill_events(asked.problem, chip, asked.lnc) if own else events_of(asked.kernel, asked.seqlen, chip)


def planned(events: Sequence[Event], chip: Chip, *, window: int | None, overflow: str = "spill") -> Schedule:
    """The schedule of a stream on `chip`.

    Raises:
      ValueError: the options are not known.
      MemoryError: the tiles do not fit and may not, or cannot, be spilled; the message holds the working set.
    """
    try:
        return schedule(events, chip, window=window, overflow=overflow)
    except MemoryError as error:
        sets = "; ".join(str(item) for item in working_sets(events, chip) if item.high_water > item.capacity)
        raise MemoryError(f"{error} Working set: {sets}." if sets else str(error)) from None


def model(asked: Asked, *, window: int | None, overflow: str = "spill") -> Schedule:
    """The schedule of what was asked for; raises as `stream` and `planned` do."""
    return planned(stream(asked), get_chip(asked.chip), window=window, overflow=overflow)


def visible_flops(problem: Problem) -> int:
    """Operations on visible keys: two matmuls over head_dim and head_dim_v."""
    mask, keys = problem.mask, problem.seqlen_kv
    visible = sum(max(0, hi - lo) for lo, hi in (mask.interval(row, keys) for row in range(problem.seqlen_q)))
    return 2 * problem.batch * problem.num_heads_q * visible * (problem.head_dim + problem.head_dim_v)


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
    if not values and not flags:
        raise ValueError(f"shape={shape!r} names no size: give some, as in sq=1024,skv=1024,causal.")
    try:
        batch, heads, seqlen_q, seqlen_kv = (int(values.get(name, 1)) for name in ("b", "hq", "sq", "skv"))
        head_dim = int(values.get("d", 128))
        window = int(values["window"]) if "window" in values else None
        softcap = float(values["softcap"]) if "softcap" in values else None
        heads_kv, head_dim_v = int(values.get("hkv", heads)), int(values.get("dv", head_dim))
    except ValueError as error:
        raise ValueError(f"shape={shape!r} has a size that is not a number: {error}.") from None
    for name, value in values.items():
        if name not in ("dtype", "softcap") and not 1 <= int(value) <= _LARGEST:
            raise ValueError(f"shape: {name}={value} is not a size: it is 1 or more, and at most {_LARGEST:,}.")
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
    if not (order.isascii() and order.isdigit() and len(order) < 10) or int(order) < 1:
        raise ValueError(f"order={order!r} is not known: it is program or a window of 1 to 999,999,999 instructions, e.g. 64.")
    return int(order)
