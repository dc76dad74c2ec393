"""Choices of design that keep known troubles of Trainium away, checked on the source and on the decisions themselves."""

import ast
from pathlib import Path

import pytest

from nki_hf.dispatch import decide
from nki_hf.problem import Mask, Problem

PACKAGE = Path(__file__).parents[2] / "nki_hf"
MODULES = sorted(PACKAGE.rglob("*.py"))


def _imports(path):
    """Every module that a file imports, anywhere in it, and `module.name` of names taken from one."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _prefixes(name):
    """`a`, `a.b`, `a.b.c` of `a.b.c`."""
    words = name.split(".")
    return [".".join(words[:count]) for count in range(1, len(words) + 1)]


def test_kernels_import_nothing_but_their_language_each_other_and_plain_python():
    """AWS's nkilib drifts with every compiler; kernels that stand on their own do not."""
    ours = ("nki_hf.kernels", "nki_hf.lang", "nki_hf.problem", "nki_hf.chips", "nki_hf.errors")
    plain = ("__future__", "collections", "dataclasses", "functools", "importlib", "itertools", "math", "typing", "numpy")
    for path in (path for path in MODULES if path.is_relative_to(PACKAGE / "kernels")):
        foreign = [name for name in _imports(path) if not name.startswith(ours) and name.split(".")[0] not in plain]
        assert foreign == [], path.name


def test_nothing_imports_what_is_documented_to_be_gone_or_to_drift():
    gone = {"nkilib", "nki_library", "neuronxcc", "torch_neuronx.nki", "torch_neuronx.nki_jit"}
    gone |= {"nki.benchmark", "nki.profile", "nki.baremetal"}
    found = [(path.name, name) for path in MODULES for name in _imports(path) if gone & set(_prefixes(name))]
    assert found == []


@pytest.mark.parametrize(("seqlen_q", "seqlen_kv"), [(1, 1), (1, 129), (2, 2), (17, 300)])
@pytest.mark.parametrize("heads", [1, 8])
def test_no_problem_is_too_small_for_its_kernel(seqlen_q, seqlen_kv, heads):
    """What is faster is measured by the user, beside sdpa; a threshold here would be a silent fallback."""
    case = Problem(
        batch=1,
        num_heads_q=heads,
        num_heads_kv=1,
        seqlen_q=seqlen_q,
        seqlen_kv=seqlen_kv,
        head_dim=8,
        head_dim_v=8,
        dtype="bfloat16",
        mask=Mask(q_offset=seqlen_kv - seqlen_q, ahead=1),
    )
    decision = decide(case, backend="neuron", chip="trn2", lnc=2)
    taking = {"flash_prefill", "flash_decode"} if seqlen_q <= 16 else {"flash_prefill"}
    assert decision.backend == "neuron"
    assert decision.kernel in taking
    assert not taking & {reason.kernel for reason in decision.rejected}
