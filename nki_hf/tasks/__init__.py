"""Tasks: what kernels are judged on. One file per family; each has a dict `TASKS`."""

from __future__ import annotations

from nki_hf.tasks.task import Task, load_task, task_names
from nki_hf.tasks.task_fields import FLOAT, RUN_DTYPES

__all__ = ["FLOAT", "RUN_DTYPES", "Task", "load_task", "task_names"]
