"""Rules that many instructions share, made from the table in instructions.py, and the rules of every on-chip access."""

from __future__ import annotations

from nki_hf.sim.constraints.instructions import INSTRUCTIONS, Instruction
from nki_hf.sim.constraints.operand import engine_name, first_partition, free_axes, is_tile, partition_step, show
from nki_hf.sim.constraints.rule import Operands, Violation, rule
from nki_hf.sim.tensors.tensor import NkiTensor

_ARCH = "nki/guides/architecture/trainium_inferentia2_arch.rst: Accessing SBUF/PSUM tensors using compute engines"
_ENGINES = "nki/guides/architecture/trainium_inferentia2_arch.rst: NeuronCore-v2 compute engines (GpSimd and PSUM)"


def isa(opcode: str) -> str:
    """Source line of an instruction's docstring."""
    return f"nki/api/nki/isa/__init__.py: {opcode}"


def _add(opcode: str, table: Instruction) -> None:
    source = isa(opcode)
    if table.since > 2:

        @rule(opcode, "generation", f"NeuronCore-v{table.since} and newer", source)
        def generation(o: Operands) -> Violation:
            return f"the chip is {o.machine.chip.name}" if o.generation < table.since else None

    if len(table.engines) > 1:

        @rule(opcode, "engine", f"engine must be one of {', '.join(table.engines)}", source)
        def engine(o: Operands) -> Violation:
            asked = engine_name(o.engine)
            return f"engine={asked}" if asked not in (*table.engines, "unknown") else None

    if "gpsimd" in table.engines and len(table.engines) > 1:

        @rule(opcode, "engine", "GpSimd cannot access PSUM", _ENGINES)
        def gpsimd_psum(o: Operands) -> Violation:
            if engine_name(o.engine) != "gpsimd":
                return None
            for name, tile in o.tiles():
                if tile.space == "psum":
                    return f"{name} {show(tile)} is in psum and engine=gpsimd", "Use another engine, or copy to SBUF first"
            return None

    for space, names in (("sbuf", table.sbuf), ("psum", table.psum)):
        if names:
            _in_memory(opcode, space, names, source)
    if len(table.equal) > 1:
        _equal(opcode, table.equal, source)
    if table.columns:
        _columns(opcode, table, source)
    if table.one_in_psum:

        @rule(opcode, "placement", f"{' and '.join(table.one_in_psum)} may not both be in PSUM", source)
        def one_in_psum(o: Operands) -> Violation:
            tiles = o.tiles(table.one_in_psum)
            if len(tiles) == 2 and all(tile.space == "psum" for _, tile in tiles):
                return f"{' and '.join(show(tile) for _, tile in tiles)} are both in psum", "Copy one of them to SBUF"
            return None

    for operand, dtypes in table.dtypes:
        _dtypes(opcode, operand, dtypes, source)
    if table.same_dtype:

        @rule(opcode, "dtype", f"{' and '.join(table.same_dtype)} must have the same dtype", source)
        def same_dtype(o: Operands) -> Violation:
            tiles = o.tiles(table.same_dtype)
            if any(tile.dtype.name != tiles[0][1].dtype.name for _, tile in tiles):
                return ", ".join(f"{name} is {tile.dtype}" for name, tile in tiles)
            return None

    if table.fp32:

        @rule(opcode, "dtype", f"{', '.join(table.fp32)} must be float32", source)
        def fp32(o: Operands) -> Violation:
            for name, tile in o.tiles(table.fp32):
                if tile.dtype.name != "float32":
                    return f"{name} {show(tile)} is {tile.dtype}"
            return None

    if not table.indirect_all:
        _indirect(opcode, table, source)


def _in_memory(opcode: str, space: str, names: tuple[str, ...], source: str) -> None:
    @rule(opcode, "placement", f"{', '.join(names)} must be in {space.upper()}", source, name=f"in_{space}")
    def in_memory(o: Operands) -> Violation:
        for name, tile in o.tiles(names):
            if tile.space != space:
                return f"{name} {show(tile)} is in {tile.space}"
        return None


def _equal(opcode: str, names: tuple[str, ...], source: str) -> None:
    listed = ", ".join(names)

    @rule(opcode, "shape", f"{listed} must have equal partitions", source)
    def equal_partitions(o: Operands) -> Violation:
        tiles = o.tiles(names)
        if any(tile.partitions != tiles[0][1].partitions for _, tile in tiles):
            return ", ".join(f"{name} is {list(tile.shape)}" for name, tile in tiles)
        return None

    @rule(opcode, "shape", f"{listed} must have equal elements per partition", source)
    def equal_elements(o: Operands) -> Violation:
        tiles = o.tiles(names)
        if any(tile.free_size != tiles[0][1].free_size for _, tile in tiles):
            return ", ".join(f"{name} is {list(tile.shape)}" for name, tile in tiles)
        return None


def _columns(opcode: str, table: Instruction, source: str) -> None:
    reference = table.equal[0]

    @rule(opcode, "shape", f"{', '.join(table.columns)} must be a number or a [partitions, 1] tile", source)
    def columns(o: Operands) -> Violation:
        wanted = o.arguments[reference]
        for name, tile in o.tiles(table.columns):
            if tile.partitions != wanted.partitions or tile.free_size != 1:
                return f"{name} {show(tile)} beside {reference} {show(wanted)}"
        return None


def _dtypes(opcode: str, operand: str, dtypes: tuple[str, ...], source: str) -> None:
    @rule(opcode, "dtype", f"{operand} must be one of {', '.join(dtypes)}", source, name=f"{operand}_dtype")
    def dtype(o: Operands) -> Violation:
        for name, tile in o.tiles((operand,)):
            if tile.dtype.name not in dtypes:
                return f"{name} {show(tile)} is {tile.dtype}"
        return None


