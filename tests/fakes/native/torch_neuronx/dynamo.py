"""Fake of the torch.compile back end `neuron`: refuses what the reference page refuses, then runs the graph eagerly."""

import torch
from fake_neuron.machine import MACHINE
from fake_neuron.rules import refuse
from fake_neuron.tensor import NKI_OPS

KNOWN_NAMESPACES = ("aten", "prims", "prim", "higher_order")


def compile_graph(graph, example_inputs, **options):
    """Compile one graph for one set of shapes."""
    if options:
        refuse("graph-mode", f"torch.compile(backend='neuron') was given {options}")
    for value in example_inputs:
        sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
        if any(isinstance(size, torch.SymInt) for size in sizes):
            refuse("graph-static", f"the graph has an input of size {tuple(sizes)}")
        if isinstance(value, torch.Tensor) and value.dim() and value.device.type == "cpu":
            refuse("graph-device", f"the graph has a CPU input of shape {tuple(sizes)}")
        if isinstance(value, torch.Tensor) and value.dtype == torch.int64 and not MACHINE.takes_int64:
            refuse("graph-integers", f"the graph has an int64 input of shape {tuple(sizes)}")
    for node in graph.graph.nodes:
        _check_lowerable(node)
    shapes = tuple((tuple(v.shape), str(v.dtype)) if isinstance(v, torch.Tensor) else v for v in example_inputs)
    MACHINE.compiled("graph", (shapes, graph.code), "graph")

    def run(*inputs):
        before, MACHINE.where = MACHINE.where, "graph"
        MACHINE.in_graph.clear()
        try:
            return graph.forward(*inputs)
        finally:
            MACHINE.where = before

    return run


def _check_lowerable(node):
    if isinstance(node.target, torch._ops.OpOverloadPacket):
        name = node.target._qualified_op_name
    elif isinstance(node.target, torch._ops.OpOverload):
        name = node.target._schema.name
    else:
        return
    if name.split("::")[0] not in KNOWN_NAMESPACES and name not in NKI_OPS:
        refuse("graph-opaque-op", f"{name} was not made by nki_op")
