"""What each compute instruction's documentation says about its operands, as a table; families.py turns it into rules."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["INSTRUCTIONS", "Instruction"]


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """The regular part of one instruction's limits.

    Attributes:
      engines: engines that may run it; with one entry it has no choice.
      equal: tile arguments with equal partitions and equal elements per partition.
      columns: arguments that, if they are tiles, are `[partitions of equal[0], 1]`.
      sbuf, psum: tile arguments that must be in that memory; the others may be in either.
      one_in_psum: pairs of tile arguments that may not both be in PSUM.
      since: first NeuronCore generation.
      indirect: tile arguments that may be gathered or scattered on NeuronCore-v4; see `NkiTensor.indirect`.
      indirect_all: True if every tile argument may be.
      dtypes: allowed dtypes of tile arguments, by name.
      same_dtype: groups of tile arguments with one dtype.
      fp32: arguments that, if they are tiles, are float32.
    """

    engines: tuple[str, ...]
    equal: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    sbuf: tuple[str, ...] = ()
    psum: tuple[str, ...] = ()
    one_in_psum: tuple[str, ...] = ()
    since: int = 2
    indirect: tuple[str, ...] = ()
    indirect_all: bool = False
    dtypes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    same_dtype: tuple[str, ...] = ()
    fp32: tuple[str, ...] = ()


_FP8 = ("float8_e4m3", "float8_e5m2")
_FLOAT = ("float8_e4m3", "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "tfloat32", "float32")
_SMALL_INT = ("int8", "uint8", "int16", "uint16")
_CUMULATIVE = ("bfloat16", "float16", "float32", "float8_e4m3", "float8_e4m3fn", "float8_e5m2", *_SMALL_INT)
_EXP_IN = (*_FP8, "float16", "bfloat16", "float32", "int8", "int16", "int32", "uint8", "uint16", "uint32")
_EXP_OUT = (*_FP8, "float16", "bfloat16", "float32", "tfloat32", "int8", "int16", "int32", "uint8", "uint16")
_RAND_OUT = (*_EXP_OUT, "uint32")
_SCALE = ("float8_e8m0fnu", "uint8")

INSTRUCTIONS = {
    # Tensor engine
    "nc_matmul": Instruction(
        engines=("tensor",), sbuf=("stationary", "moving"), psum=("dst",), indirect_all=True,
        dtypes=(("stationary", _FLOAT), ("moving", _FLOAT)),
    ),
    "nc_matmul_mx": Instruction(
        engines=("tensor",), since=4, sbuf=("stationary", "moving", "stationary_scale", "moving_scale"), psum=("dst",),
        indirect_all=True,
        dtypes=(("stationary", ("float8_e5m2_x4", "float8_e4m3fn_x4", "float4_e2m1fn_x4")),
                ("moving", ("float8_e5m2_x4", "float8_e4m3fn_x4", "float4_e2m1fn_x4")),
                ("stationary_scale", _SCALE), ("moving_scale", _SCALE), ("dst", ("float32", "bfloat16"))),
    ),
    "nc_transpose": Instruction(engines=("tensor", "vector")),
    # Scalar engine
    "activation": Instruction(
        engines=("scalar",), equal=("dst", "data"), columns=("bias", "scale", "reduce_res"), indirect=("dst", "data"),
        fp32=("scale",),
    ),
    "activation_reduce": Instruction(
        engines=("scalar",), equal=("dst", "data"), columns=("bias", "scale", "reduce_res"), indirect=("dst", "data"),
        fp32=("scale",),
    ),
    "activate2": Instruction(
        engines=("scalar",), equal=("dst", "data"), columns=("imm0", "imm1", "relu_param", "reduce_res"), since=4,
        indirect=("dst", "data"), same_dtype=("imm0", "imm1"),
    ),
    # Vector engine
    "tensor_copy": Instruction(engines=("vector", "scalar", "gpsimd"), equal=("dst", "src"), indirect_all=True),
    "memset": Instruction(engines=("vector", "gpsimd"), equal=("dst",)),
    "tensor_copy_predicated": Instruction(
        engines=("vector",), equal=("dst", "src", "predicate"), one_in_psum=("src", "predicate"),
        indirect=("dst", "predicate"), dtypes=(("predicate", ("uint8", "uint16", "uint32")),), same_dtype=("dst", "src"),
    ),
    "tensor_tensor": Instruction(
        engines=("vector", "gpsimd"), equal=("dst", "data1", "data2"), one_in_psum=("data1", "data2"),
        indirect=("dst", "data1"),
    ),
    "tensor_scalar": Instruction(
        engines=("vector", "scalar", "gpsimd"), equal=("dst", "data"), columns=("operand0", "operand1"),
        indirect=("dst", "data"),
    ),
    "scalar_tensor_tensor": Instruction(
        engines=("vector",), equal=("dst", "data", "operand1"), columns=("operand0",), one_in_psum=("data", "operand1"),
    ),
    "tensor_tensor_scan": Instruction(
        engines=("vector",), equal=("dst", "data0", "data1"), columns=("initial",), one_in_psum=("data0", "data1"),
    ),
    "tensor_reduce": Instruction(engines=("vector",), indirect_all=True),
    "tensor_scalar_reduce": Instruction(
        engines=("vector",), equal=("dst", "data"), columns=("operand0", "reduce_res", "reduce_init"),
        indirect=("dst", "data"), fp32=("reduce_init",),
    ),
    "tensor_scalar_cumulative": Instruction(
        engines=("vector",), equal=("dst", "src"), columns=("imm0", "imm1"), indirect=("dst", "src"),
        dtypes=(("dst", _CUMULATIVE), ("src", _CUMULATIVE)), fp32=("imm0", "imm1"),
    ),
    "reciprocal": Instruction(engines=("vector",), equal=("dst", "data")),
    "exponential": Instruction(
        engines=("vector",), equal=("dst", "src"), columns=("max_value", "reduce_res", "reduce_init"), since=4,
        indirect=("dst", "src"), fp32=("max_value", "reduce_init"),
        dtypes=(("dst", _EXP_OUT), ("src", _EXP_IN), ("reduce_res", (*_FP8, "float16", "bfloat16", "float32", "tfloat32"))),
    ),
    "select_reduce": Instruction(
        engines=("vector",), equal=("dst", "on_true", "predicate"), columns=("on_false", "reduce_res"),
        one_in_psum=("on_true", "predicate"),
        dtypes=(("predicate", _SMALL_INT), ("reduce_res", _FLOAT),
                ("on_true", ("float8_e4m3", "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", *_SMALL_INT))),
    ),
    "range_select": Instruction(
        engines=("vector",), equal=("dst", "on_true_tile"), columns=("bound0", "bound1", "reduce_res"), since=3,
        fp32=("bound0", "bound1"), dtypes=(("on_true_tile", _FLOAT),),
    ),
    "nc_stream_shuffle": Instruction(engines=("vector",), same_dtype=("dst", "src")),
    "bn_stats": Instruction(engines=("vector",)),
    "bn_aggr": Instruction(engines=("vector",)),
    "max8": Instruction(engines=("vector",)),
    "nc_find_index8": Instruction(engines=("vector",), dtypes=(("dst", ("uint16", "uint32")),)),
    "nc_match_replace8": Instruction(engines=("vector",), equal=("dst", "data")),
    "quantize_mx": Instruction(
        engines=("vector",), since=4, sbuf=("dst", "src", "dst_scale"),
        dtypes=(("src", ("float16", "bfloat16")), ("dst", ("float8_e5m2_x4", "float8_e4m3fn_x4")), ("dst_scale", _SCALE)),
    ),
    "dropout": Instruction(engines=("vector",), equal=("dst", "data"), columns=("prob",), same_dtype=("dst", "data")),
    "rng": Instruction(
        engines=("vector", "gpsimd"), dtypes=(("dst", ("int8", "int16", "int32", "uint8", "uint16", "uint32")),)
    ),
    "set_rng_seed": Instruction(engines=("vector",), dtypes=(("src_seeds", ("int32", "uint32", "float32")),)),
    "rand_set_state": Instruction(
        engines=("gpsimd", "vector"), since=3, sbuf=("src_seeds",), dtypes=(("src_seeds", ("uint32",)),)
    ),
    "rand_get_state": Instruction(engines=("gpsimd", "vector"), since=3, dtypes=(("dst", ("uint32",)),)),
    "rand2": Instruction(
        engines=("vector",), equal=("dst",), columns=("min", "max"), since=4, fp32=("min", "max"),
        dtypes=(("dst", _RAND_OUT),),
    ),
    # GpSimd
    "iota": Instruction(engines=("gpsimd",), sbuf=("dst",)),
    "affine_select": Instruction(engines=("gpsimd",), equal=("dst", "on_true_tile"), sbuf=("dst", "on_true_tile")),
    "tensor_partition_reduce": Instruction(engines=("gpsimd",), sbuf=("dst", "data")),
    "local_gather": Instruction(
        engines=("gpsimd",), sbuf=("dst", "src_buffer", "index"), dtypes=(("index", ("uint16",)),),
        same_dtype=("dst", "src_buffer"),
    ),
    "nc_n_gather": Instruction(
        engines=("gpsimd",), sbuf=("dst", "data", "indices"), equal=("dst", "indices"), dtypes=(("indices", ("uint32",)),),
        same_dtype=("dst", "data"),
    ),
    "nonzero_with_count": Instruction(
        engines=("gpsimd",), since=3, sbuf=("dst", "src"), dtypes=(("src", ("float32", "int32")), ("dst", ("int32",)))
    ),
    "sequence_bounds": Instruction(
        engines=("gpsimd",), sbuf=("dst", "segment_ids"),
        dtypes=(("segment_ids", ("float32", "int32")), ("dst", ("float32", "int32"))),
    ),
    "topk": Instruction(
        engines=("gpsimd",), sbuf=("val_dst", "idx_dst", "src"), equal=("val_dst", "idx_dst"),
        dtypes=(("src", ("bfloat16",)), ("val_dst", ("bfloat16",)), ("idx_dst", ("uint32",))),
    ),
}  # fmt: skip
"""The compute instructions by public name; source: nki/api/nki/isa/__init__.py (2.32), the docstring of each."""
