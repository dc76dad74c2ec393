"""Adapter and masks on the real torch_xla 2.9, on its CPU device: lazy tensors are not ours to imitate."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-xla" / "bin" / "python"


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="its environment is made by `make ready-xla` (Linux on x86-64, about 1 GB)")
def test_masks_gradients_and_a_model_on_lazy_tensors():
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("NEURON_", "NKI_", "XLA_", "PJRT_"))}
    environ |= {"PJRT_DEVICE": "CPU", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([PYTHON, "tests/support/on_real_xla.py"], cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert done.stdout.count(": ok") == 6
