"""The table of a kernel's calling contract: what it refuses, what follows from it, and that nobody else states it."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nki_hf
from nki_hf.adapters.layouts import TorchArrays
from nki_hf.chips import get_chip
from nki_hf.kernels.binding import Argument, Binding, Division, Output
from nki_hf.kernels.call_tensors import TENSORS
from nki_hf.kernels.division import axis_sizes, parts
from nki_hf.kernels.packing import packing
from nki_hf.kernels.plan import Plan, Target
from nki_hf.kernels.registry import binding, bindings
from nki_hf.problem import DTYPES, Mask, Problem
from nki_hf.testing import attention_inputs
from nki_hf.tools.numpy_layouts import NUMPY_DTYPES, NumpyArrays

PACKAGE = Path(nki_hf.__file__).parent
AXES = {axis for axes in TENSORS.values() for axis in axes}


def _outside():
    """The modules that must know no kernel: all but the kernels' own folders, the binding and the list of kernels, the layers
    below, and the kernels of tasks, which are NKI themselves: one of them calls flash_backward as its sub-kernel.
    """
    for path in sorted(PACKAGE.rglob("*.py")):
        where = path.relative_to(PACKAGE)
        own = [item.package.replace("nki_hf.", "").replace(".", "/") for item in bindings()]
        below = where.parts[0] in ("sim", "chips", "observers", "problem.py") or where.parts[:2] == ("tasks", "kernels")
        lists = where in (Path("kernels/binding.py"), Path("kernels/call_tensors.py"), Path("kernels/registry.py"))
        if not below and not lists and not any(str(where).startswith(f"{each}/") for each in own):
            yield where, ast.parse(path.read_text())


ARGUMENTS = {item.name for one in bindings() for item in one.arguments}
NUMBERS = {item.padding for one in bindings() for item in one.arguments} - {None, 0.0}
"""What fills an argument or stands for a hidden key: numbers that nobody writes by chance."""


def _layout(words):
    """The words, if they name axes of one tensor: those of all sizes of a problem are no layout."""
    found = [word for word in words if word in AXES]
    return found if 1 < len(found) < 5 and {"batch", "head_dim", "head_dim_v"} & set(found) else []


def _string(node):
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _number(node):
    """The value of a number with its sign, else None."""
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, node = -1, node.operand
    return sign * node.value if isinstance(node, ast.Constant) and isinstance(node.value, float) else None


def _multiple(node):
    """`-(-x // 512) * 512` and `(x + 511) // 512 * 512`: the size to which x is padded, else None."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for whole, size in ((node.left, node.right), (node.right, node.left)):
            whole = whole.operand if isinstance(whole, ast.UnaryOp) else whole
            divided = isinstance(whole, ast.BinOp) and isinstance(whole.op, ast.FloorDiv)
            if divided and ast.dump(whole.right) == ast.dump(size) and "seqlen" in ast.unparse(whole.left):
                return ast.unparse(node)
    return None


def _is_tensors(node, aliases):
    """True for the tensors of a kernel call, by name of argument: `call.tensors`, or a name that was bound to it."""
    return (isinstance(node, ast.Attribute) and node.attr == "tensors") or (isinstance(node, ast.Name) and node.id in aliases)


def _known_argument(node, aliases):
    """The argument of a kernel call that an expression takes by its name or place."""
    if isinstance(node, ast.Subscript) and _is_tensors(node.value, aliases):
        return _string(node.slice)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_tensors(node.func.value, aliases):
        return _string(node.args[0]) if node.args and node.func.attr in ("get", "pop", "setdefault") else ""
    unpacked = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)
    if unpacked and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        return ast.unparse(node.targets[0]) if _is_tensors(node.value.func.value, aliases) else ""
    return ""


def _imported(node):
    """Modules that a statement imports, or a call by a string."""
    if isinstance(node, ast.ImportFrom):
        return [node.module or "", *(f"{node.module}.{item.name}" for item in node.names)]
    return [item.name for item in node.names] if isinstance(node, ast.Import) else []


