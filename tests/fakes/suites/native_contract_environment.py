"""The benchmark sets its variables before the Neuron packages are imported, which read them at that moment."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "examples" / "qwen3_bench.py"

CHILD = """
import runpy, sys
from pathlib import Path

import pytest
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


BEFORE_ANY_CALL = """
{imports}
import torch
q, k, v = (torch.randn(1, 2, 5, 8) for _ in range(3))
arguments = [each.to("neuron") for each in (q, k, v)]
out, lse = torch.ops.nki_hf_neuron.attention(*arguments, None, None, None, None, None, None, 0, None, 1)
expected = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
print(float((out.cpu().double() - expected.transpose(1, 2)).abs().max()) < 1e-4)
"""


@pytest.mark.parametrize("imports", ["import nki_hf, torch_neuronx", "import nki_hf.adapters.torch_op, torch_neuronx"])
def test_a_program_that_names_the_op_runs_before_any_call_of_the_package(imports):
    """What torch.export or AOTInductor saved names the op; it must be there once both packages are imported."""
    command = [sys.executable, "-W", "ignore", "-c", BEFORE_ANY_CALL.format(imports=imports)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout.strip() == "True", done.stdout + done.stderr
