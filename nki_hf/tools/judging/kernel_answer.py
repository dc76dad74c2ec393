"""What a kernel's own process answers, as far as it can be trusted: its file may have changed the code that wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["complete"]


def complete(answer: Mapping[str, Any]) -> bool:
    """True if a kernel's process wrote what `child.answer` gives: a file may have changed json, or the process's own code."""
    error = answer.get("error", False)
    if error is not None:
        texts = ("kind", "message", "limit", "advice", "file")
        if not isinstance(error, dict) or not all(isinstance(error.get(key), str) for key in texts):
            return False
        if not isinstance(error.get("line"), int) or not isinstance(error.get("fault"), bool):
            return False
    kinds = {"stage": str, "name": str, "traces": list}
    return all(isinstance(answer.get(key), kind) for key, kind in kinds.items())
