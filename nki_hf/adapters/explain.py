"""`nki_hf.explain()`: what the attention calls of this process ran, and why."""

from __future__ import annotations

from dataclasses import dataclass

from nki_hf.adapters import call_log
from nki_hf.adapters.call_log import CallLogRow

__all__ = ["Report", "explain"]


@dataclass(frozen=True, kw_only=True)
class Report:
    """What ran since the start of the process or since the last reset.

    Attributes:
      rows: one per layer and way to run.
    """

    rows: tuple[CallLogRow, ...]

    @property
    def calls(self) -> int:
        """All attention calls; their gradients are not among them."""
        return sum(row.calls for row in self.rows if row.phase != "backward")

    @property
    def gradients(self) -> int:
        """Calls whose gradients were computed."""
        return sum(row.calls for row in self.rows if row.phase == "backward")

    @property
    def fallbacks(self) -> int:
        """Calls, or gradients of calls, that ran torch instead of a kernel."""
        return sum(row.calls for row in self.rows if row.first.fallback)

    def reasons(self) -> dict[str, int]:
        """Each reason for a fallback, with the number of calls it sent there."""
        counts: dict[str, int] = {}
        for row in self.rows:
            if row.first.fallback:
                for reason in row.first.rejected:
                    counts[str(reason)] = counts.get(str(reason), 0) + row.calls
        return counts

    def __str__(self) -> str:
        if not self.rows:
            return "No attention call yet."
        table = [("layer", "phase", "ran", "back end", "calls", "seqlen_q", "seqlen_kv", "mask", "loops", "why")]
        for row in self.rows:
            lengths = ("any", "any") if row.layer == call_log.TRACED else (_span(*row.seqlens_q), _span(*row.seqlens_kv))
            why = "; ".join(f"{reason.field}={reason.value}" for reason in row.first.rejected) if row.first.fallback else ""
            table.append(
                (
                    row.layer,
                    row.phase,
                    row.first.kernel,
                    row.first.backend,
                    f"{row.calls:,}",
                    *lengths,
                    row.first.problem.mask.form,
                    ", ".join(f"{name} {ran:,} of {most:,}" for name, (ran, most) in row.turns.items()),
                    why,
                )
            )
        widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
        counted = f"{self.calls:,} calls" + (f" and the gradients of {self.gradients:,}" if self.gradients else "")
        lines.append(f"{counted}, {self.fallbacks:,} of them ran torch instead of a kernel.")
        return "\n".join(lines)


def explain(*, reset: bool = False) -> Report:
    """A report of every attention call so far; print it, or read its `rows`, `fallbacks` and `reasons()`.

    Calls inside a graph count as the layer `a compiled graph` wherever our op computes them: on the CPU, with every back end of
    `torch.compile`. What a Neuron device runs of a compiled graph is not seen from here. A call that a graph gave to torch
    counts when the graph is traced, as the layer `a graph, when it was traced`, and not when the graph runs.

    Args:
      reset: True also starts a new report.
    """
    report = Report(rows=tuple(call_log.rows()))
    if reset:
        call_log.reset()
    return report


def _span(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
