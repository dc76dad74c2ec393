"""What no search of kernels draws, and why; tests/project/test_fuzz_kernels.py holds that it is just what is not drawn."""

from __future__ import annotations

__all__ = ["NOT_DRAWN"]

_ONE_VALUE = "the rules let its default alone pass (docs/constraints.md)"
_CLASS = "a class: its objects come from other calls, which are drawn"
_CONSTANT = "a constant of the chip, held by tests/sim/test_surface.py"
_ATTRIBUTE = "read by every kernel that is drawn, as a plain attribute that nothing can count"
_NO_OP = "several instructions: called on tiles, and no op of one"
_NOT_CALLED = "an op of instructions that cannot be called on tiles (tests/sim/test_lang_tile_math.py)"
_UNTOLD = "of no effect on values"

_REASONS: dict[str, tuple[str, ...]] = {
    _ONE_VALUE: (
        "isa.range_select(reduce_op)", "isa.range_select(on_false_value)", "isa.select_reduce(reduce_op)",
        "isa.tensor_scalar_reduce(reverse0)", "isa.dma_compute(unique_indices)", "language.num_programs(axes)",
        "language.program_id(axis)",
    ),
    _CLASS: (
        "isa.NkiInstruction", "isa.NkiScalar", "isa.NkiValidationError", "isa.VirtualRegister", "language.NkiBlockGrid",
        "language.NkiGrid", "language.NkiTileGrid", "language.NKIObject", "language.DType", "language.NkiScalar",
        "language.NkiTensor", "language.VirtualRegister",
    ),
    _ATTRIBUTE: (
        "language.NkiTensor.dtype", "language.NkiTensor.name", "language.NkiTensor.offset", "language.NkiTensor.shape",
        "language.NkiTensor.strides",
    ),
    _CONSTANT: (
        "isa.nc_version.gen2", "isa.nc_version.gen3", "isa.nc_version.gen4", "language.tile_size.bn_stats_fmax",
        "language.tile_size.gemm_moving_fmax", "language.tile_size.gemm_stationary_fmax", "language.tile_size.pmax",
        "language.tile_size.psum_bank_fmax", "language.tile_size.psum_bank_fmax_bytes", "language.tile_size.psum_fmax",
        "language.tile_size.psum_min_align", "language.tile_size.psum_num_banks", "language.tile_size.sbuf_fmax",
        "language.tile_size.sbuf_fmax_bytes", "language.tile_size.sbuf_min_align", "language.tile_size.sbuf_size_bytes",
        "language.tile_size.total_available_sbuf_size",
    ),
    _NO_OP: tuple(
        f"language.{name}" for name in ("ceil", "cos", "floor", "invert", "logical_not", "negative", "tan", "trunc")
    ),
    _NOT_CALLED: tuple(f"language.{name}()" for name in ("average", "bypass", "prelu")),
    _UNTOLD: ("isa.NkiInstruction.depends_on", "isa.core_barrier(engine)", "language.device_print"),
    "an engine that no instruction may name": ("isa.engine.tensor", "isa.engine.dma"),
}  # fmt: skip

NOT_DRAWN: dict[str, str] = {name: reason for reason, listed in _REASONS.items() for name in listed}
