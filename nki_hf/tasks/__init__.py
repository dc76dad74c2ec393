"""Tasks: what kernels are judged on. One file per family; each has a dict `TASKS`."""

from __future__ import annotations

from nki_hf.tasks.task import FLOAT, Task, load_task, task_names

__all__ = ["FLOAT", "Task", "load_task", "task_names"]
