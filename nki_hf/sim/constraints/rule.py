"""Rule: one documented limit of an instruction, and the check that runs them all before anything is executed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nki_hf.sim.faults import fault, warn_unsure
from nki_hf.sim.machine import Machine

__all__ = ["RULES", "Operands", "Rule", "Violation", "check", "rule"]


@dataclass(frozen=True, slots=True)
class Operands:
    """The arguments of one instruction, by public name, and the machine that is to execute it."""

    machine: Machine
    opcode: str
    arguments: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.arguments[name]
        except KeyError:
            raise AttributeError(f"{self.opcode} has no argument {name!r}") from None


Violation = str | tuple[str, str] | None
"""None if the rule holds; else what is wrong (with the values), or that and what to do."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One limit.

    Attributes:
      opcode: the instruction it belongs to.
      kind: see `FaultRecord.kind`.
      limit: what is allowed, as the rest of a sentence.
      source: where it is documented.
      sure: False where public sources disagree or only infer it: kernels written elsewhere get a warning then.
      violated: function of the operands; see `Violation`.
    """

    opcode: str
    kind: str
    limit: str
    source: str
    sure: bool
    violated: Callable[[Operands], Violation]


RULES: dict[str, list[Rule]] = {}


def rule(
    opcodes: str | tuple[str, ...], kind: str, limit: str, source: str, *, sure: bool = True
) -> Callable[[Callable[[Operands], Violation]], Callable[[Operands], Violation]]:
    """Decorator that adds a check to `RULES` for each of the instructions."""

    def add(violated: Callable[[Operands], Violation]) -> Callable[[Operands], Violation]:
        for opcode in (opcodes,) if isinstance(opcodes, str) else opcodes:
            RULES.setdefault(opcode, []).append(Rule(opcode, kind, limit, source, sure, violated))
        return violated

    return add


def check(machine: Machine, opcode: str, arguments: Mapping[str, Any]) -> None:
    """Run every rule of the instruction; the first broken one is a fault (or a warning, see `Rule.sure`)."""
    operands = Operands(machine, opcode, arguments)
    for item in RULES.get(opcode, ()):
        violation = item.violated(operands)
        if violation is None:
            continue
        what, advice = violation if isinstance(violation, tuple) else (violation, "")
        tensors = tuple(f"{name} {value!r}" for name, value in arguments.items() if hasattr(value, "storage"))
        if machine.options.foreign and not item.sure:
            warn_unsure(item.kind, opcode, what, limit=item.limit, operands=tensors)
        else:
            fault(item.kind, opcode, what, limit=item.limit, advice=advice, operands=tensors)
