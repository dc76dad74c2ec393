"""Which tests hold which statement about the language's semantics; a statement without a test that exists fails here.

`equals_numpy[name]` stands for the check of that instruction on random operands (test_isa_*.py).
"""

import ast
from pathlib import Path

import pytest
from isa_operands import CHECKS

HELD = {
    "PSUM and products": {
        "a product writes an element the first time and adds to it later, per element of the allocation":
            "test_isa_matmul.test_accumulation_is_per_element_of_the_allocation",
        "the state belongs to the allocation and not to the address":
            "test_isa_matmul.test_a_new_ndarray_at_the_same_address_starts_afresh",
        "accumulate=False overwrites, True adds, also to what memset or tensor_copy wrote":
            "equals_numpy[nc_matmul] test_isa_matmul.test_a_product_is_added_to_what_any_instruction_wrote_before",
        "accumulate=True on PSUM that no product wrote is undefined before the fourth generation, and says so":
            "test_constraints.test_accumulating_needs_a_product_that_was_written "
            "test_accumulation.test_only_a_product_may_start_an_accumulation_before_the_fourth_generation "
            "test_accumulation.test_a_launch_warns_once_of_a_product_added_to_what_a_copy_wrote_and_our_own_kernels_fault",
        "copies and reads do not reset it": "test_isa_matmul.test_reads_and_copies_do_not_reset_the_accumulation",
        "nc_transpose always overwrites":
            "test_lang_semantics.test_a_transpose_overwrites_what_a_product_left_and_the_next_product_adds_to_it",
        "products are exact and summed in float32; float32 operands are not rounded, tfloat32 keeps ten mantissa bits":
            "equals_numpy[nc_matmul] test_isa_matmul.test_float32_operands_are_not_rounded_to_bfloat16 "
            "test_isa_matmul.test_tfloat32_operands_keep_ten_mantissa_bits",
        "float32 does not mix with other types, nor e4m3 with e4m3fn":
            "test_constraints.test_each_rule_refuses_a_call_that_nothing_else_would",
        "PSUM in bfloat16 (fourth generation) adds in float32 and rounds each write":
            "test_isa_matmul.test_bfloat16_psum_adds_in_float32_and_rounds_each_write",
        "the moving operand is up to 512 wide, 4,096 or 8,192 from the fourth generation on":
            "test_constraints.test_moving_may_be_wider_from_the_fourth_generation_on",
        "double_row splits K in two; the four-element MX types carry a scale per block":
            "equals_numpy[nc_matmul] equals_numpy[nc_matmul_mx] equals_numpy[quantize_mx]",
        "is_transpose passes bits through": "test_isa_matmul.test_transpose_mode_passes_bits_through_a_permutation",
    },
    "casts and integers": {
        "computed in float32, rounded once when written": "test_isa_rounding.test_results_round_once_from_float32",
        "float to integer: nearest even, saturating; NaN is 0":
            "test_isa_rounding.test_float_to_integer_rounds_to_even_and_saturates "
            "test_isa_rounding.test_nan_becomes_the_integer_zero",
        "float32 to bfloat16: nearest even": "test_isa_rounding.test_float32_to_bfloat16_rounds_to_nearest_even",
        "bitwise and shift operators work on raw bits":
            "test_isa_rounding.test_bitwise_operators_work_on_bit_patterns "
            "test_isa_rounding.test_bitwise_not_and_reduction",
        "int32 and uint32 tiles are exact on GpSimd and float32 on the Vector engine":
            "test_isa_rounding.test_integers_above_2_to_24_are_exact_only_on_gpsimd",
        "tensor_scalar computes integers in float32": "test_lang_semantics.test_tensor_scalar_computes_integers_in_float32",
        "copies in one type keep every bit, NaN payloads too; dma_copy casts":
            "test_isa_moves.test_copies_and_transposes_keep_every_bit equals_numpy[dma_copy]",
        "float8 types have their own largest numbers": "test_isa_rounding.test_float8_ranges_and_what_lies_beyond",
        "comparisons and logic give ones and zeros":
            "test_lang_semantics.test_comparisons_and_logic_give_ones_and_zeros_in_any_type",
        "dtypes are names, keys and NumPy types":
            "test_lang_semantics.test_a_dtype_is_its_name_a_dictionary_key_and_a_numpy_type "
            "test_lang_semantics.test_the_printed_names_of_float8_types_are_names_too",
        "NKI_PRECISE_FP=0 keeps low-precision tiles in float32":
            "test_isa_rounding.test_high_precision_mode_keeps_low_precision_tiles_in_float32 "
            "test_lang_launch.test_high_precision_mode_keeps_low_precision_tiles_in_float32 "
            "test_lang_launch.test_high_precision_mode_refuses_bit_tricks_on_what_it_widened",
    },
    "views": {
        "ap addresses the storage, starts at the view and counts in the type it reads":
            "test_lang_views.test_ap_addresses_the_storage_and_not_the_view "
            "test_lang_semantics.test_ap_starts_at_the_view_and_counts_in_the_type_it_reads",
        "on chip the partition step is the elements per partition; in HBM it may be 0; free steps may be 0":
            "test_lang_views.test_broken_constraint_is_a_fault test_isa_semantics.test_broadcast_reads_have_stride_zero "
            "test_lang_semantics.test_a_partition_step_of_zero_in_hbm_loads_one_row_into_every_partition",
        "scalar_offset counts in the stride of indirect_dim and adds to the static offset":
            "test_lang_views.test_scalar_offset_counts_in_rows_of_the_base_and_adds_to_the_static_offset",
        "vector_offset: one row per partition, several columns column by column":
            "test_lang_views.test_vector_offset_of_several_columns_is_read_column_by_column equals_numpy[gathered operands]",
        "out of bounds is an error or leaves dst alone":
            "test_lang_views.test_index_out_of_bounds_is_a_fault_or_keeps_the_destination "
            "test_isa_moves.test_a_row_out_of_bounds_is_a_fault_unless_it_is_skipped",
        "integers keep the partition axis and two axes on chip, drop axes in HBM; steps, negatives, Ellipsis, nl.ds":
            "test_lang_views.test_view_has_the_documented_shape_strides_and_offset "
            "test_lang_views.test_integer_index_drops_the_axis_in_hbm_but_never_the_last_one",
        "operands need equal elements per partition, not equal shapes":
            "test_lang_semantics.test_operands_need_equal_elements_per_partition_and_not_equal_shapes",
        "the first partition is 0, 32, 64 or 96 depending on their number":
            "test_constraints.test_the_first_partition_depends_on_how_many_there_are",
    },
    "engines": {
        "functions have their limits at infinities and pass NaN on":
            "test_isa_activations.test_functions_take_their_limits_at_infinity_and_pass_nan_on",
        "activation: func(data * scale + bias)":
            "test_isa_semantics.test_scale_comes_before_bias_and_function equals_numpy[activation]",
        "Scalar and Vector engine keep a register per lane of their own; Vector instructions share theirs":
            "test_isa_reduction_registers.test_scalar_and_vector_engines_keep_separate_registers "
            "test_isa_reduction_registers.test_vector_instructions_share_their_registers "
            "test_isa_reduction_registers.test_registers_belong_to_the_lane_of_the_partition",
        "reduce_cmd: reset, reduce, read; without reduce_res the value stays in the register":
            "test_isa_reduction_registers.test_reset_only_clears_the_registers equals_numpy[activation_reduce]",
        "reduce_res may alias dst; reductions see values before rounding":
            "test_isa_reduction_registers.test_reduce_res_may_alias_dst "
            "test_isa_reduction_registers.test_reductions_take_values_before_they_are_rounded",
        "sin on the Scalar engine has no range reduction":
            "test_isa_semantics.test_the_sine_of_the_scalar_engine_extrapolates_beyond_pi",
        "tensor_scalar: op0 then op1, each reversible; tensor_reduce: trailing axes, negate after reducing":
            "equals_numpy[tensor_scalar] equals_numpy[scalar_tensor_tensor] equals_numpy[tensor_reduce]",
        "range_select compares in float32 and fills with the lowest float32, which bfloat16 makes -inf":
            "equals_numpy[range_select] "
            "test_isa_semantics.test_a_fully_masked_row_is_stable_in_bfloat16_scores_with_a_float32_maximum",
        "affine_select and iota: integer affine functions of partition and free indices":
            "equals_numpy[affine_select] equals_numpy[iota]",
        "NaN in what is not selected does not leak; tensor_copy_predicated keeps dst":
            "test_isa_semantics.test_nan_that_is_not_selected_does_not_leak equals_numpy[tensor_copy_predicated] "
            "equals_numpy[select_reduce]",
        "nc_transpose: up to 32 x 32 on the Vector engine, 128 x 128 on the Tensor engine, bits kept":
            "equals_numpy[nc_transpose] "
            "test_lang_semantics.test_the_vector_engine_transposes_up_to_32_by_32_bit_for_bit",
        "dma_transpose: the permutation follows from the rank; rows gathered by an index": "equals_numpy[dma_transpose]",
        "nc_stream_shuffle: one mask for each 32 partitions, 255 keeps dst": "equals_numpy[nc_stream_shuffle]",
        "not both operands of tensor_tensor in PSUM; no PSUM for GpSimd":
            "test_constraints.test_each_rule_refuses_a_call_that_nothing_else_would",
        "max8, nc_find_index8, nc_match_replace8: duplicates in order, all ones if not found":
            "test_isa_gathers.test_find_and_replace_pair_duplicates_as_documented equals_numpy[max8] "
            "equals_numpy[nc_find_index8] equals_numpy[nc_match_replace8]",
        "scans, bn_stats of even and odd elements, nonzero_with_count, topk in snake order":
            "equals_numpy[tensor_tensor_scan] equals_numpy[bn_stats] equals_numpy[bn_aggr] "
            "equals_numpy[nonzero_with_count] equals_numpy[topk]",
    },
    "memory": {
        "unwritten memory is NaN, or 4 in integers; moving it raises nothing":
            "test_lang_semantics.test_unwritten_memory_is_nan_or_four_and_moving_it_raises_nothing "
            "test_isa_matmul.test_nan_outside_of_the_operands_does_not_reach_the_product",
        "tiles may share addresses; reading one that another overwrote is a fault":
            "test_memory_addresses.test_sharing_an_address_is_a_fault_only_if_the_overwritten_tile_is_read",
        "outputs may be read back, inputs written in place are visible and may be returned":
            "test_lang_semantics.test_an_output_may_be_read_back_and_an_input_written_in_place_is_returned_as_itself "
            "test_lang_launch.test_inputs_written_in_place_are_visible_to_the_caller",
    },
    "two cores": {
        "program_id, num_programs, program_ndim": "test_lang_cores.test_program_ids_and_grid",
        "private_hbm per core, the n-th shared_hbm of both is one":
            "test_lang_semantics.test_each_core_has_private_memory_and_the_nth_shared_tensor_is_one "
            "test_lang_cores.test_shared_tensors_must_match_on_both_cores",
        "what sendrecv exchanges agrees in shape and dtype on both cores":
            "test_lang_cores_exchanges.test_what_two_cores_exchange_must_agree_and_the_fault_names_both_positions",
        "sendrecv pairs by pipe and order, also if one core does more":
            "test_lang_semantics.test_exchanges_pair_by_pipe_and_within_a_pipe_by_order_also_if_a_core_does_more_work",
        "core_barrier waits for all": "test_lang_cores_exchanges.test_barrier_makes_shared_memory_visible_to_both",
        "a deadlock names both positions":
            "test_lang_cores_exchanges.test_cores_that_wait_at_different_places_are_a_deadlock_with_both_positions "
            "test_lang_cores_exchanges.test_a_core_that_waits_for_one_that_returned_is_a_deadlock",
        "the return value is that of core 0": "test_lang_semantics.test_the_return_value_is_that_of_core_0",
    },
    "values of run time": {
        "NkiScalar: + - * and signs at both widths, // and % at int32, wrapping; comparisons and uses in Python are refused":
            "test_lang_scalars.test_arithmetic_wraps_at_the_width_as_pythons_integers_would "
            "test_lang_scalars.test_int32_divides_and_takes_remainders_as_python_does "
            "test_lang_scalars.test_comparisons_are_refused test_lang_scalars.test_the_kernels_python_cannot_read_a_scalar",
        "an int64 scalar addresses HBM, neither SBUF nor PSUM, and bounds no loop":
            "test_lang_scalars.test_an_offset_of_64_bits_addresses_hbm_and_is_refused_on_chip "
            "test_lang_loops.test_other_bounds_are_named_faults",
        "the index of fori_loop is passed by value; no loop of run time stands in no_reorder":
            "test_lang_loops.test_writing_the_index_has_no_effect_on_the_loop "
            "test_lang_loops.test_a_loop_of_run_time_cannot_stand_in_a_no_reorder_block_and_the_block_may_stand_in_the_loop",
        "run-time indices are int32 or uint32": "test_lang_refusals.test_floats_are_no_indices",
    },
    "the rest": {
        "names, priorities, modes, engines, no_reorder and depends_on do not change values":
            "test_lang_semantics.test_names_engines_priorities_and_orders_have_no_effect_on_values",
        "ranges run in order": "test_lang_semantics.test_ranges_run_in_order test_lang_tile_math.test_ranges_are_pythons",
        "device_print prints": "test_lang_launch.test_print_and_device_print_show_values",
        "collectives say that they are not simulated":
            "test_sim_as_nki.test_collectives_can_be_imported_and_say_that_they_are_not_simulated",
        "NEURON_PLATFORM_TARGET_OVERRIDE chooses the generation; generations compare":
            "test_lang_launch.test_platform_variable_chooses_the_chip "
            "test_lang_semantics.test_the_generations_compare_in_order",
        "parameters keep the documented order": "test_surface.test_the_name_exists_with_the_documented_signature",
        "NKIObject: class attributes are fields, with and without @dataclass":
            "test_sim_as_nki.test_objects_take_class_attributes_as_fields_with_and_without_dataclass",
    },
}  # fmt: skip
"""Statement by topic: the tests that hold it, separated by spaces."""

