"""A user's task is tried before a kernel is judged by it: what is wrong with the task is said at once, and as its own fault."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nki_hf.tasks import RUN_DTYPES
from nki_hf.tools.judging import client
from nki_hf.tools.judging.request import GIB

__all__ = ["try_task"]

_SECONDS, _MEMORY = 60.0, 8 * GIB
"""Of the process, for commands that have no such limits of their own."""
_MOST = 256
_fine: set[Any] = set()
"""What was tried in this process and is fine, by the file's text: a search judges many kernels by one task.

A module that the file imports may change meanwhile; the judge's own processes still name what then hangs or raises.
"""


def try_task(
    task: str,
    check: Sequence[int] = (),
    at: Sequence[int] = (),
    dtype: str = "",
    seconds: float | None = None,
    memory: int | None = None,
) -> None:
    """Load a user's task in a process of its own, and run each of its functions once (see task_trial.py).

    Args:
      task: as for `load_task`; those of the package are tested.
      check, at: sizes that are judged and timed; empty = the task's.
      dtype: element type of the run; empty = the task's.
      seconds, memory: of that process; None = what `judge` allows one.

    Raises:
      ValueError: what is wrong with it.
    """
    name, dot, wanted = task.partition(".py")
    file = Path(name + dot)
    if not dot or not file.is_file():  # `load_task` says so
        return
    path = file.resolve()
    key = (path, wanted, tuple(check), tuple(at), dtype, hashlib.sha256(path.read_bytes()).digest())
    if key in _fine:
        return
    request = {
        "task": f"{path}{wanted}",
        "check": list(check),
        "at": list(at),
        "dtype": dtype if dtype in RUN_DTYPES else "",
    }
    try:
        said = client.ask({"trial": request, "seconds": seconds or _SECONDS, "memory": memory or _MEMORY})["said"]
    except EOFError as error:
        raise ValueError(f"task={task}: its file ended the judge's server: {error}.") from None
    if said:
        raise ValueError(str(said))
    if len(_fine) >= _MOST:
        _fine.clear()
    _fine.add(key)
