"""The error band that goes with a printed time: how far the model was off on measured rows of the same family and chip."""

from __future__ import annotations

from nki_hf.chips.measurements import error_band
from nki_hf.tasks import Task

__all__ = ["band_of", "family_of", "task_band"]


def family_of(kernel: str) -> str:
    """The family of one of our kernels or subjects; a backward has no measured rows and is a family of its own."""
    if "decode" in kernel:
        return "decode attention"
    if "backward" in kernel:
        return "attention backward"
    return "matmul" if kernel.startswith(("matmul", "gemm")) else "attention"


def band_of(kernel: str, chip: str) -> str:
    """E.g. `error on measured rows: attention, trn2: -14 .. +10 % (3 measured rows)`."""
    return f"error on measured rows: {error_band(family_of(kernel), chip)}"


def task_band(task: Task, chip: str) -> str:
    """The same for a kernel that anybody wrote on a task: rows of its family were measured on other kernels."""
    return f"error on measured rows: {error_band(task.family or task.name, chip)}"