NOT_HELD = {
    "activation functions have documented input ranges (log 2**+-64, sqrt 2**-116..118, ...)":
        "values outside are computed exactly",
    "float8 transposes write 16-bit slots on trn2": "the pages do not show the layout: nc_transpose keeps 8-bit elements",
}  # fmt: skip
"""Statements that the simulator does not follow, and what it does instead."""

STATEMENTS = [(statement, tests) for topic in HELD.values() for statement, tests in topic.items()]


@pytest.mark.parametrize(("statement", "tests"), STATEMENTS, ids=[statement for statement, _ in STATEMENTS])
def test_the_statement_is_held_by_tests_that_exist(statement, tests):
    for item in _named(tests):
        if item.startswith("equals_numpy["):
            assert item[len("equals_numpy[") : -1] in _checks()
            continue
        module, name = item.split(".")
        (path,) = Path(__file__).parents[1].glob(f"*/{module}.py")
        tree = ast.parse(path.read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def _named(tests):
    parts, open_ = [], ""
    for word in tests.split(" "):
        open_ = f"{open_} {word}" if open_ else word
        if "[" not in open_ or open_.endswith("]"):
            parts.append(open_)
            open_ = ""
    return parts


def _checks():
    import importlib

    for path in Path(__file__).parent.glob("test_isa_*.py"):
        importlib.import_module(path.stem)
    return CHECKS
