"""The table of a kernel's calling contract: what it refuses, what follows from it, and that nobody else states it."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nki_hf
from nki_hf.adapters.layouts import TorchArrays
from nki_hf.chips import get_chip
from nki_hf.kernels.binding import TENSORS, Argument, Binding, Division, Output, Plan, Target
from nki_hf.kernels.division import axis_sizes, parts
from nki_hf.kernels.packing import packing
from nki_hf.kernels.registry import binding, bindings
from nki_hf.problem import DTYPES, Mask, Problem
from nki_hf.testing import attention_inputs
from nki_hf.tools.numpy_layouts import NUMPY_DTYPES, NumpyArrays

PACKAGE = Path(nki_hf.__file__).parent
AXES = {axis for axes in TENSORS.values() for axis in axes}


def _outside():
    """The modules that must know no kernel: all but the kernels' own folders, the binding, the layers below it, and the kernels
    of tasks, which are NKI themselves: one of them calls flash_backward as its sub-kernel.
    """
    for path in sorted(PACKAGE.rglob("*.py")):
        where = path.relative_to(PACKAGE)
        own = [item.package.replace("nki_hf.", "").replace(".", "/") for item in bindings()]
        below = where.parts[0] in ("sim", "chips", "observers", "problem.py") or where.parts[:2] == ("tasks", "kernels")
        if not below and where != Path("kernels/binding.py") and not any(str(where).startswith(f"{each}/") for each in own):
            yield where, ast.parse(path.read_text())


def _stated(tree):
    """`line: what` of everything in a module that restates a kernel's contract."""
    names = {item.name for item in bindings()}
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in names and id(node) not in texts:
            yield f"{node.lineno}: names {node.value}"
        if isinstance(node, ast.Tuple | ast.List):
            words = [each.value for each in node.elts if isinstance(each, ast.Constant) and each.value in AXES]
            if len(words) > 1 and {"batch", "head_dim", "head_dim_v"} & set(words) and len(words) < 5:
                yield f"{node.lineno}: lists the axes {', '.join(words)}"
        if isinstance(node, ast.ImportFrom) and any((node.module or "").startswith(item.package) for item in bindings()):
            yield f"{node.lineno}: imports {node.module}"
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Attribute)
            and node.value.attr == "tensors"
            and isinstance(node.slice, ast.Constant)
        ):
            yield f"{node.lineno}: knows the argument {node.slice.value}"


def test_nobody_restates_what_a_kernel_is_called_with():
    found = {str(where): list(_stated(tree)) for where, tree in _outside()}
    assert len(found) > 80
    assert {where: lines for where, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ('call.tensors["q"].shape[3]', "knows the argument q"),
        ('axes = ("batch", "num_heads_q", "seqlen_q")', "lists the axes batch, num_heads_q, seqlen_q"),
        ('if kernel == "flash_prefill":\n    pass', "names flash_prefill"),
        ("from nki_hf.kernels.flash_prefill.plan import TILE", "imports nki_hf.kernels.flash_prefill.plan"),
    ],
)
def test_restating_is_seen(source, what):
    assert [line.partition(": ")[2] for line in _stated(ast.parse(source))] == [what]


def _plan(problem, target):
    return Plan(constants={})


def test_contradictions_are_refused():
    with pytest.raises(ValueError, match="query' is no tensor of a call: it is one of q, k, v"):
        Argument(name="query", axes=("batch",))
    with pytest.raises(ValueError, match="k lacks the axes seqlen_kv"):
        Argument(name="k", axes=("batch", "num_heads_kv", "head_dim"))
    for axes, division in ((("seqlen_q",), Division(axes=("batch",))), (("batch",), Division(axes=("batch",), group=True))):
        with pytest.raises(ValueError, match="lacks the divided axis"):
            Binding(
                name="x", package="x", arguments=(), outputs=(Output(name="way", axes=axes),), constants=(), plan=_plan,
                division=division,
            )  # fmt: skip


def test_an_output_may_be_added_up_over_a_divided_axis():
    dk = Output(name="dk", axes=TENSORS["k"], summed=("num_heads_q",))
    dsink = Output(name="dsink", axes=("num_heads_q",), summed=("batch",))
    made = Binding(
        name="x",
        package="x",
        arguments=(Argument(name="q", axes=TENSORS["q"]), Argument(name="k", axes=TENSORS["k"])),
        outputs=(dk, dsink),
        constants=(),
        plan=_plan,
        division=Division(axes=("batch", "num_heads_kv"), group=True, worth={"seqlen_q": 1}),
    )
    shapes = {"q": (2, 4, 9, 8), "k": (2, 2, 9, 8)}
    sizes = {"batch": 2, "num_heads_q": 4, "num_heads_kv": 2, "seqlen_q": 9, "seqlen_kv": 9, "head_dim": 8}
    assert axis_sizes(made, shapes) == {"1": 1, **sizes}
    found = parts(made, shapes, made.outputs, wanted=8)
    assert len(found) == 8
    gradient, sink = np.zeros((2, 2, 9, 8)), np.zeros(4)
    for part in found:
        gradient[part.outputs[0]] += 1
        sink[part.outputs[1]] += 1
    assert (gradient == 2).all()  # each of the two query heads of a group adds to its kv head
    assert (sink == 2).all()


