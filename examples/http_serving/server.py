"""A server for the length of a block, and what it says of its attention calls at the end."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import nki_hf
from http_serving.process import MARK
from nki_hf.adapters.hub_kernel import VARIABLE

__all__ = ["Server", "ours", "running"]

BLOCK, BLOCKS, BATCH_TOKENS = 64, 128, 512
"""The server's cache, 8,192 tokens, and tokens of a step."""
_PROCESS = Path(__file__).with_name("process.py")
_PATIENCE = 180
"""Seconds in which a server has to answer."""


@dataclass
class Server:
    """A server that runs.

    Attributes:
      address: where, `http://127.0.0.1:PORT`.
      model: the folder that it serves.
      process: what runs it.
      attention: after the block: `calls`, `fallbacks`, `kernels` (calls of each) and `text`.
    """

    address: str
    model: Path
    process: subprocess.Popen[bytes]
    attention: dict[str, Any]

    def pause(self, seconds: float) -> None:
        """Let the server take no request out of its queue for so long, beginning with its next step."""
        self.process.stdin.write(f"pause {seconds}\n".encode())
        self.process.stdin.flush()


def ours(name: str) -> bool:
    """True if an implementation may run kernels of this package: "nki", or a name that the loader resolves."""
    return name == "nki" or "/" in name


@contextmanager
def running(name: str, model: Path, *, queue: int = 0) -> Iterator[Server]:
    """A server of one implementation, which ends with the block, or with this process.

    Args:
      name: the attention implementation.
      model: folder of the model and its tokenizer.
      queue: requests that may wait to be taken into the batch, 0 = any number. The next then waits for 10 s, and is refused.

    Raises:
      RuntimeError, TimeoutError: the server ended, gave no report, or does not answer. Whatever leaves the block has the end of
        the server's log as a note.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {
        "force_model": str(model),
        "continuous_batching": True,
        "attn_implementation": name,
        "device": "cpu",
        "dtype": "float32",
        "host": "127.0.0.1",
        "port": port,
        "cb_block_size": BLOCK,
        "cb_num_blocks": BLOCKS,
        "cb_max_batch_tokens": BATCH_TOKENS,
        "queue": queue,
    }
    with tempfile.TemporaryFile() as log:
        # A session of its own, since a terminal's ctrl-C reaches every process of ours: this one decides when the server ends.
        process = subprocess.Popen(
            [sys.executable, str(_PROCESS), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_environ(name),
            start_new_session=True,
        )
        server = Server(address=f"http://127.0.0.1:{port}", model=model, process=process, attention={})
        try:
            try:
                _await(server.address, process)
                yield server
            finally:
                _end(process)
            server.attention.update(_report(log))
        except Exception as error:
            error.add_note(_text(log)[-3000:])
            raise


def _environ(name: str) -> dict[str, str]:
    paths = (os.environ.get("PYTHONPATH"), str(Path(nki_hf.__file__).parents[1]))
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    if not ours(name):
        # With an entry for FlashAttention's name, Transformers would switch sdpa and eager to it, which may be ours.
        environ.pop(VARIABLE, None)
    return environ


def _await(address: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with code {process.returncode}.")
        with suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=2):
            return
        time.sleep(0.2)
    raise TimeoutError(f"the server did not answer within {_PATIENCE} s.")


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):  # it may have ended by itself
        process.stdin.close()
    try:
        process.wait(60)
    except BaseException:  # an interrupt too
        process.kill()
        process.wait()


def _text(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read().decode(errors="replace")


def _report(log: IO[bytes]) -> dict[str, Any]:
    lines = [line for line in _text(log).splitlines() if line.startswith(MARK)]
    if not lines:
        raise RuntimeError("the server ended without a report of its attention calls.")
    return json.loads(lines[-1].removeprefix(MARK))
