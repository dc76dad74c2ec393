"""`nki.language` of the simulated language."""

from __future__ import annotations

from nki_hf.sim.dtypes import (
    bfloat16,
    bool_,
    float8_e4m3,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    int8,
    int16,
    int32,
    tfloat32,
    uint8,
    uint16,
    uint32,
)
from nki_hf.sim.indexing import ds
from nki_hf.sim.language.allocation import ndarray
from nki_hf.sim.regions import MemoryRegion
from nki_hf.sim.tensor import NkiTensor

sbuf, psum, hbm = MemoryRegion.sbuf, MemoryRegion.psum, MemoryRegion.hbm
private_hbm, shared_hbm = MemoryRegion.private_hbm, MemoryRegion.shared_hbm

__all__ = [
    "MemoryRegion", "NkiTensor", "bfloat16", "bool_", "ds", "float16", "float32", "float8_e4m3", "float8_e4m3fn",
    "float8_e5m2", "hbm", "int16", "int32", "int8", "ndarray", "private_hbm", "psum", "sbuf", "shared_hbm", "tfloat32",
    "uint16", "uint32", "uint8",
]  # fmt: skip
