"""The log of calls: what every attention call of this process and its gradients ran and why. `nki_hf.explain()` reads it."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field

from nki_hf.dispatch import Decision
from nki_hf.errors import Reason

__all__ = ["TRACED", "CallLogRow", "FallbackWarning", "record", "reset", "rows"]

logger = logging.getLogger("nki_hf")
TRACED = "a graph, when it was traced"
"""The layer of calls for which a graph took torch: counted once for each time that one was traced, whatever it runs later."""


class FallbackWarning(UserWarning):
    """A call ran torch instead of a kernel; once per distinct set of reasons."""


@dataclass(frozen=True, kw_only=True)
class CallLogRow:
    """The calls of one layer that ran the same way.

    Attributes:
      layer: the module's class and layer number, `attention` for a call without a model, `gradients` for those of any call.
      first: the decision of the first of them.
      seqlens_q, seqlens_kv: least and most queries and keys of a call; of `TRACED`, 0: not known.
      calls: how many.
      turns: of each loop of run time of their kernel, by its name, the turns that it ran and the most that it could have
        run. Only the simulator counts; empty elsewhere.
    """

    layer: str
    first: Decision
    seqlens_q: tuple[int, int]
    seqlens_kv: tuple[int, int]
    calls: int
    turns: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def phase(self) -> str:
        """See `Decision.phase`."""
        return self.first.phase


_Key = tuple[str, tuple[object, ...]]
_lock = threading.Lock()
# First decision, calls, least and most queries and keys, turns. Replaced whole, so that an interrupt leaves the old or the new.
_rows: dict[_Key, tuple[Decision, int, int, int, int, int, Mapping[str, tuple[int, int]]]] = {}
_warned: set[tuple[Reason, ...]] = set()


def record(layer: str, decision: Decision, device: str = "cpu", turns: Mapping[str, int] | None = None) -> None:
    """Count one call; log each new way to run once, and warn once for each distinct set of reasons for a fallback.

    Args:
      layer: who called.
      decision: what ran.
      device: type of the tensors' device, which decides whether torch computes in their dtype.
      turns: those of the kernel's loops of run time, by name, if the back end counted.
    """
    problem = decision.problem
    key = (layer, decision.way)
    seqlen_q, seqlen_kv = (0, 0) if layer == TRACED else (problem.seqlen_q, problem.seqlen_kv)
    with _lock:
        row = _rows.get(key)
        first, calls, least_q, most_q, least_kv, most_kv, turned = row or (
            *(decision, 0, seqlen_q, seqlen_q, seqlen_kv, seqlen_kv),
            {},
        )
        lengths = (min(least_q, seqlen_q), max(most_q, seqlen_q), min(least_kv, seqlen_kv), max(most_kv, seqlen_kv))
        _rows[key] = (first, calls + 1, *lengths, _added(turned, decision, turns) if turns else turned)
    if row is None:
        logger.info("%s: %s on %s (%s)", layer, decision.kernel, decision.backend, decision.problem)
    if decision.fallback and decision.rejected not in _warned:
        listed = "\n".join(f"  {reason}" for reason in decision.rejected)
        warnings.warn(
            f"attention runs torch {decision.kernel} instead of a kernel (first in {layer}):\n{listed}\n"
            f"{_numbers(decision, device)}, the speed is torch's. nki_hf.configure(strict=True) makes this an error, "
            "nki_hf.explain() counts such calls.",
            FallbackWarning,
            stacklevel=3,
        )
        _warned.add(decision.rejected)  # when it was shown: an interrupt before that costs no warning


def rows() -> list[CallLogRow]:
    """All rows, in order of first use."""
    with _lock:
        return [
            CallLogRow(
                layer=key[0],
                first=first,
                seqlens_q=(least_q, most_q),
                seqlens_kv=(least_kv, most_kv),
                calls=calls,
                turns=turns,
            )
            for key, (first, calls, least_q, most_q, least_kv, most_kv, turns) in _rows.items()
        ]


def reset() -> None:
    """Forget all calls: the next report starts empty, and warnings appear again."""
    with _lock:
        _rows.clear()
        _warned.clear()


def _added(
    before: Mapping[str, tuple[int, int]], decision: Decision, turns: Mapping[str, int]
) -> Mapping[str, tuple[int, int]]:
    """Turns so far and at most, with those of one more call."""
    most = {} if decision.plan is None else decision.plan.most_turns
    found = dict(before)
    for name, count in turns.items():
        ran, could = found.get(name, (0, 0))
        found[name] = (ran + count, could + most.get(name, count))
    return found


def _numbers(decision: Decision, device: str) -> str:
    """What a fallback's numbers are worth: Neuron devices have no float64, and torch_neuronx narrows it with a warning."""
    if device != "cpu" and decision.problem.dtype == "float64":
        return f"The numbers are those of a narrower type ({device} has no float64)"
    return "The numbers are right"
