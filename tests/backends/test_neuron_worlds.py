"""The hardware path against the contract fakes: each world in a process of its own, as real worlds need a venv each.

The tests are in tests/fakes/suites/; one child pytest runs each suite, and each of its tests is reported here.
"""

import ast
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).parents[2]
FAKES = ROOT / "tests" / "fakes"
WORLDS = {
    "native": sorted(FAKES.glob("suites/native_*.py")),
    "xla": sorted(FAKES.glob("suites/xla_*.py")),
    "placeholder": [FAKES / "suites/broken_installations.py"],
    "container": [FAKES / "suites/broken_installations.py"],
    "no_path": [FAKES / "suites/broken_installations.py"],
    "native trn2": [FAKES / "suites/chips.py"],
    "native trn3": [FAKES / "suites/chips.py"],
    "xla trn1": [FAKES / "suites/chips.py"],
    "xla trn2": [FAKES / "suites/chips.py"],
}
"""World, with the chip where the suite is about chips -> suites."""
READ_BY_NEURON = ("NEURON_", "NKI_", "TORCH_NEURONX_", "FAKE_", "PYTEST_")
SLOW = ("native_bench_cases", "native_bisect", "native_buckets", "native_gemma", "native_masks_graphs", "xla_bisect")
"""Suites that mostly wait for models to be traced."""

CASES = [
    pytest.param(world, suite.stem, node.name, marks=[pytest.mark.slow] if suite.stem in SLOW else [])
    for world, suites in WORLDS.items()
    for suite in suites
    for node in ast.parse(suite.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
]


@pytest.mark.parametrize(("world", "suite", "name"), CASES, ids=lambda value: value)
def test_in_world(world, suite, name, world_results):
    results = world_results(world, suite)
    assert "error" not in results, results.get("error")
    cases = results[name]
    assert cases
    assert [text for text in cases if text] == [], "\n".join(cases)


@pytest.fixture(scope="session")
def world_results(tmp_path_factory):
    """(world, suite) -> test -> one text per case, empty if it passed. A suite runs once, whatever the number of workers."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    known = {}

    def results(world, suite):
        if (world, suite) not in known:
            kept = shared / f"{world}_{suite}.json"
            with FileLock(f"{kept}.lock"):
                if not kept.exists():
                    kept.write_text(json.dumps(_run(world, suite, kept.with_suffix(".xml"))))
            known[world, suite] = json.loads(kept.read_text())
        return known[world, suite]

    return results


def _run(world, suite, report):
    world, _, chip = world.partition(" ")
    path = [str(ROOT), str(FAKES / world)]
    if world != "placeholder":  # an empty nki must not find the fake one
        path.append(str(FAKES / "common"))
    environ = {name: value for name, value in os.environ.items() if not name.startswith(READ_BY_NEURON)}
    environ |= {"PYTHONPATH": os.pathsep.join(path), "FAKE_NEURON_WORLD": world, "OMP_NUM_THREADS": "1"}
    environ |= {"FAKE_NEURON_CHIP": chip} if chip else {}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--junitxml={report}"]
    command.append(str(FAKES / "suites" / f"{suite}.py"))
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=280)
    if not report.exists() or done.returncode not in (0, 1):
        return {"error": done.stdout[-4000:] + done.stderr[-4000:]}
    results = {}
    for case in ElementTree.parse(report).iter("testcase"):
        failed = [found.text or found.get("message") for found in case if found.tag in ("failure", "error", "skipped")]
        results.setdefault(case.get("name").split("[")[0], []).append("\n".join(failed))
    return results
