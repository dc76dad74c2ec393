"""Runs the reference solutions of Autocomp's Trainium tasks in the current language, each by the test of its harness.

python tools/conformance/autocomp.py CHECKOUT [--task NAME ...] [--seconds S] [--no-report]

A harness (harnesses/, groups *-nki2 and trn-internal) holds the task's first kernel and a test that compares a solution with
it, or with NumPy; the solution (sols/, the same group) is pasted where the harness says, as its own runner does. `torch_xla` is
a stand-in whose device is the CPU. The chip is the one that the harness names, else trn2. With --task only the rows of those
tasks are replaced.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import re
import resource
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from nki_hf import sim
from nki_hf.chips import get_chip
from tools.conformance.case import Case, run_case
from tools.conformance.compare import Mismatch
from tools.conformance.report import summary, update

_GROUPS = ("*-nki2", "trn-internal")
_PLACE = "# SUBSTITUTE HERE"
_CHIP = re.compile(r'NEURON_PLATFORM_TARGET_OVERRIDE"\] = "(\w+)"')
_CALL = re.compile(r"= test_nki\((\w+), (\w+)\)")
_MEMORY_BYTES = 8 << 30


def cases(checkout: Path) -> list[Case]:
    """One case for each harness of the current language."""
    found = []
    for harness in [path for group in _GROUPS for path in sorted((checkout / "harnesses").glob(f"{group}/*.py"))]:
        stem = harness.stem.removesuffix("_test")
        solution = checkout / "sols" / harness.parent.name / f"{stem}_ref.py"
        found.append(Case(stem, harness.parent.name, _runner(harness, solution)))
    return found


def _runner(harness: Path, solution: Path) -> Any:
    def run() -> str:
        text = harness.read_text()
        if text.count(_PLACE) != 1:
            raise ValueError(f"{harness.name} has {text.count(_PLACE)} places for a solution, not one.")
        chip = (_CHIP.search(text) or ["", "trn2"])[1]
        options = sim.SimOptions(chip=get_chip(chip), third_party=True, events=False)
        importlib.import_module("torch")  # before the patch, which takes out what was imported in it
        np.random.seed(0)  # noqa: NPY002  (the tests draw from the global state)
        with tempfile.TemporaryDirectory() as folder, sim.as_nki(options), mock.patch.dict(sys.modules, _torch_xla()):
            path = Path(folder) / harness.name
            path.write_text(text.replace(_PLACE, solution.read_text()))
            names: dict[str, Any] = {"__name__": harness.stem, "__file__": str(path)}
            exec(compile(path.read_text(), str(path), "exec"), names)
            first, second = (names[name] for name in _CALL.findall(text)[-1])
            if names["test_nki"](first, second) is not True:
                raise Mismatch("the harness says that the solution is wrong")
        return f"its harness's test, on {chip}"

    return run


def _torch_xla() -> dict[str, ModuleType]:
    modules = {name: ModuleType(name) for name in ("torch_xla", "torch_xla.core", "torch_xla.core.xla_model")}
    model = SimpleNamespace(xla_device=lambda: "cpu", mark_step=lambda: None)
    modules["torch_xla.core"].xla_model = model  # type: ignore[attr-defined]
    modules["torch_xla.core.xla_model"].xla_device = model.xla_device  # type: ignore[attr-defined]
    return modules


def main() -> int:
    """Run the tasks; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--task", action="append", help="e.g. 3_rope; default: all")
    parser.add_argument("--seconds", type=float, default=120.0, help="most CPU time of one task")
    parser.add_argument("--no-report", action="store_true", help="leave docs/conformance.md as it is")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    every = cases(options.checkout.resolve())
    outcomes = [run_case(case, options.seconds) for case in every if not options.task or case.kernel in options.task]
    print(summary(outcomes))
    if not options.no_report:
        command = f"python tools/conformance/autocomp.py CHECKOUT --seconds {options.seconds:.0f}"
        update("autocomp", outcomes, command, order=[case.kernel for case in every] if options.task else ())
    return int(any(outcome.verdict == "failed" for outcome in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
