"""`nki.isa` of the simulated language: one function per instruction, which is the definition of its semantics."""

from __future__ import annotations

from nki_hf.sim.isa.copies import tensor_copy
from nki_hf.sim.isa.dma import dma_copy
from nki_hf.sim.isa.enums import dge_mode, dma_engine, engine, matmul_perf_mode, nc_version, oob_mode, reduce_cmd
from nki_hf.sim.isa.instruction import NkiInstruction
from nki_hf.sim.isa.tensor_engine import nc_matmul

__all__ = [
    "NkiInstruction", "dge_mode", "dma_copy", "dma_engine", "engine", "matmul_perf_mode", "nc_matmul", "nc_version",
    "oob_mode", "reduce_cmd", "tensor_copy",
]  # fmt: skip
