"""Programs that name the op load in a process that has imported the package and called nothing; torch counts its FLOPs."""

import subprocess
import sys

import pytest
import torch

import nki_hf


def _run(code, *arguments):
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


class Model(torch.nn.Module):
    def forward(self, q, k, v):
        return nki_hf.attention(q, k, v, causal=True)


def tensors():
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(1, 2, 5, 8, generator=generator) for _ in range(3))


def expected():
    q, k, v = (each.double() for each in tensors())
    scores = (q @ k.transpose(-1, -2) * 8**-0.5).masked_fill(torch.ones(5, 5).triu(1) == 1, -torch.inf)
    return torch.softmax(scores, -1) @ v


_LOAD = """
import sys
{imports}
assert "nki_hf.adapters.torch_op" not in sys.modules
q, k, v, expected = torch.load(sys.argv[1])
for model in (torch.export.load(sys.argv[2]).module(), torch.jit.load(sys.argv[3])):
    print(float((model(q, k, v).double() - expected).abs().max()) < 1e-5)
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    torch.save((*tensors(), expected()), folder / "data.pt")
    torch.export.save(torch.export.export(Model(), tensors()), folder / "export.pt2")
    torch.jit.save(torch.jit.trace(Model(), tensors(), check_trace=False), folder / "jit.pt")
    return folder


@pytest.mark.parametrize("imports", ["import torch, nki_hf", "import nki_hf, torch"])
def test_saved_programs_load_and_run_in_a_new_process(imports, saved):
    code = _LOAD.format(imports=imports)
    assert _run(code, saved / "data.pt", saved / "export.pt2", saved / "jit.pt").split() == ["True", "True"]


def test_the_op_can_be_called_before_the_first_attention_and_differentiated():
    code = """
import sys, torch, nki_hf
q, k, v = (torch.randn(1, 2, 5, 8, requires_grad=True) for _ in range(3))
out, lse = torch.ops.nki_hf.attention(q, k, v, None, None, None, None, None, None, 0, None, 1)
out.sum().backward()
expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
print(torch.allclose(out, expected, atol=1e-5), q.grad.shape == q.shape)
"""
    assert _run(code) == "True True"


def test_a_program_that_names_the_backward_loads_and_runs_in_a_new_process(saved):
    save = """
import sys, torch, nki_hf

class Gradients(torch.nn.Module):
    def forward(self, dout, q, k, v, out, lse):
        arguments = (dout, None, q, k, v, None, None, None, None, out, lse, None, None, 0, None, 1, False)
        return torch.ops.nki_hf.attention_backward(*arguments)[:3]

q, k, v, _ = torch.load(sys.argv[1])
example = q.transpose(1, 2).contiguous(), q, k, v, q.transpose(1, 2).contiguous(), torch.zeros(1, 2, 5)
torch.export.save(torch.export.export(Gradients(), example), sys.argv[2])
"""
    load = """
import sys, torch, nki_hf
assert "nki_hf.adapters.torch_op" not in sys.modules
q, k, v, _ = torch.load(sys.argv[1])
program = torch.export.load(sys.argv[2]).module()
exact = [each.double().requires_grad_() for each in (q, k, v)]
out = torch.nn.functional.scaled_dot_product_attention(*exact, is_causal=True)
expected = torch.autograd.grad(out.sin().sum(), exact)
lse = (exact[0] @ exact[1].mT * 8**-0.5).masked_fill(torch.ones(5, 5).triu(1) == 1, -torch.inf).logsumexp(-1).float()
dout, out = (each.transpose(1, 2).float().contiguous() for each in (out.cos(), out))
found = program(dout, q, k, v, out, lse)
print(all(torch.allclose(one.double(), other, atol=1e-5) for one, other in zip(found, expected)))
"""
    path = saved / "backward.pt2"
    _run(save, saved / "data.pt", path)
    assert _run(load, saved / "data.pt", path) == "True"


def test_a_spawned_worker_loads_a_pickled_function_of_the_package(saved):
    code = """
import pickle, sys, torch
function = pickle.loads(bytes.fromhex(sys.argv[3]))
q, k, v, expected = torch.load(sys.argv[1])
print(torch.allclose(function(q, k, v, causal=True).double(), expected, atol=1e-5))
print(torch.export.load(sys.argv[2]).module()(q, k, v).shape == q.shape)
"""
    import pickle

    assert _run(code, saved / "data.pt", saved / "export.pt2", pickle.dumps(nki_hf.attention).hex()) == "True\nTrue"


def test_importing_the_package_beside_torch_loads_no_kernel_and_no_simulator():
    code = """
import sys, torch
before = set(sys.modules)
import nki_hf
print(sorted(name for name in set(sys.modules) - before if name.startswith(("nki_hf.sim", "nki_hf.kernels", "transformers"))))
print(sorted(name for name in set(sys.modules) - before if name.startswith("nki_hf.adapters.")))
"""
    assert _run(code).splitlines() == [
        "[]",
        "['nki_hf.adapters.hub_kernel', 'nki_hf.adapters.op_definition', 'nki_hf.adapters.registration']",
    ]


@pytest.mark.parametrize("first", ["import nki_hf", "from torch.utils.flop_counter import FlopCounterMode\nimport nki_hf"])
def test_flops_are_counted_like_those_of_torchs_own(first):
    """Two products forward, five backward, each of 2 x rows x keys x width; a counter made before the first call counts too."""
    code = f"""
import torch
{first}
from torch.utils.flop_counter import FlopCounterMode
shapes = (2, 4, 9, 16), (2, 2, 13, 16), (2, 2, 13, 8)
q, k, v = (torch.randn(shape, requires_grad=True) for shape in shapes)
counter = FlopCounterMode(display=False)
with counter:
    out = nki_hf.attention(q, k, v)
    forward = counter.get_total_flops()
    out.sum().backward()
print(forward, counter.get_total_flops() - forward)
"""
    pairs = 2 * 2 * 4 * 9 * 13
    assert _run(code) == f"{pairs * (16 + 8)} {pairs * (3 * 16 + 2 * 8)}"


def test_flops_are_those_that_torch_counts_for_sdpa():
    from torch.utils.flop_counter import FlopCounterMode

    def count(function):
        q, k, v = (each.detach().requires_grad_() for each in tensors())
        with FlopCounterMode(display=False) as counter:
            function(q, k, v).sum().backward()
        return counter.get_total_flops()

    def eager(q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2), -1) @ v

    # eager keeps its scores for the backward: one product less than a backward that computes them again
    one = 2 * 2 * 5 * 5 * 8
    assert count(nki_hf.attention) == count(eager) + one == 7 * one


@pytest.mark.slow  # Inductor compiles C++
def test_a_package_of_aotinductor_runs_once_the_package_is_imported(saved):
    make = """
import sys, torch
program = torch.export.load(sys.argv[1])
torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[2])
"""
    run = """
import sys, torch{more}
q, k, v, expected = torch.load(sys.argv[1])
try:
    model = torch._inductor.aoti_load_package(sys.argv[2])
    print(float((model(q, k, v).double() - expected).abs().max()) < 1e-5)
except RuntimeError as error:
    print(error)
"""
    path = saved / "aoti.pt2"
    _run("import nki_hf\n" + make, saved / "export.pt2", path)
    assert _run(run.format(more=", nki_hf"), saved / "data.pt", path) == "True"
    assert "Could not find schema for nki_hf::attention" in _run(run.format(more=""), saved / "data.pt", path)
