"""Ways that trace a model: `torch.compile`, a compiled training step, `torch.export`."""

import contextlib
import copy
from dataclasses import dataclass

import torch
from tiny import worst
from torch._dynamo.utils import counters
from ways_models import inputs, padding, training_inputs

LENGTHS = (9, 12, 15)


@dataclass(frozen=True)
class Figure:
    """What one model run one way gave.

    Attributes:
      difference: largest absolute difference to eager, or how many tokens differ.
      breaks: graph breaks; None = nothing is traced.
      graphs: graphs that were made; None = nothing is traced.
      recompiles: those that replaced one made for other sizes.
    """

    difference: float
    breaks: int | None = None
    graphs: int | None = None
    recompiles: int | None = None


@contextlib.contextmanager
def traced(kinds):
    """Count what Dynamo does in the block: a function that returns (breaks, graphs, recompiles).

    Args:
      kinds: kinds of calls in the block that need a graph each (with and without a mask, prefill and decode, ...).
    """
    torch._dynamo.reset()
    counters.clear()

    def counts():
        graphs = counters["stats"]["unique_graphs"]
        return sum(counters["graph_break"].values()), graphs, graphs - kinds

    yield counts
    torch._dynamo.reset()


def compiled(model, kind, backend, dynamic):
    """`torch.compile(fullgraph=True)` over three lengths, with and without padding."""
    difference = 0.0
    with traced(kinds=2) as counts, torch.no_grad():
        run = torch.compile(model, backend=backend, fullgraph=True, dynamic=dynamic)
        for mask_of in (padding, lambda batch, length: None):
            for length in LENGTHS:
                given, rows = inputs(kind, 2, length, mask_of(2, length))
                model.set_attn_implementation("eager")
                expected = model(**given).logits
                model.set_attn_implementation("nki")
                difference = max(difference, worst(run(**given).logits, expected, rows))
        return Figure(difference, *counts())


def trained(model, kind, backend):
    """One compiled training step with padding: the farthest gradient."""
    given = training_inputs(kind, 2, 9, padding(2, 9))
    plain = copy.deepcopy(model).train()
    plain.set_attn_implementation("eager")
    plain(**given).loss.backward()
    model.train().set_attn_implementation("nki")
    with traced(kinds=1) as counts:
        run = torch.compile(model, backend=backend, fullgraph=True)
        run(**given).loss.backward()
        figures = counts()
    pairs = zip(model.named_parameters(), plain.parameters(), strict=True)
    gradients = [(name, a.grad, b.grad) for (name, a), b in pairs]
    missing = [name for name, a, b in gradients if (a is None) != (b is None)]
    assert not missing, missing
    found = [(a, b) for _, a, b in gradients if a is not None]
    assert max(float(b.abs().max()) for _, b in found) > 1e-2  # else nothing could differ
    return Figure(max(worst(a, b) for a, b in found), *figures)


def exported(model, kind, strict, attentions):
    """`torch.export` with dynamic batch and length, then run at sizes it was not traced with."""
    model.set_attn_implementation("nki")
    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=4, max=128)
    dims = ({0: batch, 1: length}, {0: batch, 1: length}, {0: batch})
    names, tensors, options, _ = _taken_apart(kind, 2, 9)
    wrapped = _Forward(model, names, options)
    with traced(kinds=1) as counts, torch.no_grad():
        shapes = {"tensors": dims[: len(tensors)]}
        program = torch.export.export(wrapped, tensors, dynamic_shapes=shapes, strict=strict)
        breaks, _, _ = counts()
    nodes = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert sum("nki_hf.attention" in node for node in nodes) == attentions, nodes
    difference = 0.0
    for size, rows in ((9, 2), (14, 3), (21, 4)):
        _, tensors, _, kept = _taken_apart(kind, rows, size)
        model.set_attn_implementation("eager")
        with torch.no_grad():
            difference = max(difference, worst(program.module()(*tensors), wrapped(*tensors), kept))
    return Figure(difference, breaks, 1, 0)


def _taken_apart(kind, batch, length):
    """Names and tensors of the forward pass's arguments, its other arguments, and the rows to compare."""
    given, rows = inputs(kind, batch, length, padding(batch, length))
    tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
    options = {name: value for name, value in given.items() if name not in tensors}
    return tuple(tensors), tuple(tensors.values()), options, rows


class _Forward(torch.nn.Module):
    """A model as a function of tensors by position."""

    def __init__(self, model, names, options):
        super().__init__()
        self.model, self.names, self.options = model, names, options

    def forward(self, *tensors):
        return self.model(**dict(zip(self.names, tensors, strict=True)), **self.options).logits
