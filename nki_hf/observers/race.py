"""Race: one unordered pair of accesses, as a record and as a fault."""

from __future__ import annotations

from dataclasses import dataclass

from nki_hf.errors import FaultRecord, KernelFault
from nki_hf.sim.stream.events import Event, Region

__all__ = ["Race"]


@dataclass(frozen=True, slots=True)
class Race:
    """One unordered pair of accesses.

    Attributes:
      first, second: the two events, in order of execution in the simulator.
      first_region, second_region: what they touch.
      cause: `cores`, `addresses`, `hbm` or `indices`.
      missing: what would order them.
      same: True if both cores write the same elements by one instruction of the kernel, or read such elements after their own
        core has written them: if both write the same values, it does not matter which comes first.
      count: pairs at the same two source lines.
    """

    first: Event
    second: Event
    first_region: Region
    second_region: Region
    cause: str
    missing: str
    count: int = 1
    same: bool = False

    def record(self) -> FaultRecord:
        """The race as a fault at the second access."""
        a, b = self.first, self.second
        return FaultRecord(
            kind="race",
            instruction=b.opcode,
            message=f"{_access(b, self.second_region)} and {_access(a, self.first_region)} ({a.file}:{a.line}) are not ordered"
            + (f" ({self.count:,} pairs at these lines)" if self.count > 1 else ""),
            limit=f"missing: {self.missing}",
            operands=(_tile(self.first_region), _tile(self.second_region)),
            file=b.file,
            line=b.line,
            details={
                "cause": self.cause,
                "missing": self.missing,
                "count": self.count,
                "first": {"event": a.index, "core": a.core, "queue": a.queue, "file": a.file, "line": a.line},
                "second": {"event": b.index, "core": b.core, "queue": b.queue, "file": b.file, "line": b.line},
            },
        )

    def __str__(self) -> str:
        return str(KernelFault(self.record()))


def _access(event: Event, region: Region) -> str:
    how = "write" if any(region is item for item in event.writes) else "read"
    return f"the {how} of {region.buffer.name} by {event.opcode} on core {event.core}, queue {event.queue}"


def _tile(region: Region) -> str:
    return f"{region.buffer.name}{list(region.buffer.shape)} {region.buffer.dtype} {region.buffer.space}"
