"""What a round of the judge is asked for, from the flags that the verbs of the search share."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nki_hf.chips import CHIPS, get_chip
from nki_hf.errors import UnsupportedProblem
from nki_hf.kernels.binding import Binding
from nki_hf.kernels.registry import bindings
from nki_hf.settings import settings
from nki_hf.tasks import Task, load_task
from nki_hf.tools.cores import check_cores
from nki_hf.tools.judging.ours import Packed
from nki_hf.tools.modelled import window_of
from nki_hf.tools.option_values import constant_of, sizes_of
from nki_hf.tools.subjects import SUBJECTS

__all__ = ["Named", "judge_options", "named", "round_limit"]


@dataclass(frozen=True, kw_only=True)
class Named:
    """A kernel as a command names it: its file (with `:NAME`), its layout, and what it is called."""

    path: str
    layout: str
    label: str


def named(text: str, task: str, layout: str = "") -> Named:
    """A file `FILE.py` or `FILE.py:NAME`, a rung of the ladder such as `v7`, or a kernel of ours such as `flash_const_max`.

    Raises:
      ValueError: it is none of these, or the task is not known.
    """
    found = load_task(task)
    rung = SUBJECTS.get(text)
    if rung is not None:
        columns = rung.arguments(512)[0].shape[0] == 128
        laid = ",".join(f"{key}=ds" for key in ("q", "k", "v") if key in found.axes) if columns else layout
        return Named(path=f"{_origin(rung.module)}:{rung.function}", layout=laid, label=text)
    own = next((item for item in bindings("forward") if item.name == text), None)
    if own is not None:
        return Named(path=f"{_origin(own.module)}:{_entry(own, found)}", layout="", label=text)
    file, separator, name = text.rpartition(":")
    path = file if separator and name.isidentifier() else text
    if not path.endswith(".py") or not Path(path).is_file():
        ours = ", ".join([*SUBJECTS, *(item.name for item in bindings("forward"))])
        raise ValueError(f"kernel={text!r} is not a kernel: it is FILE.py, FILE.py:NAME or one of {ours}.")
    return Named(path=text, layout=layout, label=Path(path).name + (f":{name}" if path != text else ""))


def _entry(own: Binding, task: Task) -> str:
    """The entry of a kernel of ours that its plan runs for the task, on the first chip that takes it."""
    if {"q", "k", "v"} == set(task.arrays(task.check[0])):
        for chip in CHIPS:
            with contextlib.suppress(UnsupportedProblem):
                return Packed(own, task, get_chip(chip), 1).plan(task.check[0], task.dtype).entry or own.name
    return own.name


def _origin(module: str) -> str:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"{module} is not here.")
    return spec.origin


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


def round_limit(options: dict[str, Any]) -> float:
    """Seconds from which a judgement has hung: both of its processes at their limits, and what starts them."""
    return 2 * float(options["timeout"]) + 60
