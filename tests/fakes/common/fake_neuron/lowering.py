"""What the lowering of the native world is known to take inside a custom op, whose body is traced into the graph.

Each op with where it is seen to be taken: the public snapshot of the native source (April 2026), by file under torch_neuronx/,
or torch's own functionalisation, which leaves views and aliases as slices and copies. What is not here is unknown, and refused.
"""

import torch

from fake_neuron.rules import refuse

__all__ = ["LOWERED", "check_inside_op", "check_view"]

_JAX, _MLIR = "python_ops/jax/jax_impl.py", "python_ops/torch_mlir/ops"
_VIEWS = "csrc/core/NeuronBindings.cpp: views"

LOWERED = {
    "aten::_to_copy": f"{_MLIR}/to_copy.py",
    "aten::add": f"{_MLIR}/binary.py",
    "aten::alias": _VIEWS,
    "aten::arange": f"{_MLIR}/creation.py",
    "aten::cat": f"{_MLIR}/tensor_ops.py",
    "aten::clamp": f"{_MLIR}/comparison.py",
    "aten::clone": "tests/operations/test_clone.py",
    "aten::constant_pad_nd": f"{_MLIR}/tensor_ops.py",
    "aten::contiguous": "python_ops/contiguous.py",
    "aten::copy_": f"{_MLIR}/copy.py",
    "aten::detach": _VIEWS,
    "aten::empty": "tests/operations/test_empty_memory_format.py",
    "aten::empty_like": "tests/operations/test_empty_memory_format.py",
    "aten::expand": _VIEWS,
    "aten::expand_as": "torch: expand",
    "aten::fill_": f"{_JAX}: fill",
    "aten::full": "tests/python_ops/test_full.py",
    "aten::full_like": "tests/python_ops/test_full.py",
    "aten::isneginf": _JAX,
    "aten::lift_fresh": "torch: a constant of the graph",
    "aten::maximum": f"{_JAX}: maximum",
    "aten::minimum": f"{_JAX}: minimum",
    "aten::mul": f"{_MLIR}/binary.py",
    "aten::new_empty": "tests/operations/test_new_empty.py",
    "aten::new_zeros": "tests/python_ops/test_factory_ops.py",
    "aten::pad": "torch: constant_pad_nd",
    "aten::permute": _VIEWS,
    "aten::reshape": _VIEWS,
    "aten::rsub": f"{_MLIR}/binary.py: sub",
    "aten::select": _VIEWS,
    "aten::slice": _VIEWS,
    "aten::sub": f"{_MLIR}/binary.py",
    "aten::t": _VIEWS,
    "aten::to": "torch: _to_copy",
    "aten::transpose": _VIEWS,
    "aten::unsqueeze": _VIEWS,
    "aten::view": _VIEWS,
    "aten::where": f"{_MLIR}/indexing.py",
    "aten::zero_": f"{_JAX}: zero",
    "aten::zeros_like": "tests/python_ops/test_factory_ops.py",
}


def check_inside_op(name):
    """Refuse an op in the body of a custom op that no source shows to be lowered."""
    if name not in LOWERED:
        refuse("op-lowering", f"{name} inside a custom op")


def check_view(func, args):
    """Refuse a view of the bits in another dtype: eager has none, and the lowering compares bit widths (a bool has 1)."""
    if func is torch.ops.aten.view.dtype:
        refuse("dtype-view", f"a view of {args[0].dtype} as {args[1]}")
