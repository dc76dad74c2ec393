"""Cost: the times of one instruction."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Cost"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Times of one instruction, in ns.

    Attributes:
      busy_ns: from its start to the earliest start of the next instruction of its engine (DMA: of its queue).
      done_ns: from its start to all of its results being usable (compute engines).
      output_ns: from its start to its first destination being usable, where that is before `done_ns`; else 0.
      table: activation table that the Scalar engine must hold; empty if any will do.
      psum_ns: how long it holds the PSUM port that Vector and Scalar may have to share; 0 if it does not.
      sbuf_ns: how long it holds the SBUF port that Vector and GpSimd may have to share; 0 if it does not.
      weight_ns: time to load the stationary operand, seen only where the Tensor engine had nothing to hide it behind.
      lead_ns, payload_ns, tail_ns: the parts of a DMA transfer.
      software_ns: time that GpSimd spends writing the descriptors of a transfer with run-time indices.
      first_engine, engines: the DMA engines that carry it.
      nbytes: bytes moved by a DMA: those it reads or those it writes, whichever are more (they differ where it casts).
      hbm_bytes: bytes of a DMA read from or written to HBM; a copy within HBM counts both.
      flops: multiply-adds times two, of the Tensor engine's useful matmuls (transposes count 0).
      paced: a matmul that a chip's sustained rate applies to (see `Resources`).
    """

    busy_ns: float
    done_ns: float = 0.0
    output_ns: float = 0.0
    table: str = ""
    psum_ns: float = 0.0
    sbuf_ns: float = 0.0
    weight_ns: float = 0.0
    lead_ns: float = 0.0
    payload_ns: float = 0.0
    tail_ns: float = 0.0
    software_ns: float = 0.0
    first_engine: int = 0
    engines: int = 0
    nbytes: int = 0
    hbm_bytes: int = 0
    flops: int = 0
    paced: bool = False
