"""Rules of the instructions with which the cores of one launch talk to each other."""

from __future__ import annotations

from nki_hf.sim.constraints.families import isa
from nki_hf.sim.constraints.operand import show
from nki_hf.sim.constraints.rule import Operands, Violation, rule

_BOTH = ("core_barrier", "sendrecv")


@rule(_BOTH, "generation", "NeuronCore-v3 and newer", isa("core_barrier"))
def _generation(o: Operands) -> Violation:
    return f"the chip is {o.machine.chip.name}" if o.generation < 3 else None


@rule("sendrecv", "argument", "needs a launch on two cores", isa("sendrecv"))
def _two_cores(o: Operands) -> Violation:
    return (f"lnc={o.machine.run.lnc}", "Launch with kernel[2]") if o.machine.run.lnc < 2 else None


@rule("core_barrier", "placement", "data must be in shared HBM", isa("core_barrier"))
def _shared_data(o: Operands) -> Violation:
    alone = o.machine.run.lnc < 2 and not o.data.on_chip  # inputs of a launch of one core are in private HBM
    return f"data {show(o.data)} is in {o.data.space}" if o.data.space != "shared_hbm" and not alone else None


@rule("core_barrier", "argument", "cores must be (0, 1); in a launch of one core also that core alone", isa("core_barrier"))
def _cores(o: Operands) -> Violation:
    allowed = ((0, 1),) if o.machine.run.lnc > 1 else ((0, 1), (0,))
    return f"cores={o.cores}" if o.cores not in allowed else None


@rule("sendrecv", "placement", "src and dst must be in SBUF", isa("sendrecv"))
def _in_sbuf(o: Operands) -> Violation:
    for name, tile in o.tiles():
        if tile.space != "sbuf":
            return f"{name} {show(tile)} is in {tile.space}"
    return None


@rule("sendrecv", "dtype", "src and dst must have the same dtype", isa("sendrecv"))
def _same_dtype(o: Operands) -> Violation:
    return f"src is {o.src.dtype} and dst {o.dst.dtype}" if o.src.dtype.name != o.dst.dtype.name else None


@rule("sendrecv", "shape", "src and dst must have the same shape", isa("sendrecv"))
def _same_shape(o: Operands) -> Violation:
    return f"src is {list(o.src.shape)} and dst {list(o.dst.shape)}" if o.src.shape != o.dst.shape else None


@rule("sendrecv", "argument", "ranks must be 0 or 1", isa("sendrecv"))
def _ranks(o: Operands) -> Violation:
    for name in ("send_to_rank", "recv_from_rank"):
        if o.arguments[name] not in (0, 1):
            return f"{name}={o.arguments[name]}"
    return None


@rule("sendrecv", "argument", "ranks must name the other core", isa("sendrecv"), documented=False, stateful=True)
def _other_core(o: Operands) -> Violation:
    for name in ("send_to_rank", "recv_from_rank"):
        if o.arguments[name] == o.machine.core:
            return f"{name}={o.arguments[name]} on core {o.machine.core}"
    return None


@rule(
    "sendrecv",
    "shape",
    "GpSimd's DMA moves at most 1,024 B (4-byte), 512 B (2-byte) or 256 B (1-byte) per partition",
    isa("sendrecv"),
)
def _gpsimd_size(o: Operands) -> Violation:
    nbytes = o.src.free_size * o.src.itemsize
    if getattr(o.dma_engine, "name", "") == "gpsimd_dma" and o.src.free_size > o.machine.chip.gpsimd_dma_elements_max:
        return f"src {show(o.src)} has {nbytes:,} B per partition"
    return None
