"""Ways to run the call of a random attention problem: as it stands, in a graph, in a transform, under a context of torch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from tools.fuzz.attention_problems import Case

__all__ = ["in_way"]

Results = tuple[torch.Tensor, torch.Tensor | None]


def in_way(case: Case, function: Callable[[dict[str, Any]], Results], leaves: dict[str, Any]) -> Results:
    """Out and lse of `function`, which takes tensors by name, called in the way of the case.

    A graph is compiled without optimisation, through autograd's tracer, and exported with the lengths as they are. `vmap` adds
    an axis to q, k and v. Under autocast q is float32 where k and v are bfloat16, for half of the seeds.
    """
    way = case["way"]
    given = {name: each for name, each in leaves.items() if isinstance(each, torch.Tensor) and name != "scale"}
    if way is None:
        return function(given)
    names = list(given)

    def called(*tensors: torch.Tensor) -> Results:
        return function(dict(zip(names, tensors, strict=True)))

    if way == "compiled in inference":  # the graph is made in inference mode
        with torch.inference_mode():
            return in_way({**case, "way": "compiled"}, function, leaves)
    if way == "inference of compiled":  # it is made outside, and called again inside
        torch._dynamo.reset()
        torch._logging.set_logs(dynamo=logging.ERROR)
        graph = torch.compile(called, backend="aot_eager", dynamic=False)
        graph(*given.values())
        with torch.inference_mode():
            return graph(*given.values())
    if way.startswith("compiled"):
        torch._dynamo.reset()
        torch._logging.set_logs(dynamo=logging.ERROR)
        torch._functorch.config.donated_buffer = False  # gradients are asked for more than once
        return torch.compile(called, backend="aot_eager", dynamic=way.endswith("dynamic"))(*given.values())
    if way == "exported":
        return torch.export.export(_Module(called), tuple(given.values())).module()(*given.values())
    if way == "vmap":
        axes = tuple(0 if name in ("q", "k", "v") else None for name in names)
        added = [each[None] if axis == 0 else each for axis, each in zip(axes, given.values(), strict=True)]
        return torch.vmap(lambda *tensors: called(*tensors)[0], in_dims=axes)(*added)[0], None
    if way == "autocast":
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return function({**given, "q": given["q"].float()} if case["seed"] % 2 else given)
    if way == "no_grad":
        with torch.no_grad():
            return called(*(each.detach().requires_grad_(name in ("q", "k", "v", "sink")) for name, each in given.items()))
    return checkpoint(called, *given.values(), use_reentrant=False)


class _Module(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)
