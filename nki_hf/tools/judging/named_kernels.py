"""Which file a kernel is: `FILE.py:NAME`, a rung of the ladder such as `v7`, or a kernel of ours such as `flash_const_max`."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from nki_hf.chips import CHIPS, get_chip
from nki_hf.errors import UnsupportedProblem
from nki_hf.kernels.binding import Binding
from nki_hf.kernels.registry import bindings
from nki_hf.tasks import Task, load_task
from nki_hf.tools.judging.ours import Packed
from nki_hf.tools.subjects import SUBJECTS

__all__ = ["Named", "located", "named"]


@dataclass(frozen=True, kw_only=True)
class Named:
    """A kernel as it is named: its file (with `:NAME`), its layout, what it is called, and a rung's own task (may be empty)."""

    path: str
    layout: str
    label: str
    task: str = ""


def named(text: str, task: str, layout: str = "") -> Named:
    """A file `FILE.py` or `FILE.py:NAME`, a rung of the ladder, or a kernel of ours.

    Raises:
      ValueError: it is none of these, or the task is not known.
    """
    found = load_task(task)
    ours = _ours(text, found, layout)
    if ours is not None:
        return ours
    file, separator, name = text.rpartition(":")
    path = file if separator and name.isidentifier() else text
    if not path.endswith(".py") or not Path(path).is_file():
        raise ValueError(f"kernel={text!r} is not a kernel: it is FILE.py, FILE.py:NAME or one of {_names()}.")
    return Named(path=text, layout=layout, label=Path(path).name + (f":{name}" if path != text else ""))


def located(text: str, task: str, layout: str = "") -> Named:
    """As `named`; what is no file, and modules that Python finds, are left to the kernel's process, which says what they lack.

    Raises:
      ValueError: it is nothing that could be a kernel.
    """
    ours = _ours(text, load_task(task), layout)
    if ours is not None:
        return ours
    if text and (".py" in text or "/" in text or os.path.lexists(text) or _importable(text.partition(":")[0])):
        return Named(path=text, layout=layout, label=text)
    return named(text, task, layout)


def _ours(text: str, task: Task, layout: str) -> Named | None:
    rung = SUBJECTS.get(text)
    if rung is not None:
        columns = rung.arguments(512)[0].shape[0] == 128
        laid = ",".join(f"{key}=ds" for key in ("q", "k", "v") if key in task.axes) if columns else layout
        return Named(path=f"{_origin(rung.module)}:{rung.function}", layout=laid, label=text, task=rung.task)
    own = next((item for item in bindings("forward") if item.name == text), None)
    if own is None:
        return None
    return Named(path=f"{_origin(own.module)}:{_entry(own, task)}", layout="", label=text)


def _names() -> str:
    return ", ".join([*SUBJECTS, *(item.name for item in bindings("forward"))])


def _importable(module: str) -> bool:
    with contextlib.suppress(ImportError, ValueError):  # a parent that is none; no name of a module
        return importlib.util.find_spec(module) is not None
    return False


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
