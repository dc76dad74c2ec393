"""The benchmark sets its variables before the Neuron packages are imported, which read them at that moment."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "examples" / "qwen3_bench.py"

CHILD = """
import runpy, sys
from pathlib import Path
import wrapt
from rich.console import Console

wrapt.register_post_import_hook(lambda torch: __import__("torch_neuronx"), "torch")  # torch loads it by itself on a device
script = runpy.run_path(sys.argv[1], run_name="script")
assert "torch" not in sys.modules


def launch(options, **_):
    import torch
    from nki_hf.backends.base import KernelCall
    from nki_hf.backends.neuron import NeuronBackend

    constants = {"scale": 0.5, "square": False}
    call = KernelCall(
        kernel="scale_rows", tensors={"x": torch.ones(8, 16).to("neuron"), "shift": None}, constants=constants, lnc=2
    )
    print(float(NeuronBackend(kernels="contract_kernels").run(call).outputs[0].cpu().mean()))


wrapt.register_post_import_hook(lambda run: setattr(run, "compile_only", launch), "nki_hf.tools.model_bench.run")
options = script["BenchOptions"](device="neuron", json=Path(sys.argv[2]) / "r.json")
script["benchmark"](options, Console(stderr=True), compiles_only=True)
"""


def test_the_benchmarks_variables_are_there_when_the_packages_are_imported(tmp_path):
    command = [sys.executable, "-c", CHILD, str(SCRIPT), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout.strip() == "0.5", done.stdout + done.stderr
