"""Our kernels through the public parser of `klr-lang` 0.0.12, where it is installed (`pip install klr-lang==0.0.12`).

It proves that an early build of AWS's own parser reads and simplifies what these kernels are written in. It proves nothing
about a deployed one: the package is older than NKI 0.3, refuses less (a tuple as a loop's target passes), and no instruction
is evaluated here. It has no dictionaries, no empty lists, no assignment to items, no `with` and no `in`, which later ones
have: two kernels of the ladder need them, and each of attention; of the functions of these, 143 of 224 are read with all that
they reach.
"""

import ast
import importlib
import inspect
import sys
from pathlib import Path

import pytest

import nki_hf.ladder
from nki_hf.tools.kernel_lint import KERNELS, lint

frontend = pytest.importorskip("klr.frontend", reason="klr-lang, the public parser of 2025, is not installed")

LADDER = Path(nki_hf.ladder.__path__[0])
ENTRIES = [(row.file, kernel) for row in lint(LADDER) for kernel in row.kernels]
LATER = ("software_pipeline", "hbm_round_trips")
"""Kernels of the ladder that need what the package does not have yet."""

REFUSED = [
    "def f():\n        pass",
    "f = lambda: 1",
    "a = [i for i in range(3)]",
    "raise ValueError('x')",
    "a = {1, 2}",
    "del x",
    "a = (1, *x)",
    "a = {}\n    a['b'], c = 1, 2",
    "try:\n        pass\n    finally:\n        pass",
    "a = x @ x",
]


def module_of(text, folder, name, monkeypatch):
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


def parsed(function):
    """Gathers the function with all that it reaches, and simplifies it; tensors are left out, as None."""
    kernel = frontend.Kernel(function)
    parameters = inspect.signature(function).parameters.values()
    kernel.specialize(*(None if each.default is each.empty else each.default for each in parameters))


@pytest.mark.parametrize(("file", "kernel"), ENTRIES)
def test_each_kernel_of_the_ladder_is_read(file, kernel, tmp_path, monkeypatch):
    if kernel in LATER:
        pytest.skip("klr-lang 0.0.12 has no dictionaries, empty lists, `with` or `in`")
    text = (LADDER / file).read_text().replace("@nki.jit\n", "")  # the package takes plain functions
    parsed(getattr(module_of(text, tmp_path, f"plain_{Path(file).stem}", monkeypatch), kernel))


def test_functions_of_the_kernels_that_need_nothing_later_are_read(tmp_path, monkeypatch):
    """The package takes names that begin with nki for the language: the modules are read under others."""
    files = [row.file for row in lint()]
    names = {f"nki_hf.kernels.{file[:-3].replace('/', '.')}": f"plain_{file[:-3].replace('/', '_')}" for file in files}
    texts: dict[str, str] = {}
    for file, name in zip(files, names.values(), strict=True):
        text = (Path(KERNELS) / file).read_text().replace("@nki.jit\n", "")
        for whole in sorted(names, key=len, reverse=True):
            text = text.replace(f"from {whole} import", f"from {names[whole]} import")
        (tmp_path / f"{name}.py").write_text(text)
        texts[name] = text
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    read = 0
    for name, text in texts.items():
        module = importlib.import_module(name)
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef):
                try:
                    parsed(getattr(module, node.name))
                    read += 1
                except RuntimeError:  # one message for all that it does not have
                    continue
    assert read >= 120


@pytest.mark.parametrize("body", REFUSED)
def test_what_it_refuses_is_refused(body, tmp_path, monkeypatch):
    """Else the test above could not fail."""
    number = REFUSED.index(body)
    module = module_of(f"def kernel(x):\n    {body}\n    return x\n", tmp_path, f"refused_{number}", monkeypatch)
    with pytest.raises(RuntimeError):
        parsed(module.kernel)
