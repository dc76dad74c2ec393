"""What a round of the judge is asked for, from the flags that the verbs of the search share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nki_hf.chips import get_chip
from nki_hf.settings import settings
from nki_hf.tools.cores import check_cores
from nki_hf.tools.judging.request import GIB
from nki_hf.tools.judging.tried_task import try_task
from nki_hf.tools.modelled import window_of
from nki_hf.tools.option_values import constant_of, sizes_of

__all__ = ["judge_options", "round_limit", "try_with"]


def judge_options(
    *, layout: str = "", check: str = "", at: str = "", chip: str = "", lnc: int = 1, dtype: str = "",
    const: Sequence[str] = (), rtol: float = 0.0, timeout: float = 60.0, memory: float = 8.0, order: str = "64", seed: int = -1,
) -> dict[str, Any]:  # fmt: skip
    """Keyword arguments of `nki_hf.judge`, plain data.

    Raises:
      ValueError: a flag cannot be read; what a value means for the task is found out by the judge.
    """
    chips = [get_chip(name).name for name in chip.split(",") if name] or [settings().chip]
    check_cores(lnc, chips)
    if not 0 < timeout <= 3600:
        raise ValueError(f"timeout={timeout} is no time: it is above 0 and at most 3,600 s.")
    return {
        "layout": layout,
        "check": sizes_of(check, "check"),
        "at": sizes_of(at, "at"),
        "chip": chips,
        "lnc": lnc,
        "dtype": dtype,
        "constants": dict(constant_of(text) for text in const),
        "rtol": rtol,
        "timeout": timeout,
        "memory_gib": memory,
        "window": window_of(order),
        "seed": None if seed == -1 else seed,
    }


def try_with(task: str, options: dict[str, Any]) -> None:
    """Try a user's task as these rounds are judged by it, before anything here loads it.

    Raises:
      ValueError: what is wrong with it.
    """
    memory = int(options["memory_gib"] * GIB)
    try_task(task, options["check"], options["at"], options["dtype"], options["timeout"], memory)


def round_limit(options: dict[str, Any]) -> float:
    """Seconds from which a judgement has hung: both of its processes at their limits, and what starts them."""
    return 2 * float(options["timeout"]) + 60
