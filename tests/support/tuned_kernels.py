"""Kernels of `nki_hf tune` for tests, and the command."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from nki_hf.cli import app
from tests.support.search_agents import KERNEL

__all__ = ["SMALL", "TUNED", "tuned"]

TUNED = KERNEL.replace("def softmax(x):", "def softmax(x, extra=3, wrong=0):").replace(
    "        nisa.dma_copy(dst=out",
    "        for _ in range(extra):\n"
    "            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply if wrong else nl.add, operand0=0.0)\n"
    "        nisa.dma_copy(dst=out",
)
"""`extra` instructions too many per tile, which with `wrong` make zeros."""
SMALL = ["--task", "softmax", "--at", "256", "--chip", "trn2", "--processes", "1"]


def tuned(*words, code=0):
    """What `nki_hf tune` says of each case."""
    done = CliRunner().invoke(app, ["tune", *words, "--json"])
    assert done.exit_code == code, (done.stdout, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]
