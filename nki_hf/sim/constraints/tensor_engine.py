"""Rules of the Tensor engine's instructions."""

from __future__ import annotations

from nki_hf.sim.constraints.rule import Operands, Violation, rule

_ISA = "nki/api/nki/isa/__init__.py: nc_matmul"


@rule("nc_matmul", "shape", "at most 128 partitions", _ISA)
def _contraction(o: Operands) -> Violation:
    for name in ("stationary", "moving"):
        tensor = o.arguments[name]
        if tensor.partitions > o.machine.chip.partitions:
            return f"{name} {tensor.name} has {tensor.partitions:,} partitions", "Split the contraction axis"
    return None


@rule("nc_matmul", "shape", "the same number of partitions", _ISA)
def _same_contraction(o: Operands) -> Violation:
    if o.stationary.partitions != o.moving.partitions:
        return f"stationary has {o.stationary.partitions} partitions and moving {o.moving.partitions}"
    return None


@rule("nc_matmul", "placement", "stationary and moving in SBUF, dst in PSUM", _ISA)
def _placement(o: Operands) -> Violation:
    for name, space in (("dst", "psum"), ("stationary", "sbuf"), ("moving", "sbuf")):
        if o.arguments[name].space != space:
            return f"{name} {o.arguments[name].name} is in {o.arguments[name].space}"
    return None
