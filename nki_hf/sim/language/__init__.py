"""`nki.language` of the simulated language."""

from __future__ import annotations

from nki_hf.sim.dtypes import (
    DTypeName,
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
from nki_hf.sim.execution.issued import ISSUED
from nki_hf.sim.isa.operators import (
    abs,
    abs_max,
    abs_min,
    add,
    arctan,
    average,
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    bypass,
    ceil,
    copy,
    cos,
    divide,
    equal,
    erf,
    erf_dx,
    exp,
    floor,
    fmod,
    gelu,
    gelu_apprx_sigmoid,
    gelu_apprx_sigmoid_dx,
    gelu_apprx_tanh,
    gelu_dx,
    greater,
    greater_equal,
    invert,
    left_shift,
    less,
    less_equal,
    log,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    mish,
    mod,
    multiply,
    negative,
    not_equal,
    power,
    prelu,
    reciprocal,
    relu,
    right_shift,
    rsqrt,
    sigmoid,
    sign,
    silu,
    silu_dx,
    sin,
    softplus,
    sqrt,
    square,
    subtract,
    tan,
    tanh,
    trunc,
)
from nki_hf.sim.language import tile_math
from nki_hf.sim.language.allocation import (
    full,
    ndarray,
    ones,
    shared_constant,
    shared_identity_matrix,
    zeros,
    zeros_like,
)
from nki_hf.sim.language.composites import dropout, rms_norm, softmax, where
from nki_hf.sim.language.grid_allocation import alloc_blocks, alloc_tiles, empty_like
from nki_hf.sim.language.movement import assign
from nki_hf.sim.language.printing import device_print
from nki_hf.sim.language.programs import no_reorder, num_programs, program_id, program_ndim
from nki_hf.sim.language.randomness import rand, random_seed
from nki_hf.sim.language.ranges import affine_range, dynamic_range, fori_loop, sequential_range, static_range, while_loop
from nki_hf.sim.language.tile_reductions import all, max, mean, min, prod, sum, var
from nki_hf.sim.language.tile_size import tile_size
from nki_hf.sim.language.transfers import (
    broadcast_to,
    expand_dims,
    gather_flattened,
    load,
    load_transpose2d,
    matmul,
    store,
    transpose,
)
from nki_hf.sim.objects import NKIObject
from nki_hf.sim.tensors.grids import NkiBlockGrid, NkiGrid, NkiTileGrid, blocks, tiles
from nki_hf.sim.tensors.indexing import ds
from nki_hf.sim.tensors.regions import MemoryRegion, is_hbm, is_on_chip, is_psum, is_sbuf
from nki_hf.sim.tensors.registers import VirtualRegister
from nki_hf.sim.tensors.scalars import NkiScalar
from nki_hf.sim.tensors.tensor import NkiTensor

DType = DTypeName
range = static_range
sbuf, psum, hbm = MemoryRegion.sbuf, MemoryRegion.psum, MemoryRegion.hbm
private_hbm, shared_hbm = MemoryRegion.private_hbm, MemoryRegion.shared_hbm

__all__ = [
    "NkiBlockGrid", "NkiGrid", "NkiTileGrid", "alloc_blocks", "alloc_tiles", "blocks", "tiles",
    "DType", "MemoryRegion", "NKIObject", "NkiScalar", "NkiTensor", "VirtualRegister", "abs", "abs_max", "abs_min", "add",
    "affine_range", "all", "arctan", "average", "bfloat16", "bitwise_and", "bitwise_or", "bitwise_xor", "bool_",
    "broadcast_to", "bypass", "ceil", "copy", "cos", "device_print", "divide", "dropout", "ds", "dynamic_range", "empty_like",
    "equal", "erf", "erf_dx", "exp", "expand_dims", "float16", "float32", "float4_e2m1fn_x4", "float8_e4m3", "float8_e4m3fn",
    "float8_e4m3fn_x4", "float8_e5m2", "float8_e5m2_x4", "float8_e8m0fnu", "floor", "fmod", "fori_loop", "full",
    "gather_flattened", "gelu", "gelu_apprx_sigmoid", "gelu_apprx_sigmoid_dx", "gelu_apprx_tanh", "gelu_dx", "greater",
    "greater_equal", "hbm", "int16", "int32", "int64", "int8", "invert", "is_hbm", "is_on_chip", "is_psum", "is_sbuf",
    "left_shift", "less", "less_equal", "load", "load_transpose2d", "log", "logical_and", "logical_not", "logical_or",
    "logical_xor", "matmul", "max", "maximum", "mean", "min", "minimum", "mish", "mod", "multiply", "ndarray", "negative",
    "no_reorder", "not_equal", "num_programs", "ones", "power", "prelu", "private_hbm", "prod", "program_id", "program_ndim",
    "psum", "rand", "random_seed", "range", "reciprocal", "relu", "right_shift", "rms_norm", "rsqrt", "sbuf",
    "sequential_range", "shared_constant", "shared_hbm", "shared_identity_matrix", "sigmoid", "sign", "silu", "silu_dx", "sin",
    "softmax", "softplus", "sqrt", "square", "static_range", "store", "subtract", "sum", "tan", "tanh", "tfloat32", "tile_size",
    "transpose", "trunc", "uint16", "uint32", "uint8", "var", "where", "while_loop", "zeros", "zeros_like",
]  # fmt: skip

ISSUED.assign, ISSUED.apply, ISSUED.functions = assign, tile_math.apply, frozenset(__all__)
