"""`nki.language` of the simulated language."""

from __future__ import annotations

from nki_hf.sim.dtypes import (
    bfloat16,
    bool_,
    float4_e2m1fn_x4,
    float8_e4m3,
    float8_e4m3fn,
    float8_e4m3fn_x4,
    float8_e5m2,
    float8_e5m2_x4,
    float8_e8m0fnu,
    float16,
    float32,
    int8,
    int16,
    int32,
    int64,
    tfloat32,
    uint8,
    uint16,
    uint32,
)
from nki_hf.sim.indexing import ds
from nki_hf.sim.language.allocation import (
    empty_like,
    full,
    ndarray,
    ones,
    shared_constant,
    shared_identity_matrix,
    zeros,
    zeros_like,
)
from nki_hf.sim.language.printing import device_print
from nki_hf.sim.language.programs import no_reorder, num_programs, program_id, program_ndim
from nki_hf.sim.language.ranges import affine_range, dynamic_range, fori_loop, sequential_range, static_range, while_loop
from nki_hf.sim.language.tile_size import tile_size
from nki_hf.sim.objects import NKIObject
from nki_hf.sim.regions import MemoryRegion, is_hbm, is_on_chip, is_psum, is_sbuf
from nki_hf.sim.registers import NkiScalar, VirtualRegister
from nki_hf.sim.tensor import NkiTensor

sbuf, psum, hbm = MemoryRegion.sbuf, MemoryRegion.psum, MemoryRegion.hbm
private_hbm, shared_hbm = MemoryRegion.private_hbm, MemoryRegion.shared_hbm

__all__ = [
    "MemoryRegion", "NKIObject", "NkiScalar", "NkiTensor", "VirtualRegister", "affine_range", "bfloat16", "bool_",
    "device_print", "ds", "dynamic_range", "empty_like", "float16", "float32", "float4_e2m1fn_x4", "float8_e4m3",
    "float8_e4m3fn", "float8_e4m3fn_x4", "float8_e5m2", "float8_e5m2_x4", "float8_e8m0fnu", "fori_loop", "full", "hbm",
    "int16", "int32", "int64", "int8", "is_hbm", "is_on_chip", "is_psum", "is_sbuf", "ndarray", "no_reorder",
    "num_programs", "ones", "private_hbm", "program_id", "program_ndim", "psum", "sbuf", "sequential_range",
    "shared_constant", "shared_hbm", "shared_identity_matrix", "static_range", "tfloat32", "tile_size", "uint16",
    "uint32", "uint8", "while_loop", "zeros", "zeros_like",
]  # fmt: skip
