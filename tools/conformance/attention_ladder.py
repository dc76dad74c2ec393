"""Runs the attention ladder of aws-neuron/nki-samples (commit a2927a51) on the simulator, against float64 NumPy.

    python tools/conformance/attention_ladder.py FOLDER [--no-report]

FOLDER holds that commit's src/nki_samples/tutorials/attention_fwd_performance: attention_kernels.py and its utilities. With
test_attention.py beside them, the repository's own test runs too, as a program.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import runpy
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from nki_hf import sim
from tools.conformance.case import Case, Skipped, run_case
from tools.conformance.compare import Mismatch, compare
from tools.conformance.report import summary, update

_FULL, _HALF = ("v1", "v2", "v3", "v4", "v5", "v6"), ("v7", "v8", "v8a", "v10")
_TOLERANCE = {"v8a": 2e-2, "v7": 2e-2, "v8": 2e-2, "v10": 2e-2}
"""Of versions that round probabilities and V to bfloat16; the others keep float32."""


def cases(module: Any) -> list[Case]:
    """Each version at the lengths that it takes; v10 also on bfloat16 inputs."""
    found = []
    for version in (*_FULL, *_HALF):
        lengths = {"v1": (128,), "v2": (128,), "v10": (512, 1024, 4096)}.get(version, (512, 1024))
        for length in lengths:
            for dtype in (np.float32, ml_dtypes.bfloat16) if version == "v10" else (np.float32,):
                if length == 4096 and dtype is np.float32:
                    continue  # the repository's own test has this length in bfloat16 only
                option = f"{length} tokens, {np.dtype(dtype).name}"
                found.append(Case(f"attn_fwd_{version}", option, _runner(module, version, length, dtype)))
    return found


def own_test(path: Path) -> Case:
    """The repository's own test program, which counts the versions within its tolerance."""

    def run() -> str:
        with contextlib.redirect_stdout(io.StringIO()):
            names = runpy.run_path(str(path), run_name="__main__")
        if names["passed"] != names["total"]:
            raise Mismatch(f"{names['passed']} of {names['total']} versions")
        return f"{names['passed']} of {names['total']} versions within its tolerance"

    return Case(path.name, "unmodified", run)


def _runner(module: Any, version: str, length: int, dtype: Any) -> Any:
    def run() -> float:
        kernel = getattr(module, f"attn_fwd_{version}", None)
        if kernel is None:
            raise Skipped("this file does not have it")
        rng = np.random.default_rng(0)
        q, k, v = ((rng.standard_normal((128, length)) * 0.3).astype(dtype) for _ in range(3))
        a, b, c = (x.astype(np.float64) for x in (q, k, v))
        scores = a.T @ b
        power = np.exp(scores - scores.max(1, keepdims=True))
        want = power / power.sum(1, keepdims=True) @ c.T
        return compare(sim.simulate(kernel)(q, k, v), want, rtol=_TOLERANCE.get(version, 1e-4), atol=1e-6)

    return run


def main() -> int:
    """Run all; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--no-report", action="store_true")
    options = parser.parse_args()
    sys.path.insert(0, str(options.folder.resolve()))
    with sim.as_nki():
        module = importlib.import_module("attention_kernels")
        own = options.folder / "test_attention.py"
        chosen = cases(module) + ([own_test(own)] if own.exists() else [])
        outcomes = [run_case(case, 120.0) for case in chosen]
    print(summary(outcomes))
    if not options.no_report:
        update("attention-ladder", outcomes, "python tools/conformance/attention_ladder.py FOLDER")
    return int(any(outcome.verdict == "failed" for outcome in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