def _indirect(opcode: str, table: Instruction, source: str) -> None:
    allowed = f"only {', '.join(table.indirect)}" if table.indirect else "no operand"

    @rule(opcode, "argument", f"{allowed} may be chosen by run-time indices (gather, scatter)", source)
    def indirect(o: Operands) -> Violation:
        for name, tile in o.tiles():
            if name not in table.indirect and type(tile.indirection).__name__ in ("TensorIndirection", "VectorOffset"):
                return f"{name} {show(tile)} is indirect"
        return None


for _opcode, _table in INSTRUCTIONS.items():
    _add(_opcode, _table)

_ALL = tuple(INSTRUCTIONS)


@rule(_ALL, "placement", "operands of compute engines must be in SBUF or PSUM", _ARCH)
def _on_chip(o: Operands) -> Violation:
    for name, tile in o.tiles():
        if not tile.on_chip:
            return f"{name} {show(tile)} is in {tile.space}", "Load it with dma_copy first"
    return None


@rule(_ALL, "shape", "at most 128 partitions", _ARCH)
def _partitions(o: Operands) -> Violation:
    for name, tile in o.tiles():
        if tile.on_chip and tile.partitions > o.machine.chip.partitions:
            return f"{name} {show(tile)} has {tile.partitions:,} partitions", "Split the partition axis"
    return None


@rule(
    (*_ALL, "dma_copy", "dma_transpose", "dma_compute"), "shape", "an access has at least one element", _ARCH, documented=False
)
def _not_empty(o: Operands) -> Violation:
    for name, tile in o.tiles():
        if tile.size == 0:
            return f"{name} {show(tile)} is empty", "Leave the instruction out where there is nothing to do"
    return None


@rule(_ALL, "placement", "the partitions of an access must be adjacent", _ARCH)
def _adjacent_partitions(o: Operands) -> Violation:
    for name, tile in o.tiles():
        if tile.on_chip and is_tile(tile) and partition_step(tile) != 1:
            return f"{name} {show(tile)} has a step of {partition_step(tile)} partitions"
    return None


@rule(
    _ALL,
    "placement",
    "an access of more than 64 partitions must start at partition 0, of more than 32 at 0 or 64, others at 0, 32, 64 or 96",
    _ARCH,
    documented=False,
)
def _start_partition(o: Operands) -> Violation:
    for name, tile in o.tiles():
        if not tile.on_chip:
            continue
        start, count = first_partition(tile), tile.partitions
        step = 128 if count > 64 else 64 if count > 32 else 32
        if start % step:
            return f"{name} {show(tile)} of {count} partitions starts at partition {start}"
    return None


@rule(_ALL, "shape", "an access pattern has at most 4 free axes", _ARCH, documented=False)
def _pattern_axes(o: Operands) -> Violation:
    for name, tile in o.tiles():
        if tile.on_chip and tile.indirection is None and len(free_axes(tile)) > o.machine.chip.pattern_free_axes:
            return f"{name} {show(tile)} needs {len(free_axes(tile))} free axes", "Split the instruction, or make it contiguous"
    return None


@rule(_ALL, "shape", "sizes of an access pattern fit 16 bits, strides 16 bits with sign", _ARCH, documented=False)
def _pattern_range(o: Operands) -> Violation:
    chip = o.machine.chip
    for name, tile in o.tiles():
        if not tile.on_chip or tile.indirection is not None:
            continue
        for stride, size in free_axes(tile):
            if size > chip.pattern_size_max or abs(stride) > chip.pattern_stride_max:
                return f"{name} {show(tile)} has an axis of {size:,} elements at a step of {stride:,}", "Split the instruction"
    return None


@rule(
    _ALL,
    "shape",
    "an access has at most 64K elements per partition in SBUF, and 4K in PSUM before NeuronCore-v4",
    _ARCH,
    documented=False,
)
def _access_elements(o: Operands) -> Violation:
    chip = o.machine.chip
    in_psum = chip.psum_access_elements_max if o.generation < 4 else None
    for name, tile in o.tiles():
        most = chip.sbuf_access_elements_max if tile.space == "sbuf" else in_psum if tile.space == "psum" else None
        if most is not None and tile.free_size > most:
            return f"{name} {show(tile)} has {tile.free_size:,} elements per partition", "Split the instruction"
    return None


def _column_index(tile: NkiTensor) -> NkiTensor | None:
    """The index tile of a gathered or scattered on-chip operand."""
    return tile.indirection.index if type(tile.indirection).__name__ == "TensorIndirection" else None


@rule(_ALL, "placement", "the index of a gathered or scattered tile starts at partition 0, 32, 64 or 96", isa("tensor_copy"))
def _index_quadrant(o: Operands) -> Violation:
    for name, tile in o.tiles():
        index = _column_index(tile)
        if index is not None and index.storage.buffer.address is not None and first_partition(index) % 32:
            return f"the index of {name} {show(tile)} starts at partition {first_partition(index)}"
    return None


_READING = tuple(opcode for opcode in INSTRUCTIONS if opcode not in ("memset", "rng", "rand_get_state", "iota"))


@rule(
    _READING, "placement", "a gathered tile with an explicit address starts on the partition of its index", isa("tensor_copy")
)
def _index_partition(o: Operands) -> Violation:
    for name, tile in o.tiles():
        index = _column_index(tile)
        if index is None or name in ("dst", "val_dst", "idx_dst"):
            continue
        placed = tile.storage.buffer.address is not None and index.storage.buffer.address is not None
        if placed and first_partition(tile) != first_partition(index):
            return f"{name} {show(tile)} starts at partition {first_partition(tile)}, its index at {first_partition(index)}"
    return None
