"""The process of a server: `python -m nki_hf.serve` until standard input ends; then a report of its attention calls.

Standard input is a pipe that only the parent holds. It ends when the parent closes it, and also when the parent is gone,
however it went (`kill -9` among the ways): no server outlives who started it. A line `pause SECONDS` keeps the server from
taking requests out of its queue for that long.
"""

import json
import os
import sys
import threading
import time
from typing import Any

MARK = "ATTENTION "
"""Begins the report's line, which is JSON: calls, fallbacks, calls of each kernel, and the table as text."""


def main() -> None:
    """Serve with the options of `transformers serve` and `queue`, in JSON as the first argument, until standard input ends."""
    found: list[Any] = []
    threading.Thread(target=_obey, args=(found,), daemon=True).start()
    from nki_hf.serve import server_class

    options = json.loads(sys.argv[1])
    queue = options.pop("queue")

    class Watched(server_class()):
        def start_server(self) -> None:
            # No option of the command sets it; the queue is made with the first request.
            self._generation_state._cb_config.max_queue_size = queue
            found.append(self)
            super().start_server()

    Watched(**options, non_blocking=True)
    os._exit(1)  # the address was taken


def _obey(found: list[Any]) -> None:
    """Read what the parent says, and end the process with it; `found` holds the server, once there is one."""
    try:
        for line in sys.stdin.buffer:
            threading.Thread(target=_pause, args=(found[0], float(line.split()[1])), daemon=True).start()
        if found:
            _report()
    finally:
        os._exit(0)  # requests that are under way, and Transformers' own threads, would keep the process


def _pause(server: Any, seconds: float) -> None:
    with server._generation_state._cb_manager._cb.pause():
        time.sleep(seconds)


def _report() -> None:
    import nki_hf

    report = nki_hf.explain()
    kernels: dict[str, int] = {}
    for row in report.rows:
        kernels[row.first.kernel] = kernels.get(row.first.kernel, 0) + row.calls
    said = {"calls": report.calls, "fallbacks": report.fallbacks, "kernels": kernels, "text": str(report)}
    print(f"\n{MARK}{json.dumps(said)}", flush=True)


if __name__ == "__main__":
    main()
