"""A file of the same size, rewritten within a second: Python takes the bytecode that it kept of the earlier one for its own."""

import os
import py_compile
import sys

import pytest

import nki_hf
from nki_hf.tools.judging.child import module_of

KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl

from {module} import factor


@nki.jit
def silu(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for row in range(0, x.shape[0], 128):
        tile = nl.ndarray((128, x.shape[1]), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[row : row + 128, :])
        nisa.activation(dst=tile, op=nl.silu, data=tile, scale=factor())
        nisa.dma_copy(dst=out[row : row + 128, :], src=tile)
    return out
"""


def test_bytecode_of_an_earlier_kernel_of_the_same_size_and_second_is_not_judged(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "kernel.py"
    for value in (2.0, 3.0):
        file.write_text(f"VALUE = {value}\n")
        os.utime(file, (1_000_000_000, 1_000_000_000))
        assert module_of(str(file)).VALUE == value
    assert not (tmp_path / "__pycache__").exists()


@pytest.mark.parametrize("module", ["parts", "folder.parts"])
def test_bytecode_of_a_module_beside_the_kernel_is_not_judged(module, tmp_path):
    (tmp_path / "kernel.py").write_text(KERNEL.format(module=module))
    file = tmp_path.joinpath(*module.split(".")).with_suffix(".py")
    file.parent.mkdir(exist_ok=True)
    for factor, kept in (("1.0", "2.0"), ("2.0", "1.0")):
        for value in (kept, factor):
            file.write_text(f"def factor():\n    return {value}\n")
            os.utime(file, (1_000_000_000, 1_000_000_000))
            if value == kept:
                py_compile.compile(str(file), doraise=True)  # as any other import of the file does
        record = nki_hf.judge(tmp_path / "kernel.py", "nkibench_silu", until="values", check=(128,))
        assert record["passed"] is (factor == "1.0"), (factor, record["sentence"])
