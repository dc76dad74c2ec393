"""Runs the code blocks of the public guide pages on the simulator, page by page in one kernel, as a reader would.

    python tools/conformance/guides.py CHECKOUT_OF_AWS_NEURON_SDK [--no-report]

A block sees the names that earlier blocks of its page defined. Kernels that blocks define are launched where there is an
oracle for them below.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import enum
import io
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from nki_hf import sim
from nki_hf.chips import get_chip
from nki_hf.errors import KernelFault
from tools.conformance.case import Case, Outcome, Skipped, run_case
from tools.conformance.compare import compare
from tools.conformance.examples import code_blocks
from tools.conformance.report import summary, update

PAGES = ("get-started/nki-language-guide.rst", "deep-dives/nki-aps.rst", "guides/nki_simulator.rst")
_A = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)


def _batches(kernel: Any) -> float:
    data = _A.reshape(4, 128, 512)
    return compare(_launch(kernel, data), data[3], rtol=0, atol=0)


def _rows(count: int) -> Callable[[Any], float]:
    return lambda kernel: compare(_launch(kernel, _A[:128]), _A[: 2 * count : 2], rtol=0, atol=0)


def _sum(kernel: Any) -> float:
    return compare(_launch(kernel, _A[:128], _A[128:256]), _A[:128].astype(np.float64) + _A[128:256], rtol=1e-6, atol=1e-6)


ON_THE_HOST = ("nki_simulator.rst",)
"""Pages whose blocks launch kernels themselves; those of the other pages are the body of one."""

NOT_CODE = {
    ("nki-language-guide.rst", 32): "pseudo-code: the body of the class calls the class",
    ("nki_simulator.rst", 5): "leaves out the instruction that breaks the limit it shows",
    ("nki_simulator.rst", 2): "calls nl.store with one argument where its own signature takes two",
    ("nki-aps.rst", 5): "calls ap([32, 16], [1, 32]), two lists where its own signature takes one pattern",
    ("nki-aps.rst", 6): "pseudo-code: tensors have no flatten",
}
"""Blocks that are no runnable code, and why."""

ILLEGAL = {("nki-aps.rst", 7)}
"""Blocks that the page calls illegal: they pass by being refused."""


def _tiles() -> dict[str, Any]:
    import nki.language as nl

    return {name: nl.zeros((32, 32), nl.float32) for name in "abcxyz"}


def _loop() -> dict[str, Any]:
    import nki.language as nl

    count = nl.full((1, 1), 3, nl.int32)
    rows = nl.ndarray((16, 8, 8), nl.float32, buffer=nl.private_hbm)
    return {"dynamic_range": nl.dynamic_range, "t": rows, "process_tensor": nl.load, "count_tensor": count}


def _host() -> dict[str, Any]:
    import nki
    import nki.isa as nisa
    import nki.language as nl
    import torch

    def my_kernel(a: Any, b: Any = None) -> Any:
        total = nl.load(a)
        nisa.tensor_tensor(dst=total, data1=total, data2=total if b is None else nl.load(b), op=nl.add)
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        nl.store(out, total)
        return out

    a, b = _A[:128].copy(), _A[128:256].copy()
    return {
        "my_kernel": nki.jit(my_kernel),
        "torch": torch,
        "a_np": a,
        "b_np": b,
        "a_torch": torch.from_numpy(a),
        "b_torch": torch.from_numpy(b),
        "inputs": a,
        "data": a,
    }


SUPPLIED: dict[tuple[str, int], Callable[[], dict[str, Any]]] = {
    ("nki-language-guide.rst", 19): _tiles,
    ("nki-language-guide.rst", 20): _tiles,
    ("nki-language-guide.rst", 23): _loop,
    ("nki-language-guide.rst", 24): _loop,
    ("nki_simulator.rst", 1): _host,
    ("nki_simulator.rst", 4): _host,
}
"""Names that a block takes for granted, by page and block."""

ORACLES: dict[str, Callable[[Any], float]] = {
    "nki_tensor_add_kernel": _sum,
    "scalar_dynamic_select": _batches,
    "gather_rows": _rows(64),
    "indirect_vector_dynamic_dma": _rows(64),
}
"""A check per kernel that a block defines."""


def _launch(kernel: Any, *arrays: Any) -> Any:
    with contextlib.redirect_stdout(io.StringIO()):
        return sim.launch(kernel, arrays, options=sim.SimOptions(chip=get_chip("trn3"), third_party=True)).outputs[0]


def run_page(name: str, text: str) -> list[Outcome]:
    """The outcomes of a page's blocks, in order."""
    blocks = code_blocks(text)
    outcomes: list[Outcome] = []
    names = _names()
    defined: list[tuple[int, str]] = []

    def kernel(_: Any) -> None:
        for number, code in enumerate(blocks, 1):
            title = f"block {number}: {code.splitlines()[0][:70]}"
            run = _block(code, (name, number), names)
            with contextlib.redirect_stdout(io.StringIO()) as shown:
                outcomes.append(run_case(Case(name, title, run), 20.0))
            sys.__stdout__.write(shown.getvalue().splitlines()[-1] + "\n")
            if outcomes[-1].verdict == "passed":
                defined.extend((number, item.name) for item in ast.parse(code).body if isinstance(item, ast.FunctionDef))

    if name in ON_THE_HOST:
        kernel(None)
    else:
        sim.launch(kernel, (np.zeros(1, np.float32),), options=sim.SimOptions(chip=get_chip("trn3"), third_party=True))
    for number, function in defined:
        if function in ORACLES:
            run = lambda f=function: ORACLES[f](names[f])  # noqa: E731
            outcomes.append(run_case(Case(name, f"block {number}: {function} launched", run), 20.0))
    return outcomes


def _block(code: str, place: tuple[str, int], names: dict[str, Any]) -> Callable[[], str]:
    title = f"{place[0]} block {place[1]}"

    def run() -> str:
        if place in NOT_CODE:
            raise Skipped(NOT_CODE[place])
        if place in ILLEGAL:
            try:
                exec(compile(code, title, "exec"), names)
            except KernelFault as fault:
                return f"refused as the page says: {fault}"
            raise AssertionError("the page calls this illegal, and it was accepted.")
        try:
            compiled = compile(code, title, "exec")
        except SyntaxError as error:
            raise Skipped("not Python by itself") from error
        if place in SUPPLIED:
            names.update(SUPPLIED[place]())
        linecache.cache[title] = (len(code), None, code.splitlines(True), title)
        try:
            exec(compiled, names)
        except NameError as error:
            raise Skipped(f"leaves names open: {error}") from error
        except (ImportError, FileNotFoundError) as error:
            raise Skipped(f"needs what is not here: {error}") from error
        return "its own assertions" if "assert " in code else "runs"

    return run


def _names() -> dict[str, Any]:
    import nki
    import nki.isa
    import nki.language

    return {
        "nki": nki,
        "nl": nki.language,
        "nisa": nki.isa,
        "np": np,
        "NKIObject": nki.language.NKIObject,
        "dataclass": dataclasses.dataclass,
        "Enum": enum.Enum,
    }


def main() -> int:
    """Run the pages; 1 if a block failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--no-report", action="store_true")
    options = parser.parse_args()
    outcomes: list[Outcome] = []
    with sim.as_nki():
        for page in PAGES:
            outcomes += run_page(Path(page).name, (options.checkout / "nki" / page).read_text(encoding="utf-8"))
    print(summary(outcomes))
    if not options.no_report:
        update("guides", outcomes, "python tools/conformance/guides.py CHECKOUT")
    return int(any(outcome.verdict == "failed" for outcome in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
