"""The stages of a judgement by name."""

from __future__ import annotations

__all__ = ["SCHEMA_VERSION", "STAGES", "TASK_FAILS", "UNKNOWN_CONSTANT"]

SCHEMA_VERSION = 1
"""Of the record; raised when a field changes its meaning or goes. New fields may come without."""

STAGES = ("load", "run", "lint", "limits", "memory", "races", "values", "times")
"""In this order; the first that fails ends the judgement."""

UNKNOWN_CONSTANT = "unknown constant"
"""Kind of an error that is not the kernel's: a constant was named that it has not. No exception of a file is called so."""

TASK_FAILS = "task fails"
"""Kind of an error that is not the kernel's: the task's own function raised."""
