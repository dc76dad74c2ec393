"""Runs the attention ladder of aws-neuron/nki-samples (commit a2927a51) on the simulator, against float64 NumPy.

    python tools/conformance/attention_ladder.py FOLDER [--no-report]

FOLDER holds that commit's src/nki_samples/tutorials/attention_fwd_performance: attention_kernels.py and its utilities.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from nki_hf import sim
from tools.conformance.case import Case, Skipped, run_case
from tools.conformance.compare import compare
from tools.conformance.report import summary, update

_FULL, _HALF = ("v1", "v2", "v3", "v4", "v5", "v6"), ("v7", "v8", "v8a", "v10")
_TOLERANCE = {"v8a": 2e-2, "v7": 2e-2, "v8": 2e-2, "v10": 2e-2}
"""Of versions that round probabilities and V to bfloat16; the others keep float32."""


def cases(module: Any) -> list[Case]:
    """Each version at the lengths that it takes; v10 also on bfloat16 inputs."""
    found = []
    for version in (*_FULL, *_HALF):
        for length in (128,) if version in ("v1", "v2") else (512, 1024):
            for dtype in (np.float32, ml_dtypes.bfloat16) if version == "v10" else (np.float32,):
                option = f"{length} tokens, {np.dtype(dtype).name}"
                found.append(Case(f"attn_fwd_{version}", option, _runner(module, version, length, dtype)))
    return found


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
        outcomes = [run_case(case, 60.0) for case in cases(module)]
    print(summary(outcomes))
    if not options.no_report:
        update("attention-ladder", outcomes, "python tools/conformance/attention_ladder.py FOLDER")
    return int(any(outcome.verdict == "failed" for outcome in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
