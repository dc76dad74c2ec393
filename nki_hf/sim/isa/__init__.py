"""`nki.isa` of the simulated language: one function per instruction, which is the definition of its semantics."""

from __future__ import annotations

from nki_hf.sim.isa.activations import activation, activation_reduce
from nki_hf.sim.isa.affine import affine_select, iota
from nki_hf.sim.isa.copies import memset, tensor_copy
from nki_hf.sim.isa.dma import dma_copy
from nki_hf.sim.isa.elementwise import reciprocal, scalar_tensor_tensor, tensor_scalar, tensor_tensor
from nki_hf.sim.isa.enums import dge_mode, dma_engine, engine, matmul_perf_mode, nc_version, oob_mode, reduce_cmd
from nki_hf.sim.isa.instruction import NkiInstruction
from nki_hf.sim.isa.reductions import tensor_partition_reduce, tensor_reduce, tensor_scalar_reduce
from nki_hf.sim.isa.selects import range_select, select_reduce, tensor_copy_predicated
from nki_hf.sim.isa.tensor_engine import nc_matmul
from nki_hf.sim.isa.transposes import nc_transpose
from nki_hf.sim.isa.version import get_nc_sub_version, get_nc_version

tensor_engine, vector_engine, scalar_engine = engine.tensor, engine.vector, engine.scalar
gpsimd_engine, unknown_engine = engine.gpsimd, engine.unknown

__all__ = [
    "NkiInstruction", "activation", "activation_reduce", "affine_select", "dge_mode", "dma_copy", "dma_engine", "engine",
    "get_nc_sub_version", "get_nc_version", "gpsimd_engine", "iota", "matmul_perf_mode", "memset", "nc_matmul",
    "nc_transpose", "nc_version", "oob_mode", "range_select", "reciprocal", "reduce_cmd", "scalar_engine",
    "scalar_tensor_tensor", "select_reduce", "tensor_copy", "tensor_copy_predicated", "tensor_engine",
    "tensor_partition_reduce", "tensor_reduce", "tensor_scalar", "tensor_scalar_reduce", "tensor_tensor",
    "unknown_engine", "vector_engine",
]  # fmt: skip
