"""An eps that is missing, ten times as large, or a tenth is found in every task that has one: some of its inputs are small."""

from pathlib import Path

import pytest

import nki_hf
from nki_hf.tasks import kernels

_FOLDER = Path(kernels.__file__).parent
_KERNELS = {
    # task: file, kernel, text with the eps as {}
    "rmsnorm": ("rows", "rmsnorm_best", "inverse_rms(tile, {}, fused)", "eps"),
    "layernorm": ("rows", "layernorm_best", "data=moments[:, 1:2], op0=nl.add, operand0={})", "eps"),
    "autocomp_rmsnorm": ("rows", "rmsnorm_best", "def rmsnorm_best(x, weight, eps={})", "1e-6"),
    "autocomp_layernorm": ("rows", "layernorm_best", "def layernorm_best(x, weight, bias, eps={})", "1e-5"),
    "residual_rmsnorm_matmul": ("products", "residual_rmsnorm_matmul_best", "None, weight, {}, ROWS", "1e-6"),
    "nkibench_rmsnorm_matmul": ("products", "rmsnorm_matmul_best", "None, None, weight, {}, ROWS", "1e-5"),
    "nkibench_add_rmsnorm_matmul": ("products", "add_rmsnorm_matmul_best", "z, g, weight, {}, ROWS", "1e-5"),
    "nkibench_matmul_add_rmsnorm": ("products", "matmul_add_rmsnorm_best", "inverse_rms(total, {}, fused)", "1e-5"),
    "adamw": ("sequences", "adamw_best", "1024, True, lr=1e-3, decay=1e-5, eps={}", "1e-8"),
    "nkibench_adamw": ("sequences", "adamw_step_best", "1024, True, lr=0.01, decay=1e-5, eps={}", "1e-8"),
}
_EPS = {"rmsnorm": 1e-6, "layernorm": 1e-5}


@pytest.mark.parametrize("times", [1.0, 0.0, 10.0, 0.1])
@pytest.mark.parametrize("task", _KERNELS)
def test_another_eps_fails_and_is_named(task, times, tmp_path):
    file, name, text, own = _KERNELS[task]
    source, eps = (_FOLDER / f"{file}.py").read_text(), _EPS.get(task) or float(own)
    assert source.count(text.format(own)) == 1
    (tmp_path / "kernel.py").write_text(source.replace(text.format(own), text.format(times * eps)))
    record = nki_hf.judge(f"{tmp_path / 'kernel.py'}:{name}", task, until="values")
    assert record["passed"] is (times == 1), record["sentence"]
    said = record["diagnosis"]
    words = ("eps", f"{eps:.5g}", "no addition", "first operand alone")
    assert times == 1 or any(word in said for word in words), said
