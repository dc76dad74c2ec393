"""What one instruction costs on one chip: a pure function of its Event and the Chip. Rules: docs/timing.md, "Costs".

Compute engines. An instruction streams N elements per partition (N = the largest free size of its operands). Its engine
is busy for `busy_ns` = fixed overhead + stream time + what it does besides (an accumulator read-out); its result can be
used `done_ns` after its start = stream time + the engine's latency. Scalar reads its accumulator with an instruction of its
own, which follows in the queue: the output is usable after `output_ns`, the sum after `done_ns`.

DMA. A transfer is triggered by a queue (`busy_ns` of the queue), leaves `lead_ns` later, occupies its DMA engines for
`payload_ns` and is visible `tail_ns` after its last byte.

A file for each engine; control.py has the instructions that only steer, operands.py what costs ask of operands.
"""

from __future__ import annotations

from collections.abc import Callable

from nki_hf.chips import Chip
from nki_hf.sim.stream.events import Event
from nki_hf.timing.costs.control import sync_cost
from nki_hf.timing.costs.cost import Cost
from nki_hf.timing.costs.dma import dma_cost
from nki_hf.timing.costs.gpsimd import gpsimd_cost
from nki_hf.timing.costs.scalar import scalar_cost
from nki_hf.timing.costs.tensor import tensor_cost
from nki_hf.timing.costs.vector import vector_cost

__all__ = ["Cost", "cost_of"]

_ENGINES: dict[str, Callable[..., Cost]] = {
    "tensor": tensor_cost,
    "vector": vector_cost,
    "scalar": scalar_cost,
    "gpsimd": gpsimd_cost,
    "sync": sync_cost,
    "dma": dma_cost,
}


def cost_of(event: Event, chip: Chip, cores: int = 1) -> Cost:
    """The cost of `event` on `chip` in a launch of `cores` cores, which share the HBM of one logical core.

    Raises:
      ValueError: nothing is known about the instruction on that engine; the message names the rule's place.
    """
    rule = _ENGINES.get(event.engine)
    if rule is None:
        raise ValueError(f"engine={event.engine!r} has no cost rule: add one to timing/costs/.")
    return rule(event, chip, cores) if event.engine == "dma" else rule(event, chip)
