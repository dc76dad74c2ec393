"""Seconds of a round of `nki_hf judge` and of `nki_hf verify`, on the wall's clock: python tools/round_speed.py [--times 5].

A round judges values at 512 keys and times 4,096 on one chip, by a server that runs. The kernels are rungs of the ladder, ours,
and an online softmax in blocks of 128 keys, whose 13,538 instructions are the most. Warm `verify`: the reference of these
inputs is kept, as it is after the first run. Cold: nothing is kept but Python's bytecode, as in every run here, in a folder
that is removed. Other processes slow all of it down: the load is printed before and after.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

import nki_hf
from nki_hf.tools.program import finished
from tests.support.judged_kernels import RIGHT

_ROOT = Path(__file__).parent.parent
_SIZES = ("--check", "512", "--at", "4096", "--chip", "trn2")
_FLASH = "nki_hf/kernels/flash_prefill/kernel.py:flash_prefill"


def _seconds(work: Callable[[], bool], times: int) -> list[float]:
    """Of some runs that must pass, after one that is not counted."""
    found = []
    for _ in range(times + 1):
        begin = time.perf_counter()
        if not work():
            raise RuntimeError("a run did not pass.")
        found.append(time.perf_counter() - begin)
    return sorted(found[1:])


def _shell(bytecode: str, *words: str, **more: str) -> Callable[[], bool]:
    command = [sys.executable, "-m", "nki_hf", *words]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPYCACHEPREFIX": bytecode, **more}
    return lambda: subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, check=False).returncode == 0


def _cold(bytecode: str, *words: str) -> Callable[[], bool]:
    """The same with a new folder for what is kept at each run."""

    def run() -> bool:
        with tempfile.TemporaryDirectory() as kept:
            return _shell(bytecode, *words, XDG_CACHE_HOME=kept)()

    return run


def _round(kernel: str, task: str, layout: str) -> Callable[[], bool]:
    return lambda: bool(nki_hf.judge(kernel, task, layout=layout, check=(512,), at=(4096,), chip=("trn2",))["passed"])


def main(words: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5, help="runs of each")
    times = parser.parse_args(words).times
    table = Table("what", "where", "least s", "median s")
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        blocks = Path(folder) / "blocks.py"
        blocks.write_text(RIGHT.replace("for j in range(i + 1):", "for j in range(tiles):").replace("if j == i:", "if False:"))
        kernels = {
            "online softmax, blocks of 128 keys": (str(blocks), "attention", "q=ds,k=ds"),
            "flash_prefill": ("flash_prefill", "attention_causal", ""),
            "v7": ("v7", "attention_unscaled", ""),
            "v11": ("v11", "attention_unscaled", ""),
        }
        for name, (kernel, task, layout) in kernels.items():
            asked = ("judge", kernel, "--task", task, *_SIZES, *(("--layout", layout) if layout else ()))
            for where, work in (("in process", _round(kernel, task, layout)), ("shell", _shell(folder, *asked))):
                found = _seconds(work, times)
                table.add_row(f"judge {name}", where, f"{found[0]:.2f}", f"{statistics.median(found):.2f}")
        asked = ("verify", _FLASH, "--shape", "sq=4096")
        for words, work in (("warm", _shell(folder, *asked)), ("cold", _cold(folder, *asked))):
            found = _seconds(work, times)
            table.add_row(f"verify, 4,096 keys, {words}", "shell", f"{found[0]:.2f}", f"{statistics.median(found):.2f}")
    console = Console(width=120)
    console.print(table)
    console.print(f"load {before:.1f} before, {os.getloadavg()[0]:.1f} after; {os.cpu_count()} processors")


if __name__ == "__main__":
    raise SystemExit(finished(main))
