"""Our kernels through the public parser of `klr-lang` 0.0.12, where it is installed (`pip install klr-lang==0.0.12`).

It proves that an early build of AWS's own parser reads and simplifies what these kernels are written in. It proves nothing
about a deployed one: the package is older than NKI 0.3, refuses less (a tuple as a loop's target passes), and no instruction
is evaluated here. It has no dictionaries, no empty lists and no `with`, which later ones have: kernels that need these are
skipped, and of flash_prefill only those functions are read that do without.
"""

import ast
import importlib
import inspect
import sys
from pathlib import Path

import pytest

from nki_hf.tools.kernel_lint import KERNELS, lint

frontend = pytest.importorskip("klr.frontend", reason="klr-lang, the public parser of 2025, is not installed")

LATER = ("flash_prefill", "software_pipeline", "hbm_round_trips")
"""Kernels that need what the package does not have yet."""

ENTRIES = [(row.file, kernel) for row in lint() for kernel in row.kernels]

REFUSED = [
    "def f():\n        pass", "f = lambda: 1", "a = [i for i in range(3)]", "raise ValueError('x')", "a = {1, 2}", "del x",
    "a = (1, *x)", "a = {}\n    a['b'], c = 1, 2", "try:\n        pass\n    finally:\n        pass", "a = x @ x",
]  # fmt: skip


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


def plain(file, folder, monkeypatch):
    """The kernel module with its entries as plain functions, as that package has them."""
    text = (Path(KERNELS) / file).read_text().replace("@nki.jit\n", "")
    return module_of(text, folder, f"plain_{Path(file).stem}", monkeypatch)


@pytest.mark.parametrize(("file", "kernel"), ENTRIES)
def test_each_kernel_is_read(file, kernel, tmp_path, monkeypatch):
    if kernel in LATER:
        pytest.skip("klr-lang 0.0.12 has no dictionaries, empty lists or `with`")
    parsed(getattr(plain(file, tmp_path, monkeypatch), kernel))


def test_functions_of_flash_prefill_that_need_nothing_later_are_read(tmp_path, monkeypatch):
    module, read = plain("flash_prefill.py", tmp_path, monkeypatch), 0
    for node in ast.parse(inspect.getsource(module)).body:
        later = [
            each for each in ast.walk(node) if isinstance(each, ast.Dict) or (isinstance(each, ast.List) and not each.elts)
        ]
        if isinstance(node, ast.FunctionDef) and not later:
            try:
                frontend.Kernel(getattr(module, node.name))
                read += 1
            except RuntimeError:
                assert _reaches_later(module, node), node.name
    assert read >= 12


def _reaches_later(module, function):
    """True if a function that this one calls holds a dictionary or an empty list."""
    called = {node.func.id for node in ast.walk(function) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    bodies = [node for node in ast.parse(inspect.getsource(module)).body if getattr(node, "name", "") in called]
    return any(
        isinstance(each, ast.Dict) or (isinstance(each, ast.List) and not each.elts)
        for body in bodies
        for each in ast.walk(body)
    )


@pytest.mark.parametrize("body", REFUSED)
def test_what_it_refuses_is_refused(body, tmp_path, monkeypatch):
    """Else the test above could not fail."""
    number = REFUSED.index(body)
    module = module_of(f"def kernel(x):\n    {body}\n    return x\n", tmp_path, f"refused_{number}", monkeypatch)
    with pytest.raises(RuntimeError):
        parsed(module.kernel)
