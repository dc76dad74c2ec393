"""Runs one test of Transformers' suites on many random draws, without nki_hf and under "nki".

    NKI_HF_BACKEND=torch_reference python tools/hf_suite/draws.py FOLDER \
        tests/models/bert/test_modeling_bert.py::BertModelTest::test_sdpa_padding_matches_padding_free_with_position_ids

Weights and inputs of most tests are random, so one that compares numbers may fail once in a while anyway. This tells how often
it fails either way, and how near to what `torch.testing.assert_close` allows the largest difference of a draw comes.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import statistics
import sys
import unittest
from pathlib import Path
from typing import Any

import swap


def main() -> int:
    """Print a row for each way to run; 2 if there is no such test."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what prepare.py made")
    parser.add_argument("test", help="path::class::name, the path from the folder")
    parser.add_argument("--draws", type=int, default=100)
    options = parser.parse_args()
    path, _, name = options.test.partition("::")
    if not (options.folder / path).is_file() or name.count("::") != 1:
        print(f"draws.py: {options.test} is not path::class::name of a test in {options.folder}.", file=sys.stderr)
        return 2
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.chdir(options.folder)
    sys.path[:0] = [str(Path.cwd()), str(Path.cwd() / "utils"), str(Path(__file__).parents[2])]
    swap.add_tester_defaults(Path("checkout_testing_utils.py"))
    owner = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name.partition("::")[0])
    print("| run | draws | failures | largest difference / allowed: median | worst |\n|---|---|---|---|---|")
    for way in ("without nki_hf", "nki"):
        if way == "nki":
            swap.swap_by_name()
        failures, ratios = draw(owner, name.partition("::")[2], options.draws)
        spread = f"{statistics.median(ratios):.2f} | {max(ratios):.2f}" if ratios else "- | -"
        print(f"| {way} | {options.draws} | {failures} | {spread} |", flush=True)
    return 0


def draw(owner: Any, name: str, draws: int) -> tuple[int, list[float]]:
    """How many of the draws fail, and the largest difference over what is allowed of each comparison."""
    import numpy as np
    import torch

    from tests import test_modeling_common

    ratios: list[float] = []
    close = torch.testing.assert_close

    def measured(actual: Any, expected: Any, **options: Any) -> None:
        if "atol" in options and torch.is_tensor(actual):
            allowed = options["atol"] + options["rtol"] * expected.double().abs()
            ratios.append(float(((actual.double() - expected.double()).abs() / allowed).max()))
        close(actual, expected, **options)

    failures = 0
    torch.testing.assert_close = measured
    try:
        for seed in range(draws):
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002  (the tests draw from the global state)
            test_modeling_common.global_rng.seed(seed)
            result = unittest.TestResult()
            owner(name).run(result)
            failures += not result.wasSuccessful()
    finally:
        torch.testing.assert_close = close
    return failures, ratios


if __name__ == "__main__":
    sys.exit(main())
