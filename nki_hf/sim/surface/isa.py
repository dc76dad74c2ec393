"""`nki.isa`: every public name of NKI 0.6, and what 0.7 adds."""

from __future__ import annotations

from nki_hf.sim.surface.entry import Entry, approximate, exact

__all__ = ["ISA"]

_RANDOM = "seeded, right distribution and size of state; not the chip's bits, whose seeding is not documented"
_FUNCTIONS = (
    "functions correct to float32, where the chip evaluates piecewise polynomials; sin "
    "extrapolates beyond [-pi, pi] as documented"
)

ISA: dict[str, Entry] = {
    "NkiInstruction": exact("(handle)"),
    "NkiInstruction.depends_on": exact("(*producers)"),
    "NkiScalar": exact(
        "(state, dtype=None, is_comparison=False)",
        note="comparisons, and uses of the value in the kernel's Python (if, int, range, an index), are refused",
        since="0.7",
    ),
    "NkiValidationError": exact("", note="the simulator's KernelFault"),
    "VirtualRegister": exact(
        "(state=None, frozen=False)", note="`while reg:` and `t[reg]` as by 0.6's parser; the tracer raises TypeError there"
    ),
    "activate2": approximate(
        "(dst, op, data, imm0, imm1, op0, op1, relu_param=0.0, reverse0=False, reverse1=False, "
        "reduce_op=None, reduce_res=None, reduce_cmd=idle, name=None)",
        _FUNCTIONS,
    ),
    "activation": approximate(
        "(dst, op, data, bias=None, scale=1.0, reduce_op=None, reduce_res=None, reduce_cmd=idle, name=None)",
        _FUNCTIONS,
    ),
    "activation_reduce": approximate(
        "(dst, op, data, reduce_op, reduce_res, bias=None, scale=1.0, name=None)",
        _FUNCTIONS,
    ),
    "affine_select": exact(
        "(dst, pattern, channel_multiplier, on_true_tile, on_false_value, cmp_op=equal, offset=0, name=None)",
    ),
    "bn_aggr": exact("(dst, data, name=None)"),
    "bn_stats": exact("(dst, data, name=None)"),
    "core_barrier": exact("(data, cores, engine=gpsimd, name=None)"),
    "dge_mode": exact("{unknown=0, swdge=1, hwdge=2, none=3}"),
    "dma_compute": exact("(dst, srcs, reduce_op, scales=None, unique_indices=True, oob_mode=error, name=None)"),
    "dma_copy": exact(
        "(dst, src, priority=None, oob_mode=error, dge_mode=unknown, engine=unknown, name=None)",
        note="priority, dge_mode and engine have no effect on values",
    ),
    "dma_engine": exact("{dma=1, gpsimd_dma=2}"),
    "dma_transpose": exact("(dst, src, axes=None, priority=None, dge_mode=unknown, oob_mode=error, name=None)"),
    "dropout": approximate("(dst, data, prob, name=None)", _RANDOM),
    "engine": exact("{unknown=0, tensor=1, scalar=2, gpsimd=3, dma=4, vector=5, sync=6}"),
    "exponential": approximate(
        "(dst, src, max_value=0.0, reduce_res=None, reduce_cmd=idle, reduce_init=0.0, name=None)",
        _FUNCTIONS,
    ),
    "get_nc_sub_version": exact("()", note="always 0, the first revision"),
    "get_nc_version": exact("()"),
    "gpsimd_engine": exact(),
    "iota": exact("(dst, pattern, offset=0, channel_multiplier=0, name=None)"),
    "local_gather": exact(
        "(dst, src_buffer, index, num_elem_per_idx=1, num_valid_indices=None, name=None)",
        note="an index out of bounds is a fault; on the chip it is undefined",
    ),
    "matmul_perf_mode": exact('{none="none", double_row="double_row"}'),
    "max8": exact("(dst, src, name=None)"),
    "memset": exact("(dst, value, engine=unknown, name=None)", note="a value out of an integer dtype's range saturates"),
    "nc_find_index8": exact("(dst, data, vals, name=None)"),
    "nc_match_replace8": exact("(dst, data, vals, imm, dst_idx=None, name=None)"),
    "nc_matmul": exact(
        "(dst, stationary, moving, is_stationary_onezero=False, is_moving_onezero=False, "
        "is_transpose=False, accumulate=None, tile_position=(), tile_size=(), perf_mode=none, "
        "name=None)",
        note="products exact, float32 sums in an order of their own; float32 operands are not split into passes",
    ),
    "nc_matmul_mx": exact(
        "(dst, stationary, moving, stationary_scale, moving_scale, tile_position=None, "
        "tile_size=None, accumulate=None, name=None)",
        note="products exact, float32 sums in an order of their own",
    ),
    "nc_n_gather": exact("(dst, data, indices, name=None)"),
    "nc_stream_shuffle": exact(
        "(dst, src, shuffle_mask, name=None)",
        note="a mask entry outside of src is a fault",
    ),
    "nc_transpose": exact("(dst, data, engine=unknown, name=None)"),
    "nc_version": exact("{gen2=2, gen3=3, gen4=4}"),
    "nonzero_with_count": exact("(dst, src, index_offset=0, padding_val=-1, name=None)"),
    "oob_mode": exact("{error=0, skip=1}"),
    "quantize_mx": exact("(dst, src, dst_scale, name=None)"),
    "rand2": approximate("(dst, min, max, name=None)", _RANDOM),
    "rand_get_state": approximate("(dst, engine=gpsimd, name=None)", _RANDOM),
    "rand_set_state": approximate("(src_seeds, engine=gpsimd, name=None)", _RANDOM),
    "range_select": exact(
        "(dst, on_true_tile, comp_op0, comp_op1, bound0, bound1, reduce_cmd=reset_reduce, "
        "reduce_res=None, reduce_op=maximum, range_start=0, on_false_value=FP32_MIN, name=None)",
    ),
    "reciprocal": exact("(dst, data, name=None)"),
    "reduce_cmd": exact("{idle=0, reset=1, reduce=2, reset_reduce=3, load_reduce=4}"),
    "register_alloc": exact("(x=None)"),
    "register_load": exact(
        "(dst, src)",
        note="a float is held in float32 and stored as such; as an offset, a bound or a condition it is refused unless whole",
    ),
    "register_move": exact("(dst, src)"),
    "register_store": exact("(dst, src)"),
    "rng": approximate("(dst, engine=vector, name=None)", _RANDOM),
    "scalar_engine": exact(),
    "scalar_load": exact("(src)", since="0.7"),
    "scalar_store": exact("(dst, value)", since="0.7"),
    "scalar_tensor_tensor": exact(
        "(dst, data, op0, operand0, op1, operand1, reverse0=False, reverse1=False, name=None)",
    ),
    "select_reduce": exact(
        "(dst, predicate, on_true, on_false, reduce_res=None, reduce_cmd=idle, reduce_op=maximum, "
        "reverse_pred=False, name=None)",
    ),
    "sendrecv": exact("(src, dst, send_to_rank, recv_from_rank, pipe_id, dma_engine=dma, name=None)"),
    "sequence_bounds": exact("(dst, segment_ids, name=None)"),
    "set_rng_seed": approximate("(src_seeds, name=None)", _RANDOM),
    "tensor_copy": exact("(dst, src, engine=unknown, name=None)"),
    "tensor_copy_predicated": exact("(dst, src, predicate, reverse_pred=False, name=None)"),
    "tensor_engine": exact(),
    "tensor_partition_reduce": exact("(dst, op, data, name=None)"),
    "tensor_reduce": exact("(dst, op, data, axis, negate=False, keepdims=False, name=None)"),
    "tensor_scalar": exact(
        "(dst, data, op0, operand0, reverse0=False, op1=None, operand1=None, reverse1=False, engine=unknown, name=None)",
        note="32-bit integers go through float32 as documented; the exact address form that the docstring "
        "hints at is not modelled",
    ),
    "tensor_scalar_cumulative": exact("(dst, src, op0, op1, imm0, imm1=None, reduce_cmd=reset_reduce, name=None)"),
    "tensor_scalar_reduce": exact(
        "(dst, data, op0, operand0, reduce_op, reduce_res=None, reverse0=False, "
        "reduce_cmd=reset_reduce, reduce_init=None, reduce_res_negate=False, name=None)",
    ),
    "tensor_tensor": exact(
        "(dst, data1, data2, op, engine=unknown, name=None)",
        note="32-bit integers on GpSimd wrap on overflow",
    ),
    "tensor_tensor_scan": exact(
        "(dst, data0, data1, initial, op0, op1, reverse0=False, reverse1=False, name=None)",
    ),
    "topk": approximate(
        "(val_dst, idx_dst, src, n, name=None)",
        "every partition of a group of 16 holds the group's result and equal values stand in the "
        "order of their indices; neither is documented",
    ),
    "unknown_engine": exact(),
    "vector_engine": exact(),
}
