"""Agents of `nki_hf loop` for tests: scripts that answer, hang, die or write junk; no model."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from typer.testing import CliRunner

from nki_hf.cli import app
from nki_hf.tools.searching.guide import EXAMPLE
from nki_hf.tools.searching.run import Run

__all__ = ["KERNEL", "TASK", "agent", "extra_work", "looped"]

KERNEL = EXAMPLE.read_text()
TASK = ["--task", "softmax", "--check", "128", "--at", "128", "--chip", "trn2", "--seed", "5"]

_HEAD = """
import json, os, sys, time
request = json.load(sys.stdin)
number = request["round"]
KERNEL = {kernel!r}

def extra_work(count):
    line = "        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=0.0)\\n"
    mark = "        nisa.dma_copy(dst=out"
    return KERNEL.replace(mark, line * count + mark)

def say(source, note=""):
    print(note + "\\n```python\\n" + source.rstrip("\\n") + "\\n```")

"""


def extra_work(count: int) -> str:
    """The softmax of the guide with `count` instructions too many per tile: right, and slower the more there are."""
    line = "        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=0.0)\n"
    mark = "        nisa.dma_copy(dst=out"
    return KERNEL.replace(mark, line * count + mark)


def agent(folder: Path, body: str) -> str:
    """The command of an agent that runs `body` with `request`, `number`, `KERNEL`, `extra_work` and `say`."""
    path = folder / "agent.py"
    path.write_text(_HEAD.format(kernel=KERNEL) + body)
    return shlex.join([sys.executable, "-S", str(path)])


def looped(run, command, *words, code=0):
    """The rounds of a run after a session of `nki_hf loop`."""
    done = CliRunner().invoke(app, ["loop", "--run", str(run), "--agent", command, "--processes", "2", *TASK, *words])
    assert done.exit_code == code, (done.stdout, done.stderr)
    return Run(run).rounds()
