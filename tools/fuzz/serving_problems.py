"""Random requests to continuous batching, each against the same request alone in Transformers' eager attention.

The requests of a case run in a process of their own, which is kept for the next case: there the package `kernels`, by whose
name Transformers finds ours, is the stand-in of tests/fakes unless one is installed that this Transformers takes.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["MODELS", "check_serving", "draw_serving", "simpler_servings", "unusable"]

Case = dict[str, Any]
MODELS = ("full", "few heads", "windows", "windows and full", "windows of all")
_ROOT = Path(__file__).parents[2]
_STAND_IN = _ROOT / "tests" / "fakes" / "kernels_loader"
_TAKES = ((5, 23), (5, 24))
"""Transformers that ask for the stand-in's version."""
_worker: subprocess.Popen[str] | None = None


def _installed() -> bool:
    """True if a distribution of that name is there; any folder `kernels` on the path could be imported."""
    return any(True for _ in importlib.metadata.distributions(name="kernels"))


def unusable() -> str:
    """Why no requests can be served here; empty = they can."""
    version = importlib.metadata.version("transformers")
    if not _installed() and tuple(map(int, version.split(".")[:2])) not in _TAKES:
        return f"no kernels package is installed, and the stand-in's is not what transformers {version} asks for"
    return ""


def draw_serving(seed: int) -> Case | None:
    """Requests of that seed; None where none can be served.

    `requests`: of each the tokens that it shares with the first, its own tokens, new tokens, and whether it is cancelled. Some
    are longer than the cache: those must be refused, and the others go on.
    """
    if unusable():
        return None
    rng = np.random.default_rng([seed, 10])
    page = int(rng.choice([8, 16, 32]))
    blocks = int(rng.choice([8, 16, 24]))
    requests = []
    for _ in range(int(rng.integers(1, 8))):
        own = int(rng.choice([1, 2, int(rng.integers(1, 40)), int(rng.integers(1, page * blocks))]))
        shared = int(rng.choice([0, 0, page, 2 * page + 3]))
        new = int(rng.choice([1, 3, 6, 12]))
        requests.append([shared, own, new, bool(rng.random() < 0.1)])
    if rng.random() < 0.3:
        requests.insert(int(rng.integers(len(requests) + 1)), [0, page * blocks + 1, 3, False])
    return {
        "seed": seed,
        "model": str(rng.choice(MODELS)),
        "page": page,
        "blocks": blocks,
        "batch_tokens": int(rng.choice([8, 32, 64])),
        "sharing": bool(rng.integers(2)),
        "scheduler": str(rng.choice(["fifo", "prefill_first"])),
        "requests": requests,
    }


def simpler_servings(case: Case) -> list[Case]:
    """The case without one of its requests, or without sharing."""
    requests = case["requests"]
    found = [{**case, "requests": requests[:n] + requests[n + 1 :]} for n in range(len(requests)) if len(requests) > 1]
    return found + ([{**case, "sharing": False}] if case["sharing"] else [])


def check_serving(case: Case) -> str:
    """What is wrong with the answers to a case; empty = nothing."""
    global _worker
    if _worker is None or _worker.poll() is not None:
        paths = [str(_ROOT)] if _installed() else [str(_STAND_IN), str(_ROOT)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
        words = [sys.executable, "-m", "tools.fuzz.serving_worker"]
        _worker = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=_ROOT)
        atexit.register(_ended, _worker)
    try:
        _worker.stdin.write(json.dumps(case) + "\n")  # type: ignore[union-attr]
        _worker.stdin.flush()  # type: ignore[union-attr]
        line = _worker.stdout.readline()  # type: ignore[union-attr]
    except BaseException:  # an interrupt too: the next case must not get the answer to this one
        _ended(_worker)
        raise
    return str(json.loads(line)) if line else f"the process of the requests ended with {_worker.wait(10)}"


def _ended(worker: subprocess.Popen[str]) -> None:
    worker.kill()
    worker.wait()