def _stated(tree):
    """`line: what` of everything in a module that restates a kernel's contract."""
    names = {item.name for item in bindings()}
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}
    bound = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and _is_tensors(node.value, ())]
    aliases = {target.id for node in bound for target in node.targets if isinstance(target, ast.Name)}
    for node in ast.walk(tree):
        at = f"{getattr(node, 'lineno', 0)}: "
        text = "" if id(node) in texts else _string(node)
        if named := next((name for name in sorted(names) if re.fullmatch(rf"[\w./:]*\b{name}\b[\w./:]*", text)), None):
            yield f"{at}names {named}"
        words = []
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            words = [_string(each) for each in node.elts]
            words = [] if isinstance(node, ast.Set) and not set(words) <= AXES else words
        elif isinstance(node, ast.Dict):
            places = [getattr(value, "value", None) for value in node.values]  # the axis's number, not its size
            words = [_string(key) for key in node.keys] if set(places) == set(range(len(places))) else []
            for key, value in zip(node.keys, node.values, strict=True):
                if _string(key) in ARGUMENTS and _string(value) in NUMPY_DTYPES:
                    yield f"{at}states the element type of {_string(key)}"
        elif text and set(text.split()) <= AXES:
            words = text.split()
        if axes := _layout(words):
            yield f"{at}lists the axes {', '.join(axes)}"
        for item in bindings():
            if any(f"{module}.".startswith(f"{item.package}.") for module in _imported(node)):
                yield f"{at}imports {item.package}"
        if argument := _known_argument(node, aliases):
            yield f"{at}knows the argument {argument}"
        if _number(node) in NUMBERS:
            yield f"{at}states what fills an argument, {_number(node)}"
        if padded := _multiple(node):
            yield f"{at}pads a length, {padded}"


def test_nobody_restates_what_a_kernel_is_called_with():
    found = {str(where): list(_stated(tree)) for where, tree in _outside()}
    assert len(found) > 80
    assert {where: lines for where, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ('call.tensors["q"].shape[3]', "knows the argument q"),
        ('call.tensors.get("q").shape[3]', "knows the argument q"),
        ('given = call.tensors\nrows = given["q"].shape[3]', "knows the argument q"),
        ("q, k, *rest = call.tensors.values()", "knows the argument (q, k, *rest)"),
        ('axes = ("batch", "num_heads_q", "seqlen_q")', "lists the axes batch, num_heads_q, seqlen_q"),
        ('axes = {"batch": 0, "head_dim": 1, "seqlen_kv": 2}', "lists the axes batch, head_dim, seqlen_kv"),
        ('axes = "batch num_heads_q head_dim seqlen_q".split()', "lists the axes batch, num_heads_q, head_dim, seqlen_q"),
        ('dtypes = {"hi": "int32"}', "states the element type of hi"),
        ('if kernel == "flash_prefill":\n    pass', "names flash_prefill"),
        ('run("kernels/flash_prefill/kernel.py:flash_prefill")', "names flash_prefill"),
        ("from nki_hf.kernels.flash_prefill.plan import TILE", "imports nki_hf.kernels.flash_prefill"),
        ("from nki_hf.kernels import flash_prefill", "imports nki_hf.kernels.flash_prefill"),
        ("import nki_hf.kernels.flash_prefill.plan", "imports nki_hf.kernels.flash_prefill"),
        ('load("nki_hf.kernels.flash_prefill.plan")', "names flash_prefill"),
        ("bias.masked_fill(hidden, -3.4028234663852886e38)", "states what fills an argument, -3.4028234663852886e+38"),
        ("bucket = -(-problem.seqlen_kv // 512) * 512", "pads a length, -(-problem.seqlen_kv // 512) * 512"),
        ("bucket = (seqlen_kv + TILE - 1) // TILE * TILE", "pads a length, (seqlen_kv + TILE - 1) // TILE * TILE"),
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
                name="x",
                package="x",
                arguments=(),
                outputs=(Output(name="way", axes=axes),),
                constants=(),
                plan=_plan,
                division=division,
            )


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
