"""What the two cores of a launch do together: sendrecv and core_barrier."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nki_hf.sim.execution.cores import exchange, meet
from nki_hf.sim.execution.meetings import Meeting
from nki_hf.sim.faults import fault, kernel_position, warn_unsure
from nki_hf.sim.isa.enums import dma_engine as DmaEngine
from nki_hf.sim.isa.enums import engine as Engine
from nki_hf.sim.isa.instruction import NkiInstruction, begin, resolve_engine
from nki_hf.sim.tensors.tensor import NkiTensor
from nki_hf.sim.tensors.values import native_reader, storer
from nki_hf.sim.whole import whole

__all__ = ["core_barrier", "sendrecv"]


def core_barrier(data: NkiTensor, cores: Any, engine: Engine = Engine.gpsimd, name: str | None = None) -> NkiInstruction:
    """Wait until the other core arrives too; what both wrote to `data` (shared HBM) before is visible to both after.

    In a launch of one core there is nothing to wait for: no effect, and a warning, since the core that the kernel waits for on
    a chip runs in another launch.
    """
    named = _cores(cores)
    this = begin("core_barrier", data=data, cores=named, engine=engine)
    if this.machine.run.lnc < 2:
        warn_unsure(
            "argument",
            "core_barrier",
            f"cores={cores!r} in a launch of one core",
            limit="there is no other core to wait for, so this has no effect",
        )
        return NkiInstruction(None)
    if this.machine.pending:
        this.await_exchanges((data,), (data,))
    meeting = meet(this.machine, "core_barrier", "core_barrier")
    return this.issue(
        engine=resolve_engine(engine, "gpsimd"), reads=(data,), writes=(), action=None, meeting=meeting.number, cores=named
    )


def _cores(cores: Any) -> tuple[int, ...]:
    """The core numbers of `cores`, an int or a sequence of ints, in ascending order."""
    given = (cores,) if isinstance(cores, int) else cores
    if isinstance(given, str | NkiTensor) or not isinstance(given, Iterable):
        fault("argument", "core_barrier", f"cores={cores!r}", limit="must be a sequence of core numbers, (0, 1)")
    return tuple(sorted(whole("core_barrier", f"cores={cores!r}: core", item) for item in given))


def sendrecv(
    src: NkiTensor,
    dst: NkiTensor,
    send_to_rank: int,
    recv_from_rank: int,
    pipe_id: int,
    dma_engine: DmaEngine = DmaEngine.dma,
    name: str | None = None,
) -> NkiInstruction:
    """`dst` on this core = `src` of the other core's `sendrecv` with the same `pipe_id`, and the reverse, bit by bit.

    Pipes progress independently: the two cores may use them in different orders.
    """
    this = begin(
        "sendrecv",
        src=src,
        dst=dst,
        send_to_rank=send_to_rank,
        recv_from_rank=recv_from_rank,
        pipe_id=pipe_id,
        dma_engine=dma_engine,
    )
    store, issued = storer(dst) if this.values else None, NkiInstruction(None)
    queue, position = "gpsimd" if dma_engine is DmaEngine.gpsimd_dma else "sync", kernel_position()

    def issue(meeting: Meeting) -> None:
        action = None
        if store is not None:
            received = meeting.received(recv_from_rank)
            action = lambda: store(received())  # noqa: E731
        issued.event = this.issue(
            engine="dma",
            queue=queue,
            reads=(src,),
            writes=(dst,),
            action=action,
            position=position,
            meeting=meeting.number,
            pipe_id=pipe_id,
            dma_engine=dma_engine.name,
        ).event

    if this.machine.run.lnc < 2:
        fault("argument", "sendrecv", "launched on 1 core", limit="needs two cores", advice="Launch the kernel with kernel[2]")
    if this.machine.pending:
        this.await_exchanges((src,), (dst,))
    exchange(
        this.machine,
        f"sendrecv (pipe_id {pipe_id})",
        ("sendrecv", pipe_id),
        native_reader(src) if this.values else None,
        f"{list(src.shape)} {src.dtype}",
        (src.region(),),
        (dst.region(),),
        issue,
    )
    return issued
