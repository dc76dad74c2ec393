"""Actions: what one instruction computes, and what that touches, so that a replay can leave out what nothing needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nki_hf.sim.stream.events import Buffer

__all__ = ["Access", "Action", "access_of"]

Action = Callable[[], object]
"""One instruction's computation, bound to its operands' memory."""


_PURE = frozenset(
    "iota memset affine_select tensor_copy tensor_tensor tensor_scalar scalar_tensor_tensor tensor_reduce activation "
    "nc_transpose nc_matmul dma_copy".split()
)
"""Instructions that compute the same again from the same operands, unless an operand is a run-time scalar or an accumulator."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a recorded computation touches.

    Attributes:
      reads, writes: numbers of the buffers whose values it takes and changes.
      free: True if it may give something else from the same values (registers, random numbers): it always counts as new.
      takes, changes: names of what it takes and changes that no buffer holds: the accumulators of an engine. (What draws random
        numbers is in no recording that leaves anything out.)
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    free: bool
    takes: frozenset[str] = frozenset()
    changes: frozenset[str] = frozenset()


def access_of(
    opcode: str,
    engine: str,
    reads: Sequence[Buffer],
    writes: Sequence[Buffer],
    attrs: Mapping[str, Any],
    *,
    free: bool,
) -> Access:
    """What an instruction's computation touches.

    Args:
      opcode, engine, attrs: as in its event.
      reads, writes: the buffers whose values it takes and changes.
      free: True if an operand is a run-time scalar.
    """
    return Access(
        tuple([buffer.number for buffer in reads]),
        tuple([buffer.number for buffer in writes]),
        free or opcode not in _PURE or bool(attrs.get("reduce")) or not writes,
        *_state_of(engine, attrs, len(writes)),
    )


_NOTHING: frozenset[str] = frozenset()


def _state_of(engine: str, attrs: Mapping[str, Any], results: int) -> tuple[frozenset[str], frozenset[str]]:
    """Which accumulators an instruction with so many results takes, and which it changes."""
    command = attrs.get("reduce_cmd")
    if command is None:
        return _NOTHING, _NOTHING
    registers = frozenset([f"{engine}.registers"])
    if command == "idle":  # the second result is what they hold
        return registers if results > 1 else _NOTHING, _NOTHING
    return registers if command == "reduce" else _NOTHING, registers
