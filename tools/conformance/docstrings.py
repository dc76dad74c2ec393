"""Runs the examples in the docstrings of the public API stubs on the simulator.

python tools/conformance/docstrings.py CHECKOUT_OF_AWS_NEURON_SDK [--no-report]
"""

from __future__ import annotations

import argparse
import ast
import builtins
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from nki_hf import sim
from nki_hf.chips import get_chip
from tools.conformance.case import Case, Skipped, run_case
from tools.conformance.compare import compare
from tools.conformance.docstring_kernels import KERNELS
from tools.conformance.examples import Example, examples_of
from tools.conformance.report import summary, update

_RNG = np.random.default_rng(0)
_X = _RNG.standard_normal((128, 512)).astype(np.float32)
_INDICES = _RNG.integers(0, 512, (128, 512)).astype(np.uint32)


def _inputs() -> dict[str, Any]:
    """Arrays for the names that examples leave open."""
    return {
        "input_tensor": _X,
        "out_tensor": np.zeros_like(_X),
        "expected_tensor": np.eye(128, dtype=np.float32),
        "actual_tensor": np.zeros_like(_X),
        "data_tensor": _X,
        "indices_tensor": _INDICES,
        "x_tensor": _X[:, :128].copy(),
        "y_tensor": _X[:, 128:256].copy(),
        "ub_input": np.array([[3]], np.int32),
        "count_input": np.array([[4]], np.int32),
        "data": _X[:1, :8].copy(),
        "output": np.zeros((1, 8), np.float32),
    }


def _square(arrays: dict[str, Any]) -> float:
    return compare(arrays["out_tensor"], _X.astype(np.float64) ** 2, rtol=1e-6, atol=1e-6)


def _gathered(arrays: dict[str, Any]) -> float:
    return compare(arrays["actual_tensor"], np.take_along_axis(_X, _INDICES.astype(np.int64), 1), rtol=0, atol=0)


def _first_three(arrays: dict[str, Any]) -> float:
    return compare(arrays["output"], np.where(np.arange(8) < 3, _X[:1, :8], 0), rtol=0, atol=0)


def _identity(arrays: dict[str, Any]) -> float:
    return compare(arrays["actual_tensor"][:, :128], np.eye(128), rtol=0, atol=0)


HOST_CHECKS: dict[str, Callable[[dict[str, Any]], float]] = {
    "affine_range": _square,
    "sequential_range": _square,
    "static_range": _square,
    "dynamic_range": _square,
    "VirtualRegister": _square,
    "gather_flattened": _gathered,
    "fori_loop": _first_three,
    "shared_identity_matrix": _identity,
}
"""What the arrays must hold after an example, by the public name it belongs to."""

_LNC2 = ("core_barrier", "sendrecv")
_PLAIN = {"batch_size": 4, "hidden_dim": 16, "i": 8, "N": 8}


def case_of(module: str, example: Example) -> Case:
    """The example as a case; pseudo-code and examples without what they need are not run, and say so."""
    option = f"{module}.{example.owner} #{example.number} ({example.kind}): {example.title[:80]}"
    return Case(f"docstrings of nki.{module}", option, lambda: _run(example))


def _run(example: Example) -> float | str | None:
    if example.kind == "prose":
        raise Skipped("pseudo-code: the instruction's tests use it as their oracle")
    options = sim.SimOptions(chip=get_chip("trn3"), third_party=True)
    if example.kind == "kernel":
        name = next(node.name for node in ast.parse(example.code).body if isinstance(node, ast.FunctionDef))
        if name not in KERNELS:
            raise Skipped("returns on-chip tiles, which no kernel may" if name == "topk_kernel" else "no oracle here")
        return KERNELS[name](_defined(example, name), options)
    arrays = _inputs()
    free = _free_names(example.code)
    unknown = free - arrays.keys() - _PLAIN.keys() - set(dir(builtins)) - {"nl", "nisa", "nki", "np", "core_id", "idx", *_LNC2}
    if unknown:
        raise Skipped(f"leaves the names {', '.join(sorted(unknown))} open")
    used = {name: arrays[name] for name in free & arrays.keys()}
    kernel = _as_kernel(example, sorted(used))
    lnc = 2 if example.owner in _LNC2 else None
    if example.owner == "while_loop":
        used["data"] = used["data"][:, :1].copy()
    sim.launch(kernel, kwargs=used, options=options, lnc=lnc)
    check = HOST_CHECKS.get(example.owner)
    return check(used) if check is not None else "its own assertions" if "assert" in example.code else "runs without a check"


def _as_kernel(example: Example, parameters: list[str]) -> Callable[..., None]:
    """A function with the open names as parameters and the example as its body."""
    body = [line for line in example.code.splitlines() if not line.startswith("import ")]
    lead = ["core_id = nl.program_id()"] if example.owner in _LNC2 else []
    if "idx" in _free_names(example.code):
        lead += ["idx = nl.full((1, 1), 1, dtype=nl.int32, buffer=nl.sbuf)"]
    text = f"def example({', '.join(parameters)}):\n" + "\n".join(f"    {line}" for line in lead + body) + "\n    return None\n"
    return _execute(text, f"{example.owner}#{example.number}")["example"]


def _defined(example: Example, name: str) -> Any:
    keep = "\n".join(line for line in example.code.splitlines() if line != "import pytest")
    return _execute(keep, f"{example.owner}#{example.number}")[name]


def _execute(text: str, title: str) -> dict[str, Any]:
    import nki
    import nki.isa
    import nki.language

    filename = f"docstring of {title}"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    names = {"nl": nki.language, "nisa": nki.isa, "nki": nki, "np": np, **_PLAIN}
    names.update({name: getattr(nki.isa, name) for name in _LNC2})
    exec(compile(text, filename, "exec"), names)
    return names


def _free_names(code: str) -> set[str]:
    tree = ast.parse(code)
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    bound |= {argument.arg for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) for argument in node.args.args}
    imports = [alias for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    bound |= {alias.asname or alias.name.split(".")[0] for alias in imports}
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - bound


def main() -> int:
    """Run the examples of nki.language and nki.isa; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--no-report", action="store_true")
    options = parser.parse_args()
    outcomes = []
    with sim.as_nki():
        for module in ("language", "isa"):
            source = (options.checkout / "nki" / "api" / "nki" / module / "__init__.py").read_text(encoding="utf-8")
            outcomes += [run_case(case_of(module, example), 20.0) for example in examples_of(source)]
    print(summary(outcomes))
    if not options.no_report:
        update("docstrings", outcomes, "python tools/conformance/docstrings.py CHECKOUT")
    return int(any(outcome.verdict == "failed" for outcome in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
