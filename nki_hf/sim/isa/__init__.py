"""`nki.isa` of the simulated language: one function per instruction, which is the definition of its semantics."""

from __future__ import annotations

from types import FunctionType

from nki_hf.errors import KernelFault as NkiValidationError
from nki_hf.sim.constraints.operand_kinds import know_parameters
from nki_hf.sim.isa.activations import activate2, activation, activation_reduce
from nki_hf.sim.isa.affine import affine_select, iota
from nki_hf.sim.isa.copies import memset, tensor_copy
from nki_hf.sim.isa.cores import core_barrier, sendrecv
from nki_hf.sim.isa.dma import dma_compute, dma_copy
from nki_hf.sim.isa.elementwise import reciprocal, scalar_tensor_tensor, tensor_scalar, tensor_tensor
from nki_hf.sim.isa.enums import dge_mode, dma_engine, engine, matmul_perf_mode, nc_version, oob_mode, reduce_cmd
from nki_hf.sim.isa.exponentials import exponential
from nki_hf.sim.isa.gathers import local_gather, nc_n_gather, nc_stream_shuffle
from nki_hf.sim.isa.gpsimd_search import nonzero_with_count, sequence_bounds, topk
from nki_hf.sim.isa.instruction import NkiInstruction
from nki_hf.sim.isa.microscaling import nc_matmul_mx, quantize_mx
from nki_hf.sim.isa.random_numbers import dropout, rand2, rand_get_state, rand_set_state, rng, set_rng_seed
from nki_hf.sim.isa.reductions import tensor_partition_reduce, tensor_reduce, tensor_scalar_reduce
from nki_hf.sim.isa.scalar_registers import (
    register_alloc,
    register_load,
    register_move,
    register_store,
    scalar_load,
    scalar_store,
)
from nki_hf.sim.isa.scans import tensor_scalar_cumulative, tensor_tensor_scan
from nki_hf.sim.isa.search8 import max8, nc_find_index8, nc_match_replace8
from nki_hf.sim.isa.selects import range_select, select_reduce, tensor_copy_predicated
from nki_hf.sim.isa.statistics import bn_aggr, bn_stats
from nki_hf.sim.isa.tensor_engine import nc_matmul
from nki_hf.sim.isa.transposes import dma_transpose, nc_transpose
from nki_hf.sim.isa.version import get_nc_sub_version, get_nc_version
from nki_hf.sim.tensors.registers import VirtualRegister
from nki_hf.sim.tensors.scalars import NkiScalar

tensor_engine, vector_engine, scalar_engine = engine.tensor, engine.vector, engine.scalar
gpsimd_engine, unknown_engine = engine.gpsimd, engine.unknown

__all__ = [
    "NkiInstruction", "NkiScalar", "NkiValidationError", "VirtualRegister", "activate2", "activation", "activation_reduce",
    "affine_select", "bn_aggr", "bn_stats", "core_barrier", "dge_mode", "dma_compute", "dma_copy", "dma_engine",
    "dma_transpose", "dropout", "engine", "exponential", "get_nc_sub_version", "get_nc_version", "gpsimd_engine", "iota",
    "local_gather", "matmul_perf_mode", "max8", "memset", "nc_find_index8", "nc_match_replace8", "nc_matmul",
    "nc_matmul_mx", "nc_n_gather", "nc_stream_shuffle", "nc_transpose", "nc_version", "nonzero_with_count", "oob_mode",
    "quantize_mx", "rand2", "rand_get_state", "rand_set_state", "range_select", "reciprocal", "reduce_cmd",
    "register_alloc", "register_load", "register_move", "register_store", "rng", "scalar_engine", "scalar_load",
    "scalar_store", "scalar_tensor_tensor", "select_reduce", "sendrecv", "sequence_bounds", "set_rng_seed", "tensor_copy",
    "tensor_copy_predicated", "tensor_engine", "tensor_partition_reduce", "tensor_reduce", "tensor_scalar",
    "tensor_scalar_cumulative", "tensor_scalar_reduce", "tensor_tensor", "tensor_tensor_scan", "topk", "unknown_engine",
    "vector_engine",
]  # fmt: skip

know_parameters((name, value) for name, value in list(globals().items()) if name in __all__ and isinstance(value, FunctionType))