@st.composite
def _problems(draw):
    bias = draw(st.sampled_from([None, "boolean", "additive"]))
    axes = {name: bias is not None and draw(st.booleans()) for name in ("bias_batch", "bias_heads", "bias_rows")}
    mask = Mask(
        q_offset=draw(st.integers(-9, 9)),
        window=draw(st.none() | st.integers(1, 9)),
        ahead=draw(st.none() | st.integers(1, 9)),
        runtime_bounds=draw(st.booleans()),
        bias=bias,
        **axes,
    )
    group, heads = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    return Problem(
        batch=draw(st.integers(1, 2)),
        num_heads_q=group * heads,
        num_heads_kv=heads,
        seqlen_q=draw(st.sampled_from([1, 3, 40])),
        seqlen_kv=draw(st.sampled_from([1, 7, 600])),
        head_dim=draw(st.sampled_from([1, 5])),
        head_dim_v=draw(st.sampled_from([1, 3])),
        dtype=draw(st.sampled_from(DTYPES)),
        mask=mask,
        sink=draw(st.booleans()),
    )


def _tensor(array):
    if array is None:
        return None
    if array.dtype == NUMPY_DTYPES["bfloat16"]:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(_problems())
def test_numpy_torch_and_shapes_say_the_same_of_every_argument(problem):
    """Values against the formula of the mask, row by row; dtypes and shapes against each other."""
    ours = binding("flash_prefill")
    plan = ours.plan(problem, Target(chip=get_chip("trn2")))
    inputs = attention_inputs(problem)
    arrays = {name: getattr(inputs, name, None) for name in TENSORS}
    make = packing(ours, problem, plan)
    from_numpy = make(arrays, NumpyArrays(), fill=True)
    from_torch = make({name: _tensor(array) for name, array in arrays.items()}, TorchArrays(), fill=True)
    shapes = ours.shapes(problem, plan, problem.batch if problem.mask.runtime_bounds else 1)
    for name, stated in shapes.items():
        array, tensor = from_numpy[name], from_torch[name]
        if stated is None:
            assert array is tensor is None
            continue
        assert (array.shape, array.dtype) == (stated[0], NUMPY_DTYPES[stated[1]])
        assert (tuple(tensor.shape), str(tensor.dtype)) == (stated[0], f"torch.{stated[1]}")
        np.testing.assert_array_equal(np.asarray(array, np.float64), tensor.double().numpy())
    if from_numpy["lo"] is not None:
        for row in range(problem.seqlen_q):
            first, last = problem.mask.interval(row, problem.seqlen_kv)
            for b in range(from_numpy["lo"].shape[0]):
                lo = first if inputs.lo is None else max(first, int(inputs.lo[b, row]))
                hi = last if inputs.hi is None else min(last, int(inputs.hi[b, row]))
                got = set(range(from_numpy["lo"][b, row], from_numpy["hi"][b, row]))
                assert got == set(range(lo, hi))
    if problem.mask.bias == "additive":
        finite = np.isfinite(inputs.bias)
        got = from_numpy["bias"][..., : problem.seqlen_kv]
        np.testing.assert_array_equal(got[finite], inputs.bias[finite])
        assert (got[~finite] == np.finfo(np.float32).min).all()
        assert (from_numpy["bias"][..., problem.seqlen_kv :] == np.finfo(np.float32).min).all()


def test_a_finite_bias_is_never_taken_for_a_hidden_key_by_any_packing():
    problem = Problem(
        batch=1, num_heads_q=1, num_heads_kv=1, seqlen_q=1, seqlen_kv=2, head_dim=1, head_dim_v=1, mask=Mask(bias="additive")
    )
    ours = binding("flash_prefill")
    plan = ours.plan(problem, Target(chip=get_chip("trn2")))
    lowest = np.finfo(np.float32).min
    bias = np.array([lowest, -np.inf], np.float32).reshape(1, 1, 1, 2)
    inputs = attention_inputs(problem)
    make = packing(ours, problem, plan)
    given = {"q": inputs.q, "k": inputs.k, "v": inputs.v, "bias": bias}
    for tensors, arrays in (
        (given, NumpyArrays()),
        ({name: _tensor(each) for name, each in given.items()}, TorchArrays()),
    ):
        assert np.asarray(make(tensors, arrays)["bias"]).ravel()[:2].tolist() == [pytest.approx(-1e38), lowest]
