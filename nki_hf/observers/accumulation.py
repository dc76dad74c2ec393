"""Accumulation: matrix products added onto PSUM that another engine than Tensor wrote last.

Source: nki/api/nki/isa/__init__.py, nc_matmul: undefined on NeuronCore-v2 and v3.
"""

from __future__ import annotations

from collections.abc import Sequence

from nki_hf.chips import Chip
from nki_hf.errors import FaultRecord
from nki_hf.sim.stream.dependencies import WAW, dependencies
from nki_hf.sim.stream.events import Event

__all__ = ["foreign_accumulation"]


def foreign_accumulation(events: Sequence[Event], chip: Chip) -> list[FaultRecord]:
    """One record per source line at which a product is added to what another engine wrote; none from NeuronCore-v4 on."""
    if chip.generation >= 4 or not any(event.opcode == "nc_matmul" and event.attrs.get("accumulate") for event in events):
        return []
    graph = dependencies(events)
    found: dict[tuple[str, int], FaultRecord] = {}
    for index, event in enumerate(events):
        if event.opcode != "nc_matmul" or not event.attrs.get("accumulate"):
            continue
        for edge in graph.of(index):
            writer = events[edge.producer]
            if edge.kind == WAW and writer.engine != "tensor":
                dst = event.writes[0].buffer
                found.setdefault(
                    (event.file, event.line),
                    FaultRecord(
                        kind="uninitialized",
                        instruction="nc_matmul",
                        message=f"the product is added to {dst.name}{list(dst.shape)}, which {writer.opcode} wrote "
                        f"({writer.file}:{writer.line})",
                        limit=f"on {chip.name} only a product may start an accumulation",
                        advice="Let the first product overwrite, and add the other term afterwards",
                        file=event.file,
                        line=event.line,
                    ),
                )
    return list(found.values())
