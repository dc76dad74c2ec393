"""Rule: one documented limit of an instruction, and the check that runs them all before anything is executed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nki_hf.sim.constraints.operand_kinds import refuse_non_tensors
from nki_hf.sim.execution.machine import Machine
from nki_hf.sim.faults import fault, warn_unsure
from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["RULES", "Operands", "Rule", "Violation", "check", "first_place", "rule"]


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

    @property
    def generation(self) -> int:
        """NeuronCore generation of the chip: 2, 3 or 4."""
        return self.machine.chip.generation

    def tiles(self, names: Iterable[str] | None = None) -> list[tuple[str, NkiTensor]]:
        """The arguments that are tensors (those of `names` only), with their names; lists count item by item."""
        found: list[tuple[str, NkiTensor]] = []
        for name in self.arguments if names is None else names:
            value = self.arguments.get(name)
            if isinstance(value, NkiTensor):
                found.append((name, value))
            elif isinstance(value, list | tuple):
                found += [(f"{name}[{i}]", item) for i, item in enumerate(value) if isinstance(item, NkiTensor)]
        return found


Violation = str | tuple[str, str] | None
"""None if the rule holds; else what is wrong (with the values), or that and what to do."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One limit.

    Attributes:
      opcode: the instruction it belongs to.
      name: short name, unique within the instruction.
      kind: see `FaultRecord.kind`.
      limit: what is allowed, as the rest of a sentence.
      source: where it is documented.
      documented: False where public sources disagree or only infer it: kernels written elsewhere get a warning then.
      choice: True if nothing is refused: public sources disagree about what such a call computes, and `limit` says what it
        computes here. Every kernel gets a warning.
      stateful: True if it looks at the state of the run and not only at shapes, dtypes and places.
      violated: function of the operands; see `Violation`.
    """

    opcode: str
    name: str
    kind: str
    limit: str
    source: str
    documented: bool
    stateful: bool
    choice: bool
    violated: Callable[[Operands], Violation]


RULES: dict[str, list[Rule]] = {}

Check = Callable[[Operands], Violation]


def rule(
    opcodes: str | Iterable[str],
    kind: str,
    limit: str,
    source: str,
    *,
    name: str = "",
    documented: bool = True,
    stateful: bool = False,
    choice: bool = False,
) -> Callable[[Check], Check]:
    """Decorator that adds a check to `RULES` for each of the instructions; its name is the function's unless given."""

    def add(violated: Check) -> Check:
        short = name or violated.__name__.strip("_")
        for opcode in (opcodes,) if isinstance(opcodes, str) else opcodes:
            RULES.setdefault(opcode, []).append(
                Rule(opcode, short, kind, limit, source, documented, stateful, choice, violated)
            )
        return violated

    return add


_passed: set[Any] = set()
_stateful: dict[str, list[Rule]] = {}
_MOST_PASSED = 100_000


def check(machine: Machine, opcode: str, arguments: Mapping[str, Any]) -> None:
    """Run every rule of the instruction; the first broken one is a fault (or a warning, see `Rule.documented`).

    What has passed once passes again without running the rules: same chip, shapes, dtypes, places and options.
    """
    rules = RULES.get(opcode)
    if rules is None:
        return
    signature = _signature(machine, opcode, arguments)
    known = signature is not None and signature in _passed
    if known:
        if opcode not in _stateful:
            _stateful[opcode] = [item for item in rules if item.stateful]
        rules = _stateful[opcode]
        if not rules:
            return
    if not known:
        refuse_non_tensors(opcode, arguments)
    warned = _check_enumerations(opcode, arguments, third_party=machine.options.third_party)
    operands = Operands(machine, opcode, arguments)
    for item in rules:
        violation = item.violated(operands)
        if violation is None:
            continue
        what, advice = violation if isinstance(violation, tuple) else (violation, "")
        tensors = tuple(f"{name} {value!r}" for name, value in operands.tiles())
        if not item.choice and (item.documented or not machine.options.third_party):
            fault(item.kind, opcode, what, limit=item.limit, advice=advice, operands=tensors, rule=item.name)
        warn_unsure(item.kind, opcode, what, limit=item.limit, operands=tensors)
        warned = True
    if signature is not None and not known and not warned:
        if len(_passed) >= _MOST_PASSED:
            _passed.clear()
        _passed.add(signature)


_ENUMERATIONS = {
    "engine": "engine",
    "reduce_cmd": "reduce_cmd",
    "dge_mode": "dge_mode",
    "oob_mode": "oob_mode",
    "perf_mode": "matmul_perf_mode",
    "dma_engine": "dma_engine",
}


def _check_enumerations(opcode: str, arguments: Mapping[str, Any], *, third_party: bool) -> bool:
    """A fault unless enumerations are members; True if it only warned: dge_mode by value, for public kernels pass it so."""
    warned = False
    for name, wanted in _ENUMERATIONS.items():
        value = arguments.get(name)
        if value is None or type(value).__name__ == wanted:
            continue
        limit = f"must be a member of nisa.{wanted}"
        if third_party and name == "dge_mode" and type(value) is int and 0 <= value <= 3:
            warn_unsure("argument", opcode, f"{name}={value!r}", limit=limit)
            warned = True
        else:
            fault(
                "argument",
                opcode,
                f"{name}={value!r}",
                limit=limit,
                advice=f"Pass enumerations by name, nisa.{wanted}.NAME, not by value",
            )
    return warned


def first_place(tensor: NkiTensor) -> int:
    """Of an on-chip view, what of its offset rules may look at: in SBUF the first partition, in PSUM the first element too."""
    storage, offset = tensor.storage, tensor.offset
    if not offset or storage.in_psum or tensor.free_start is not None:
        return offset
    row = storage.buffer.bytes_per_partition // tensor.dtype.itemsize
    return offset // row if row else 0


def _signature(machine: Machine, opcode: str, arguments: Mapping[str, Any]) -> Any:
    """All that rules may look at (`stateful` ones aside), or None if that cannot be remembered.

    Where in its partitions of SBUF a view begins they may not look at: only PSUM has words and banks.
    """
    parts: list[Any] = [opcode, machine.chip.name, machine.run.lnc]
    for value in arguments.values():
        if type(value) is NkiTensor:
            if value.indirection is not None:
                return None
            buffer = value.storage.buffer
            where = (first_place(value), buffer.shape, buffer.dtype.itemsize, buffer.address) if buffer.on_chip else None
            parts += (buffer.space, value.shape, value.strides, value.dtype.name, where)
        elif type(value) is tuple and any(type(item) is NkiTensor for item in value):
            return None  # what is remembered must not keep tiles alive
        else:
            parts += (type(value), value)
    signature = tuple(parts)
    try:
        hash(signature)
    except TypeError:
        return None
    return signature
