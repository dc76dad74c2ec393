"""A valid call of every instruction, and for every hand-written rule one change to it that breaks the rule."""

from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl


def tile(shape, dtype="float32", space="sbuf", address=None):
    """A new tensor of the running kernel."""
    return nl.ndarray(shape, getattr(nl, dtype if dtype != "bool" else "bool_"), buffer=getattr(nl, space), address=address)


def column(rows=32, dtype="float32"):
    return tile((rows, 1), dtype)


def index(rows=32, columns=1, dtype="uint32", space="sbuf"):
    return tile((rows, columns), dtype, space)


def gathered(shape=(32, 16), dtype="float32", rows=None, index_shape=None, index_dtype="uint32"):
    """An HBM tensor read through a vector of run-time row indices."""
    rows = rows or shape[0]
    table = tile((256, *shape[1:]), dtype, "hbm")
    width = 1
    for size in shape[1:]:
        width *= size
    pattern, step = [[width, rows]], width
    for size in shape[1:]:
        step //= size
        pattern.append([step, size])
    vector = index(*(index_shape or (rows, 1)), dtype=index_dtype)
    return table.ap(pattern=pattern, vector_offset=vector, indirect_dim=0)


def scattered(shape=(32, 16), dtype="float32", space="sbuf", address=None, index_address=None):
    """An on-chip tile seen through run-time column indices (NeuronCore-v4)."""
    return tile(shape, dtype, space, address).indirect(tile((shape[0], shape[1] // 16), "uint32", "sbuf", index_address))


def _cleared(dst):
    nisa.memset(dst=dst, value=0)
    return dst


E, C, M, D = nisa.engine, nisa.reduce_cmd, nisa.matmul_perf_mode, nisa.dge_mode
X4, E8 = "float8_e5m2_x4", "float8_e8m0fnu"


def _mx(**changes):
    return {
        "dst": tile((64, 64), space="psum"),
        "stationary": tile((32, 64), X4),
        "moving": tile((32, 64), X4),
        "stationary_scale": tile((32, 64), E8),
        "moving_scale": tile((32, 64), E8),
        **changes,
    }


def _matmul(dtype="bfloat16", **changes):
    return {
        "dst": tile((16, 24), space="psum"),
        "stationary": tile((32, 16), dtype),
        "moving": tile((32, 24), dtype),
        **changes,
    }


def _double(dtype="float8_e4m3", **changes):
    return {
        "dst": tile((16, 24), space="psum"),
        "stationary": tile((32, 2, 16), dtype),
        "moving": tile((32, 2, 24), dtype),
        "perf_mode": M.double_row,
        **changes,
    }


def _pair(names=("dst", "data"), dtype="float32", **changes):
    return {**{name: tile((32, 16), dtype) for name in names}, **changes}


def _activate2(**changes):
    return _pair(
        op=nl.exp,
        imm0=column(),
        imm1=column(),
        op0=nl.multiply,
        op1=nl.add,
        relu_param=column(),
        reduce_op=nl.add,
        reduce_res=column(),
        reduce_cmd=C.reset_reduce,
        **changes,
    )


def _search(name="data", **changes):
    return {"dst": tile((32, 8), "uint32"), name: tile((32, 16)), **changes}


BASE = {
    "nc_matmul": _matmul,
    "nc_matmul_mx": _mx,
    "nc_transpose": lambda: {"dst": tile((16, 32), space="psum"), "data": tile((32, 16)), "engine": E.tensor},
    "activation": lambda: _pair(op=nl.exp, bias=column(), scale=column(), reduce_op=nl.add, reduce_res=column(),
                                reduce_cmd=C.reset_reduce),
    "activation_reduce": lambda: _pair(op=nl.exp, bias=column(), scale=column(), reduce_op=nl.add, reduce_res=column()),
    "activate2": _activate2,
    "tensor_copy": lambda: _pair(("dst", "src")),
    "memset": lambda: _pair(("dst",), value=1.0),
    "tensor_copy_predicated": lambda: _pair(("dst", "src"), predicate=tile((32, 16), "uint8")),
    "tensor_tensor": lambda: _pair(("dst", "data1", "data2"), op=nl.add, engine=E.vector),
    "tensor_scalar": lambda: _pair(op0=nl.multiply, operand0=column(), op1=nl.add, operand1=column()),
    "scalar_tensor_tensor": lambda: _pair(("dst", "data", "operand1"), op0=nl.add, operand0=column(), op1=nl.multiply),
    "tensor_tensor_scan": lambda: _pair(("dst", "data0", "data1"), initial=column(), op0=nl.multiply, op1=nl.add),
    "tensor_reduce": lambda: {"dst": column(), "op": nl.add, "data": tile((32, 16)), "axis": 1},
    "tensor_scalar_reduce": lambda: _pair(op0=nl.add, operand0=column(), reduce_op=nl.maximum, reduce_res=column(),
                                          reduce_cmd=C.load_reduce, reduce_init=column()),
    "tensor_scalar_cumulative": lambda: _pair(("dst", "src"), op0=nl.multiply, op1=nl.add, imm0=column(), imm1=column(),
                                              reduce_cmd=C.load_reduce),
    "reciprocal": _pair,
    "exponential": lambda: _pair(("dst", "src"), max_value=column(), reduce_res=column(), reduce_cmd=C.load_reduce,
                                 reduce_init=column()),
    "select_reduce": lambda: _pair(("dst", "on_true"), predicate=tile((32, 16), "uint8"), on_false=column(),
                                   reduce_res=column(), reduce_cmd=C.reset_reduce),
    "range_select": lambda: _pair(("dst", "on_true_tile"), comp_op0=nl.greater_equal, comp_op1=nl.less, bound0=column(),
                                  bound1=column(), reduce_res=column(), on_false_value=-3.4028235e38),
    "nc_stream_shuffle": lambda: _pair(("dst", "src"), shuffle_mask=list(range(32))),
    "bn_stats": lambda: {"dst": tile((32, 6)), "data": tile((32, 16))},
    "bn_aggr": lambda: {"dst": tile((32, 2)), "data": tile((32, 12))},
    "max8": lambda: {"dst": tile((32, 8)), "src": tile((32, 16))},
    "nc_find_index8": lambda: _search(vals=tile((32, 8))),
    "nc_match_replace8": lambda: _pair(vals=tile((32, 8)), imm=0.0),
    "quantize_mx": lambda: {"dst": tile((32, 8), X4), "src": tile((32, 32), "bfloat16"), "dst_scale": tile((32, 8), E8)},
    "dropout": lambda: _pair(prob=column()),
    "rng": lambda: _pair(("dst",), "uint32", engine=E.vector),
    "set_rng_seed": lambda: {"src_seeds": tile((1, 1), "uint32")},
    "rand_set_state": lambda: {"src_seeds": tile((32, 6), "uint32"), "engine": E.gpsimd},
    "rand_get_state": lambda: {"dst": tile((32, 6), "uint32"), "engine": E.gpsimd},
    "rand2": lambda: _pair(("dst",), min=column(), max=column()),
    "iota": lambda: _pair(("dst",), pattern=[[1, 16]]),
    "affine_select": lambda: _pair(("dst", "on_true_tile"), pattern=[[1, 16]], channel_multiplier=1, on_false_value=0.0,
                                   cmp_op=nl.greater_equal),
    "tensor_partition_reduce": lambda: {"dst": tile((1, 16)), "op": nl.add, "data": tile((32, 16))},
    "local_gather": lambda: _pair(("dst", "src_buffer"), index=tile((32, 1), "uint16")),
    "nc_n_gather": lambda: _pair(indices=tile((32, 16), "uint32")),
    "nonzero_with_count": lambda: {"dst": tile((32, 17), "int32"), "src": tile((32, 16))},
    "sequence_bounds": lambda: {"dst": tile((1, 2, 16)), "segment_ids": tile((1, 16))},
    "topk": lambda: {"val_dst": tile((32, 8), "bfloat16"), "idx_dst": tile((32, 8), "uint32"),
                     "src": tile((32, 16), "bfloat16"), "n": 42},
    "dma_copy": lambda: {"dst": tile((32, 16)), "src": tile((32, 16), space="hbm")},
    "dma_transpose": lambda: {"dst": tile((16, 32), "bfloat16"), "src": tile((32, 16), "bfloat16", "hbm")},
    "dma_compute": lambda: {"dst": tile((32, 16)), "srcs": [tile((32, 16), space="hbm"), tile((32, 16))],
                            "reduce_op": nl.add},
    "core_barrier": lambda: {"data": tile((32, 16), space="shared_hbm"), "cores": (0, 1)},
    "sendrecv": lambda: _pair(("src", "dst"), send_to_rank=1 - nl.program_id(0), recv_from_rank=1 - nl.program_id(0),
                              pipe_id=0),
}  # fmt: skip
"""Keyword arguments of a call that breaks no rule on trn2 (on trn3 for the instructions that exist only there)."""

_INT = "int32"


def _gather_transpose(**changes):
    source = changes.pop("source", ((32, 16), "bfloat16"))
    return {"dst": tile((16, 32), "bfloat16"), "src": gathered(*source), **changes}


def _int_pair(names=("dst", "data")):
    return _pair(names, _INT)


BROKEN = {
    ("nc_matmul", "same_contraction"): lambda: {"stationary": tile((16, 16), "bfloat16")},
    ("nc_matmul", "stationary_free"): lambda: {"stationary": tile((32, 129), "bfloat16")},
    ("nc_matmul", "moving_free"): lambda: {"moving": tile((32, 513), "bfloat16")},
    ("nc_matmul", "dst_shape"): lambda: {"dst": tile((16, 23), space="psum")},
    ("nc_matmul", "one_bank"): lambda: {"dst": tile((16, 600), space="psum")[:, 500:524]},
    ("nc_matmul", "no_mixed_fp32"): lambda: {"moving": tile((32, 24), "float32")},
    ("nc_matmul", "no_mixed_fp8"): lambda: {
        "stationary": tile((32, 16), "float8_e4m3"), "moving": tile((32, 24), "float8_e4m3fn")},
    ("nc_matmul", "ocp_fp8"): lambda: {
        "stationary": tile((32, 16), "float8_e4m3fn"), "moving": tile((32, 24), "float8_e4m3fn")},
    ("nc_matmul", "dst_dtype"): lambda: {"dst": tile((16, 24), "bfloat16", "psum")},
    ("nc_matmul", "transpose_dtype"): lambda: {"is_transpose": True},
    ("nc_matmul", "transpose_8_bit"): lambda: {
        "is_transpose": True, "stationary": tile((32, 16), "float8_e4m3"), "moving": tile((32, 24), "float8_e4m3")},
    ("nc_matmul", "double_row_generation", "trn1"): _double,
    ("nc_matmul", "double_row_dtype"): lambda: _double("bfloat16"),
    ("nc_matmul", "double_row_shape"): lambda: {
        "stationary": tile((32, 16), "float8_e4m3"), "moving": tile((32, 24), "float8_e4m3"), "perf_mode": M.double_row},
    ("nc_matmul", "double_row_tiling"): lambda: _double(tile_size=(128, 64), tile_position=(0, 0)),
    ("nc_matmul", "double_row_transpose"): lambda: _double(is_transpose=True),
    ("nc_matmul", "tiling_pair"): lambda: {"tile_size": (64, 128)},
    ("nc_matmul", "tile_sizes"): lambda: {"tile_size": (48, 128), "tile_position": (0, 0)},
    ("nc_matmul", "tile_position"): lambda: {"tile_size": (64, 128), "tile_position": (32, 0)},
    ("nc_matmul", "fits_tile"): lambda: {
        "stationary": tile((64, 16), "bfloat16"), "moving": tile((64, 24), "bfloat16"), "tile_size": (32, 128),
        "tile_position": (0, 0)},
    ("nc_matmul", "accumulate_on_nothing"): lambda: {"accumulate": True},
    ("nc_matmul", "accumulate_on_others"): lambda: {"dst": _cleared(_matmul()["dst"])},
    ("nc_matmul", "indirect_untiled", "trn3"): lambda: {
        "moving": scattered((32, 32), "bfloat16"), "dst": tile((16, 32), space="psum"), "tile_size": (64, 128),
        "tile_position": (64, 0)},
    ("nc_matmul", "indirect_dtype", "trn3"): lambda: {
        "stationary": tile((32, 16)), "moving": scattered((32, 32)), "dst": tile((16, 32), space="psum")},
    ("nc_matmul", "transpose_direct", "trn3"): lambda: {
        "moving": scattered((32, 32), "bfloat16"), "is_transpose": True, "dst": tile((16, 32), "bfloat16", "psum")},
    ("nc_matmul_mx", "same_contraction"): lambda: {"stationary": tile((64, 64), X4)},
    ("nc_matmul_mx", "stationary_free"): lambda: {"stationary": tile((32, 130), X4)},
    ("nc_matmul_mx", "moving_free_mx"): lambda: {"moving": tile((32, 4098), X4)},
    ("nc_matmul_mx", "dst_shape"): lambda: {"dst": tile((64, 62), space="psum")},
    ("nc_matmul_mx", "tiling_pair"): lambda: {"tile_position": (32, 0)},
    ("nc_matmul_mx", "row_tiling_only"): lambda: {"tile_size": (32, 64), "tile_position": (0, 64)},
    ("nc_matmul_mx", "tile_position"): lambda: {"tile_size": (64, 128), "tile_position": (32, 0)},
    ("nc_matmul_mx", "fits_tile"): lambda: {
        "stationary": tile((64, 64), X4), "moving": tile((64, 64), X4), "tile_size": (32, 128), "tile_position": (0, 0)},
    ("nc_matmul_mx", "indirect_untiled"): lambda: {
        "moving": scattered((32, 64), X4), "tile_size": (64, 128), "tile_position": (64, 0)},
    ("nc_matmul_mx", "mx_partitions"): lambda: {"stationary": tile((16, 64), X4), "moving": tile((16, 64), X4)},
    ("nc_matmul_mx", "mx_even"): lambda: {"stationary": tile((32, 63), X4)},
    ("nc_matmul_mx", "mx_index"): lambda: {"moving": scattered((32, 64), X4)},
    ("nc_transpose", "transposed_shape"): lambda: {"dst": tile((16, 31), space="psum")},
    ("nc_transpose", "transposed_dtype"): lambda: {"dst": tile((16, 32), "bfloat16", "psum")},
    ("nc_transpose", "transposed_to_float32"): lambda: {"data": tile((32, 16), "bfloat16")},
    ("nc_transpose", "transposed_8_bit"): lambda: {"data": tile((32, 16), "float8_e4m3")},
    ("nc_transpose", "tensor_transpose_memory"): lambda: {"dst": tile((16, 32))},
    ("nc_transpose", "tensor_transpose_size"): lambda: {"data": tile((32, 129))},
    ("nc_transpose", "vector_transpose_size"): lambda: {"data": tile((32, 33)), "engine": E.vector},
    ("activation", "function"): lambda: {"op": nl.add},
    ("activation", "bias_tile", "trn1"): lambda: {"bias": 1.0},
    ("activation", "bias_dtype"): lambda: {"bias": column(dtype="tfloat32")},
    ("activation", "bias_float"): lambda: {"bias": column(dtype=_INT)},
    ("activation", "reciprocal_bias", "trn1"): lambda: {"op": nl.reciprocal},
    ("activation", "reduce_add"): lambda: {"reduce_op": nl.maximum},
    ("activation", "reduce_command"): lambda: {"reduce_cmd": C.load_reduce},
    ("activation", "scatter_psum", "trn3"): lambda: {"dst": scattered(space="psum")},
    ("activation_reduce", "function"): lambda: {"op": nl.cos},
    ("activation_reduce", "bias_tile", "trn1"): lambda: {"bias": 1.0},
    ("activation_reduce", "bias_dtype"): lambda: {"bias": column(dtype="tfloat32")},
    ("activation_reduce", "bias_float"): lambda: {"bias": column(dtype=_INT)},
    ("activation_reduce", "reciprocal_bias", "trn1"): lambda: {"op": nl.reciprocal},
    ("activation_reduce", "reduce_add_first", "trn1"): lambda: {"reduce_op": nl.maximum},
    ("activation_reduce", "scatter_psum", "trn3"): lambda: {"dst": scattered(space="psum")},
    ("activate2", "function"): lambda: {"op": nl.floor},
    ("activate2", "reduce_five"): lambda: {"reduce_op": nl.multiply},
    ("activate2", "reduce_command"): lambda: {"reduce_cmd": C.load_reduce},
    ("activate2", "stages"): lambda: {"op0": nl.add, "op1": nl.multiply},
    ("activate2", "reverse"): lambda: {"op0": nl.multiply, "op1": nl.bypass, "reverse1": True},
    ("activate2", "scatter_psum"): lambda: {"dst": scattered(space="psum")},
    ("tensor_copy", "copy_engine", "trn1"): lambda: {"engine": E.scalar},
    ("tensor_copy", "copy_scatter", "trn3"): lambda: {"dst": scattered(space="psum"), "engine": E.scalar},
    ("memset", "packed_zero", "trn3"): lambda: {"dst": tile((32, 16), X4)},
    ("memset", "memset_value"): lambda: {"dst": tile((32, 16), _INT), "value": 0.5},
    **{(opcode, "by_magnitude", "trn2"): lambda which=which: {which: nl.abs_max} for opcode, which in (
        ("tensor_tensor", "op"), ("tensor_scalar", "op1"), ("scalar_tensor_tensor", "op0"), ("tensor_tensor_scan", "op1"),
        ("tensor_scalar_reduce", "op0"), ("tensor_scalar_cumulative", "op0"), ("tensor_reduce", "op"),
        ("activation_reduce", "reduce_op"),
    )},
    ("tensor_tensor", "alu_operator"): lambda: {"op": nl.exp},
    ("tensor_tensor", "binary"): lambda: {"op": nl.square},
    ("tensor_tensor", "bitwise_integers"): lambda: {"op": nl.bitwise_and},
    ("tensor_tensor", "bitwise_engine"): lambda: {
        **_int_pair(("dst", "data1", "data2")), "op": nl.bitwise_and, "engine": E.gpsimd},
    ("tensor_tensor", "power_memory"): lambda: {"op": nl.power, "data1": tile((32, 16), space="psum"), "engine": E.unknown},
    ("tensor_tensor", "power_engine"): lambda: {"op": nl.power, "engine": E.vector},
    ("tensor_scalar", "alu_operator"): lambda: {"op0": nl.exp},
    ("tensor_scalar", "bitwise_integers"): lambda: {"op0": nl.bitwise_and, "operand0": 3, "op1": None, "operand1": None},
    ("tensor_scalar", "one_kind"): lambda: {**_int_pair(), "op0": nl.bitwise_and, "operand0": 3},
    ("tensor_scalar", "bitwise_engine"): lambda: {
        **_int_pair(), "op0": nl.bitwise_and, "operand0": 3, "op1": None, "operand1": None, "engine": E.scalar},
    ("tensor_scalar", "second_stage"): lambda: {"operand1": None},
    ("tensor_scalar", "unary_operand"): lambda: {"op0": nl.abs},
    ("tensor_scalar", "operand_fp32"): lambda: {"operand0": column(dtype="bfloat16")},
    ("tensor_scalar", "scalar_engine_ops"): lambda: {"op0": nl.maximum, "engine": E.scalar},
    ("tensor_scalar", "scalar_engine_generation", "trn1"): lambda: {"engine": E.scalar},
    ("tensor_scalar", "gpsimd_rsqrt"): lambda: {"engine": E.gpsimd},
    ("scalar_tensor_tensor", "alu_operator"): lambda: {"op1": nl.exp},
    ("scalar_tensor_tensor", "no_bitwise"): lambda: {"op0": nl.bitwise_or},
    ("tensor_tensor_scan", "alu_operator"): lambda: {"op0": nl.exp},
    ("tensor_tensor_scan", "binary"): lambda: {"op0": nl.square},
    ("tensor_tensor_scan", "no_bitwise"): lambda: {"op0": nl.bitwise_or},
    ("tensor_reduce", "bitwise_integers"): lambda: {"op": nl.bitwise_or},
    ("tensor_reduce", "reduction"): lambda: {"op": nl.power},
    ("tensor_reduce", "reduced_shape"): lambda: {"dst": tile((32, 2))},
    ("tensor_reduce", "negate"): lambda: {
        "op": nl.bitwise_or, "negate": True, "dst": column(dtype=_INT), "data": tile((32, 16), _INT)},
    ("tensor_scalar_reduce", "alu_operator"): lambda: {"op0": nl.exp},
    ("tensor_scalar_reduce", "no_bitwise"): lambda: {"op0": nl.bitwise_or},
    ("tensor_scalar_reduce", "unary_operand"): lambda: {"op0": nl.abs},
    ("tensor_scalar_reduce", "reduce_cmd"): lambda: {"reduce_cmd": C.idle, "reduce_init": None},
    ("tensor_scalar_reduce", "four_reductions"): lambda: {"reduce_op": nl.subtract},
    ("tensor_scalar_reduce", "no_reverse"): lambda: {"reverse0": True},
    ("tensor_scalar_reduce", "initial_value"): lambda: {"reduce_cmd": C.reset_reduce},
    ("tensor_scalar_cumulative", "alu_operator"): lambda: {"op0": nl.exp},
    ("tensor_scalar_cumulative", "no_bitwise"): lambda: {"op0": nl.bitwise_or},
    ("tensor_scalar_cumulative", "reduce_cmd"): lambda: {"reduce_cmd": C.idle},
    ("tensor_scalar_cumulative", "five_reductions"): lambda: {"op1": nl.logical_or},
    ("tensor_scalar_cumulative", "initial_immediate"): lambda: {"imm1": None},
    ("exponential", "reduce_cmd"): lambda: {"reduce_cmd": C.reset, "reduce_init": 0.0},
    ("exponential", "initial_zero"): lambda: {"reduce_cmd": C.reset_reduce},
    ("exponential", "four_axes"): lambda: {"src": tile((32, 2, 2, 2, 2))},
    ("select_reduce", "reduce_cmd"): lambda: {"reduce_cmd": C.load_reduce},
    ("select_reduce", "only_max"): lambda: {"reduce_op": nl.add},
    ("range_select", "only_max"): lambda: {"reduce_op": nl.add},
    ("range_select", "comparisons"): lambda: {"comp_op0": nl.not_equal},
    ("range_select", "fill_value"): lambda: {"on_false_value": -1e9},
    ("range_select", "exact_indices"): lambda: {"range_start": (1 << 24) - 15},
    ("range_select", "wide_maximum"): lambda: {
        "dst": tile((32, 16), "bfloat16"), "reduce_res": column(dtype="bfloat16")},
    ("affine_select", "affine_comparison"): lambda: {"cmp_op": nl.add},
    ("affine_select", "four_pairs"): lambda: {"pattern": [[1, 16], [0, 1], [0, 1], [0, 1], [0, 1]]},
    ("affine_select", "pattern_size"): lambda: {"pattern": [[1, 15]]},
    ("affine_select", "int32"): lambda: {"offset": 1 << 31},
    ("affine_select", "fill_number"): lambda: {"on_false_value": column()},
    ("iota", "four_pairs"): lambda: {"pattern": [[1, 16], [0, 1], [0, 1], [0, 1], [0, 1]]},
    ("iota", "pattern_size"): lambda: {"pattern": [[1, 17]]},
    ("iota", "int32"): lambda: {"channel_multiplier": -(1 << 31) - 1},
    ("nc_stream_shuffle", "mask"): lambda: {"shuffle_mask": [32] * 32},
    ("nc_stream_shuffle", "shuffle_size"): lambda: {"src": tile((32, 15))},
    ("nc_stream_shuffle", "shuffle_start"): lambda: {"src": tile((128, 16))[64:128], "dst": tile((128, 16))[0:96]},
    ("bn_stats", "stats_size"): lambda: {"data": tile((32, 513))},
    ("bn_stats", "stats_result"): lambda: {"dst": tile((32, 5))},
    ("bn_aggr", "triples"): lambda: {"data": tile((32, 11))},
    ("bn_aggr", "aggregate"): lambda: {"dst": tile((32, 3))},
    ("max8", "search_size"): lambda: {"src": tile((32, 7))},
    ("max8", "search_axes"): lambda: {"src": tile((32, 2, 2, 4))},
    ("max8", "eight_results"): lambda: {"dst": tile((32, 7))},
    ("nc_find_index8", "search_size"): lambda: {"data": tile((32, 16385))},
    ("nc_find_index8", "search_axes"): lambda: {"data": tile((32, 2, 2, 4))},
    ("nc_find_index8", "eight_results"): lambda: {"dst": tile((32, 9), "uint32")},
    ("nc_find_index8", "eight_values"): lambda: {"vals": tile((32, 4))},
    ("nc_match_replace8", "search_size"): lambda: {"data": tile((32, 7))},
    ("nc_match_replace8", "search_axes"): lambda: {"data": tile((32, 2, 2, 4))},
    ("nc_match_replace8", "eight_values"): lambda: {"vals": tile((32, 16))},
    ("quantize_mx", "quantized_groups"): lambda: {"src": tile((16, 32), "bfloat16")},
    ("quantize_mx", "quantized_shape"): lambda: {"dst": tile((32, 16), X4)},
    ("dropout", "between_0_and_1"): lambda: {"prob": 1.5},
    ("dropout", "probability"): lambda: {**_int_pair(), "prob": column(dtype="bfloat16")},
    ("rng", "rng_engine", "trn1"): lambda: {"engine": E.gpsimd},
    ("set_rng_seed", "seed_shape"): lambda: {"src_seeds": tile((1, 2), "uint32")},
    ("rand_set_state", "state_engine"): lambda: {"engine": E.vector},
    ("rand_set_state", "state_size"): lambda: {"src_seeds": tile((32, 24), "uint32")},
    ("rand_get_state", "state_engine"): lambda: {"engine": E.vector},
    ("rand_get_state", "state_size"): lambda: {"dst": tile((32, 5), "uint32")},
    ("rand_get_state", "state_memory"): lambda: {"dst": tile((32, 6), "uint32", "psum")},
    ("rand2", "ordered"): lambda: {"min": 1.0, "max": 1.0},
    ("tensor_partition_reduce", "partition_reduction"): lambda: {"op": nl.multiply},
    ("tensor_partition_reduce", "one_partition"): lambda: {"dst": tile((1, 15))},
    ("local_gather", "gather_partitions"): lambda: {"src_buffer": tile((24, 16)), "index": tile((24, 1), "uint16")},
    ("local_gather", "gather_width"): lambda: {"num_elem_per_idx": 3},
    ("local_gather", "gather_count"): lambda: {"num_valid_indices": 17},
    ("nc_n_gather", "gather_rows"): lambda: {"data": tile((16, 16))},
    ("nonzero_with_count", "count_slot"): lambda: {"dst": tile((32, 16), _INT)},
    ("sequence_bounds", "bounds_shape"): lambda: {"dst": tile((1, 16))},
    ("topk", "topk_counts"): lambda: {"n": 7},
    ("topk", "topk_source"): lambda: {"n": 257},
    ("dma_copy", "no_psum"): lambda: {"dst": tile((32, 16), space="psum")},
    ("dma_copy", "not_empty"): lambda: {"dst": tile((32, 16))[:, 4:4], "src": tile((32, 16), space="hbm")[:, 4:4]},
    ("dma_transpose", "not_empty"): lambda: {
        "dst": tile((16, 32), "bfloat16")[:, 4:4], "src": tile((32, 16), "bfloat16", "hbm")[4:4]},
    ("dma_compute", "not_empty"): lambda: {
        "dst": tile((32, 16))[:, 4:4], "srcs": [tile((32, 16), space="hbm")[:, 4:4], tile((32, 16))[:, 4:4]]},
    ("dma_copy", "same_elements"): lambda: {"src": tile((32, 15), space="hbm")},
    ("dma_copy", "hwdge_generation", "trn1"): lambda: {"dge_mode": D.hwdge},
    ("dma_copy", "engine_needs_hwdge"): lambda: {"engine": E.sync, "dge_mode": D.swdge},
    ("dma_copy", "engine"): lambda: {"engine": E.vector, "dge_mode": D.hwdge},
    ("dma_copy", "hwdge_dtype"): lambda: {"dst": tile((32, 16), "bfloat16"), "dge_mode": D.hwdge},
    ("dma_copy", "gather_mode"): lambda: {"src": gathered(), "dge_mode": D.hwdge},
    ("dma_copy", "priority"): lambda: {"priority": 1},
    ("dma_transpose", "no_psum"): lambda: {"dst": tile((16, 32), "bfloat16", "psum")},
    ("dma_transpose", "hwdge_generation", "trn1"): lambda: {
        "dge_mode": D.hwdge, "src": tile((16, 16), "bfloat16", "hbm"), "dst": tile((16, 16), "bfloat16")},
    ("dma_transpose", "priority"): lambda: {"priority": 0},
    ("dma_transpose", "permuted_shape"): lambda: {"dst": tile((32, 16), "bfloat16")},
    ("dma_transpose", "transpose_dtype"): lambda: {"dst": tile((16, 32), "float16")},
    ("dma_transpose", "transpose_target"): lambda: {"dst": tile((16, 32), "bfloat16", "hbm")},
    ("dma_transpose", "transpose_mode"): lambda: {"dge_mode": D.swdge},
    ("dma_transpose", "two_bytes"): lambda: {
        "dge_mode": D.hwdge, "src": tile((16, 32), "float32", "hbm"), "dst": tile((32, 16))},
    ("dma_transpose", "last_axis"): lambda: {
        "dge_mode": D.hwdge, "src": tile((16, 256), "bfloat16", "hbm"), "dst": tile((256, 16), "bfloat16", "hbm")},
    ("dma_transpose", "hwdge_rows"): lambda: {"dge_mode": D.hwdge},
    ("dma_transpose", "gather_generation", "trn1"): _gather_transpose,
    ("dma_transpose", "gather_rank"): lambda: _gather_transpose(
        source=((32, 2, 2, 16), "bfloat16"), dst=tile((16, 2, 2, 32), "bfloat16")),
    ("dma_transpose", "gather_rows"): lambda: _gather_transpose(
        source=((24, 16), "bfloat16", 24), dst=tile((16, 24), "bfloat16")),
    ("dma_transpose", "index_shape"): lambda: _gather_transpose(
        source=((24, 16), "bfloat16", 24), dst=tile((16, 24), "bfloat16")),
    ("dma_transpose", "index_dtype"): lambda: _gather_transpose(source=((32, 16), "bfloat16", 32, (32, 1), _INT)),
    ("dma_compute", "no_psum"): lambda: {"dst": tile((32, 16), space="psum")},
    ("dma_compute", "same_elements"): lambda: {"dst": tile((32, 8))},
    ("dma_compute", "only_add"): lambda: {"reduce_op": nl.maximum},
    ("dma_compute", "unit_scales"): lambda: {"scales": [1.0, 0.5]},
    ("dma_compute", "source_count"): lambda: {"srcs": [tile((32, 16), space="hbm")] * 17},
    ("dma_compute", "two_sources"): lambda: {"srcs": [gathered(), tile((32, 16)), tile((32, 16))]},
    ("dma_compute", "static_addresses"): lambda: {
        "srcs": [tile((64, 16), space="hbm").ap(pattern=[[16, 32], [1, 16]], scalar_offset=tile((1, 1), _INT)),
                 tile((32, 16))]},
    ("dma_compute", "unique"): lambda: {"srcs": [gathered(), tile((32, 16))], "unique_indices": False},
    ("core_barrier", "generation", "trn1"): dict,
    ("core_barrier", "shared_data"): lambda: {"data": tile((32, 16), space="private_hbm")},
    ("core_barrier", "cores"): lambda: {"cores": (0, 2)},
    ("sendrecv", "generation", "trn1", 1): dict,
    ("sendrecv", "two_cores", "trn2", 1): dict,
    ("sendrecv", "in_sbuf"): lambda: {"src": tile((32, 16), space="psum")},
    ("sendrecv", "same_dtype"): lambda: {"src": tile((32, 16), "bfloat16")},
    ("sendrecv", "same_shape"): lambda: {"src": tile((32, 4, 4))},
    ("sendrecv", "ranks"): lambda: {"send_to_rank": 2},
    ("sendrecv", "other_core"): lambda: {"send_to_rank": nl.program_id(0)},
    ("sendrecv", "gpsimd_size"): lambda: {**_pair(("src", "dst")), "src": tile((32, 257)), "dst": tile((32, 257)),
                                          "dma_engine": nisa.dma_engine.gpsimd_dma},
}  # fmt: skip
"""`(instruction, rule[, chip[, lnc]])`: the arguments that differ from BASE."""
