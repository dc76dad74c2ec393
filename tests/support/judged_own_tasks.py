"""Tasks as users write them in files, with fields to replace: `SOFTMAX % "'reference': lambda x: x"`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nki_hf
from tests.support.judged_tasks import RIGHT

__all__ = ["SOFTMAX", "TWICE", "judged_by", "written"]

SOFTMAX = """
import os
import time

import numpy as np

from nki_hf.tasks import FLOAT, Task


def arrays(size):
    return {"x": ((size, 1024), FLOAT)}


def inputs(size, distribution, rng):
    return {"x": rng.standard_normal((size, 1024))}


def reference(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def changing(x):
    x -= x.max(-1, keepdims=True)
    return reference(x)


FIELDS = dict(
    name="own_softmax",
    about="softmax",
    arrays=arrays,
    inputs=inputs,
    reference=reference,
    flops=lambda size: 5 * size * 1024,
    check=(128, 256),
    at=(256,),
    dtype="float32",
)
TASK = Task(**{**FIELDS, %s})
"""
TWICE = """
import os
import sys
import time

from nki_hf.tasks import FLOAT, Task


def at(size, function):
    return lambda x: function() if len(x) == size else x * 2.0


def part(arrays, index):
    return arrays


FIELDS = dict(
    name="own",
    about="twice",
    arrays=lambda size: {"x": ((size, 8), FLOAT)},
    reference=lambda x: x * 2.0,
    flops=lambda size: 8 * size,
    check=(128, 256),
    at=(256,),
    dtype="float32",
)
TASK = Task(**{**FIELDS, %s})
"""


def written(folder: Path, task: str, kernel: str = RIGHT["softmax"]) -> tuple[Path, str]:
    """A kernel's file and a task's."""
    (folder / "task.py").write_text(task)
    (folder / "kernel.py").write_text(kernel)
    return folder / "kernel.py", str(folder / "task.py")


def judged_by(folder: Path, task: str, kernel: str = RIGHT["softmax"], **options: Any) -> dict[str, Any]:
    """The record of a kernel on a task of one's own."""
    return nki_hf.judge(*written(folder, task, kernel), **options)
