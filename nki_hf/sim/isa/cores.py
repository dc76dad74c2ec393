"""What the two cores of a launch do together: sendrecv and core_barrier."""

from __future__ import annotations

from nki_hf.sim.cores import meet
from nki_hf.sim.isa.enums import dma_engine as DmaEngine
from nki_hf.sim.isa.enums import engine as Engine
from nki_hf.sim.isa.instruction import NkiInstruction, begin, resolve_engine
from nki_hf.sim.tensor import NkiTensor
from nki_hf.sim.values import native_reader, storer

__all__ = ["core_barrier", "sendrecv"]


def core_barrier(
    data: NkiTensor, cores: tuple[int, ...], engine: Engine = Engine.gpsimd, name: str | None = None
) -> NkiInstruction:
    """Wait until the other core arrives too; what both wrote to `data` (shared HBM) before is visible to both after."""
    this = begin("core_barrier", data=data, cores=tuple(cores), engine=engine)
    meeting = meet(this.machine, "core_barrier", "core_barrier")
    return this.issue(
        engine=resolve_engine(engine, "gpsimd"), reads=(data,), writes=(), step=None, meeting=meeting.number,
        cores=tuple(cores),
    )  # fmt: skip


def sendrecv(
    src: NkiTensor,
    dst: NkiTensor,
    send_to_rank: int,
    recv_from_rank: int,
    pipe_id: int,
    dma_engine: DmaEngine = DmaEngine.dma,
    name: str | None = None,
) -> NkiInstruction:
    """`dst` on this core = `src` of the other core's `sendrecv` with the same `pipe_id`, and the reverse, bit by bit."""
    this = begin(
        "sendrecv", src=src, dst=dst, send_to_rank=send_to_rank, recv_from_rank=recv_from_rank, pipe_id=pipe_id,
        dma_engine=dma_engine,
    )  # fmt: skip
    offer = native_reader(src) if this.values else None
    meeting = meet(
        this.machine, f"sendrecv (pipe_id {pipe_id})", ("sendrecv", pipe_id), offer, f"{list(src.shape)} {src.dtype}"
    )
    step = None
    if this.values:
        store, received = storer(dst), meeting.received(recv_from_rank)
        step = lambda: store(received())  # noqa: E731
    queue = "gpsimd" if dma_engine is DmaEngine.gpsimd_dma else "sync"
    return this.issue(
        engine="dma", queue=queue, reads=(src,), writes=(dst,), step=step, meeting=meeting.number, pipe_id=pipe_id,
        dma_engine=dma_engine.name,
    )  # fmt: skip
